"""What is timed, in which order, and on which people."""

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.dummy import DummyRegressor
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.preprocessing import Normalizer

import letheon
from letheon import ForgetPipeline, NaiveUnlearner
from letheon.base import ForgetMixin
from letheon.datasets import Requests
from letheon.evaluation import ORDINARY, SAME
from letheon.guarantee import Guarantee
from letheon.inner_estimator import fresh_copy
from tests.evaluation.stubs import SIMPLE, TEST, StubModel, X, Y, evaluate, trials_in

DELAY = 0.02


class LazyStub(StubModel):
    """Puts its work off."""

    def _finish_pending(self) -> None:
        self.diary.append(("finish", None))
        time.sleep(DELAY)


def test_what_a_method_puts_off_is_timed(diary: list[tuple[str, Any]]) -> None:
    evaluation = evaluate(LazyStub(), (X, Y), 4, seeds=1, **SIMPLE)
    assert min(evaluation.trials[0].forget_seconds) >= DELAY
    names = [name for name, _ in diary]
    after = [names[i + 1] for i, name in enumerate(names) if name == "forget"]
    assert set(after) == {"finish"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_lazy_forest_is_settled_inside_a_pipeline_too(
    monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    settled: list[int] = []
    settle = letheon.DaREForestClassifier.settle

    def noted(forest: Any) -> Any:
        settled.append(forest.n_rows_)
        return settle(forest)

    monkeypatch.setattr(letheon.DaREForestClassifier, "settle", noted)
    forest: Any = letheon.DaREForestClassifier(n_estimators=2)
    if wrapped:
        inner = ForgetPipeline([("inner", forest)])
        forest = ForgetPipeline([("scale", Normalizer()), ("model", inner)])
    evaluate(forest, (X, Y), 3, seeds=1, **SIMPLE)
    assert settled[-3:] == [439, 438, 437]


def test_by_default_nothing_is_left_for_later() -> None:
    model = NaiveUnlearner(LogisticRegression(), random_state=0).fit(X, Y)
    before = model.digest()
    assert isinstance(model, ForgetMixin)
    model._finish_pending()
    assert model.digest() == before


@pytest.mark.parametrize(("n_requests", "seeds"), [(5, [0]), (9, [0]), (21, [0]), (4, [0, 2, 4])])
def test_who_goes_first_changes_from_one_comparison_to_the_next(
    diary: list[tuple[str, Any]], n_requests: int, seeds: list[int]
) -> None:
    evaluate(StubModel(), (X, Y), n_requests, seeds=seeds, comparisons=3, **SIMPLE)
    trials = trials_in(diary)
    assert len(trials) == len(seeds)
    for number, calls in enumerate(trials):
        expected = [bool((number + k) % 2) for k in range(3)]
        assert baselines_first(calls) == expected


def baselines_first(calls: list[tuple[str, Any]]) -> list[bool]:
    """Return for each retrain whether it came before the request; people leave one by one."""
    left, flags = 440, []
    for name, size in calls:
        if name == "forget":
            left -= size
        else:
            flags.append(size < left)
    return flags[:-2]  # the last two are fresh fits to compare with


class SpyAttack:
    """An attack that takes note of what it is given."""

    name = "spy"

    def __init__(self) -> None:
        self.population: Any = None
        self.forget: NDArray[Any] = np.array([])

    def run(self, *_: Any, forget: Any, population: Any, **__: Any) -> tuple[Any, ...]:
        self.population, self.forget = population, forget
        return ()


def test_attackers_are_given_rows_of_people_who_never_trained() -> None:
    test_x, test_y = TEST
    owners = np.arange(200) + 400  # the first forty of them train too
    spy = SpyAttack()
    arguments: dict[str, Any] = {"seeds": 1, "ordinary": LogisticRegression(), "attacks": spy}
    evaluate(StubModel(), (X, Y), 2, test=(test_x, test_y, owners), **arguments)
    assert np.array_equal(spy.population[0], test_x[40:])
    assert np.array_equal(spy.population[1], test_y[40:])
    evaluate(StubModel(), (X, Y), 2, test=(test_x, test_y, owners - 300), **arguments)
    assert spy.population is None  # all test rows belong to training people
    spy = SpyAttack()
    arguments["attacks"] = spy
    evaluate(StubModel(), (X, Y), 2, test=TEST, **arguments)
    assert len(spy.population[1]) == 200


def test_an_attack_that_fails_leaves_the_rest_standing() -> None:
    class Broken(SpyAttack):
        name = "broken"

        def run(self, *_: Any, **__: Any) -> tuple[Any, ...]:
            raise RuntimeError("too few people")

    spy = SpyAttack()
    evaluation = evaluate(StubModel(), (X, Y), 2, seeds=1, attacks=[Broken(), spy], **SIMPLE)
    assert evaluation.failed_attacks == {"broken": "RuntimeError: too few people"}
    assert "'broken' failed: RuntimeError: too few people" in str(evaluation)
    assert len(spy.forget) == 2
    assert letheon.Evaluation.from_dict(evaluation.to_dict()) == evaluation


def test_one_attack_may_be_given_by_its_name() -> None:
    tree = NaiveUnlearner(LogisticRegression())
    evaluation = evaluate(
        tree, (X[:60], Y[:60]), 4, seeds=1, attacks="forgetting-quality", **SIMPLE
    )
    assert [result.attack for result in evaluation.attacks] == ["forgetting-quality"]


@pytest.mark.parametrize("kind", ["adaptive", "worst", "uniform"])
def test_adaptive_requests_are_reported(kind: Any) -> None:
    requests = Requests(kind=kind, n=2)
    oblivious = evaluate(NaiveUnlearner(LogisticRegression()), (X, Y), requests, seeds=1, **SIMPLE)
    fairness = " ".join(oblivious.fairness)
    assert ("the guarantee covers only requests that do" in fairness) == (kind != "uniform")
    assert ("other methods get other requests" in fairness) == (kind != "uniform")


class Guarded(StubModel):
    """Its guarantee covers requests that look at the model."""

    @property
    def guarantee_(self) -> Guarantee:
        return Guarantee(kind="empirical", reference="planted", requests="adaptive")


def test_a_guarantee_for_adaptive_requests_is_not_doubted() -> None:
    evaluation = evaluate(Guarded(), (X, Y), Requests(kind="adaptive", n=2), seeds=1, **SIMPLE)
    fairness = " ".join(evaluation.fairness)
    assert "other methods get other" in fairness
    assert "the guarantee covers only" not in fairness


class Growing(StubModel):
    """Always the work of one row: a growing share of ever fewer."""

    def work_of(self, n_left: int) -> float:
        return 1 / n_left


class Lucky(StubModel):
    """Every other request costs nothing."""

    def work_of(self, n_left: int) -> float:
        return float(n_left % 2)


def test_strength_counts_work_and_not_shares_of_what_is_left() -> None:
    requests = Requests(n=400, batch=10)
    evaluation = evaluate(Growing(), (X, Y), requests, seeds=1, comparisons=1, **SIMPLE)
    assert evaluation.strength is not None
    assert evaluation.strength.kind == "strong"
    assert evaluation.strength.exponent.value == pytest.approx(0, abs=1e-6)


def test_requests_without_work_have_a_strength() -> None:
    evaluation = evaluate(Lucky(), (X, Y), 40, seeds=2, comparisons=1, **SIMPLE)
    assert evaluation.strength is not None
    few = evaluate(Lucky(), (X, Y), 15, seeds=1, comparisons=1, **SIMPLE)
    assert few.strength is None


@pytest.mark.parametrize(
    ("requests", "n_counted"),
    [
        (Requests(n=33, batch=2), 16),  # the seventeenth is one person
        (Requests(n=31, batch=2), None),
        ([[i] if i % 2 else [i, 100 + i] for i in range(20)], None),
    ],
)
def test_only_requests_of_one_size_show_a_growth(requests: Any, n_counted: int | None) -> None:
    evaluation = evaluate(StubModel(), (X, Y), requests, seeds=1, comparisons=1, **SIMPLE)
    assert (None if evaluation.strength is None else evaluation.strength.exponent.n) == n_counted


def test_copies_keep_no_files_and_have_their_own_seed(tmp_path: Any) -> None:
    sisa = letheon.SISAClassifier(
        SGDClassifier(), n_shards=2, n_slices=2, checkpoint_dir=tmp_path, random_state=7
    )
    copy = fresh_copy(sisa, 3)
    assert copy.checkpoint_dir is None
    assert copy.random_state == 3
    assert (sisa.checkpoint_dir, sisa.random_state) == (tmp_path, 7)
    pipeline = ForgetPipeline([("hash", FeatureHasher()), ("model", sisa)])
    first, same, other = (fresh_copy(pipeline, seed) for seed in (3, 3, 4))
    assert first.get_params()["model__checkpoint_dir"] is None
    seeds = [each.get_params()["model__random_state"] for each in (first, same, other)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert 7 not in seeds
    assert pipeline.get_params()["model__checkpoint_dir"] == tmp_path


@pytest.mark.parametrize("wrapped", [False, True])
def test_nothing_is_left_in_the_directory_of_the_caller(tmp_path: Any, wrapped: bool) -> None:
    model: Any = letheon.SISAClassifier(
        SGDClassifier(), n_shards=2, n_slices=2, checkpoint_dir=tmp_path
    )
    if wrapped:
        model = ForgetPipeline([("scale", Normalizer()), ("model", model)])
    evaluation = evaluate(model, (X, Y), 2, seeds=2, **SIMPLE)
    assert list(tmp_path.rglob("*")) == []
    assert str(tmp_path) not in evaluation.to_json() + repr(evaluation)


def test_runs_that_agree_still_have_the_error_of_the_forgotten_rows() -> None:
    """Ten rows a trial, all answered alike: Agresti and Min with n + 2, by hand."""
    evaluation = evaluate(StubModel(), (X, Y), Requests(n=10), seeds=4, **SIMPLE)
    ours = evaluation.measures[SAME]["certifiability"]
    assert ours.value == 0
    assert ours.high is not None
    error = 100 * np.sqrt(2 / 12 / 10) / 2
    assert evaluation.trials[0].row_errors[SAME]["certifiability"] == pytest.approx(error)
    fixed = evaluate(StubModel(), (X, Y), [[i] for i in range(10)], seeds=4, **SIMPLE)
    same_people = fixed.measures[SAME]["certifiability"]
    assert same_people.high is not None
    # Four groups of people tell more than one group four times.
    assert same_people.high == pytest.approx(2 * ours.high)


def test_equal_numbers_are_a_fact_and_others_have_an_error() -> None:
    target = 3 * X[:, 0] + np.random.default_rng(0).normal(size=440)
    rows: dict[str, Any] = {"test": (TEST[0], 3 * TEST[0][:, 0]), "seeds": 2}
    evaluation = evaluate(NaiveUnlearner(Ridge()), (X, target), 3, ordinary=Ridge(), **rows)
    for name in ("effectiveness", "score lost", "prediction gap"):
        measure = evaluation.measures[ORDINARY][name]
        assert (measure.low, measure.value, measure.high) == (0, 0, 0)
    requests = [[0], [1], [2]]  # the same people in both trials: no spread over seeds
    evaluation = evaluate(
        NaiveUnlearner(Ridge()), (X, target), requests, ordinary=DummyRegressor(), **rows
    )
    gap = evaluation.measures[ORDINARY]["prediction gap"]
    assert gap.low is not None
    assert gap.high is not None
    assert gap.low < gap.value < gap.high
    ours = Ridge().fit(X[3:], target[3:]).predict(TEST[0])
    squares = (ours - target[3:].mean()) ** 2
    drawn = np.random.default_rng(1).integers(200, size=(2000, 200))
    error = np.sqrt(squares[drawn].mean(axis=1)).std()
    assert evaluation.trials[0].row_errors[ORDINARY]["prediction gap"] == pytest.approx(
        error, rel=0.1
    )
