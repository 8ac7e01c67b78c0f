"""The distribution of the output of a model over seeds."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from letheon.measures import kl_gaussian, kl_of_laws
from tests.sharded.people import examples

labels = hnp.arrays(np.int64, (6, 4), elements=st.integers(0, 2))


def shares(draws: NDArray[Any], row: int, names: list[Any], smoothing: float) -> list[float]:
    counts = [sum(1 for model in draws if model[row] == name) for name in names]
    total = len(draws) + smoothing * len(names)
    return [(count + smoothing) / total for count in counts]


def test_labels_by_hand() -> None:
    # (3.5/5, 1.5/5) against (1.5/5, 3.5/5)
    measure = kl_of_laws([["a"], ["a"], ["b"], ["a"]], [["a"], ["b"], ["b"], ["b"]])
    assert measure.value == pytest.approx(0.7 * math.log(7 / 3) + 0.3 * math.log(3 / 7))
    assert (measure.n, measure.better, measure.unit, measure.low) == (4, "lower", "nats", None)


@given(p=labels, q=labels, smoothing=st.floats(0.01, 2))
@examples(50)
def test_labels_are_scipys_entropy(p: NDArray[Any], q: NDArray[Any], smoothing: float) -> None:
    names = sorted(set(p.ravel()) | set(q.ravel()))
    rows = [
        stats.entropy(shares(p, i, names, smoothing), shares(q, i, names, smoothing))
        for i in range(4)
    ]
    value = kl_of_laws(p, q, smoothing=smoothing).value
    assert value == pytest.approx(np.mean(rows), abs=1e-12)
    assert value >= 0


@given(p=labels, q=labels, data=st.data())
@examples(50)
def test_names_order_of_rows_and_of_models_do_not_matter(
    p: NDArray[Any], q: NDArray[Any], data: st.DataObject
) -> None:
    names = np.array(data.draw(st.permutations(["x", "y", "z"])))
    rows, models = data.draw(st.permutations(range(4))), data.draw(st.permutations(range(6)))
    moved = kl_of_laws(names[p][models][:, rows], names[q][:, rows])
    assert moved.value == pytest.approx(kl_of_laws(p, q).value, abs=1e-12)


@pytest.mark.parametrize("law", ["labels", "gaussian", "free"])
def test_equal_draws_give_zero(law: Any) -> None:
    rng = np.random.default_rng(0)
    draws = rng.integers(3, size=(20, 5)) if law == "labels" else rng.normal(size=(20, 5))
    assert kl_of_laws(draws, draws[::-1], law=law).value == pytest.approx(0, abs=1e-12)


def test_gaussian_is_the_closed_form_of_fitted_laws() -> None:
    rng = np.random.default_rng(1)
    p, q = rng.normal(0, 1, (12, 6)), rng.normal(1, 2, (9, 6))
    means, spreads = [d.mean(0) for d in (p, q)], [d.std(0, ddof=1) for d in (p, q)]
    closed_form = kl_gaussian(*means, *spreads).value
    assert kl_of_laws(p, q, law="gaussian").value == pytest.approx(closed_form)


def test_models_without_randomness() -> None:
    same, other = np.full((5, 2), 0.1), np.full((5, 2), 0.2)
    assert kl_of_laws(same, same[:4], law="gaussian").value == 0
    assert kl_of_laws(same, other, law="gaussian").value == math.inf


def test_free_law_by_hand() -> None:
    p, q = np.array([[0.0], [1.0], [3.0], [7.0]]), np.array([[0.5], [2.0], [4.0], [9.0]])
    # nearest of the other draws: 1, 1, 2, 4; nearest retrained: 0.5, 0.5, 1, 2
    terms = [math.log(0.5 / 1), math.log(0.5 / 1), math.log(1 / 2), math.log(2 / 4)]
    value = kl_of_laws(p, q, law="free", neighbours=1).value
    assert value == pytest.approx(np.mean(terms) + math.log(4 / 3))


def test_free_law_of_many_models_comes_close_to_the_truth() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.normal(0, 1, (400, 20)), rng.normal(1, 1.5, (400, 20))
    truth = kl_gaussian([0.0], [1.0], 1.0, 1.5).value
    assert kl_of_laws(p, q, law="free").value == pytest.approx(truth, abs=0.04)
    assert kl_of_laws(p, q, law="gaussian").value == pytest.approx(truth, abs=0.03)


def floor_of(note: str) -> tuple[float, float]:
    value, floor = note.split(": ")[1].split(", null floor (retrained against retrained) ")
    return float(value), float(floor)


@pytest.mark.parametrize("law", ["labels", "gaussian", "free"])
def test_floor_tells_equal_laws_from_different_ones(law: Any) -> None:
    rng = np.random.default_rng(0)

    def draws(shift: float) -> NDArray[Any]:
        numbers = rng.normal(shift, 1, size=(40, 60))
        return np.digitize(numbers, [-0.5, 0.5]) if law == "labels" else numbers

    naive = draws(0.0)
    equal, floor = floor_of(kl_of_laws(draws(0.0), naive, law=law).note)
    apart, _ = floor_of(kl_of_laws(draws(1.0), naive, law=law).note)
    assert equal == pytest.approx(floor, abs=0.05)
    assert apart > floor + 0.25


def test_bias_is_as_stated() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.integers(2, size=(50, 2000)), rng.integers(2, size=(50, 2000))
    assert kl_of_laws(p, q).value == pytest.approx((1 / 50 + 1 / 50) / 2, rel=0.1)


def test_few_models_have_no_floor_and_say_so() -> None:
    assert "needs 4 retrained models" in kl_of_laws([[0], [1]], [[0], [1], [1]]).note


@pytest.mark.parametrize(
    ("p", "q", "options", "text"),
    [
        ([[1], [2]], [[1, 2], [1, 2]], {}, "equal n_rows"),
        ([1, 2], [1, 2], {}, "equal n_rows"),
        ([[1]], [[1], [2]], {}, "at least 2 models"),
        ([[0.5], [0.1]], [[0.5], [0.1]], {}, "fractions, but must contain labels"),
        ([["a"], ["b"]], [[1], [2]], {}, "strings, but those of the other are not"),
        ([[1.0]] * 3, [[1.0]] * 4, {"law": "gaussian"}, "at least 4 models"),
        ([[1.0]] * 5, [[2.0]] * 5, {"law": "free"}, "needs continuous draws"),
        ([[1], [2]], [[1], [2]], {"law": "any"}, "law must be one of"),
        ([[1], [2]], [[1], [2]], {"smoothing": 0.0}, "smoothing must be above 0"),
        ([[1], [2]], [[1], [2]], {"neighbours": 0}, "neighbours must be at least 1"),
        ([[math.inf]] * 4, [[1.0]] * 4, {"law": "gaussian"}, "draws_unlearned must be finite"),
    ],
)
def test_bad_draws_are_refused(p: Any, q: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kl_of_laws(p, q, **options)
