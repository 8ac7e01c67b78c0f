"""The test of the tests: estimators that cheat on purpose, every one of which must be caught."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeClassifier

from letheon import NaiveUnlearner, Receipt, SISAClassifier
from letheon.base import Outcome, Removal
from letheon.checks import check_forgetting_estimator, yield_checks


class IgnoresForget(NaiveUnlearner):
    """Writes receipts and changes nothing."""

    def _commit(self, plan: Any) -> Outcome:
        return Outcome(work=1.0)


class KeepsTheModel(NaiveUnlearner):
    """Drops the rows but goes on with the model that learned from them."""

    def _commit(self, plan: Any) -> Outcome:
        self._install(plan.rows, self.estimator_, self.seed_)
        return Outcome(work=1.0)


class KeepsTheModelAndDigestsRowsOnly(KeepsTheModel):
    """As before, with a digest that looks only at the rows."""

    def _digest_state(self) -> dict[str, Any]:
        return {"rows": self.rows_, "seed": self.seed_}


class _Hoarder(NaiveUnlearner):
    """Base of cheats that keep something which the digest does not cover."""

    _not_digested: ClassVar[frozenset[str]] = NaiveUnlearner._not_digested | {"attic_"}

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Any:
        super().fit(X, y, ids=ids)
        self.attic_ = self._hoard(np.asarray(X, float), ids)
        return self

    def _hoard(self, X: Any, ids: Any) -> Any:
        raise NotImplementedError


class KeepsTheRow(_Hoarder):
    def _hoard(self, X: Any, ids: Any) -> Any:
        return X.copy()


class KeepsTheId(_Hoarder):
    def _hoard(self, X: Any, ids: Any) -> Any:
        return [str(name) for name in ids]


class KeepsTheSum(_Hoarder):
    def _hoard(self, X: Any, ids: Any) -> Any:
        return X.sum(axis=0)


class KeepsTheMean(_Hoarder):
    def _hoard(self, X: Any, ids: Any) -> Any:
        return X.mean(axis=0)


class KeepsTheSecondMoment(_Hoarder):
    def _hoard(self, X: Any, ids: Any) -> Any:
        return X.T @ X


class ChangesOnFailure(NaiveUnlearner):
    """Removes whom it knows before it complains about the others."""

    def _locate(self, wanted: Any) -> Removal:
        found = self.rows_.find(wanted)
        if len(found.missing) and len(found.positions):
            self._commit(self._prepare(Removal(1, len(found.positions), found.positions)))
        return super()._locate(wanted)


class LosesRowsOnFailure(NaiveUnlearner):
    """Keeps its model on failure, but its rows are gone."""

    def _locate(self, wanted: Any) -> Removal:
        found = self.rows_.find(wanted)
        if len(found.missing) and len(found.positions):
            self.rows_ = self.rows_.without(found.positions)
        return super()._locate(wanted)


class ConstantDigest(NaiveUnlearner):
    def digest(self) -> str:
        return "0" * 64


class DigestOfIds(NaiveUnlearner):
    def _digest_state(self) -> dict[str, Any]:
        return {"ids": self.rows_.ids, "seed": self.seed_}


class LyingReceipt(NaiveUnlearner):
    def forget(self, ids: Any, *, digest: bool = False) -> Receipt:
        receipt = super().forget(ids, digest=digest)
        vars(receipt).update(n_rows=receipt.n_ids)
        return receipt


class RemembersOrder(NaiveUnlearner):
    """Its seed moves with every request, as a generator that is consumed would."""

    def _commit(self, plan: Any) -> Outcome:
        outcome = super()._commit(plan)
        self.seed_ += 1
        return outcome


class ClaimsTooMuch(NaiveUnlearner):
    def _claim(self) -> Any:
        claim = super()._claim()
        vars(claim).update(requests="adaptive")
        return claim


class PredictLeavesATrace(NaiveUnlearner):
    def predict(self, X: Any) -> Any:
        self.asked_ = vars(self).get("asked_", 0) + 1
        return super().predict(X)


class ResurrectingSISA(SISAClassifier):
    """The defect of a published SISA: shards are retrained from lists that never shrink."""

    def _prepare(self, removal: Removal) -> Any:
        self._first = vars(self).get("_first", self.ensemble_)
        return super()._prepare(removal)

    def _commit(self, plan: Any) -> Outcome:
        outcome = super()._commit(plan)
        if vars(self).get("_again"):
            self._install(self._first, self.checkpoint_key_)
        self._again = True
        return outcome


CHEATS: list[tuple[Any, str]] = [
    (IgnoresForget(Ridge()), "check_forget_equals_retrain"),
    (KeepsTheModel(Ridge()), "check_forget_equals_retrain"),
    (KeepsTheModelAndDigestsRowsOnly(Ridge()), "check_forget_equals_retrain"),
    (KeepsTheRow(Ridge()), "check_canary_bytes_absent_from_saved_model"),
    (KeepsTheId(Ridge()), "check_canary_bytes_absent_from_saved_model"),
    (KeepsTheSum(Ridge()), "check_aggregates_do_not_reveal_the_row"),
    (KeepsTheMean(Ridge()), "check_aggregates_do_not_reveal_the_row"),
    (KeepsTheSecondMoment(Ridge()), "check_aggregates_do_not_reveal_the_row"),
    (ChangesOnFailure(Ridge()), "check_forget_failure_leaves_model_unchanged"),
    (LosesRowsOnFailure(Ridge()), "check_forget_failure_leaves_model_unchanged"),
    (ConstantDigest(Ridge()), "check_digest_depends_on_state"),
    (DigestOfIds(Ridge()), "check_digest_depends_on_state"),
    (LyingReceipt(Ridge()), "check_forget_removes_all_rows_of_a_person"),
    (RemembersOrder(DecisionTreeClassifier()), "check_forget_in_one_batch_equals_one_by_one"),
    (ClaimsTooMuch(Ridge()), "check_guarantee_is_honest"),
    (PredictLeavesATrace(Ridge()), "check_predict_is_pure"),
    (
        ResurrectingSISA(DecisionTreeClassifier(), n_shards=2),
        "check_forget_in_one_batch_equals_one_by_one",
    ),
]


@pytest.mark.parametrize(("cheat", "name"), CHEATS, ids=lambda case: type(case).__name__)
def test_cheat_is_caught(cheat: Any, name: str) -> None:
    check: Callable[[Any], None] = next(c for c in yield_checks(cheat) if c.__name__ == name)
    with pytest.raises(AssertionError):
        check(cheat)


@pytest.mark.parametrize("cheat", [cheat for cheat, _ in CHEATS], ids=lambda c: type(c).__name__)
def test_the_whole_suite_refuses_every_cheat(cheat: Any) -> None:
    with pytest.raises(AssertionError):
        check_forgetting_estimator(cheat)
