"""Strong or weak, from counted work."""

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

from letheon.forest import DaREForestClassifier
from letheon.linear import DescentToDeleteClassifier
from letheon.measures import Strength, strength
from letheon.sharded import SISAClassifier
from tests.sharded.people import examples

lengths = st.integers(16, 400)


def removals(m: int) -> NDArray[np.float64]:
    return np.arange(1.0, m + 1)


@given(m=lengths, a=st.floats(0, 100), b=st.floats(0.01, 100))
@examples(50)
def test_no_logarithm_is_weak(m: int, a: float, b: float) -> None:
    growth = strength(a + b * np.log(removals(m)))
    assert growth.exponent.value <= growth.limit + 1e-9
    assert growth.kind != "weak"


@given(m=lengths, k=st.floats(-3, 6), factor=st.floats(1e-3, 1e3))
@examples(50)
def test_exponent_of_a_power_is_found(m: int, k: float, factor: float) -> None:
    assert strength(factor * removals(m) ** k).exponent.value == pytest.approx(k, abs=1e-6)


def test_exponent_by_hand() -> None:
    # 16 removals: early are 4 to 7, late are 9 to 16; i has means 5.5 and 12.5
    work = np.zeros(16)
    work[3:7], work[8:16] = 2.0, 2.0 * 12.5 / 5.5
    growth = strength(work)
    assert growth.exponent.value == pytest.approx(1.0)
    assert (growth.kind, growth.exponent.low) == ("weak", None)


@pytest.mark.parametrize("m", [16, 100, 1000])
def test_limit_is_what_a_logarithm_shows_and_below_a_doubling(m: int) -> None:
    growth = strength(np.log(removals(m)))
    assert growth.exponent.value == pytest.approx(growth.limit, abs=1e-9)
    assert 0 < growth.limit < math.log(2) / math.log(math.sqrt(m)) + 0.05


@pytest.mark.parametrize(("k", "kind"), [(0.0, "strong"), (1.0, "weak"), (2.0, "weak")])
def test_noise_does_not_hide_the_order(k: float, kind: str) -> None:
    rng = np.random.default_rng(0)
    work = removals(200) ** k * rng.gamma(4, size=(4, 200))
    assert strength(work).kind == kind


def test_too_much_noise_is_undecided() -> None:
    work = np.random.default_rng(0).gamma(0.1, size=20)
    assert strength(work).kind == "undecided"


@given(m=lengths, order=st.randoms())
@examples(30)
def test_order_of_sequences_and_unit_of_work_do_not_matter(m: int, order: Any) -> None:
    work = np.random.default_rng(m).gamma(2, size=(3, m))
    lines = order.sample(range(3), 3)
    first, other = strength(work), strength(7.0 * work[lines])
    assert first.kind == other.kind
    assert first.exponent.value == pytest.approx(other.exponent.value, abs=1e-9)


def test_no_work_at_all_is_strong_and_late_work_alone_is_undecided() -> None:
    assert strength(np.zeros(20)).kind == "strong"
    late = np.repeat([0.0, 1.0], 10)
    growth = strength(late)
    assert (growth.kind, growth.exponent.value) == ("undecided", math.inf)
    assert strength(late[::-1]).kind == "strong"


def test_it_reads_well_and_survives_json() -> None:
    growth = strength(np.random.default_rng(0).gamma(4, size=(3, 50)))
    again = Strength.from_dict(json.loads(json.dumps(growth.to_dict())))
    assert again == growth
    assert str(growth).startswith("strong: work exponent: ")
    assert "removals 26-50 divided by that of 8-15" in growth.rule


@pytest.mark.parametrize("bad", [[1.0] * 15, [], [[[1.0]]], [math.nan] * 20, [-1.0] * 20])
def test_bad_work_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="work must be"):
        strength(bad)


def work_of(make: Any, n_sequences: int, m: int) -> NDArray[np.float64]:
    """Return `Receipt.work` of single removals, one line for each sequence."""
    lines = []
    for seed in range(n_sequences):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1200, 4))
        X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
        y = (X[:, 0] + 0.1 * rng.normal(size=1200) > 0).astype(int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make(seed).fit(X, y, ids=np.arange(1200))
            leaving = rng.permutation(1200)[:m].tolist()
            lines.append([model.forget([person]).work for person in leaving])
    return np.array(lines)


def sisa(seed: int) -> Any:
    inner = SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0)
    return SISAClassifier(inner, n_shards=4, n_slices=2, random_state=seed)


def dare(seed: int) -> Any:
    return DaREForestClassifier(n_estimators=10, max_depth=6, random_state=seed)


def descent(variant: str) -> Any:
    return lambda seed: DescentToDeleteClassifier(
        l2=0.05,
        variant=variant,
        stop="theorem",
        rows="clip",
        row_norm=1.5,
        iterations=2,
        if_unproved="downgrade",
        noise_seed=seed,
    )


@pytest.mark.parametrize(
    ("make", "shape", "kind"),
    [
        (sisa, (3, 25), "strong"),
        # rebuilt subtrees differ in size by a factor of a hundred: more sequences
        (dare, (10, 100), "strong"),
        (descent("regularized-strong"), (1, 36), "strong"),
        (descent("regularized-weak"), (1, 36), "weak"),
    ],
    ids=["sisa", "dare", "descent-strong", "descent-weak"],
)
def test_counted_work_of_real_models(make: Any, shape: tuple[int, int], kind: str) -> None:
    assert strength(work_of(make, *shape)).kind == kind


def test_weak_descent_takes_quadratic_work() -> None:
    work = work_of(descent("regularized-weak"), 1, 25)
    assert strength(work).exponent.value == pytest.approx(2, abs=0.05)
