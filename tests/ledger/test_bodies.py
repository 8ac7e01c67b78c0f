"""Sealing open bodies again costs one look at each key, however many bodies there are."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event, select

from letheon.ledger.keys.keyring import KeyFiles
from letheon.ledger.requests import people
from letheon.ledger.tables import requests
from tests.ledger.residue import NAME, MarkedLedger, make_marked, quick_folder


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 12)) as marked_ledger:
        yield marked_ledger


def bodies(marked: MarkedLedger) -> dict[str, Any]:
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    with marked.core.database.reading() as conn:
        rows = conn.execute(columns.where(requests.c.sealed.is_not(None))).all()
    return {
        row.id: people.read_body(marked.core, row.intake_key, row.id, row.sealed).to_list()
        for row in rows
    }


def test_each_key_is_read_once(marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "_CHUNK", 4)
    for person in marked.ids[:10]:
        marked.ledger.requests.submit([person], model=NAME)
    before, reads = bodies(marked), Counter[str]()
    (old,) = marked.core.keys.list_ids("intake")
    real = KeyFiles.read

    def noted(self: KeyFiles, name: str) -> bytes:
        reads[name] += 1
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(KeyFiles, "read", noted)
        people.rotate_intake_key(marked.core, "none")
    (new,) = marked.core.keys.list_ids("intake")
    assert new != old
    assert reads == {old: 1, new: 1}
    assert bodies(marked) == before


def test_bodies_are_written_a_chunk_at_a_time(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "_CHUNK", 4)
    for person in marked.ids[:10]:
        marked.ledger.requests.submit([person], model=NAME)
    sizes: list[int] = []

    def noted(conn: object, cursor: object, statement: str, given: object, *more: object) -> None:
        if statement.startswith("UPDATE requests SET sealed") and isinstance(given, list):
            sizes.append(len(given))

    event.listen(marked.core.database.engine, "before_cursor_execute", noted)
    people.rotate_intake_key(marked.core, "none")
    assert sizes == [4, 4, 2]
