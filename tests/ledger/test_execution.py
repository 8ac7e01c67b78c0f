"""What a certificate says about code, environment and machine."""

import hashlib
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

import letheon
from letheon.ledger.certificates.facts import (
    describe_execution,
    folder_digest,
    kernel_code,
    replay_of,
)
from tests.ledger.forgetters import MAKERS, NETS, erased, needs_torch

HEX = re.compile("[0-9a-f]{64}")


def test_a_description_has_every_field_of_the_schema_but_replay() -> None:
    description = describe_execution()
    assert set(description) == {"code", "lockfile", "image", "python", "kernel", "threads"}
    assert all(HEX.fullmatch(description[name]["sha256"]) for name in ("code", "lockfile", "image"))
    assert (description["threads"], describe_execution()) == (1, description)


def test_the_image_is_the_one_of_the_settings() -> None:
    assert describe_execution("ab" * 32)["image"] == {"sha256": "ab" * 32}


def test_the_lockfile_is_the_list_of_packages() -> None:
    lines = {
        f"{re.sub('[-_.]+', '-', each.metadata['Name']).lower()}=={each.version}\n"
        for each in distributions()
    }
    expected = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
    assert describe_execution()["lockfile"]["sha256"] == expected


def test_the_compiled_core_is_part_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from letheon import _core

    read: list[str] = []
    whole = Path.read_bytes

    def spy(path: Path) -> bytes:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", spy)
    folder_digest(*map(Path, letheon.__path__))
    assert Path(_core.__file__).name in read
    assert "naive.md" in read


@pytest.mark.parametrize("change", ["content", "name", "new file"])
def test_the_code_digest_sees_every_change(change: str, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    file = tmp_path / "part" / "one.py"
    file.write_text("x = 1\n")
    before = folder_digest(tmp_path)
    if change == "content":
        file.write_text("x = 2\n")
    elif change == "name":
        file.rename(tmp_path / "part" / "two.py")
    else:
        (tmp_path / "more.py").touch()
    assert folder_digest(tmp_path) != before


def test_caches_and_bytes_that_move_between_files_do_not_confuse_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, contents in ((one, ("ab", "c")), (two, ("a", "bc"))):
        folder.mkdir()
        for name, content in zip(("x.py", "y.py"), contents, strict=True):
            (folder / name).write_text(content)
    before = folder_digest(one)
    (one / "x.cpython-311.pyc").write_bytes(b"cache")
    assert folder_digest(one) == before != folder_digest(two)


@pytest.mark.parametrize(
    ("blas", "code"),
    [
        ("openblas 0.3.31 Haswell", "openblas:0.3.31:haswell"),
        (
            "openblas 0.3.30 SkylakeX, openblas 0.3.31 SkylakeX",
            "openblas:0.3.30:skylakex+openblas:0.3.31:skylakex",
        ),
        ("none found", "none:found"),
    ],
)
def test_kernels_as_codes(blas: str, code: str) -> None:
    assert kernel_code(blas) == code


def test_a_kernel_with_an_odd_name_is_hashed() -> None:
    assert HEX.fullmatch(kernel_code("Größe (tm)").removeprefix("sha256:"))


@pytest.mark.parametrize(
    ("name", "replay"),
    [
        ("forest", "bitwise"),
        ("forest regressor", "bitwise"),
        ("pipeline of the forest", "bitwise"),
        ("pipeline", "bitwise-same-kernel"),
        ("naive", "bitwise-same-kernel"),
        ("sisa", "bitwise-same-kernel"),
        ("influence", "tolerance"),
        ("fisher", "tolerance"),
        ("descent", "tolerance"),
        ("deltagrad", "tolerance"),
        ("pipeline certified", "tolerance"),
    ],
)
def test_how_exactly_a_model_can_be_had_again(name: str, replay: str) -> None:
    assert replay_of(erased(MAKERS[name]).model) == replay


@needs_torch
@pytest.mark.parametrize(
    ("name", "replay"),
    [
        ("sisa net", "bitwise-same-kernel"),
        ("sisa net rounding", "tolerance"),
        ("deepobliviate", "tolerance"),
        ("head", "tolerance"),
    ],
)
def test_how_exactly_a_net_can_be_had_again(name: str, replay: str) -> None:
    actual: Any = erased(NETS[name]).facts["execution"]["replay"]
    assert actual == replay
