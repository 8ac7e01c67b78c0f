"""Files: valid safetensors, the same bytes every time, every change noticed, hostile manifests."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load_file

from letheon import state
from letheon.exceptions import CorruptFileError, NewerFormatError, StateError, UntrustedClassError
from tests.state.forge import changed_bytes, file_of, truncations
from tests.state.values import same, values

SMALL = {"a": [1, 2.5, None], "b": np.arange(3), "c": "é\ud800", "d": 2**60}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.letheon"


@given(value=values)
def test_values_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "value.letheon"
    state.write_file(path, value)
    assert same(state.read_file(path), value)


def test_the_same_value_gives_the_same_bytes(path: Path) -> None:
    state.write_file(path, SMALL)
    first = path.read_bytes()
    state.write_file(path, state.read_file(path))
    assert path.read_bytes() == first


def test_other_programs_can_read_the_tensors(path: Path) -> None:
    big = np.arange(1000.0).reshape(10, 100)
    state.write_file(path, {"big": big, "flags": np.ones(5000, bool), "small": np.arange(3)})
    tensors = load_file(path)
    assert same(tensors["t0"], big)
    assert tensors["t1"].dtype == np.bool_
    assert set(tensors) == {"small", "t0", "t1"}


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3000).astype("M8[s]"),
        np.arange(3000) * 1j,
        np.asfortranarray(np.arange(3000.0).reshape(30, 100)),
        np.array(["text"] * 2000),
        np.array([None, "x"] * 2000, dtype=object),
        list(range(3000)),
        b"x" * 5000,
        np.zeros(1000, [("a", "u1"), ("b", "<f8")]),
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value).__name__)),
)
def test_big_values_come_back(path: Path, value: Any) -> None:
    state.write_file(path, [value])
    (loaded,) = state.read_file(path)
    assert state.encode(loaded) == state.encode(value)


def test_manifest_is_small_for_long_lists(path: Path) -> None:
    state.write_file(path, [list(range(100_000)), np.array(["a"] * 50_000, dtype=object)])
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert header < 1000


def test_manifest_has_format_and_versions(path: Path) -> None:
    state.write_file(path, SMALL, kind="test")
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header["__metadata__"]) == {"letheon"}
    manifest = json.loads(header["__metadata__"]["letheon"])
    assert manifest["format"] == "letheon-v1"
    assert manifest["kind"] == "test"
    assert manifest["versions"] == state.environment()


def test_only_the_owner_can_read_the_file(path: Path) -> None:
    state.write_file(path, SMALL)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_refused(path: Path, mask: int) -> None:
    state.write_file(path, SMALL)
    for _ in changed_bytes(path, mask):
        with pytest.raises(StateError):
            state.read_file(path)
    assert same(state.read_file(path), SMALL)


def test_every_truncation_is_refused(path: Path) -> None:
    state.write_file(path, SMALL)
    for _ in truncations(path):
        with pytest.raises(CorruptFileError, match=re.escape(str(path))):
            state.read_file(path)


def test_appended_bytes_are_refused(path: Path) -> None:
    state.write_file(path, SMALL)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CorruptFileError, match="altered"):
        state.read_file(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"\x80\x04\x95", "pickle"),
        (b"PK\x03\x04", "zip"),
        (b"hello world", "not a letheon file"),
        (b"\x02\0\0\0\0\0\0\0{}", "without a letheon manifest"),
    ],
)
def test_foreign_files_are_named(path: Path, raw: bytes, message: str) -> None:
    path.write_bytes(raw)
    with pytest.raises(CorruptFileError, match=message):
        state.read_file(path)


def test_newer_file_names_both_formats(path: Path) -> None:
    file_of(path, None, form="letheon-v12")
    with pytest.raises(NewerFormatError, match=r"letheon-v12.*letheon-v1;"):
        state.read_file(path)


def test_forged_file_is_read_when_sound(path: Path) -> None:
    tree = {"dict": {"a": {"array": ["<u2", [2], [2, 4]]}, "b": {"float": "000000000000f03f"}}}
    loaded = state.read_file(file_of(path, tree))
    assert same(loaded, {"a": np.array([0x0302, 0x0504], "<u2"), "b": 1.0})


HOSTILE = [
    {"array": ["<f8", [2**62], [0, 8]]},
    {"array": ["<f8", [-1], [0, 8]]},
    {"array": ["<f8", [1], [-8, 8]]},
    {"array": ["<f8", [1], [60, 8]]},
    {"array": ["<f8", [1.0], [0, 8]]},
    {"array": ["<f8", [True], [0, 8]]},
    {"array": ["<f8", [1], "t9"]},
    {"bytes": [60, 8]},
    {"bytes": [0, True]},
    {"array": ["|O", [1], [0, 8]]},
    {"array": ["<U2", [1], [0, 8]]},
    {"array": ["O", [1], [0, 8]]},
    {"array": ["<f8,<f8", [1], [0, 16]]},
    {"array": ["|b1", [4], [0, 4]]},
    {"array": ["<f8", [0, 2**63], [0, 0]]},
    {"array_f": ["<f8", [1], [0, 8]]},
    {"array": [["<f8"], [1], [0, 8]]},
    {"strings": [2**60, [1], {"array": ["<u4", [1], [0, 4]]}, [0, 0]]},
    {"strings": [1, [1], {"array": ["<u4", [1], [0, 4]]}, [0, 3]]},
    {"strings": [1, [1], {"list": []}, [0, 0]]},
    {"fields": [{"tuple": [2**40, False, {"tuple": []}]}, [1], []]},
    {"fields": ["<f8", [1], []]},
    {"objects": [[3], [1]]},
    {"objects": [[2**62, 0], []]},
    {"scalar": {"list": []}},
    {"slice": [1]},
    {"range": [1, 2, 0]},
    {"dtype": "object"},
    {"dtype": {"tuple": [1]}},
    {"float": "00"},
    {"float": "zz" * 8},
    {"int": "0x1"},
    {"int": "0X20000000000000000"},
    {"packed": [0, 8]},
    {"dict": {"b": 1, "a": 2}},
    {"dict": [1]},
    {"set": [2, 1]},
    {"set": [1, 1]},
    {"set": [{"list": []}]},
    {"pairs": [[{"list": []}, 1]]},
    {"pairs": [[1]]},
    {"ref": 0},
    {"ref": -1},
    {"what": 1},
    {"list": [], "tuple": []},
    {},
    [],
    1.5,
    2**60,
]


@pytest.mark.parametrize("tree", HOSTILE, ids=str)
def test_hostile_manifests_are_refused(path: Path, tree: Any) -> None:
    with pytest.raises(CorruptFileError):
        state.read_file(file_of(path, tree))


@pytest.mark.parametrize(
    "text",
    [
        '{"list":[' * 100_000 + "1" + "]}" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"dict":{"a":1,"a":2}}',
        '{"list":[1],"list":[2]}',
        "NaN",
        "1" * 5000,
        "",
        "nul",
    ],
    ids=range(8),
)
def test_hostile_json_is_refused(path: Path, text: str) -> None:
    with pytest.raises(CorruptFileError):
        state.read_file(file_of(path, text))


@pytest.mark.parametrize("gap", [0, 8])
def test_bytes_beside_the_tensors_are_refused(path: Path, gap: int) -> None:
    raw = file_of(path, {"list": [1]}).read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    header["small"]["data_offsets"] = [gap, gap + 64]
    digest = header["__metadata__"]["letheon"].partition('"sha256":"')[2][:64]
    text = json.dumps(header, separators=(",", ":")).replace(digest, "0" * 64).encode()
    forged = len(text).to_bytes(8, "little") + text + bytes(gap) + raw[begin:]
    digest = hashlib.sha256(forged).hexdigest()
    path.write_bytes(forged.replace(b"0" * 64, digest.encode(), 1))
    if not gap:
        assert state.read_file(path) == [1]
        return
    with pytest.raises(CorruptFileError, match="manifest is not valid; wrong part: small"):
        state.read_file(path)


@pytest.mark.parametrize("tag", ["object", "coded"])
def test_hostile_names_are_refused(path: Path, tag: str) -> None:
    file_of(path, {tag: ["os.system", {"dict": {}}]})
    with pytest.raises(UntrustedClassError, match=r"os\.system"):
        state.read_file(path)


def test_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.write_file(path, 1)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        state.write_file(path, 2)
    monkeypatch.undo()
    assert state.read_file(path) == 1
    assert list(path.parent.iterdir()) == [path]
