"""Damaged forests: refused by name, or good for use; the process survives in any case."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import DaREForestClassifier, DaREForestRegressor, load, save, state
from letheon.exceptions import StateError

N = 24
Damage = Callable[[bytes], bytes]


@cache
def forest(kind: str) -> Any:
    """Return a small forest with all that a file can hold: gaps, weights, subsampling."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(N, 3)).round(1), rng.integers(1, 3, N)
    X[::7, 1] = np.nan
    settings: dict[str, Any] = {"n_estimators": 3, "max_depth": 4, "random_state": 5}
    if kind == "numbers":
        return DaREForestRegressor(**settings, random_depth=1).fit(
            X, X[:, 0] * 3, sample_weight=weights
        )
    names = [f"né {i // 2}" for i in range(N)]
    model = DaREForestClassifier(**settings, subsample=0.8)
    return model.fit(X, rng.integers(0, 3, N), sample_weight=weights, ids=names)


@cache
def file_of(kind: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        save(forest(kind), path)
        return path.read_bytes()


MAGIC = b"letheon-state-v1\0"


def sealed(body: bytes) -> bytes:
    """Return a state whose checksum is right, as an attacker would write it."""
    return MAGIC + hashlib.sha256(body).digest() + body


@cache
def body_of(kind: str) -> bytes:
    """Return what the checksum is taken over: damage here gets as far as the core."""
    content = state.encode(forest(kind).forest_)
    body = content[len(MAGIC) + 32 :]
    assert sealed(body) == content
    return body


def cut(part: float) -> Damage:
    return lambda content: content[: 1 + int(part * (len(content) - 1))]


def overwrite(part: float, new: bytes) -> Damage:
    def damage(content: bytes) -> bytes:
        place = int(part * (len(content) - 1))
        return content[:place] + new + content[place + len(new) :]

    return damage


def flip(part: float, bit: int) -> Damage:
    def damage(content: bytes) -> bytes:
        place = int(part * (len(content) - 1))
        return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]

    return damage


def repeat(part: float, size: int) -> Damage:
    def damage(content: bytes) -> bytes:
        place = int(part * (len(content) - 1))
        return content[:place] + content[place : place + size] + content[place:]

    return damage


parts = st.floats(0, 1)
damages: st.SearchStrategy[list[Damage]] = st.lists(
    st.one_of(
        st.builds(cut, parts),
        st.builds(overwrite, parts, st.binary(min_size=1, max_size=9)),
        st.builds(flip, parts, st.integers(0, 7)),
        st.builds(repeat, parts, st.integers(1, 40)),
    ),
    min_size=1,
    max_size=3,
)
kinds = st.sampled_from(["classes", "numbers"])


def damaged(content: bytes, each: list[Damage]) -> bytes:
    for damage in each:
        content = damage(content)
    return content


def load_bytes(content: bytes) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.letheon"
        path.write_bytes(content)
        return load(path)


@given(kinds, damages)
def test_a_damaged_file_is_refused(kind: str, each: list[Damage]) -> None:
    content = damaged(file_of(kind), each)
    if content == file_of(kind):
        assert load_bytes(content).digest() == forest(kind).digest()
        return
    with pytest.raises(StateError):
        load_bytes(content)


@given(parts, parts)
def test_two_files_spliced_are_refused(first: float, second: float) -> None:
    front, back = file_of("classes"), file_of("numbers")
    content = front[: int(first * len(front))] + back[int(second * len(back)) :]
    if content in (front, back):
        assert load_bytes(content).digest() in {forest(k).digest() for k in ("classes", "numbers")}
        return
    with pytest.raises(StateError):
        load_bytes(content)


def use(model: Any) -> None:
    """Do with a forest what its owner would do; nothing may fail."""
    content = state.encode(model)
    assert state.encode(state.decode(content)) == content
    model.core.predict(np.zeros((5, 3)), 1)
    state.digest(model)
    model.core.forget_cost(np.array([0, 2], np.uint32), 1)
    model.core.forget(np.array([0, 2], np.uint32), True, 1)
    model.core.settle(1)


@given(kinds, damages)
def test_a_damaged_state_is_refused_or_can_be_used(kind: str, each: list[Damage]) -> None:
    content = sealed(damaged(body_of(kind), each))
    try:
        model = state.decode(content)
    except StateError:
        return
    use(model)
    assert model.core.n_rows == N - 2


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("change", [0x01, pytest.param(0x80, marks=pytest.mark.soak)])
def test_every_byte_of_the_state(kind: str, change: int) -> None:
    body = body_of(kind)
    taken = 0
    for place in range(len(body)):
        changed = bytes([body[place] ^ change])
        content = sealed(body[:place] + changed + body[place + 1 :])
        try:
            model = state.decode(content)
        except StateError:
            continue
        taken += 1
        use(model)
    assert 0 < taken < len(body) / 2
