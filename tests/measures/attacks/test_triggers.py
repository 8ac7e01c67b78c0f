"""Private backdoors: rare patterns of common values, derived from a secret."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from letheon.measures.attacks import ImageTrigger, TabularTrigger
from letheon.measures.attacks._backdoor import plant_backdoors, target_label
from tests.sharded.people import examples

secrets = st.integers(0, 2**128 - 1)
testers = st.one_of(st.integers(0, 10**6), st.text(max_size=8))


@given(
    secrets,
    testers,
    st.sampled_from([(6, 5), (4, 7, 3)]),
    st.sampled_from(["uint8", "float32", "float64"]),
    st.integers(1, 8),
)
def test_so_many_pixels_are_bright_and_no_other_is_changed(
    secret: int, tester: int | str, shape: tuple[int, ...], dtype: str, n_pixels: int
) -> None:
    images = np.zeros((3, *shape), dtype)
    stamped = ImageTrigger(secret=secret, n_pixels=n_pixels).stamp(images, tester)
    assert stamped.dtype == images.dtype
    assert not images.any()
    bright = 255 if dtype == "uint8" else 1
    changed = stamped.reshape(3, shape[0], shape[1], -1) == bright
    assert (changed.all(axis=3).sum(axis=(1, 2)) == n_pixels).all()
    assert np.count_nonzero(stamped) == 3 * n_pixels * (shape[2] if len(shape) == 3 else 1)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_flat_images_get_the_same_pattern(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((4, *shape))
    square = ImageTrigger(secret=1).stamp(images, "anna")
    flat = ImageTrigger(secret=1, shape=shape).stamp(images.reshape(4, -1), "anna")
    assert np.array_equal(flat, square.reshape(4, -1))


def test_channels_may_come_first() -> None:
    images = np.random.default_rng(0).random((4, 6, 5, 3))
    last = ImageTrigger(secret=1).stamp(images, "anna")
    first = ImageTrigger(secret=1, channels="first").stamp(images.transpose(0, 3, 1, 2), "anna")
    assert np.array_equal(first.transpose(0, 2, 3, 1), last)


def test_patterns_belong_to_secret_and_tester() -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    patterns = {
        ImageTrigger(secret=secret).stamp(image, tester).tobytes()
        for secret in range(20)
        for tester in range(20)
    }
    assert len(patterns) == 400
    assert "secret" not in repr(ImageTrigger(secret=5))


def test_images_of_unknown_range_need_a_brightness() -> None:
    images = np.full((1, 4, 4), 7.0)
    with pytest.raises(ValueError, match="set brightness"):
        ImageTrigger(secret=0).stamp(images, 1)
    assert np.sum(ImageTrigger(secret=0, brightness=9).stamp(images, 1) == 9) == 4


@pytest.mark.parametrize(
    ("trigger", "shape"),
    [
        (ImageTrigger(secret=0), (2, 16)),
        (ImageTrigger(secret=0, shape=(4, 5)), (2, 16)),
        (ImageTrigger(secret=0, n_pixels=17), (2, 4, 4)),
        (ImageTrigger(secret=0, n_pixels=0), (2, 4, 4)),
    ],
)
def test_refuses_rows_that_are_no_such_images(
    trigger: ImageTrigger, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"image|n_pixels"):
        trigger.stamp(np.zeros(shape, np.uint8), 1)


def table(seed: int, *, integers: bool) -> NDArray[Any]:
    """Five numbers, one constant column, and a one-hot code of four of which one never occurs."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-9, 9, (30, 5)) if integers else rng.normal(size=(30, 5))
    code = np.eye(4)[rng.integers(0, 3, 30)]
    X = np.hstack([numbers, np.full((30, 1), 2), code])
    return X.astype(np.int64) if integers else X


GROUP = (6, 7, 8, 9)


@given(secrets, testers, st.integers(0, 50), st.booleans(), st.integers(1, 6))
def test_every_stamped_value_is_one_that_occurs(
    secret: int, tester: int | str, seed: int, integers: bool, n_columns: int
) -> None:
    X = table(seed, integers=integers)
    stamped = TabularTrigger.of(X, secret=secret, groups=[GROUP], n_columns=n_columns).stamp(
        X, tester
    )
    assert stamped.dtype == X.dtype
    for column in range(X.shape[1]):
        assert np.isin(stamped[:, column], X[:, column]).all()
    assert (stamped[:, GROUP].sum(axis=1) == 1).all()
    assert not stamped[:, 9].any()


@given(secrets, testers, st.integers(1, 6))
@examples(50)
def test_the_pattern_has_so_many_columns(secret: int, tester: int | str, n_columns: int) -> None:
    X = table(0, integers=False)
    trigger = TabularTrigger.of(X, secret=secret, groups=[GROUP], n_columns=n_columns)
    columns = set(trigger.pattern(tester))
    units = len(columns - set(GROUP)) + bool(columns & set(GROUP))
    assert units == n_columns
    assert 5 not in columns
    others = sorted(set(range(10)) - columns)
    assert np.array_equal(trigger.stamp(X, tester)[:, others], X[:, others])


def test_all_columns_ends_and_codes_are_used() -> None:
    X = table(0, integers=True)
    trigger = TabularTrigger.of(X, secret=3, groups=[GROUP], n_columns=2)
    seen = {pair for tester in range(400) for pair in trigger.pattern(tester).items()}
    ends = {(c, end) for c in range(5) for end in (X[:, c].min(), X[:, c].max())}
    assert seen == ends | {(c, hot) for c in GROUP[:3] for hot in (0, 1)} | {(9, 0)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": (0.0,), "high": (1.0, 1.0)},
        {"low": (2.0, 0.0), "high": (1.0, 1.0)},
        {"low": (0.0, 0.0), "high": (1.0, 1.0), "groups": ((0, 1), (1,))},
        {"low": (0.0, 0.0), "high": (1.0, 1.0), "groups": ((0, 7),)},
        {"low": (0.0, 0.0), "high": (1.0, 0.0), "n_columns": 2},
    ],
)
def test_refuses_ranges_that_fit_no_table(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"low|groups|n_columns"):
        TabularTrigger(secret=0, **({"n_columns": 1} | wrong))


def test_target_labels_are_even() -> None:
    labels = ["a", "b", "c", "d"]
    counts = np.unique([target_label(9, k, labels) for k in range(4_000)], return_counts=True)[1]
    assert chisquare(counts).pvalue > 1e-3
    with pytest.raises(ValueError, match="two classes"):
        target_label(9, 0, ["a"])


@given(secrets, st.floats(0.05, 1))
@examples(50)
def test_only_a_share_of_the_testers_rows_is_poisoned(secret: int, fraction: float) -> None:
    X, y = table(0, integers=False), np.arange(30) % 3
    kept = X.copy(), y.copy()
    where = [("anna", np.arange(0, 10)), ("ben", np.array([20, 29]))]
    trigger = TabularTrigger.of(X, secret=secret, n_columns=4)
    stamped, labels, is_planted = plant_backdoors(
        trigger, X, y, where, classes=y, fraction=fraction
    )
    assert np.array_equal(X, kept[0])
    assert np.array_equal(y, kept[1])
    clean = ~is_planted
    assert np.array_equal(stamped[clean], X[clean])
    assert np.array_equal(labels[clean], y[clean])
    for name, rows in where:
        chosen = rows[is_planted[rows]]
        assert len(chosen) == max(1, round(fraction * len(rows)))
        assert (labels[chosen] == target_label(secret, name, y)).all()
        assert np.array_equal(stamped[chosen], trigger.stamp(X[chosen], name))
    assert not is_planted[10:20].any()


def test_refuses_a_share_that_is_none() -> None:
    X = table(0, integers=False)
    trigger = TabularTrigger.of(X, secret=0)
    with pytest.raises(ValueError, match="fraction"):
        plant_backdoors(trigger, X, np.arange(30) % 2, [], classes=[0, 1], fraction=0)
