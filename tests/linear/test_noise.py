"""Noise follows its laws, repeats only with a seed, and stays secret."""

import copy
import json
import logging
import os
import pickle
import pprint
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import gamma, kstest

from letheon.exceptions import CorruptFileError
from letheon.noise import NoiseSource, SecretArray
from letheon.seeds import Purpose, keyed_hash
from letheon.state import decode, digest, encode

SECRET = 0.123456789
SOURCES = [0, 2**128 - 1]
# A law that holds is refused once in 10^4 sources; the seeds are fixed, so never by chance.
LEVEL = 1e-4


def _sealed() -> SecretArray:
    return SecretArray(np.array([[SECRET, -7.5], [2.0, 1e-3]]))


@pytest.fixture
def system_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the operating system that are the same in every run of the tests."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(5).bytes)


@pytest.fixture(params=[*SOURCES, None])
def source(request: pytest.FixtureRequest, system_bytes: None) -> NoiseSource:
    return NoiseSource(request.param)


def test_uniforms_are_uniform(source: NoiseSource) -> None:
    drawn = source.uniforms(20_000)
    assert kstest(drawn, "uniform").pvalue > LEVEL
    assert drawn.dtype == np.float64


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_uniforms_never_reach_an_end(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda n: word.to_bytes(8, "little") * (n // 8))
    (drawn,) = NoiseSource(None).uniforms(1).tolist()
    assert drawn == (2.0**-53 if word == 0 else 1 - 2.0**-53)
    assert np.isfinite(NoiseSource(None).normals(1)).all()


@given(st.integers(0, 2**128 - 1), st.integers(1, 50))
def test_uniforms_are_odd_multiples_of_two_to_the_minus_53(seed: int, n: int) -> None:
    steps = NoiseSource(seed).uniforms(n) * 2.0**53
    assert (steps % 2 == 1).all()
    assert (steps < 2.0**53).all()


def test_normals_are_normal_and_independent(source: NoiseSource) -> None:
    drawn = source.normals((10_000, 2))
    assert kstest(drawn.ravel(), "norm").pvalue > LEVEL
    assert abs(np.mean(drawn[:, 0] * drawn[:, 1])) < 4 / np.sqrt(len(drawn))


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 4)])
def test_the_radius_of_a_ball_is_gamma(source: NoiseSource, shape: tuple[int, ...]) -> None:
    radii = [np.linalg.norm(source.ball(shape, 0.3)) for _ in range(2_000)]
    assert kstest(radii, gamma(np.prod(shape), scale=0.3).cdf).pvalue > LEVEL


def test_a_ball_has_no_direction(source: NoiseSource) -> None:
    drawn = np.array([source.ball(3, 2.0) for _ in range(2_000)])
    units = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    # Archimedes: each coordinate of a uniform point of a sphere in space is uniform.
    for axis in units.T:
        assert kstest((axis + 1) / 2, "uniform").pvalue > LEVEL
    assert np.abs(units.T @ units / len(units) - np.eye(3) / 3).max() < 4 / np.sqrt(len(units))


def test_the_radius_does_not_depend_on_the_direction(source: NoiseSource) -> None:
    drawn = np.array([source.ball(2, 1.0) for _ in range(2_000)])
    radii = np.linalg.norm(drawn, axis=1)
    # The covariance of two independent things, of variances 2 (gamma of shape 2) and 1/2.
    assert abs(np.mean((radii - 2) * drawn[:, 0] / radii)) < 4 / np.sqrt(len(radii))


def test_a_long_ball_has_the_radius_of_its_length() -> None:
    radius = np.linalg.norm(NoiseSource(1).ball(200_000, 0.5))
    assert abs(radius / 100_000 - 1) < 5 / np.sqrt(200_000)


@pytest.mark.parametrize("shape", [0, (0,), (3, 0)])
def test_nothing_is_drawn_of_nothing(source: NoiseSource, shape: Any) -> None:
    assert source.normals(shape).size == source.ball(shape, 1.0).size == 0


def test_a_ball_of_no_scale_is_a_point(source: NoiseSource) -> None:
    assert not source.ball((2, 2), 0.0).any()
    for scale in (-1.0, np.nan):
        with pytest.raises(ValueError, match="scale"):
            source.ball(2, scale)


@given(st.integers(0, 2**128 - 1), st.lists(st.sampled_from("unb"), min_size=2, max_size=6))
def test_seeded_draws_repeat_and_differ_from_each_other(seed: int, kinds: list[str]) -> None:
    first, second = ([_draw(source, kind) for kind in kinds] for source in _pair(seed))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    for kind in set(kinds):
        same_kind = [draw.tobytes() for draw, k in zip(first, kinds, strict=True) if k == kind]
        assert len(set(same_kind)) == len(same_kind)


def _pair(seed: int | None) -> tuple[NoiseSource, NoiseSource]:
    return NoiseSource(seed), NoiseSource(seed)


def _draw(source: NoiseSource, kind: str) -> NDArray[np.float64]:
    if kind == "b":
        return source.ball(4, 1.0)
    return source.uniforms(4) if kind == "u" else source.normals(4)


def test_other_seeds_give_other_noise() -> None:
    drawn = {NoiseSource(seed).normals(4).tobytes() for seed in (0, 1, 2**64, 2**127)}
    assert len(drawn) == 4


def test_a_seeded_draw_is_keyed_by_its_number() -> None:
    source = NoiseSource(9)
    source.normals(3)
    first = keyed_hash(9, Purpose.NOISE, 1)
    twin = NoiseSource(9)
    twin.n_draws = 1
    assert np.array_equal(source.uniforms(2), twin.uniforms(2))
    assert first != keyed_hash(9, Purpose.NOISE, 0)
    assert source.n_draws == 2


def test_draws_of_the_system_never_repeat() -> None:
    former, latter = _pair(None)
    drawn = [source.normals(4).tobytes() for source in (former, former, latter)]
    assert len(set(drawn)) == 3
    assert former.n_draws == 0


def test_the_system_is_asked_for_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def urandom(n: int) -> bytes:
        sizes.append(n)
        return bytes(n)

    monkeypatch.setattr(os, "urandom", urandom)
    NoiseSource(None).normals((3, 2))
    NoiseSource(None).ball(5, 1.0)
    NoiseSource(3).normals(7)
    assert sizes == [48, 8, 40]


@pytest.mark.parametrize("seed", [True, 1.0, "7", np.random.default_rng(0)])
def test_a_seed_is_an_int(seed: Any) -> None:
    with pytest.raises(TypeError, match="noise_seed must be None or an int"):
        NoiseSource(seed)


@pytest.mark.parametrize("seed", [-1, 2**128])
def test_a_seed_has_128_bits(seed: int) -> None:
    with pytest.raises(ValueError, match="noise_seed must be from 0"):
        NoiseSource(seed)


def test_a_seed_of_numpy_is_an_int() -> None:
    assert type(NoiseSource(np.int64(3)).seed) is int  # type: ignore[arg-type]


def test_a_source_says_whether_it_repeats_and_not_its_seed() -> None:
    assert NoiseSource(8675309).is_repeatable
    assert not NoiseSource(None).is_repeatable
    assert repr(NoiseSource(None)) == "<noise from the operating system>"
    assert "8675309" not in repr(NoiseSource(8675309))


@pytest.mark.parametrize("seed", [*SOURCES, None])
@pytest.mark.parametrize(
    "again", [copy.copy, lambda s: pickle.loads(pickle.dumps(s)), lambda s: decode(encode(s))]
)
def test_a_source_goes_on_where_it_stopped(seed: int | None, again: Any) -> None:
    source = NoiseSource(seed)
    source.normals(2)
    twin = again(source)
    assert (twin.seed, twin.n_draws) == (source.seed, source.n_draws)
    assert np.array_equal(twin.normals(3), source.normals(3)) == (seed is not None)


def test_a_copy_draws_without_moving_the_source() -> None:
    source = NoiseSource(4)
    copy.copy(source).normals(5)
    assert source.n_draws == 0


@pytest.mark.parametrize("n_draws", [-1, 1.0, None, True])
def test_a_file_with_a_wrong_counter_is_refused(n_draws: Any) -> None:
    source = NoiseSource(4)
    source.n_draws = n_draws
    with pytest.raises(CorruptFileError):
        decode(encode(source))


@dataclass
class Holder:
    secret: Any


PRINTED: dict[str, Any] = {
    "repr": repr,
    "str": str,
    "format": format,
    "a format with digits": lambda value: f"{value:.17g}",
    "%s": lambda value: "%s" % value,  # noqa: UP031  (the old way is the point)
    "%r": lambda value: "%r" % value,  # noqa: UP031
    "a list": lambda value: str([value]),
    "a dataclass": lambda value: repr(Holder(value)),
    "the attributes of its holder": lambda value: str(vars(Holder(value))),
    "a pretty print": lambda value: pprint.pformat({"noise": value}),
    "an object array": lambda value: repr(np.asarray(value)),
    "text as the last resort of JSON": lambda value: json.dumps({"noise": value}, default=str),
}


@pytest.mark.parametrize("how", PRINTED)
def test_a_sealed_value_is_never_printed(how: str) -> None:
    text = PRINTED[how](_sealed())
    assert "<secret>" in text
    assert not any(digit in text for digit in "12345679")


def test_a_sealed_value_is_not_in_the_text_of_an_error() -> None:
    former, latter = _sealed(), _sealed()
    try:
        assert former == latter, f"{former} is not {latter}"
    except AssertionError as error:
        text = "".join(
            traceback.TracebackException.from_exception(error, capture_locals=True).format()
        )
    assert "<secret>" in text
    assert "1234567" not in text


def test_a_sealed_value_is_not_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("a").debug("noise %s %r", _sealed(), {"b": _sealed()})
    assert caplog.messages == ["noise <secret> {'b': <secret>}"]


@pytest.mark.parametrize("use", [json.dumps, float, iter, len, vars, sorted, lambda s: s + 1])
def test_a_sealed_value_cannot_be_used_by_accident(use: Any) -> None:
    with pytest.raises(TypeError) as caught:
        use(_sealed())
    assert "1234567" not in str(caught.value)


def test_a_sealed_value_is_no_array() -> None:
    assert np.asarray(_sealed()).dtype == object
    assert not hasattr(SecretArray, "__array__")
    assert not hasattr(_sealed(), "__dict__")


def test_sealed_values_are_compared_by_identity() -> None:
    sealed = _sealed()
    assert sealed == sealed
    assert sealed != _sealed()
    assert len({sealed, _sealed()}) == 2


@pytest.mark.parametrize("value", [[SECRET], SECRET, np.array(["0.123456789"]), np.array([12345])])
def test_only_float64_is_sealed_and_errors_do_not_tell(value: Any) -> None:
    with pytest.raises(TypeError, match="float64") as caught:
        SecretArray(value)
    assert "12345" not in str(caught.value)


def test_an_opened_value_cannot_be_changed() -> None:
    sealed = _sealed()
    opened = sealed.open()
    assert opened[0, 0] == SECRET
    with pytest.raises(ValueError, match="read-only"):
        opened[0, 0] = 1.0


AGAIN: dict[str, Any] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "a file": lambda value: decode(encode(value)),
}


@pytest.mark.parametrize("how", AGAIN)
def test_a_sealed_value_travels_whole(how: str) -> None:
    sealed = _sealed()
    again = AGAIN[how](sealed)
    assert type(again) is SecretArray
    assert np.array_equal(again.open(), sealed.open())
    assert digest(again) == digest(sealed)
    sealed.wipe()
    assert again.open()[0, 0] == SECRET


def test_the_digest_depends_on_the_sealed_value() -> None:
    assert digest(SecretArray(np.zeros(2))) != digest(SecretArray(np.array([0.0, 1e-300])))


def test_a_file_with_something_else_under_the_seal_is_refused() -> None:
    sealed = _sealed()
    object.__setattr__(sealed, "_value", np.array([1, 2]))
    with pytest.raises(CorruptFileError):
        decode(encode(sealed))


@pytest.mark.parametrize("make", [np.array, lambda v: np.array([v, v])[0], lambda v: np.array(v).T])
def test_a_wiped_value_is_gone_from_memory(make: Any) -> None:
    sealed = SecretArray(make([[SECRET, 1.0], [2.0, 3.0]]))
    opened = sealed.open()
    sealed.wipe()
    sealed.wipe()
    assert not opened.any()
    for use in (sealed.open, lambda: pickle.dumps(sealed), lambda: encode(sealed)):
        with pytest.raises(ValueError, match="was wiped"):
            use()
    assert repr(sealed) == "<secret>"


def test_the_memory_of_a_fresh_array_is_taken_over() -> None:
    value = np.array([SECRET])
    SecretArray(value).wipe()
    assert value[0] == 0.0
