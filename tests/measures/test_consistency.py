"""Parameters, outputs and probabilities of two models."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from letheon.measures import (
    align_classes,
    kl_consistency,
    output_consistency,
    parameter_consistency,
)
from letheon.measures._intervals import ratio_of_means

vectors = hnp.arrays(np.float64, 5, elements=st.floats(-1e6, 1e6))


@st.composite
def tables(draw: st.DrawFn, zeros: bool = False) -> NDArray[np.float64]:
    """Six rows of probabilities over four classes."""
    weights = draw(hnp.arrays(np.float64, (6, 4), elements=st.floats(0.01, 1)))
    if zeros:
        weights[:, draw(st.integers(0, 3))] = 0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@given(a=vectors, b=vectors, c=vectors)
def test_parameter_distance_is_a_metric(
    a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
) -> None:
    ab, ba, bc, ac = (
        parameter_consistency(x, y).value for x, y in ((a, b), (b, a), (b, c), (a, c))
    )
    assert ab == ba == pytest.approx(math.dist(a, b))
    assert ac <= ab + bc + 1e-6
    assert (ab == 0) == bool((a == b).all())


def test_layers_are_one_vector() -> None:
    rng = np.random.default_rng(0)
    a, b = ([rng.normal(size=shape) for shape in ((3, 4), (4,), (1, 1))] for _ in range(2))
    flat = [np.concatenate([block.ravel() for block in blocks]) for blocks in (a, b)]
    measure = parameter_consistency(a, b)
    assert measure.value == pytest.approx(np.linalg.norm(flat[0] - flat[1]))
    assert measure.low == measure.value == measure.high
    assert (measure.n, measure.better) == (17, "lower")


def test_extreme_parameters_neither_overflow_nor_vanish() -> None:
    assert parameter_consistency([3e200, 0.0], [0.0, 4e200]).value == pytest.approx(5e200)
    assert parameter_consistency([3e-200, 0.0], [0.0, 4e-200]).value == pytest.approx(5e-200)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([[1.0, 2.0]], [[1.0]], r"the same shape in both models, not \(2,\) and \(1,\)"),
        ([1.0, 2.0], [1.0], "2 parameter arrays, but theta_naive has 1"),
        ([1.0, math.nan], [1.0, 2.0], "theta_unlearned contains NaN"),
        ([1.0], [math.inf], "theta_naive contains NaN or infinite"),
        ([], [], "are empty"),
    ],
)
def test_bad_parameters_are_refused(a: Any, b: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parameter_consistency(a, b)


@pytest.mark.parametrize("bad", [[1j], ["a"], [None]])
def test_parameters_must_be_real(bad: Any) -> None:
    with pytest.raises(TypeError, match="real numbers"):
        parameter_consistency(bad, [1.0])


@given(agree=st.integers(0, 60), differ=st.integers(0, 60), confidence=st.floats(0.5, 0.999))
def test_agreement_and_its_interval_are_scipys(agree: int, differ: int, confidence: float) -> None:
    assume(agree + differ > 0)
    unlearned = ["a"] * agree + ["b"] * differ
    measure = output_consistency(unlearned, ["a"] * len(unlearned), confidence=confidence)
    reference = stats.binomtest(agree, agree + differ).proportion_ci(confidence)
    assert measure.value == pytest.approx(100 * agree / (agree + differ))
    assert measure.low == pytest.approx(100 * reference.low)
    assert measure.high == pytest.approx(100 * reference.high)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1), st.randoms())
def test_agreement_ignores_order_and_names(pairs: list[tuple[int, int]], random: Any) -> None:
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    order = np.array(random.sample(range(len(a)), len(a)))
    names = np.array(["x", "y", "z"])
    assert output_consistency(a, b) == output_consistency(b, a)
    assert output_consistency(a, b) == output_consistency(names[a[order]], names[b[order]])


def test_full_agreement_is_not_certainty() -> None:
    measure = output_consistency([1.0] * 100, [1] * 100)
    assert (measure.value, measure.high) == (100.0, 100.0)
    assert measure.low == pytest.approx(96.38, abs=0.01)


def test_labels_of_object_arrays_are_compared() -> None:
    loose = np.array(["a", "b"], dtype=object)
    assert output_consistency(loose, np.array(["a", "c"])).value == 50


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([1, 2], [1], "same number of rows"),
        ([], [], "empty"),
        ([1.5], [1.5], "fractions, but must contain labels; use"),
        (["a"], [1], "strings, but those of the other are not"),
        ([math.nan], [1.0], "NaN"),
        ([[1, 2]], [[1, 2]], "one label per row"),
    ],
)
def test_bad_labels_are_refused(a: Any, b: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        output_consistency(a, b)


@given(p=tables(), q=tables(), classes=st.permutations(range(4)))
@settings(max_examples=50)
def test_kl_is_scipys_entropy(
    p: NDArray[np.float64], q: NDArray[np.float64], classes: list[int]
) -> None:
    measure = kl_consistency(p, q, n_resamples=5)
    assert measure.value == pytest.approx(stats.entropy(p, q, axis=1).mean(), abs=1e-12)
    moved = kl_consistency(p[::-1, classes], q[::-1, classes], n_resamples=5)
    assert moved.value == pytest.approx(measure.value, abs=1e-12)


@given(p=tables(), q=tables())
@settings(max_examples=50)
def test_kl_is_zero_only_for_equal_probabilities(
    p: NDArray[np.float64], q: NDArray[np.float64]
) -> None:
    assert kl_consistency(p, p).value == 0
    value = kl_consistency(p, q, n_resamples=5).value
    # Pinsker: KL >= (sum |p - q|)^2 / 2
    assert value >= (abs(p - q).sum(axis=1) ** 2).mean() / 2 * (1 - 1e-9) - 1e-15


def test_kl_direction_is_unlearned_from_naive() -> None:
    p, q = [[0.5, 0.5]], [[0.9, 0.1]]
    assert kl_consistency(p, q).value == pytest.approx(0.5 * math.log(25 / 9))
    assert kl_consistency(q, p).value == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_tiny_gaps_do_not_drown_in_rounding() -> None:
    h = 1e-9
    value = kl_consistency([[0.5 + h, 0.5 - h]], [[0.5, 0.5]]).value
    assert value == pytest.approx(2 * h**2, abs=2e-17)


def test_zeros() -> None:
    assert kl_consistency([[1.0, 0.0]], [[0.5, 0.5]]).value == pytest.approx(math.log(2))
    assert kl_consistency([[1.0, 0.0]], [[1.0, 0.0]]).value == 0
    infinite = kl_consistency([[0.5, 0.5]] * 3, [[1.0, 0.0]] * 3)
    assert (infinite.value, infinite.low, infinite.high) == (math.inf, None, None)
    assert kl_consistency([[1.0, 0.0]], [[5e-324, 1.0]]).value == pytest.approx(744.44, abs=0.01)


def test_floor_makes_it_finite_and_is_stated() -> None:
    measure = kl_consistency([[0.5, 0.5]], [[1.0, 0.0]], floor=0.2)
    assert measure.value == pytest.approx(0.5 * math.log(0.6) + 0.5 * math.log(3))
    assert measure.note == "probabilities floored at 0.2"


def test_lost_class_is_aligned() -> None:
    unlearned = kl_consistency(
        [[0.2, 0.3, 0.5]], [[0.5, 0.5]], classes_unlearned=[1, 2, 3], classes_naive=[3, 1]
    )
    assert unlearned.value == math.inf
    retrained = kl_consistency(
        [[0.5, 0.5]], [[0.2, 0.3, 0.5]], classes_unlearned=[3, 1], classes_naive=[1, 2, 3]
    )
    assert retrained.value == pytest.approx(0.5 * math.log(0.5 / 0.5) + 0.5 * math.log(0.5 / 0.2))


@given(p=tables(), q=tables(), data=st.data())
@settings(max_examples=30)
def test_alignment_undoes_any_order_of_columns(
    p: NDArray[np.float64], q: NDArray[np.float64], data: st.DataObject
) -> None:
    names = np.array(["d", "a", "c", "b"])
    order = data.draw(st.permutations(range(4)))
    a, b, classes = align_classes(p, names, q[:, order], names[order])
    assert classes.tolist() == ["a", "b", "c", "d"]
    np.testing.assert_allclose(a, p[:, [1, 3, 2, 0]])
    np.testing.assert_allclose(b, q[:, [1, 3, 2, 0]])


def test_unknown_classes_get_no_probability() -> None:
    a, b, classes = align_classes([[0.4, 0.6]], [0, 2], [[1.0]], [1])
    assert classes.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(a, [[0.4, 0, 0.6]])
    np.testing.assert_array_equal(b, [[0, 1, 0]])


@pytest.mark.parametrize(
    ("classes_a", "classes_b", "text"),
    [
        (["a", "b"], [1, 2], "strings, but those of the other are not"),
        ([1, "1"], [1, 2], "classes_a mixes strings"),
        ([1, 1], [1, 2], "distinct labels"),
        ([1, 2, 3], [1, 2], "2 columns, but there are 3 classes"),
    ],
)
def test_bad_classes_are_refused(classes_a: list[Any], classes_b: list[Any], text: str) -> None:
    mixed = np.array(classes_a, dtype=object)
    with pytest.raises(ValueError, match=text):
        align_classes([[0.5, 0.5]], mixed, [[0.5, 0.5]], classes_b)


def test_alignment_needs_the_same_rows() -> None:
    with pytest.raises(ValueError, match="1 rows, but proba_b has 2"):
        align_classes([[1.0]], [0], [[1.0], [1.0]], [0])


@pytest.mark.parametrize(
    ("p", "q", "options", "text"),
    [
        ([[0.5, 0.5]], [[1.0]], {}, "pass classes_unlearned and classes_naive"),
        ([[0.5, 0.5]], [[0.5, 0.5]] * 2, {}, "has shape"),
        ([0.5, 0.5], [[0.5, 0.5]], {}, "proba_unlearned must be of shape"),
        ([[0.5, 0.4]], [[0.5, 0.5]], {}, "add up to 1"),
        ([[1.5, -0.5]], [[0.5, 0.5]], {}, "at least 0"),
        ([[0.5, 0.5]], [[math.nan, 0.5]], {}, "proba_naive must be finite"),
        ([[0.5, 0.5]], [[0.5, 0.5]], {"floor": 0.5}, "floor must be"),
        ([[0.5, 0.5]], [[0.5, 0.5]], {"floor": -0.1}, "floor must be"),
        ([[0.5, 0.5]], [[0.5, 0.5]], {"classes_naive": [0, 1]}, "or neither"),
        ([[0.5, 0.5]], [[0.5, 0.5]], {"confidence": 2}, "confidence"),
    ],
)
def test_bad_probabilities_are_refused(p: Any, q: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kl_consistency(p, q, **options)


@pytest.mark.parametrize(("n", "is_rough"), [(99, True), (100, False)])
def test_too_few_rows_are_called_rough(n: int, is_rough: bool) -> None:
    p = np.random.default_rng(0).uniform(0.2, 0.8, n)
    measure = kl_consistency(np.stack([p, 1 - p], axis=1), np.full((n, 2), 0.5))
    assert measure.is_rough == is_rough
    assert ("rows, 100 are needed" in measure.note) == is_rough


def test_rows_that_differ_by_rounding_have_no_interval() -> None:
    values = np.full(200, 1.056469082404479)
    values[::2] = np.nextafter(values[::2], 2.0)
    assert ratio_of_means(values, confidence=0.95, n_resamples=200, seed=0) is None
