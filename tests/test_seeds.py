"""Keyed randomness: official vectors, golden vectors, and three implementations that must agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import seeds
from letheon.seeds import (
    Purpose,
    keyed_hash,
    keyed_hash_ints,
    keyed_hash_texts,
    library_seed,
    mix32,
    mix64,
    seed_from,
)

VECTORS = json.loads((Path(__file__).parent / "data" / "keyed_hash_vectors.json").read_text())
# Those whose last part is an int or a str: only these have an array form.
ARRAY_VECTORS = [v for v in VECTORS["keyed_hash"] if v["parts"] and "hex" not in v["parts"][-1]]
OFFICIAL_KEY = bytes(range(16))

int64s = st.integers(-(2**63), 2**63 - 1)
uint32s = st.integers(0, 2**32 - 1)
uint64s = st.integers(0, 2**64 - 1)
seeds128 = st.integers(0, 2**128 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
parts = st.one_of(int64s, texts, st.binary(max_size=40))


@pytest.fixture(params=["core", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the compiled core and without it."""
    if request.param == "numpy":
        monkeypatch.setattr(seeds, "_core", None)
    else:
        pytest.importorskip("letheon._core")
    return str(request.param)


def part_of(encoded: dict[str, Any]) -> int | str | bytes:
    ((kind, value),) = encoded.items()
    return bytes.fromhex(value) if kind == "hex" else value


def cut(items: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [item.encode() for item in items]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def words_of(message: bytes) -> npt.NDArray[np.uint64]:
    padded = message.ljust(len(message) // 8 * 8 + 7, b"\0") + bytes([len(message) % 256])
    return np.frombuffer(padded, dtype="<u8").astype(np.uint64)[:, None]


@pytest.mark.parametrize("size", range(64))
def test_official_siphash_vectors(size: int) -> None:
    message, expected = bytes(range(size)), int(VECTORS["siphash24"][size], 16)
    assert seeds._siphash24(OFFICIAL_KEY, message) == expected
    assert seeds._siphash24_numpy(OFFICIAL_KEY, words_of(message)).tolist() == [expected]


def test_first_official_vector_is_the_published_one() -> None:
    assert VECTORS["siphash24"][0] == "726fdb47dd0e0e31"


@pytest.mark.parametrize("size", range(64))
def test_official_siphash_vectors_compiled(size: int) -> None:
    core = pytest.importorskip("letheon._core")
    expected = int(VECTORS["siphash24"][size], 16)
    assert core.siphash24(OFFICIAL_KEY, bytes(range(size))) == expected


@pytest.mark.parametrize("vector", VECTORS["keyed_hash"], ids=lambda v: v["hash"])
def test_golden_keyed_hash(vector: dict[str, Any], engine: str) -> None:
    given_parts = [part_of(part) for part in vector["parts"]]
    got = keyed_hash(int(vector["seed"]), vector["purpose"], *given_parts)
    assert f"{got:016x}" == vector["hash"]


@pytest.mark.parametrize("vector", ARRAY_VECTORS, ids=lambda v: v["hash"])
def test_golden_keyed_hash_of_arrays(vector: dict[str, Any], engine: str) -> None:
    *head, last = [part_of(part) for part in vector["parts"]]
    seed, purpose = int(vector["seed"]), vector["purpose"]
    if isinstance(last, int):
        got = keyed_hash_ints(seed, purpose, np.array([last]), *head)
    else:
        got = keyed_hash_texts(seed, purpose, *cut([str(last)]), *head)
    assert [f"{value:016x}" for value in got.tolist()] == [vector["hash"]]


@pytest.mark.parametrize("vector", VECTORS["mix64"], ids=lambda v: v["mixed"])
def test_golden_mix64(vector: dict[str, str], engine: str) -> None:
    key, bits = int(vector["key"], 16), np.array([int(vector["bits"], 16)], dtype=np.uint64)
    assert f"{mix64(key, bits)[0]:016x}" == vector["mixed"]
    assert f"{mix64(np.array([key], dtype=np.uint64), bits)[0]:016x}" == vector["mixed"]


@pytest.mark.parametrize("vector", VECTORS["mix32"], ids=lambda v: v["mixed"])
def test_golden_mix32(vector: dict[str, str], engine: str) -> None:
    bits = np.array([int(vector["bits"], 16)], dtype=np.uint32)
    assert f"{mix32(int(vector['key'], 16), bits)[0]:08x}" == vector["mixed"]


def test_mix64_contains_the_published_splitmix64_output(engine: str) -> None:
    # SplitMix64 seeded with 0 first gives f(gamma); as the key it cancels, and f(0) is 0.
    first_output = 0xE220A8397B1DCDAF
    assert mix64(first_output, np.zeros(1, dtype=np.uint64)).tolist() == [0]


@given(seeds128, texts, st.lists(parts, max_size=4))
def test_pure_python_equals_compiled(seed: int, purpose: str, given_parts: list[Any]) -> None:
    core = pytest.importorskip("letheon._core")
    key, message = seeds._seed_bytes(seed), seeds._frame_message(purpose, tuple(given_parts))
    assert core.siphash24(key, message) == seeds._siphash24(key, message)


def test_core_refuses_a_key_of_another_length_and_converts_nothing() -> None:
    core = pytest.importorskip("letheon._core")
    with pytest.raises(ValueError, match="16 bytes"):
        core.siphash24(bytes(15), b"")
    with pytest.raises(TypeError):
        core.hash_ints(bytes(16), b"", np.zeros(3, dtype=np.int32))


@given(seeds128, st.lists(int64s, max_size=12), st.lists(parts, max_size=3))
def test_ints_equal_one_by_one(seed: int, values: list[int], head: list[Any]) -> None:
    array = np.array(values, dtype=np.int64)
    expected = [keyed_hash(seed, "p", *head, value) for value in values]
    key, prefix = seeds._seed_bytes(seed), seeds._frame_message("p", tuple(head))
    assert keyed_hash_ints(seed, "p", array, *head).tolist() == expected
    assert seeds._hash_ints_numpy(key, prefix, array).tolist() == expected


@given(seeds128, st.lists(texts, max_size=12), st.lists(parts, max_size=3))
def test_texts_equal_one_by_one(seed: int, items: list[str], head: list[Any]) -> None:
    blob, offsets = cut(items)
    expected = [keyed_hash(seed, "p", *head, item) for item in items]
    key, prefix = seeds._seed_bytes(seed), seeds._frame_message("p", tuple(head))
    assert keyed_hash_texts(seed, "p", blob, offsets, *head).tolist() == expected
    assert seeds._hash_texts_numpy(key, prefix, blob, offsets).tolist() == expected


@pytest.mark.parametrize("block_bytes", [1, 40, 100])
def test_blocks_do_not_change_hashes(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    items = ["a" * (7 * k % 50) + str(k) for k in range(60)]
    values = np.arange(60)
    expected = keyed_hash_texts(3, "p", *cut(items)), keyed_hash_ints(3, "p", values)
    monkeypatch.setattr(seeds, "_core", None)
    monkeypatch.setattr(seeds, "_BLOCK_BYTES", block_bytes)
    np.testing.assert_array_equal(keyed_hash_texts(3, "p", *cut(items)), expected[0])
    np.testing.assert_array_equal(keyed_hash_ints(3, "p", values), expected[1])


@given(uint64s, st.lists(uint64s, max_size=12))
def test_mix64_equals_its_formula(key: int, bits: list[int]) -> None:
    def finalise(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    array = np.array(bits, dtype=np.uint64)
    expected = [finalise(key ^ finalise((b + 0x9E3779B97F4A7C15) % 2**64)) for b in bits]
    assert mix64(key, array).tolist() == expected
    assert seeds._mix64_numpy(key, array).tolist() == expected


@given(uint64s, st.lists(uint32s, max_size=12))
def test_mix32_equals_its_formula(key: int, bits: list[int]) -> None:
    def mixed(x: int) -> int:
        x ^= key % 2**32
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ x >> shift) * factor % 2**32
        x ^= x >> 16 ^ key >> 32
        x = (x ^ x >> 15) * 0x9E3779B1 % 2**32
        return x ^ x >> 16

    array = np.array(bits, dtype=np.uint32)
    assert mix32(key, array).tolist() == [mixed(x) for x in bits]
    assert seeds._mix32_numpy(key, array).tolist() == [mixed(x) for x in bits]


@given(uint64s, st.integers(0, 2**32 - 70_000))
def test_mix32_never_ties(key: int, start: int) -> None:
    bits = np.arange(start, start + 70_000, dtype=np.uint32)
    assert np.unique(mix32(key, bits)).size == bits.size


def test_one_flipped_bit_flips_half_of_mix32(engine: str) -> None:
    bits, key = np.arange(0, 2**32, 2**20 - 1, dtype=np.uint32), 0x0123456789ABCDEF
    changed = [mix32(key, bits ^ np.uint32(1 << position)) for position in range(32)]
    # The upper half of the key passes one multiplication only; keys are hashes, never alike.
    changed += [mix32(key ^ 1 << position, bits) for position in range(32)]
    for other in changed:
        share = np.bitwise_count(mix32(key, bits) ^ other).mean() / 32
        assert 0.45 < share < 0.55


def test_keys_order_values_independently(engine: str) -> None:
    bits = np.linspace(0, 1, 200, dtype=np.float32).view(np.uint32)
    ranks = [np.argsort(mix32(keyed_hash(0, "p", k), bits)).argsort() for k in range(2000)]
    first = np.bincount([np.argmin(rank) for rank in ranks], minlength=200)
    # Chi-square of 200 fair boxes with ten values each: mean 199, standard deviation 20.
    assert ((first - 10) ** 2 / 10).sum() < 199 + 5 * 20
    alike = np.abs(np.asarray(np.corrcoef(ranks[:50])) - np.eye(50))
    assert alike.mean() < 0.07


def test_mix32_keeps_shape(engine: str) -> None:
    bits = np.arange(12, dtype=np.uint32).reshape(2, 6)[:, ::2]
    assert mix32(5, bits).shape == (2, 3)
    np.testing.assert_array_equal(mix32(5, bits)[1], mix32(5, bits[1]))


def test_mix64_broadcasts_and_keeps_shape(engine: str) -> None:
    keys = np.array([[5], [6]], dtype=np.uint64)
    bits = np.arange(12, dtype=np.uint64).reshape(2, 6)[:, ::2]
    mixed = mix64(keys, bits)
    assert mixed.shape == (2, 3)
    np.testing.assert_array_equal(mixed[1], mix64(6, bits[1]))
    assert mix64(5, np.array(7, dtype=np.uint64)).shape == ()


def test_parts_of_other_kind_or_cut_differ() -> None:
    alike: list[tuple[Any, ...]] = [
        (1,),
        ("1",),
        (b"1",),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (),
        ("",),
        (b"",),
        (0,),
    ]
    assert len({keyed_hash(0, "p", *each) for each in alike}) == len(alike)


def test_seeds_and_purposes_give_different_streams() -> None:
    values = np.arange(1000)
    streams = [keyed_hash_ints(s, p, values) for s in (0, 1, 2**64) for p in Purpose]
    together = np.concatenate(streams)
    assert np.unique(together).size == together.size


def test_purposes_are_distinct_short_strings() -> None:
    assert len({str(p) for p in Purpose}) == len(Purpose)
    assert keyed_hash(1, Purpose.SHARD, 5) == keyed_hash(1, "shard", 5)


def test_every_bit_of_the_output_is_fair() -> None:
    hashes = keyed_hash_ints(11, "p", np.arange(20_000))
    share = [(hashes >> np.uint64(b) & np.uint64(1)).mean() for b in range(64)]
    # Six standard deviations of a fair coin's mean.
    assert np.abs(np.array(share) - 0.5).max() < 6 * 0.5 / np.sqrt(hashes.size)


def test_one_flipped_bit_flips_half_of_mix64() -> None:
    bits = np.arange(4096, dtype=np.uint64)
    for position in range(64):
        flipped = mix64(9, bits) ^ mix64(9, bits ^ np.uint64(1 << position))
        assert abs(np.bitwise_count(flipped).mean() - 32) < 0.5


def test_empty_arrays_give_empty_results(engine: str) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert keyed_hash_ints(0, "p", nothing).shape == (0,)
    assert keyed_hash_texts(0, "p", *cut([])).shape == (0,)
    assert mix64(0, np.zeros(0, dtype=np.uint64)).dtype == np.uint64


def test_offsets_may_cut_the_inside_of_a_blob(engine: str) -> None:
    blob, _ = cut(["xxabcyy"])
    hashes = keyed_hash_texts(1, "p", blob, np.array([2, 2, 5]))
    assert hashes.tolist() == [keyed_hash(1, "p", ""), keyed_hash(1, "p", "abc")]


@pytest.mark.parametrize("offsets", [[], [0, 4], [1, 0], [-1, 2], [0, 9, 3]])
def test_bad_offsets_are_refused(offsets: list[int], engine: str) -> None:
    blob = np.zeros(3, dtype=np.uint8)
    with pytest.raises(ValueError, match="offsets"):
        keyed_hash_texts(0, "p", blob, np.array(offsets, dtype=np.int64))


@pytest.mark.parametrize("offsets", [[], [0, 4], [1, 0], [-1, 2], [0, 9, 3]])
def test_the_core_itself_never_reads_outside_the_blob(offsets: list[int]) -> None:
    core = pytest.importorskip("letheon._core")
    blob = np.zeros(3, dtype=np.uint8)
    with pytest.raises(ValueError, match="offsets"):
        core.hash_texts(bytes(16), b"", blob, np.array(offsets, dtype=np.int64))


def test_a_text_longer_than_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 4294967295 bytes"):
        seeds._verify_offsets(np.array([0, 2**32]), 2**32)


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        (keyed_hash, (-1, "p"), ValueError),
        (keyed_hash, (2**128, "p"), ValueError),
        (keyed_hash, (True, "p"), TypeError),
        (keyed_hash, (0, b"p"), TypeError),
        (keyed_hash, (0, "p", True), TypeError),
        (keyed_hash, (0, "p", np.True_), TypeError),
        (keyed_hash, (0, "p", 1.0), TypeError),
        (keyed_hash, (0, "p", None), TypeError),
        (keyed_hash, (0, "p", 2**63), ValueError),
        (keyed_hash, (0, "p", -(2**63) - 1), ValueError),
        (keyed_hash, (0, "p", "\ud800"), UnicodeEncodeError),
        (keyed_hash_ints, (0, "p", np.zeros(3)), TypeError),
        (keyed_hash_ints, (0, "p", np.zeros(3, dtype=np.uint64)), TypeError),
        (keyed_hash_ints, (0, "p", np.zeros(3, dtype=">i8")), TypeError),
        (keyed_hash_ints, (0, "p", [1, 2]), TypeError),
        (keyed_hash_ints, (0, "p", np.zeros((2, 2), dtype=np.int64)), ValueError),
        (mix64, (0, np.zeros(3)), TypeError),
        (mix64, (-1, np.zeros(3, dtype=np.uint64)), ValueError),
        (mix64, (2**64, np.zeros(3, dtype=np.uint64)), ValueError),
        (mix64, (1.0, np.zeros(3, dtype=np.uint64)), TypeError),
        (mix64, (np.zeros(3), np.zeros(3, dtype=np.uint64)), TypeError),
        (mix32, (0, np.zeros(3, dtype=np.float32)), TypeError),
        (mix32, (0, np.zeros(3, dtype=np.uint64)), TypeError),
        (mix32, (2**64, np.zeros(3, dtype=np.uint32)), ValueError),
        (mix32, (-1, np.zeros(3, dtype=np.uint32)), ValueError),
    ],
)
def test_wrong_input_is_refused(
    function: Callable[..., object], arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        function(*arguments)


def test_numpy_ints_and_strings_are_ordinary_parts() -> None:
    assert keyed_hash(0, "p", np.int32(5), np.str_("a")) == keyed_hash(0, "p", 5, "a")  # type: ignore[arg-type]


def test_strided_arrays_hash_like_contiguous_ones(engine: str) -> None:
    values = np.arange(20)[::3]
    np.testing.assert_array_equal(
        keyed_hash_ints(2, "p", values), keyed_hash_ints(2, "p", values.copy())
    )


@given(seeds128)
def test_an_int_is_its_own_seed(seed: int) -> None:
    assert seed_from(seed) == seed


def test_seed_from_numpy_int() -> None:
    seed = seed_from(np.int64(5))  # type: ignore[arg-type]
    assert (seed, type(seed)) == (5, int)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_a_generator_gives_sixteen_bytes_once(make: Callable[[int], Any]) -> None:
    used, reference = make(3), make(3)
    assert seed_from(used) == int.from_bytes(reference.bytes(16), "little")
    assert used.bytes(8) == reference.bytes(8)


def test_no_random_state_asks_the_operating_system() -> None:
    drawn = {seed_from(None) for _ in range(20)}
    assert len(drawn) == 20
    assert max(drawn) > 2**64


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, "1", b"1", [1], np.random])
def test_seed_from_refuses_other_kinds(wrong: Any) -> None:
    with pytest.raises(TypeError, match="random_state must be None, an int"):
        seed_from(wrong)


@pytest.mark.parametrize("wrong", [-1, 2**128])
def test_seed_from_refuses_ints_beyond_128_bits(wrong: int) -> None:
    with pytest.raises(ValueError, match="random_state must be from 0"):
        seed_from(wrong)


@given(seeds128, st.lists(parts, max_size=3))
def test_library_seed_is_32_bits_of_the_hash(seed: int, given_parts: list[Any]) -> None:
    got = library_seed(seed, Purpose.STAGE, *given_parts)
    assert got == keyed_hash(seed, "stage", *given_parts) % 2**32
    np.random.RandomState(got)
