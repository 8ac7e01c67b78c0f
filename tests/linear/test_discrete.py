"""Noise on the integers: the laws are exact, whichever way a trial is decided."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from letheon import noise
from letheon.noise import NoiseSource

ENERGIES: dict[str, Callable[[Any, int], Any]] = {
    "discrete_normals": lambda z, scale: (z / scale) ** 2 / 2,
    "laplaces": lambda z, scale: abs(z) / scale,
}


def p_value(drawn: NDArray[Any], energies: NDArray[Any], first: int) -> float:
    """Return how likely counts as odd as these are, for probabilities like exp(-energy)."""
    weights = np.exp(-energies)
    counts = np.bincount(drawn - first, minlength=len(weights))
    expected = weights / weights.sum() * len(drawn)
    is_common = expected >= 10
    pooled = np.append(counts[is_common], counts[~is_common].sum())
    wanted = np.append(expected[is_common], expected[~is_common].sum())
    return float(scipy.stats.chisquare(pooled[wanted > 0], wanted[wanted > 0]).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 3, 8, 37])
@pytest.mark.parametrize("name", sorted(ENERGIES))
def test_the_law_is_the_stated_one(name: str, scale: int) -> None:
    drawn = getattr(NoiseSource(scale), name)(60_000, scale)
    reach = 40 * scale
    integers = np.arange(-reach, reach + 1)
    assert p_value(drawn, ENERGIES[name](integers, scale), -reach) > 1e-4


def test_a_wrong_law_would_be_found() -> None:
    drawn = NoiseSource(3).discrete_normals(60_000, 37)
    integers = np.arange(-1480, 1481)
    assert p_value(drawn, ENERGIES["discrete_normals"](integers, 39), -1480) < 1e-4


@pytest.mark.parametrize("scale", [1, 5, 1 << 20, noise.LARGEST_SCALE])
@pytest.mark.parametrize("name", sorted(ENERGIES))
def test_floats_decide_as_decimals_do(
    name: str, scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = getattr(NoiseSource(7), name)(150, scale)
    monkeypatch.setattr(noise, "_core", None)
    monkeypatch.setattr(noise, "_MARGIN", 2.0)
    slow = getattr(NoiseSource(7), name)(150, scale)
    np.testing.assert_array_equal(quick, slow)


def test_long_normals_are_decided_alike_and_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = NoiseSource(8).long_normals(150)
    monkeypatch.setattr(noise, "_MARGIN", 2.0)
    slow = NoiseSource(8).long_normals(150)
    np.testing.assert_array_equal(quick, slow)
    monkeypatch.undo()
    high, low = NoiseSource(9).long_normals(40_000)
    assert scipy.stats.kstest(high, "norm").pvalue > 1e-4
    assert np.all(np.abs(low) < 2.0**-46)
    assert scipy.stats.kstest(np.abs(low) * 2.0**46, "uniform").pvalue > 1e-4
    assert np.all(high * 2.0**46 == np.rint(high * 2.0**46))
    assert np.all((low == 0) | (np.sign(low) == np.sign(high)) | (high == 0))


def supply(*supplied: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return words in turn, as a source of random words."""
    left = list(supplied)

    def words(n: int) -> NDArray[np.uint64]:
        taken, left[:] = left[:n], left[n:]
        assert len(taken) == n
        return np.array(taken, np.uint64)

    return words


@pytest.mark.parametrize("height", [Fraction(4, 5), Fraction(1), Fraction(32, 5)])
@pytest.mark.parametrize("energy", [Fraction(1, 7), Fraction(22, 3), Fraction(61, 2)])
def test_a_trial_next_to_the_bound_is_decided_by_more_bits(
    energy: Fraction, height: Fraction
) -> None:
    with mpmath.workdps(200):
        decay = mpmath.exp(-mpmath.mpf(energy.numerator) / energy.denominator)
        digits = int(mpmath.floor(decay * height.numerator / height.denominator * 2**192))
    words = [digits >> 64 & (1 << 64) - 1, digits & (1 << 64) - 1]
    assert not noise._is_below(supply(words[0], words[1] + 1, 0), digits >> 128, energy, height)
    assert noise._is_below(supply(words[0], words[1] - 1, 0), digits >> 128, energy, height)


def test_a_block_counts_ones_for_as_long_as_they_come() -> None:
    full = (1 << 64) - 1
    words = supply(0b0111, full, 0b10, full, full >> 1, full, 0b1)
    np.testing.assert_array_equal(noise._draw_blocks(words, 4), [3, 64 + 63, 0, 64 + 64 + 1])


def test_trials_are_independent_of_how_many_are_asked_for() -> None:
    assert NoiseSource(1).discrete_normals(0, 5).shape == (0,)
    assert NoiseSource(1).discrete_normals((3, 4), 5).shape == (3, 4)
    assert abs(NoiseSource(None).discrete_normals(2000, 100)).max() < 100 * 9


@pytest.mark.parametrize("scale", [0, -3, noise.LARGEST_SCALE + 1])
def test_scales_that_cannot_be_drawn_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="whole number from 1 to"):
        NoiseSource(1).discrete_normals(3, scale)


def test_the_probability_of_a_trial_is_never_above_one() -> None:
    for law in (noise._NORMAL, noise._LAPLACE):
        best = max(2.0**block * math.exp(-law.energy(block)) for block in range(99))
        assert 0.9 < best * law.factor <= 1.0


@pytest.mark.parametrize("scale", [1, 2, 5, 37, 1 << 20, 1_500_001, noise.LARGEST_SCALE])
@pytest.mark.parametrize("is_normal", [True, False])
def test_the_core_and_its_twin_agree(scale: int, is_normal: bool) -> None:
    core = pytest.importorskip("letheon._core")
    plain = np.frombuffer(np.random.default_rng(scale).bytes(24 * 10_000), np.uint64)
    words = plain.copy()
    odd = [0, 1, (1 << 64) - 1, (1 << 63) - 1, (1 << 39) - 1, ~((1 << 39) - 1) % (1 << 64)]
    words[: len(odd)] = words[20_000 : 20_000 + len(odd)] = odd
    law = noise._NORMAL if is_normal else noise._LAPLACE
    values, decisions = noise._try_candidates(law, scale, words)
    undecided = [*np.flatnonzero(decisions == noise._UNDECIDED), len(decisions)]
    sure = slice(0, undecided[0])
    kept = values[sure][decisions[sure] == noise._KEPT]
    np.testing.assert_array_equal(core.keep_candidates(is_normal, scale, words, 20_000), kept)
    np.testing.assert_array_equal(core.keep_candidates(is_normal, scale, words, 5), kept[:5])
    # The third word is a block without end; without such ones about half are kept.
    assert undecided[0] == 2
    assert 0.3 < len(core.keep_candidates(is_normal, scale, plain, 20_000)) / 20_000 < 0.6


def test_a_block_without_end_is_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in 2**25 candidates; its value is far out, and hardly ever kept."""
    full = (1 << 64) - 1
    monkeypatch.setattr(noise, "_is_below", lambda *_: True)
    supplied = [full - 1, *[1] * 33, *[full] * 17]
    value = noise._draw_accepted(supply(*supplied, 0b11), 1, noise._integers_of(8, noise._LAPLACE))
    assert value.tolist() == [(25 + 2) * 8 + 7]


@pytest.mark.parametrize("scale", [3, 1000])
def test_every_place_comes_equally_often(scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few bits for a place all of them can be counted."""
    monkeypatch.setattr(noise, "_PLACE_BITS", 12)
    words = np.arange(1 << 12, dtype=np.uint64) << np.uint64(1)
    counts = np.unique(noise._split_words(words, scale)[1], return_counts=True)[1]
    rejected, places = counts[0], counts[1:]
    assert len(places) == scale
    assert places.tolist() == [4096 // scale] * scale
    assert rejected == 4096 % scale


@pytest.mark.parametrize("has_core", [True, False])
def test_a_candidate_that_is_not_needed_draws_no_bits(
    has_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise seeded noise after it would depend on whether there is a core."""
    if not has_core:
        monkeypatch.setattr(noise, "_core", None)
    source, n_calls = NoiseSource(5), 0

    def words(n: int) -> NDArray[np.uint64]:
        nonlocal n_calls
        n_calls += 1
        drawn = source._words(n)
        drawn[2 * n // 3 - 1] = 2**64 - 2  # the last candidate: all bits of its block are ones
        return drawn

    assert len(noise._draw_integers(words, 3, 8, noise._NORMAL)) == 3
    assert n_calls == 1
