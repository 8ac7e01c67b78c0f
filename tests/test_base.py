"""The template of `forget`, filled by the smallest family there is."""

import copy
import gc
import pickle
import threading
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon import NaiveUnlearner, SISAClassifier, model_locks, state
from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model, require_known
from letheon.data import Ids, Rows, as_ids, hold_table, row_ids
from letheon.exceptions import (
    ChangedParametersError,
    CheckpointWarning,
    EmptyModelError,
    IdsTypeError,
    NotFittedError,
    UnknownIdError,
)
from letheon.guarantee import Guarantee, MethodFacts


class Total(ForgetMixin, BaseEstimator):
    """The sum of all rows."""

    facts: ClassVar[MethodFacts] = NaiveUnlearner.facts
    rows_: Rows
    total_: float
    seed_: int

    def __init__(
        self,
        *,
        scale: Any = 1.0,
        offset: Any = 0,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.scale = scale
        self.offset = offset
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:
        stored = hold_table(X)
        rows = Rows(stored, None, row_ids(ids, len(stored)))
        vars(self).update(
            rows_=rows, total_=float(stored.sum()), seed_=0, **self._remember_settings()
        )
        return self

    def learn(self, X: Any, y: Any = None, *, ids: Any) -> Self:
        more = Rows(hold_table(X), None, as_ids(ids if ids is not None else []))
        return self._learn_rows(ids, lambda: self.rows_.concat(more))

    @property
    def n_rows_(self) -> int:
        return len(self.rows_)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="exact", reference="a sum is a sum", residual_state=("nothing",))

    def _locate_rows(self, requested: Ids) -> Removal:
        return locate_in(self.rows_, requested)

    def _prepare(self, removal: Removal) -> Any:
        return self.rows_.without(removal.where)

    def _commit(self, plan: Any) -> Outcome:
        vars(self).update(rows_=plan, total_=float(plan.X.sum()))
        return Outcome(work=0.5, rebuilt={"sums": 1})


class Talkative(Total):
    """Has something to say about every commit."""

    def _commit(self, plan: Any) -> Outcome:
        outcome = super()._commit(plan)
        remarks = (CheckpointWarning("first remark"), CheckpointWarning("second remark"))
        return Outcome(outcome.work, outcome.rebuilt, remarks)


class Guessing(Total):
    """Estimates something about the result."""

    guesses: ClassVar[dict[str, Any]] = {"tail": np.float32(0.25), "blocks": 3}

    def _commit(self, plan: Any) -> Outcome:
        return super()._commit(plan)._replace(estimates=self.guesses)


class Unwritten(ForgetMixin, BaseEstimator):
    """A family of which nothing but `fit` is written."""

    facts: ClassVar[MethodFacts] = NaiveUnlearner.facts
    seed_: int

    def fit(self) -> Self:
        vars(self).update(seed_=0, **self._remember_settings())
        return self


class Stubborn(Total):
    """Fails while it prepares."""

    error: BaseException = RuntimeError("no luck")

    def _prepare(self, removal: Removal) -> Any:
        raise self.error


def total(cls: type[Total] = Total, **params: Any) -> Total:
    return cls(**params).fit([[1.0], [2.0], [4.0], [8.0]], ids=["a", "b", "a", "c"])


def test_forget_removes_everything_of_a_person_and_says_so() -> None:
    model = total()
    receipt = model.forget(["a", "a"])
    assert model.total_ == 10.0
    assert model.ids_.tolist() == ["b", "c"]
    assert (receipt.n_ids, receipt.n_rows, receipt.work, receipt.rebuilt) == (
        1,
        2,
        0.5,
        {"sums": 1},
    )
    assert receipt.guarantee == model.guarantee_
    assert receipt.seconds >= 0


def test_estimates_of_the_method_reach_the_receipt_as_floats() -> None:
    receipt = total(Guessing).forget(["b"])
    assert receipt.estimates == {"tail": 0.25, "blocks": 3.0}
    assert {type(value) for value in receipt.estimates.values()} == {float}
    assert receipt.estimates is not Guessing.guesses


def test_nothing_is_estimated_unless_the_method_says_so() -> None:
    assert total().forget(["b"]).estimates == {}
    assert total(Guessing).forget([]).estimates == {}


@pytest.mark.parametrize(
    ("ids", "listed"),
    [
        (["b", "a", "b", "Z"], ["Z", "a", "b"]),
        ([10, 9, -1, 9], [-1, 9, 10]),
        (["10", "9", "", "ä"], ["", "10", "9", "ä"]),
    ],
)
def test_ids_are_listed_once_and_sorted(ids: list[Any], listed: list[Any]) -> None:
    # In order of appearance they would tell in which order people came.
    model = Total().fit(np.eye(4), ids=ids)
    assert model.ids_.tolist() == listed
    assert model.n_rows_ == 4


@pytest.mark.parametrize("no_ids", [[], (), set(), np.array([], int), np.array([]), iter([])])
def test_no_ids_are_a_no_op_with_a_receipt(no_ids: Any) -> None:
    model = total()
    before = model.digest()
    receipt = model.forget(no_ids)
    assert (receipt.n_ids, receipt.n_rows, receipt.work, receipt.rebuilt) == (0, 0, 0.0, {})
    assert model.digest() == before


def test_digests_frame_the_request() -> None:
    model = total()
    before = model.digest()
    receipt = model.forget(["b"], digest=True)
    assert receipt.digest_before == before != receipt.digest_after == model.digest()
    assert receipt.digest_after == total().fit([[1.0], [4.0], [8.0]], ids=["a", "a", "c"]).digest()


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (
            ["a", "unknown"],
            UnknownIdError,
            r"not in this model: \['unknown'\]; nothing was forgotten, see model.ids_",
        ),
        ([1], UnknownIdError, r"\[1\].*has str ids, but the request has int ids .1 is not '1'."),
        (["a", "b", "c"], EmptyModelError, r"3 id\(s\) own all 4 row\(s\).*Delete the model"),
        ("a", IdsTypeError, r"pass a list: \['a'\]"),
        (["a", None], IdsTypeError, "NoneType"),
    ],
)
def test_refusals_come_before_any_change(ids: Any, error: type[Exception], message: str) -> None:
    model = total()
    before = model.digest()
    with pytest.raises(error, match=message):
        model.forget(ids)
    assert model.digest() == before
    assert model.total_ == 15.0


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit])
def test_a_failure_while_preparing_changes_nothing(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stubborn, "error", error("no luck"))
    model = total(Stubborn)
    before = model.digest()
    with pytest.raises(error, match="no luck"):
        model.forget(["a"])
    assert model.digest() == before
    with lock_model(model):  # the lock was given back
        assert model.ids_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("missing", [1, 5, 6, 12])
def test_at_most_five_missing_ids_are_shown(missing: int) -> None:
    with pytest.raises(UnknownIdError) as info:
        require_known(as_ids(list(range(missing))), as_ids([99]))
    assert str(list(range(min(missing, 5)))) in str(info.value)
    assert (f"and {missing - 5} more" in str(info.value)) == (missing > 5)
    assert "is not '1'" not in str(info.value), "the hint is for ids of another kind"


def test_no_missing_ids_no_error() -> None:
    removal = locate_in(total().rows_, as_ids(["a"]))
    assert (removal.n_ids, removal.n_rows, removal.where.tolist()) == (1, 2, [0, 2])


def test_ids_of_the_other_kind_are_explained_before_any_change() -> None:
    model = Total().fit([[1.0], [2.0]])
    with pytest.raises(UnknownIdError, match=r"\['0'\].*has int ids, but the request has str ids"):
        model.forget(["0"])
    assert model.n_rows_ == 2


@pytest.mark.parametrize("name", ["ids_", "guarantee_", "residual_state_"])
def test_attributes_need_a_fit(name: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(Total(), name)
    assert not hasattr(Total(), name), "scikit-learn asks with hasattr"


@pytest.mark.parametrize("call", [lambda model: model.forget([1]), lambda model: model.digest()])
def test_calls_need_a_fit(call: Any) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        call(Total())


def test_tuning_becomes_part_of_the_claim_but_not_of_the_digest() -> None:
    model = total()
    digest = model.digest()
    assert model.guarantee_.tuning is None
    assert model.declare_tuning("grid search") is model
    assert model.guarantee_.tuning == "grid search"
    assert model.forget([]).guarantee.tuning == "grid search"
    assert model.digest() == digest


def test_tuning_is_said_in_words() -> None:
    with pytest.raises(ValueError, match="how is empty"):
        total().declare_tuning("")


def test_a_new_fit_drops_the_note_on_tuning() -> None:
    model = NaiveUnlearner(LogisticRegression()).fit([[0.0], [1.0]], [0, 1])
    model.declare_tuning("grid search").forget([])
    assert model.fit([[0.0], [1.0]], [0, 1]).guarantee_.tuning is None


def test_remarks_are_warnings_once_all_is_done() -> None:
    model = total(Talkative)
    with pytest.warns(CheckpointWarning) as caught:
        receipt = model.forget(["a"], digest=True)
    assert [str(single.message) for single in caught] == ["first remark", "second remark"]
    assert {single.filename for single in caught} == {__file__}
    assert receipt.digest_after == model.digest()


@pytest.mark.parametrize("call", ["forget", "learn"])
def test_a_warning_that_is_an_error_leaves_a_whole_model(call: str) -> None:
    model = total(Talkative)
    # Warnings are errors in all our tests.
    with pytest.raises(CheckpointWarning, match="first remark"):
        model.forget(["a"]) if call == "forget" else model.learn([[16.0]], ids=["a"])
    remaining = {
        "forget": ([2, 8], ["b", "c"]),
        "learn": ([1, 2, 4, 8, 16], ["a", "b", "a", "c", "a"]),
    }
    values, ids = remaining[call]
    fresh = Talkative().fit(np.array(values, float)[:, None], ids=ids)
    assert model.digest() == fresh.digest()
    with lock_model(model):  # the lock was given back
        assert model.n_rows_ == len(ids)


def test_learn_is_a_commit_too() -> None:
    model = total()
    assert model.learn([[16.0]], ids=["a"]) is model
    assert model.total_ == 31.0
    with pytest.raises(IdsTypeError, match="ids=None; expected one id per row"):
        model.learn([[16.0]], ids=None)
    with pytest.raises(ChangedParametersError):
        model.set_params(scale=2.0).learn([[16.0]], ids=["a"])
    with pytest.raises(NotFittedError):
        Total().learn([[16.0]], ids=["a"])
    assert model.total_ == 31.0


def test_a_family_may_add_to_the_environment() -> None:
    class Dependent(Total):
        def _describe_environment(self) -> dict[str, str]:
            return super()._describe_environment() | {"oracle": "7"}

    model = total(Dependent)
    environment = vars(model)["environment_"]
    assert environment["oracle"] == "7"
    assert environment.items() > vars(total())["environment_"].items()
    assert model._destroy_files() == []


def test_residual_state_is_that_of_the_claim() -> None:
    assert total().residual_state_ == ("nothing",)


def test_changed_parameters_are_refused_and_may_be_set_back() -> None:
    model = total()
    model.set_params(scale=2.0)
    with pytest.raises(
        ChangedParametersError,
        match=r"Total were changed after fit.*Restore their old values",
    ):
        model.forget(["a"])
    assert model.set_params(scale=1.0).forget(["a"]).n_rows == 2


@pytest.mark.parametrize("change", [{"n_jobs": 2}, {"random_state": 7}])
def test_neutral_parameters_may_change(change: dict[str, Any]) -> None:
    model = total()
    digest = model.digest()
    assert model.set_params(**change).digest() == digest
    assert model.forget(["a"]).n_rows == 2


@pytest.mark.parametrize(
    "change",
    [
        {"estimator__logisticregression__C": 2.0},
        {"estimator__standardscaler": "passthrough"},
        {"estimator__steps": [("only", LogisticRegression())]},
        {"estimator": LogisticRegression()},
    ],
)
def test_nested_changes_are_noticed(change: dict[str, Any]) -> None:
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    model = NaiveUnlearner(inner).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    model.set_params(**change)
    with pytest.raises(ChangedParametersError):
        model.forget([2])


@pytest.mark.parametrize("hold", [lambda inner: [inner], lambda inner: {"one": inner}])
def test_changes_in_lists_and_dicts_of_estimators_are_noticed(hold: Any) -> None:
    inner = LogisticRegression()
    model = Total(scale=hold(inner)).fit([[1.0], [2.0]])
    assert inner.set_params(n_jobs=2) is inner
    assert model.forget([]).n_rows == 0
    inner.C = 7.0
    with pytest.raises(ChangedParametersError):
        model.forget([1])


def test_a_part_that_moves_to_another_list_is_noticed() -> None:
    part = LogisticRegression()
    lists: list[list[Any]] = [[part], []]
    model = Total(scale=lists).fit([[1.0], [2.0], [3.0]])
    assert model.forget([0]).n_rows == 1
    lists[1].append(lists[0].pop())
    with pytest.raises(ChangedParametersError):
        model.forget([1])


class Placed(LogisticRegression):  # type: ignore[misc]
    """An estimator of another library with parameters `device` and `max_memory`."""

    def __init__(self, device: str = "here", max_memory: int = 1, C: float = 1.0) -> None:
        super().__init__(C=C)
        self.device = device
        self.max_memory = max_memory


@pytest.mark.parametrize("change", [{"estimator__device": "there"}, {"estimator__max_memory": 2}])
@pytest.mark.parametrize("cls", [NaiveUnlearner, SISAClassifier])
def test_what_is_neutral_for_nets_is_not_for_others(cls: Any, change: dict[str, Any]) -> None:
    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    model = cls(Placed(), random_state=3).fit(X, y)
    other = clone(model).set_params(**change).fit(X, y)
    assert other.digest() != model.digest()
    with pytest.raises(ChangedParametersError):
        model.set_params(**change).forget([2])


class Nested(Total):
    """Does something else in the middle of a request."""

    also: ClassVar[Any] = staticmethod(lambda _: None)

    def _prepare(self, removal: Removal) -> Any:
        self.also(self)
        return super()._prepare(removal)


@pytest.mark.parametrize(
    "change",
    [lambda model: model.forget(["b"]), lambda model: model.learn([[1.0]], ids=["c"])],
)
def test_a_change_inside_a_change_is_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = total(Nested)
    before = model.digest()
    with monkeypatch.context() as patch:
        patch.setattr(Nested, "also", staticmethod(change))
        with pytest.raises(RuntimeError, match="of this Nested was called while another"):
            model.forget(["a"])
    assert model.digest() == before
    assert model.forget(["a"]).n_rows == 2


def test_a_look_inside_a_change_and_another_models_change_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, other, seen = total(Nested), total(), list[Any]()

    def look(inside: Any) -> None:
        seen.append(inside.digest())
        seen.append(other.forget(["a"]).n_rows)

    before = model.digest()
    monkeypatch.setattr(Nested, "also", staticmethod(look))
    assert model.forget(["a"]).n_rows == 2
    assert seen == [before, 2]


def test_changes_behind_set_params_are_noticed() -> None:
    inner = LogisticRegression()
    model = NaiveUnlearner(inner).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    inner.C = 7.0
    with pytest.raises(ChangedParametersError):
        model.forget([2])


def test_digest_depends_on_state_and_setting() -> None:
    models = [total(), total(scale=2.0), total().fit([[1.0]]), total().fit([[1.0]], ids=["0"])]
    assert len({model.digest() for model in models}) == len(models)


def test_one_mutator_at_a_time() -> None:
    model, inside, most = total(), [0], [0]

    def mutate() -> None:
        for _ in range(20):
            with lock_model(model), lock_model(model):  # re-entrant
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                threading.Event().wait(0.0005)
                inside[0] -= 1

    threads = [threading.Thread(target=mutate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_other_models_do_not_wait() -> None:
    first, second = total(), total()
    with lock_model(first):
        thread = threading.Thread(target=second.forget, args=[["a"]])
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "a model waits for another one's lock"


def count_hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every digest that is taken."""
    calls: list[int] = []
    digest = state.digest

    def counted(value: Any) -> str:
        calls.append(1)
        return digest(value)

    monkeypatch.setattr(state, "digest", counted)
    return calls


def test_unchanged_parameters_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = total(scale=2.5, offset=1)
    calls = count_hashes(monkeypatch)
    model.forget(["a"])
    model.forget(["b"])
    model.forget([])
    assert len(calls) == 1
    model.set_params(scale=float("2.5")).forget([])  # equal, but another object
    assert len(calls) == 2


@pytest.mark.parametrize("change", [{"scale": True}, {"scale": 1}, {"offset": 0.0}, {"offset": 2}])
def test_a_change_after_a_request_is_noticed(change: dict[str, Any]) -> None:
    model = total()
    model.forget(["a"])
    before = model.get_params()
    with pytest.raises(ChangedParametersError):
        model.set_params(**change).forget(["b"])
    assert model.set_params(**before).forget(["b"]).n_rows == 1


def test_a_parameter_that_changes_from_inside_is_noticed() -> None:
    scale: list[float] = [1.0]
    model = total(scale=scale)
    model.forget(["a"])
    scale.append(2.0)
    with pytest.raises(ChangedParametersError):
        model.forget(["b"])


def test_a_new_fit_forgets_what_was_verified() -> None:
    model = total()
    model.forget(["a"])
    model.set_params(scale=3.0).fit([[1.0], [2.0]], ids=["x", "y"])
    assert model.forget(["x"]).n_rows == 1
    with pytest.raises(ChangedParametersError):
        model.set_params(scale=1.0).forget(["y"])


def test_an_own_way_to_tell_parameters_is_always_asked() -> None:
    class MoodyTotal(Total):
        mood = "calm"

        def _digest_parameters(self) -> str:
            return self.mood

    model = total(MoodyTotal)
    model.forget(["a"])
    model.mood = "angry"  # type: ignore[attr-defined]
    with pytest.raises(ChangedParametersError):
        model.forget(["b"])


def test_what_is_beside_a_model_neither_travels_nor_stays() -> None:
    gc.collect()
    before = len(model_locks._runtime_states)
    model = total()
    model.forget(["a"])
    twins = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model), clone(model).fit([[1.0]])]
    assert twins[0].digest() == twins[1].digest() == model.digest()
    del model, twins
    gc.collect()
    assert len(model_locks._runtime_states) == before


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.n_rows_, "must implement n_rows_"),
        (lambda model: model.ids_, "must implement _get_ids"),
        (lambda model: model.guarantee_, "must implement _make_guarantee"),
        (lambda model: model.forget([1]), "must implement _locate_rows"),
        (lambda model: model._prepare(Removal(1, 1, None)), "must implement _prepare"),
        (lambda model: model._commit(None), "must implement _commit"),
    ],
)
def test_what_a_family_lacks_is_said_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^Unwritten {sentence}$"):
        call(Unwritten().fit())
