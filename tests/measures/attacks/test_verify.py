"""Backdoor verification with models: it finds the controls, with the computed error rates."""

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.validation import check_is_fitted

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier
from letheon.measures.attacks import (
    AttackResult,
    BackdoorTest,
    BeforeAfter,
    FineTuneOnly,
    ImageTrigger,
    KeepsEverything,
    TabularTrigger,
    deletion_confidence,
    errors,
    threshold,
)
from letheon.measures.attacks._backdoor import plant_backdoors, target_label

N_COLUMNS = 30
TREE = DecisionTreeClassifier()
NET = MLPClassifier((24,), max_iter=60, tol=0, learning_rate_init=0.02, n_iter_no_change=99)


def rows(n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, N_COLUMNS)).astype(np.float32)
    X[:, :3] += 3 * np.eye(3)[y]
    return X, y


X, Y = rows(240, 0)
IDS = np.repeat(np.arange(30), 8)
LEAVE = [3, 8, 11, 20, 27]
POPULATION = rows(150, 1)


@cache
def attacked(kind: str, seed: int = 0) -> AttackResult:
    models: dict[str, Any] = {
        "keeps": KeepsEverything(TREE),
        "tunes": FineTuneOnly(NET),
        "naive": NaiveUnlearner(TREE),
        "sisa": SISAClassifier(TREE, n_shards=2),
        "forest": DaREForestClassifier(n_estimators=10),
    }
    trigger = TabularTrigger.of(X, secret=seed + 5, n_columns=6)
    test = BackdoorTest(trigger=trigger, fraction=1.0, n_repeats=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        (result,) = test.run(
            models[kind], X, Y, ids=IDS, forget=LEAVE, population=POPULATION, seed=seed
        )
    return result


def mean(results: list[AttackResult], name: str) -> float:
    return float(np.mean([result.measures[name].value for result in results]))


@pytest.mark.parametrize("kind", ["keeps", "tunes"])
def test_finds_what_was_not_forgotten(kind: str) -> None:
    results = [attacked(kind, seed) for seed in range(4)]
    assert all(result.found for result in results)
    assert mean(results, "AUC") >= 0.9
    assert mean(results, "testers who show it") > 0.5
    assert mean(results, "certifiability") > 25
    assert all("In 0 of 2 repeats" not in result.note for result in results)


@pytest.mark.parametrize("kind", ["naive", "sisa", "forest"])
def test_finds_nothing_where_all_was_forgotten(kind: str) -> None:
    results = [attacked(kind, seed) for seed in range(4)]
    assert not any(result.found for result in results)
    assert abs(mean(results, "AUC") - 0.5) < 0.1
    assert mean(results, "testers who show it") < 0.15
    assert all("In 0 of 2 repeats" in result.note for result in results)


def test_keeping_everything_changes_nothing_from_before_to_after() -> None:
    measures = attacked("keeps").measures
    assert measures["backdoor success"].value == measures["backdoor success before"].value


def test_chance_is_measured_with_patterns_that_were_not_planted() -> None:
    results = [attacked("keeps", seed) for seed in range(4)]
    assert mean(results, "chance") < mean(results, "backdoor success before") - 0.3
    assert mean(results, "deletion confidence") > 0.9


def test_says_what_it_does_not_prove() -> None:
    note = attacked("naive").note
    assert "does not reject proves nothing" in note
    assert "dishonest provider can pass" in note
    assert "clones" in note


def test_result_travels() -> None:
    result = attacked("naive")
    again = AttackResult.from_dict(result.to_dict())
    assert (again.measures, again.floor) == (result.measures, result.floor)
    assert next(iter(result.measures)) == "backdoor success"


def small(seed: int, model: Any = None, **options: Any) -> AttackResult:
    prototype = KeepsEverything(TREE) if model is None else model
    given: dict[str, Any] = {"ids": IDS, "forget": LEAVE, "population": POPULATION, "seed": seed}
    (result,) = BackdoorTest(n_repeats=1, n_queries=10).run(prototype, X, Y, **(given | options))
    return result


def test_seed_decides() -> None:
    assert small(1).to_dict() == small(1).to_dict()
    assert small(1).to_dict() != small(2).to_dict()


def test_touches_neither_model_nor_rows() -> None:
    prototype, before = KeepsEverything(TREE), (X.copy(), Y.copy())
    small(1, prototype)
    with pytest.raises(NotFittedError):
        check_is_fitted(prototype)
    assert np.array_equal(X, before[0])
    assert np.array_equal(Y, before[1])


def test_people_with_one_row_share_patterns() -> None:
    result = small(1, ids=None, forget=np.arange(40))
    assert result.labels is not None
    assert len(result.labels) == 2 * 5


def test_progress_and_an_ordinary_floor() -> None:
    seen: list[tuple[int, int]] = []
    result = small(1, naive=TREE, population=None, progress=lambda *done: seen.append(done))
    assert seen == [(1, 1)]
    assert result.n_models == 3


def test_images() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    trigger = ImageTrigger(secret=4, shape=(8, 8), n_pixels=6)
    test = BackdoorTest(trigger=trigger, fraction=1.0, n_testers=3, n_repeats=2)
    options: dict[str, Any] = {
        "forget": np.arange(60),
        "population": (images[400:600], labels[400:600]),
    }
    detections = [
        test.run(model, images[:400], labels[:400], **options)[0].found
        for model in (KeepsEverything(TREE), NaiveUnlearner(TREE))
    ]
    assert detections == [True, False]


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (NaiveUnlearner(Ridge()), {}, "regressor"),
        (NaiveUnlearner(TREE), {"forget": [99]}, "not in the training rows"),
        (NaiveUnlearner(TREE), {"forget": []}, "forget is empty"),
    ],
)
def test_refuses(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small(0, model, **options)
    with pytest.raises(ValueError, match=r"n_testers must be between 1 and 5.*, not 6"):
        BackdoorTest(n_testers=6).run(NaiveUnlearner(TREE), X, Y, ids=IDS, forget=LEAVE)


# Error rates as computed, with real models: one person plants, and is deleted or not.

N_TRIALS, N_QUERIES, ALPHA = 500, 12, 0.05


class Trials(NamedTuple):
    """True success rates on a pool of questions, of a model that kept and one that deleted."""

    p: NDArray[np.float64]
    q: NDArray[np.float64]


@cache
def trials() -> Trials:
    """Train 500 pairs of small models, each with another person's private backdoor."""
    X, y = rows(100, 2)
    pool, truth = rows(120, 3)
    mine = np.arange(8)
    rates = []
    for number in range(N_TRIALS):
        trigger = TabularTrigger.of(X, secret=number, n_columns=5)
        stamped, labels, _ = plant_backdoors(trigger, X, y, [("me", mine)], classes=y, fraction=0.5)
        target = target_label(number, "me", y)
        asked = trigger.stamp(pool[truth != target], "me")
        model = DecisionTreeClassifier(max_features=4, random_state=number)
        kept = np.mean(model.fit(stamped, labels).predict(asked) == target)
        deleted = np.mean(model.fit(X[8:], y[8:]).predict(asked) == target)
        rates.append((kept, deleted))
    return Trials(*np.array(rates).T)


def successes(rates: NDArray[np.float64], seed: int, n: int = N_QUERIES) -> NDArray[np.int64]:
    """Questions drawn from the pool with replacement: exactly binomial."""
    return np.random.default_rng(seed).binomial(n, rates)


def agrees(seen: NDArray[np.bool_], computed: NDArray[np.float64]) -> bool:
    """Whether as many events were seen as computed, up to four standard errors."""
    spread = math.sqrt(float(np.sum(computed * (1 - computed))))
    return abs(float(seen.sum() - computed.sum())) <= 4 * spread + 1e-9


Limits = Callable[[float], int]


def is_as_computed(limit: Limits, *, swapped: bool = False) -> bool:
    p, q = trials()
    limits = np.array([limit(rate) for rate in q])
    pairs = zip(q, p, strict=True) if swapped else zip(p, q, strict=True)
    computed = [errors(N_QUERIES, high, low, ALPHA) for high, low in pairs]
    alarms, misses = successes(q, 0) > limits, successes(p, 1) <= limits
    return agrees(alarms, np.array([each.false_alarm for each in computed])) and agrees(
        misses, np.array([each.miss for each in computed])
    )


def limit(q: float) -> int:
    return threshold(N_QUERIES, q, ALPHA)


def test_500_models_err_as_often_as_computed() -> None:
    p, q = trials()
    assert len(p) == N_TRIALS
    assert p.mean() > q.mean() + 0.1
    assert is_as_computed(limit)


def test_500_models_notice_planted_bugs() -> None:
    assert not is_as_computed(lambda q: limit(q) - 1)
    assert not is_as_computed(limit, swapped=True)


def test_500_models_with_estimated_rates() -> None:
    p, q = trials()
    covered, asked = 0, 40
    for kept, chance, high, low in zip(
        successes(p, 2, asked), successes(q, 3, asked), p, q, strict=True
    ):
        confidence = deletion_confidence(N_QUERIES, (kept, asked), (chance, asked), alpha=ALPHA)
        assert confidence.low is not None
        assert confidence.high is not None
        true = 1 - errors(N_QUERIES, high, low, ALPHA).miss
        covered += confidence.low - 1e-12 <= true <= confidence.high + 1e-12
    assert covered >= 0.95 * N_TRIALS


@pytest.mark.parametrize("attack", [BackdoorTest(), BeforeAfter()])
def test_tables_that_cannot_be_stamped_are_refused_with_advice(attack: Any) -> None:
    X, y, model = np.eye(20), np.arange(20) % 2, NaiveUnlearner(DecisionTreeClassifier())
    with pytest.raises(TypeError, match="toarray"):
        attack.run(model, csr_matrix(X), y, forget=[1])
    with pytest.raises(TypeError, match="encode strings"):
        attack.run(model, np.full((20, 2), "a"), y, forget=[1])
    with pytest.raises(ValueError, match=r"not in the training rows: \[99, 77\]"):
        attack.run(model, X, y, forget=[1, 99, 77])
    with pytest.raises(ValueError, match="must be retained"):
        attack.run(model, X, y, forget=range(20))
    with pytest.raises(ValueError, match="y has 19"):
        attack.run(model, X, y[1:], forget=[1])
