import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from letheon.measures.attacks import KLOM, klom
from letheon.measures.attacks._margins import _RowGroup


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_divergence_is_that_of_two_histograms(seed: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    u, o = rng.normal(size=30), rng.normal(0.5, 2, size=40)
    both = np.concatenate([u, o])
    edges = np.linspace(both.min(), both.max(), bins + 1)
    p, q = np.histogram(u, edges)[0] / 30, np.histogram(o, edges)[0] / 40
    q = np.maximum(q, 1e-5)
    # scipy scales q to 1; undo it
    expected = entropy(p, q) - np.log(q.sum())
    assert klom(u[:, None], o[:, None], bins=bins)[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("n", "floor"), [(50, 0.87), (100, 0.36), (400, 0.07)])
def test_equal_laws_give_the_known_floor(n: int, floor: float) -> None:
    rng = np.random.default_rng(n)
    values = klom(rng.normal(size=(n, 500)), rng.normal(size=(n, 500)))
    assert values.mean() == pytest.approx(floor, rel=0.08)


def test_separated_laws_give_the_maximum() -> None:
    assert klom(np.zeros((9, 1)), np.ones((9, 1)))[0] == pytest.approx(-np.log(1e-5))


def test_margins_beyond_the_clip_are_one() -> None:
    assert klom([[1e9], [1e9]], [[101.0], [200.0]])[0] == 0


def test_it_is_the_divergence_of_the_unlearned_from_the_oracle() -> None:
    narrow, broad = np.zeros((40, 1)), np.linspace(-1, 1, 40)[:, None]
    assert klom(narrow, broad)[0] == pytest.approx(np.log(20))
    assert klom(broad, narrow)[0] > 5


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="unlearned and oracle must have shape"):
        klom(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at least 20"):
        KLOM(n_models=10)


def test_rows_that_move_together_are_no_evidence_twice() -> None:
    rng = np.random.default_rng(0)
    part = _RowGroup("", np.arange(20), np.arange(20))
    n_beyond = 0
    for _ in range(100):
        one, two, three = rng.normal(size=(3, 40, 1)) + 0.1 * rng.normal(size=(3, 40, 20))
        measure, floor = (part.make_measures(each, one, 20)["KLOM"] for each in (two, three))
        assert measure.low is not None
        assert floor.high is not None
        n_beyond += measure.low > floor.high
    assert n_beyond <= 2
