"""Estimators that cheat on purpose: about the model, the receipt, the digest or their conduct."""

from typing import Any

import numpy as np

from letheon import NaiveUnlearner, Receipt, SISAClassifier
from letheon.base import Outcome, Removal


class IgnoresForget(NaiveUnlearner):
    """Writes receipts and changes nothing."""

    def _commit(self, plan: Any) -> Outcome:
        return Outcome(work=1.0)


class KeepsTheModel(NaiveUnlearner):
    """Drops the rows but goes on with the model that learned from them."""

    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan._replace(estimator=self.estimator_))


class KeepsTheModelAndDigestsRowsOnly(KeepsTheModel):
    """As before, with a digest that looks only at the rows."""

    def _digest_state(self) -> dict[str, Any]:
        return {"rows": self.rows_, "seed": self.seed_}


class ChangesOnFailure(NaiveUnlearner):
    """Removes whom it knows before it complains about the others."""

    def _locate_rows(self, wanted: Any) -> Removal:
        matches = self.rows_.find(wanted)
        if len(matches.missing) and len(matches.positions):
            self._commit(self._prepare(Removal(1, len(matches.positions), matches.positions)))
        return super()._locate_rows(wanted)


class LosesRowsOnFailure(NaiveUnlearner):
    """Keeps its model on failure, but its rows are gone."""

    def _locate_rows(self, wanted: Any) -> Removal:
        matches = self.rows_.find(wanted)
        if len(matches.missing) and len(matches.positions):
            self.rows_ = self.rows_.without(matches.positions)
        return super()._locate_rows(wanted)


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
    def _make_guarantee(self) -> Any:
        claim = super()._make_guarantee()
        vars(claim).update(requests="adaptive")
        return claim


class PredictLeavesATrace(NaiveUnlearner):
    def predict(self, X: Any) -> Any:
        self.asked_ = vars(self).get("asked_", 0) + 1
        return super().predict(X)


class ResurrectingSISA(SISAClassifier):
    """The defect of a published SISA: shards are retrained from lists that never shrink."""

    def _commit(self, plan: Any) -> Outcome:
        first = vars(self).setdefault("_first", self.ensemble_)
        again, self._again = vars(self).get("_again", False), True
        return super()._commit(plan._replace(ensemble=first) if again else plan)


class ShowsAnEmptyModel(NaiveUnlearner):
    """Zeroes the old coefficients before it puts the new ones in place."""

    def _commit(self, plan: Any) -> Outcome:
        self.estimator_.coef_ = np.zeros_like(self.estimator_.coef_)
        return super()._commit(plan)


class ShowsHalfAModel(NaiveUnlearner):
    """Replaces two attributes of its model in one line, which is two steps."""

    def _commit(self, plan: Any) -> Outcome:
        inner, new = self.estimator_, plan.estimator
        inner.coef_, inner.intercept_ = new.coef_, new.intercept_
        return super()._commit(plan)


class ShowsTheGapBetweenTwoAttributes(NaiveUnlearner):
    """Has its offset beside the model, and replaces the two one after the other."""

    offset_: float

    def _install_model(self, rows: Any, *others: Any) -> None:
        super()._install_model(rows, *others)
        self.offset_ = float(np.asarray(rows.y).mean())

    def predict(self, X: Any) -> Any:
        return super().predict(X) + self.offset_


class HasNoModelForAMoment(NaiveUnlearner):
    """Deletes the old model first, so that a reader gets an error."""

    def _commit(self, plan: Any) -> Outcome:
        del self.estimator_
        return super()._commit(plan)


class UndressesWhilePreparing(NaiveUnlearner):
    """Spoils the model in place while it prepares, and heals it in the commit."""

    def _prepare(self, removal: Removal) -> Any:
        self.estimator_.coef_ *= 0.5
        return super()._prepare(removal)


class IgnoresSettings(NaiveUnlearner):
    """Goes on with other settings than those of the fit."""

    def _require_same_parameters(self) -> None:
        pass


class RefusesSettingsVaguely(NaiveUnlearner):
    """Refuses, but by an error that says nothing about parameters."""

    def _require_same_parameters(self) -> None:
        if self._digest_parameters() != vars(self).get("parameters_"):
            raise ValueError("no")


class NoticesNumbersOnly(NaiveUnlearner):
    """Compares numeric parameters and overlooks all others."""

    def _digest_parameters(self) -> str:
        params = self.get_params(deep=True)
        return repr(sorted((k, v) for k, v in params.items() if type(v) in (int, float)))


class DigestsFloatsOnly(NaiveUnlearner):
    """Its digest overlooks ids, labels and everything else that is no float."""

    def _digest_state(self) -> dict[str, Any]:
        inner = {k: v for k, v in vars(self.estimator_).items() if _is_float(v)}
        return {"X": self.rows_.X, "inner": inner}


class DigestsNoLists(NaiveUnlearner):
    """Keeps what it learned in a list of numbers that its digest leaves out."""

    learned_: list[float]

    def _install_model(self, rows: Any, estimator: Any, *others: Any) -> None:
        super()._install_model(rows, estimator, *others)
        self.learned_ = [float(value) for value in np.ravel(estimator.coef_)]

    def _digest_state(self) -> dict[str, Any]:
        return {k: v for k, v in super()._digest_state().items() if type(v) is not list}


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
