"""Two versions of a model reveal who was removed, even for exact methods."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier
from letheon.measures import Measure
from letheon.measures.attacks import AttackResult, BeforeAfter, KeepsEverything
from letheon.measures.attacks import _before_after as module
from letheon.measures.attacks._before_after import (
    FEATURES,
    degradation_count,
    posterior_features,
    predict_posteriors,
)

LOGISTIC = LogisticRegression(C=100, tol=1e-3)
FOREST = DaREForestClassifier(n_estimators=10)


def table(n: int = 160) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    X[:, :3] += np.eye(3)[y]
    return X, y


def bounds(measure: Measure) -> tuple[float, float]:
    assert measure.low is not None
    assert measure.high is not None
    return measure.low, measure.high


def test_features_by_hand() -> None:
    before, after = [[0.1, 0.6, 0.3]], [[0.2, 0.3, 0.5]]
    expected = {
        "concatenation": [0.1, 0.6, 0.3, 0.2, 0.3, 0.5],
        "sorted concatenation": [0.6, 0.3, 0.1, 0.3, 0.5, 0.2],
        "difference": [-0.1, 0.3, -0.2],
        "sorted difference": [0.3, -0.2, -0.1],
        "distance": [0.14**0.5],
    }
    for name in FEATURES:
        assert posterior_features(before, after, [name])[0] == pytest.approx(expected[name])
    all_five = np.concatenate(list(expected.values()))
    assert posterior_features(before, after)[0] == pytest.approx(all_five)


@given(st.permutations(range(4)), st.integers(0, 100))
def test_sorted_features_do_not_know_the_names_of_classes(order: list[int], seed: int) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.ones(4), (2, 5))
    kinds: list[Any] = ["sorted concatenation", "sorted difference", "distance"]
    renamed = posterior_features(p[:, order], q[:, order], kinds)
    assert renamed == pytest.approx(posterior_features(p, q, kinds))


def test_features_refuse() -> None:
    with pytest.raises(ValueError, match="the same shape"):
        posterior_features([[0.5, 0.5]], [[1.0]])
    with pytest.raises(ValueError, match="must be from"):
        posterior_features([[1.0]], [[1.0]], [])


def test_degradation_count_by_hand() -> None:
    labels = [1, 1, 0, 0, 1]
    both, classical = [0.9, 0.2, 0.3, 0.8, 0.5], [0.6, 0.4, 0.5, 0.7, 0.5]
    # surer of the truth: the first and the third; the last is a tie
    measure = degradation_count(both, classical, labels)
    assert measure.value == 2 / 5
    assert measure.n == 5


def test_posteriors_of_every_kind_of_model() -> None:
    X, y = table(60)
    classes = np.arange(4)
    proba = predict_posteriors(LOGISTIC.fit(X, y), X, classes)
    assert proba.shape == (60, 4)
    assert not proba[:, 3].any()
    for labels in (y, y > 0):
        linked = predict_posteriors(LinearSVC().fit(X, labels), X, np.unique(labels))
        assert linked.sum(axis=1) == pytest.approx(np.ones(60))
        assert np.array_equal(
            np.unique(labels)[linked.argmax(axis=1)], LinearSVC().fit(X, labels).predict(X)
        )
    assert predict_posteriors(Ridge().fit(X, y), X, None).shape == (60, 1)


def test_labels_alone_are_not_enough() -> None:
    class Silent:
        def predict(self, X: Any) -> Any:
            return X

    with pytest.raises(TypeError, match="neither predict_proba nor decision_function"):
        predict_posteriors(Silent(), [[0]], np.arange(2))


@cache
def attacked(kind: str) -> AttackResult:
    X, y = table()
    models: dict[str, Any] = {
        "naive": NaiveUnlearner(LOGISTIC),
        "sisa": SISAClassifier(GaussianNB(), n_shards=2),
        "forest": FOREST,
        "keeps": KeepsEverything(LOGISTIC),
    }
    (result,) = BeforeAfter().run(models[kind], X, y, forget=np.arange(32))
    return result


@pytest.mark.parametrize("kind", ["naive", "sisa", "forest"])
def test_exact_methods_reveal_who_left(kind: str) -> None:
    result = attacked(kind)
    assert result.found
    assert result.measures["AUC"].value > 0.75
    assert "deletion itself reveals" in result.note


@pytest.mark.parametrize("kind", ["naive", "sisa", "forest"])
def test_the_model_after_alone_reveals_nothing(kind: str) -> None:
    low, high = bounds(attacked(kind).measures["AUC, model after only"])
    assert low < 0.5 < high


@pytest.mark.parametrize("kind", ["naive", "sisa", "forest", "keeps"])
def test_the_floor_is_a_coin(kind: str) -> None:
    low, high = bounds(attacked(kind).floor["AUC"])
    assert low < 0.5 < high


def test_two_equal_versions_reveal_no_more_than_one() -> None:
    measures = attacked("keeps").measures
    low, high = bounds(measures["AUC, model before only"])
    assert low < measures["AUC"].value < high
    assert measures["AUC, model before only"].value == measures["AUC, model after only"].value


def test_naive_retraining_degrades_privacy_for_most() -> None:
    low, _ = bounds(attacked("naive").measures["degradation count"])
    assert low > 0.5


def small(unlearner: Any = None, seed: int = 0, **options: Any) -> AttackResult:
    X, y = table(120)
    model = NaiveUnlearner(DecisionTreeClassifier()) if unlearner is None else unlearner
    settings: dict[str, Any] = {"n_shadows": 3, "n_targets": 3, "n_removals": 3}
    attack = BeforeAfter(attacker="logistic", **(settings | options.pop("settings", {})))
    given: dict[str, Any] = {"forget": np.arange(12), "seed": seed}
    (result,) = attack.run(model, X, y, **(given | options))
    return result


def test_seed_decides() -> None:
    assert small().to_dict() == small().to_dict()
    assert small().to_dict() != small(seed=1).to_dict()


def test_people_are_scored_once_for_each_removal() -> None:
    seen: list[tuple[int, int]] = []
    ids = np.arange(120) // 2
    result = small(ids=ids, progress=lambda *done: seen.append(done))
    assert seen[-1] == (6, 6)
    assert result.n_models == 6
    assert result.labels is not None
    assert result.owners is not None
    # 3 worlds x 3 removals, one person who left and one who never was there
    assert (len(result.labels), int(result.labels.sum())) == (18, 9)
    assert result.owners.max() < 12


def test_regressors_and_decision_values() -> None:
    assert small(NaiveUnlearner(Ridge())).n_models == 6
    assert small(NaiveUnlearner(Perceptron(tol=None, max_iter=5))).n_models == 6


def test_batches_need_people() -> None:
    assert small(settings={"batch": 3, "n_removals": 2}).n_models == 6
    with pytest.raises(ValueError, match="at least 16 and 32"):
        small(settings={"batch": 4})


@pytest.mark.parametrize("wrong", [{"attacker": "oracle"}, {"batch": 0}, {"n_shadows": 0}])
def test_refuses_settings_that_give_no_experiment(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BeforeAfter(**wrong)


# Planted bugs.


def plant_bug(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], Any]) -> AttackResult:
    """Spoil what is seen in the worlds that are attacked, not in those the attack learns from."""
    seen = BeforeAfter._run_world

    def cases(attack: Any, *args: Any) -> Any:
        return spoil(seen(attack, *args)) if args[-1] >= 8 else seen(attack, *args)

    monkeypatch.setattr(BeforeAfter, "_run_world", cases)
    X, y = table()
    (result,) = BeforeAfter().run(FOREST, X, y, forget=np.arange(32))
    return result


def test_a_floor_of_people_who_left_is_no_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = np.array([module._ABSENT, module._ALSO_ABSENT, module._REMOVED])
    result = plant_bug(monkeypatch, lambda cases: cases._replace(kind=exchange[cases.kind]))
    low, _ = bounds(result.floor["AUC"])
    assert not result.found
    assert low > 0.5


def test_an_attack_on_one_version_twice_shows_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = attacked("forest").measures["AUC"].value
    result = plant_bug(monkeypatch, lambda cases: cases._replace(before=cases.after))
    assert right > 0.9
    assert not result.found
