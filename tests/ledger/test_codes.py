"""Names: what one part of a ledger takes, every part takes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import verifier
from letheon.ledger import Ledger
from letheon.ledger.certificates.claims import is_code
from letheon.ledger.db import events
from letheon.ledger.db.events import CODE
from letheon.ledger.schemas import NAME, require_name
from letheon.ledger.settings import Settings
from tests.ledger.databases import NOON

__all__: list[str] = []

names = st.from_regex(NAME, fullmatch=True)


@given(name=names, other=names)
def test_a_name_fits_everywhere(name: str, other: str) -> None:
    assert require_name("name", name) == name
    assert Settings(name=name).name == name
    event = events.Event("created", {"ledger": name, "model": f"{name}/{other}"}, NOON)
    assert events._event_row(event, 0)["kind"] == "created"
    note = verifier.note_body(name, 1, bytes(32))
    assert note.startswith(f"{name}\n1\n".encode())
    assert is_code(name)
    assert len(f"{name}/{other}") <= 127
    assert is_code(f"{name}/{other}")


@pytest.mark.parametrize(
    "name",
    ["", "a@b", "a+b", "a/b", "A", "-a", "a b", "a\n", "\n", "é", "a" * 64, 7, None, b"a"],
)
def test_a_name_that_fits_somewhere_only_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match=r"what=.*is not a valid name"):
        require_name("what", name)


@pytest.mark.parametrize("name", ["a@b", "a+b", "a/b"])
def test_nothing_is_made_for_a_ledger_whose_name_cannot_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name="):
        Ledger.create(tmp_path / "home", name=name)
    assert list(tmp_path.iterdir()) == []


@given(text=st.text(max_size=130) | names)
def test_what_is_no_name_is_refused_and_what_is_one_is_a_code(text: str) -> None:
    try:
        require_name("name", text)
    except ValueError:
        assert not NAME.fullmatch(text)
    else:
        assert CODE.fullmatch(text)
        assert events.is_code(text)
