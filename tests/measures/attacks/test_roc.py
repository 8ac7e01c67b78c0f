from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as reference_curve

from letheon.measures import Measure
from letheon.measures.attacks import auc, roc_curve, tpr_at_fpr

# few values, so that ties are the rule
scored = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)


def split(pairs: list[tuple[int, bool]]) -> tuple[Any, Any]:
    scores, labels = zip(*pairs, strict=True)
    return np.array(scores, float), np.array(labels)


def covers(measure: Measure, truth: float) -> bool:
    assert measure.low is not None
    assert measure.high is not None
    return measure.low <= truth <= measure.high


@given(scored)
def test_area_is_that_of_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores, labels = split(pairs)
    assert auc(scores, labels).value == pytest.approx(roc_auc_score(labels, scores))


@given(scored)
def test_curve_is_that_of_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores, labels = split(pairs)
    fpr, tpr, _ = reference_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(roc_curve(scores, labels), (fpr, tpr))


@given(scored, st.sampled_from([0.01, 0.1, 0.25, 0.5]))
def test_rate_is_the_best_point_of_the_curve(pairs: list[tuple[int, bool]], limit: float) -> None:
    scores, labels = split(pairs)
    fpr, tpr = roc_curve(scores, labels)
    assert tpr_at_fpr(scores, labels, fpr=limit).value == pytest.approx(tpr[fpr <= limit].max())


@given(scored, st.randoms(use_true_random=False))
def test_order_of_the_scores_does_not_matter(pairs: list[tuple[int, bool]], random: Any) -> None:
    shuffled = random.sample(pairs, len(pairs))
    for measure in (auc, tpr_at_fpr):
        first, second = measure(*split(pairs)), measure(*split(shuffled))
        assert first.value == pytest.approx(second.value)
        assert first.low == pytest.approx(second.low)


def test_delong_variance_by_hand() -> None:
    # placements of 3, 1 among 2, 0: 1, 1/2; of 2, 0 among 3, 1: 1/2, 1
    area = auc([3, 1, 2, 0], [1, 1, 0, 0])
    variance = (0.25**2 * 2) / 2 + (0.25**2 * 2) / 2
    half = norm.ppf(0.975) * np.sqrt(variance) / (0.75 * 0.25)
    assert area.value == 0.75
    assert area.high == pytest.approx(1 / (1 + np.exp(-(np.log(3) + half))))


def test_equal_scores_are_a_fact() -> None:
    area = auc(np.zeros(10), np.arange(10) % 2)
    assert (area.low, area.value, area.high) == (0.5, 0.5, 0.5)


def test_perfect_separation_of_few_is_no_certainty() -> None:
    area = auc(np.arange(10), np.arange(10) >= 5)
    assert area.value == 1
    assert area.low == pytest.approx(0.025 ** (1 / 5))


@pytest.mark.parametrize(("n", "shift"), [(50, 0.0), (50, 1.0), (50, 2.0), (100, 3.0)])
def test_interval_of_the_area_covers_as_stated(n: int, shift: float) -> None:
    rng = np.random.default_rng(int(10 * shift))
    truth, labels = float(norm.cdf(shift / np.sqrt(2))), np.arange(2 * n) < n
    draws = rng.normal(size=(2000, 2 * n)) + shift * labels
    share = np.mean([covers(auc(each, labels), truth) for each in draws])
    assert abs(share - 0.95) <= 0.015


def test_interval_of_the_area_covers_people_with_many_scores() -> None:
    rng = np.random.default_rng(0)
    n, worlds, shift = 30, 16, 1.0
    labels = np.tile(np.arange(worlds) % 2, (n, 1))
    people, models = np.indices(labels.shape)
    truth = float(norm.cdf(shift / np.sqrt(3)))
    inside, naive = 0, 0
    for _ in range(2000):
        effect = shift + rng.normal(size=(n, 1))
        scores = (rng.normal(size=labels.shape) + labels * effect).ravel()
        groups = people.ravel(), models.ravel()
        inside += covers(auc(scores, labels.ravel(), groups=groups), truth)
        naive += covers(auc(scores, labels.ravel()), truth)
    assert abs(inside / 2000 - 0.95) <= 0.015
    # scores of one person taken for independent: what the groups are for
    assert naive / 2000 < 0.85


@pytest.mark.parametrize(("n", "shift"), [(60, 1.0), (600, 1.0)])
def test_interval_of_the_rate_covers_at_least_as_stated(n: int, shift: float) -> None:
    rng = np.random.default_rng(n)
    truth, labels = float(norm.sf(norm.isf(0.01) - shift)), np.arange(2 * n) < n
    draws = rng.normal(size=(200, 2 * n)) + shift * labels
    share = np.mean([covers(tpr_at_fpr(each, labels), truth) for each in draws])
    assert share >= 0.95


@pytest.mark.soak
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_interval_of_the_rate_covers_over_many_draws(shift: float) -> None:
    rng = np.random.default_rng(3)
    n = 500
    truth, labels = float(norm.sf(norm.isf(0.01) - shift)), np.arange(2 * n) < n
    draws = rng.normal(size=(2000, 2 * n)) + shift * labels
    assert np.mean([covers(tpr_at_fpr(each, labels), truth) for each in draws]) >= 0.95


def test_few_scores_cannot_tell_one_per_cent_from_none() -> None:
    labels = np.arange(200) < 100
    assert tpr_at_fpr(labels.astype(float), labels).low == 0
    labels = np.arange(2000) < 1000
    low = tpr_at_fpr(labels.astype(float), labels).low
    assert low is not None
    assert low > 0.99


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([1.0, 2.0], [1, 1], "both 0 and 1"),
        ([1.0, np.nan], [0, 1], "NaN"),
        ([1.0, 2.0], [0], "the same length"),
    ],
)
def test_what_has_no_curve_is_refused(scores: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        auc(scores, labels)
