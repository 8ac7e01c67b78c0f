"""Type tags: files made before classes moved load and have the digests that they had."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import letheon
from letheon.data import IntIds, as_ids
from letheon.exceptions import UnsupportedStateError, UntrustedClassError
from letheon.state import (
    MemoryBudget,
    decode,
    encode,
    import_path,
    names_of,
    read_contents,
    tag_of,
    to_tree,
)
from letheon.state import _tags as tags
from letheon.state._decode import construct
from letheon.state._nodes import Instance, Record
from letheon.state._tags import plan_of

# Made by commit 6763b0c, before there were tags; fisher by 1943680, which changed its state.
MODELS = Path(__file__).parents[1] / "data" / "models"
DIGESTS: dict[str, str] = json.loads((MODELS / "digests.json").read_text())
# The files were written on one kind of processor; they load, with a warning, on every other.
any_processor = pytest.mark.filterwarnings("ignore::letheon.exceptions.EnvironmentWarning")


@any_processor
@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_an_old_file_loads_and_has_its_digest(name: str) -> None:
    if "net" in name or name == "obliviate":
        pytest.importorskip("torch")
    model = letheon.load(MODELS / f"{name}.letheon")
    assert model.digest() == DIGESTS[name]


@any_processor
@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_a_model_is_written_with_the_names_of_the_old_file(name: str, tmp_path: Path) -> None:
    if "net" in name or name == "obliviate":
        pytest.importorskip("torch")
    old = MODELS / f"{name}.letheon"
    letheon.save(letheon.load(old), tmp_path / "again.letheon")
    old_names = set(names_of(read_contents(old).tree))
    assert set(names_of(read_contents(tmp_path / "again.letheon").tree)) == old_names


@pytest.mark.parametrize("tag", sorted(tags._PATHS))
def test_every_tag_names_a_class_that_has_this_tag(tag: str) -> None:
    path = import_path(tag)
    if path.startswith("letheon.deep."):
        pytest.importorskip("torch")
    module, _, name = path.rpartition(".")
    assert tag_of(getattr(import_module(module), name)) == tag


def test_no_two_tags_name_the_same_class() -> None:
    assert len(tags._TAGS) == len(tags._PATHS)


IDS = as_ids([1, 2])
BYTES = encode(IDS)


@pytest.fixture
def renamed() -> Iterator[None]:
    """Give a class of the table another name."""
    plan_of.cache_clear()
    IntIds.__qualname__ = "Renamed"
    yield
    IntIds.__qualname__ = "IntIds"
    plan_of.cache_clear()


@pytest.mark.usefixtures("renamed")
def test_a_renamed_class_keeps_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest and the bytes do not change when a class moves."""
    monkeypatch.setattr("letheon.data._ids.Renamed", IntIds, raising=False)
    table = dict(tags._PATHS) | {"letheon.rows._ids.IntIds": "letheon.data._ids.Renamed"}
    monkeypatch.setattr(tags, "_PATHS", table)
    monkeypatch.setattr(tags, "_TAGS", {path: tag for tag, path in table.items()})
    assert encode(IDS) == BYTES
    assert isinstance(decode(BYTES), IntIds)


@pytest.mark.usefixtures("renamed")
def test_a_private_class_without_a_tag_cannot_be_encoded() -> None:
    with pytest.raises(UnsupportedStateError, match="has no type tag"):
        to_tree(IDS)


@pytest.mark.parametrize(
    "name",
    [
        "letheon.linear._account.Account",
        "letheon.data._rows.Rows",
        "letheon.ledger.Ledger",
        "letheon.cli.app",
        "letheon.state.DirectoryStore",
    ],
)
def test_a_file_cannot_name_other_classes_of_the_package(name: str) -> None:
    tree = Instance(name, Record(()))
    with pytest.raises(UntrustedClassError):
        construct(tree, {}, MemoryBudget(1 << 20))


@given(st.text(alphabet="abz_.9", max_size=12))
def test_public_paths_have_no_private_part(path: str) -> None:
    parts = path.split(".")
    assert tags.is_public_path(path) == all(p.isidentifier() and p[0] != "_" for p in parts)
