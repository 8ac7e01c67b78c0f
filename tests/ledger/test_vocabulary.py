"""An id that equals a word of the ledger itself does not block a purge."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import insert, select, update

from letheon import NaiveUnlearner
from letheon.ledger import Ledger
from letheon.ledger.db.events import record_event
from letheon.ledger.purge import purge, vocabulary
from letheon.ledger.purge.vocabulary import find_own_words
from letheon.ledger.requests.states import HOLD_GROUNDS, REJECT_GROUNDS, STATES
from letheon.ledger.tables import (
    actions,
    blocked,
    deliveries,
    events,
    jobs,
    metadata,
    purge_steps,
    requests,
    versions,
    webhooks,
)
from letheon.verifier import open_envelope
from tests.ledger.residue import MarkedLedger, make_marked, quick_folder


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 8)) as marked_ledger:
        yield marked_ledger


def register_people(marked: MarkedLedger, people: Sequence[str] | Sequence[int], name: str) -> None:
    """Register a model with these people, and with some who have other names."""
    rng = np.random.default_rng(0)
    ids = np.array([*people, *(type(people[0])(f"9{number:05d}") for number in range(4))])
    X, y = rng.normal(size=(len(ids), 4)), np.arange(len(ids)) % 2
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    marked.ledger.models.register(model, X, y, ids=ids, name=name)


def words_of_the_ledger(marked: MarkedLedger) -> set[str]:
    settings = (marked.home / "letheon.toml").read_text()
    tables = metadata.sorted_tables
    names = [name for table in tables for name in (table.name, *table.columns.keys())]
    schema = "CREATE TABLE TRIGGER BEFORE UPDATE INTEGER"
    envelope = marked.ledger.certificates.envelope(1)
    statement = open_envelope(envelope, marked.core.keys.trust()).statement
    with marked.core.database.reading() as conn:
        bodies = list(conn.scalars(select(events.c.body)))
        facts = list(conn.scalars(select(versions.c.facts)))
    text = " ".join(
        [
            *(settings, *names, schema, *STATES, *HOLD_GROUNDS, *REJECT_GROUNDS),
            *(*bodies, *facts, json.dumps(statement), envelope.decode()),
            "payload signatures certificates checkpoints marked default 000001 2026-11-15",
        ]
    )
    parts = re.split(r"[^A-Za-z0-9._:/+-]+", text) + re.split(r"[^A-Za-z]+", text)
    return {word for word in parts if len(word) >= 6}


def test_words_of_the_ledger_are_known_as_such(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked.erase(marked.ids[0])
    words = words_of_the_ledger(marked)
    assert {"calendar", "pin_seconds", "purging", "intake_keys", "queued", "marked"} <= words
    assert len(words) > 300
    monkeypatch.setattr(vocabulary, "_MOST_WORDS", 10_000)
    assert not words - find_own_words(marked.core, words)
    monkeypatch.setattr(vocabulary, "_MOST_WORDS", 1)
    assert {"calendar", "queued"} <= find_own_words(marked.core, words) < words


def test_people_who_are_called_like_words_are_purged(marked: MarkedLedger) -> None:
    marked.erase(marked.ids[0])
    settings = (marked.home / "letheon.toml").read_text()
    tables = metadata.sorted_tables
    names = [name for table in tables for name in (table.name, *table.columns.keys())]
    words = sorted({*re.findall(r"\w{6,}", settings), *STATES, *names, "certificate", "payload"})
    register_people(marked, words, "words")
    marked.ledger.requests.submit(words, model="words", verified=True)
    marked.run()
    assert not purge.list_problems(marked.core)
    assert marked.states() == {"purged"}
    statement = open_envelope(
        marked.ledger.certificates.purge_attestation(2), marked.core.keys.trust()
    )
    predicate = statement.predicate
    assert "search-for-ids-that-are-words-of-the-ledger" in predicate["notClaimed"]
    with marked.core.database.reading() as conn:
        evidence_query = select(purge_steps.c.evidence).where(purge_steps.c.step == "scan")
        evidence = [json.loads(text) for text in conn.scalars(evidence_query)]
    n_left_out = max(one["ambiguous"] for one in evidence)
    assert n_left_out > 30
    n_markers = predicate["scanner"]["markers"]
    assert n_markers >= 2 * len(words)
    assert n_markers + n_left_out <= 3 * len(words)


def test_number_that_is_the_time_of_an_event_is_purged(marked: MarkedLedger) -> None:
    register_people(marked, [marked.clock.now, 1_234_567_890], "numbers")
    marked.ledger.requests.submit([marked.clock.now, 1_234_567_890], model="numbers", verified=True)
    marked.run()
    assert marked.states() == {"purged"}


def test_word_in_a_store_does_not_hold_up_either(marked: MarkedLedger) -> None:
    exports = marked.home.parent / "exports"
    exports.mkdir()
    (exports / "readme.txt").write_text("the calendar of holidays")
    marked.ledger.stores.add("exports", exports)
    register_people(marked, ["calendar"], "words")
    marked.ledger.requests.submit(["calendar"], model="words", verified=True)
    marked.run()
    assert marked.states() == {"purged"}


def test_a_copy_of_another_person_is_found_among_words(marked: MarkedLedger) -> None:
    register_people(marked, ["calendar", "anna.smith"], "words")
    (marked.home / "notes.txt").write_text("anna.smith, calendar")
    marked.ledger.requests.submit(["calendar", "anna.smith"], model="words", verified=True)
    marked.run()
    assert marked.states() == {"purging"}
    assert [problem.where.file for problem in purge.list_problems(marked.core)] == ["notes.txt"]


def leak_into_tag(marked: MarkedLedger, person: str) -> None:
    with marked.core.database.transaction() as conn:
        conn.execute(update(blocked).values(tag=person))


def leak_into_nonce(marked: MarkedLedger, person: str) -> None:
    with marked.core.database.transaction() as conn:
        request = conn.execute(select(requests)).mappings().first()
        assert request is not None
        values = {**request, "id": "f" * 32, "key_tag": person, "nonce": person}
        del values["last_day"]  # follows from the others
        conn.execute(insert(requests).values(values))


def leak_into_event(marked: MarkedLedger, person: str) -> None:
    for body in ({"person": person}, {"ids": [person]}, {"more": {"people": [person]}}):
        with marked.core.database.transaction() as conn:
            record_event(conn, "received", body, at=marked.clock())


def leak_into_jobs(marked: MarkedLedger, person: str) -> None:
    told = f"looked at {person} and others"
    lines = [{"at": 1, "words": told, "found": {"reason": person}}]
    values = {"id": "a" * 32, "kind": "audit", "state": "done", "created_at": 1}
    values |= {"asked": json.dumps({"people": [person]}), "progress": json.dumps(lines)}
    with marked.core.database.transaction() as conn:
        values |= {"result": json.dumps({"x": person, "words": told})}
        conn.execute(insert(jobs).values(values))


def leak_into_messages(marked: MarkedLedger, person: str) -> None:
    body = json.dumps({"type": "received", "data": {"request": "a" * 32, "person": person}})
    hook = {"id": "b" * 16, "url": "https://example.org", "events": "[]", "created_at": 1}
    sent = {"id": "c" * 16, "webhook_id": "b" * 16, "kind": "received", "about": person}
    with marked.core.database.transaction() as conn:
        conn.execute(insert(webhooks).values(hook))
        conn.execute(insert(deliveries).values(sent | {"body": body, "created_at": 1}))
        conn.execute(insert(actions).values(at=1, token_id="d" * 16, action="x", about=person))


LEAKS = [leak_into_tag, leak_into_nonce, leak_into_event, leak_into_jobs, leak_into_messages]


@pytest.mark.parametrize("person", ["anna.smith", "7302118845"])
@pytest.mark.parametrize("leak", LEAKS)
def test_a_person_is_no_word_of_the_ledger_where_a_bug_would_write_them(
    leak: object, person: str, marked: MarkedLedger
) -> None:
    assert callable(leak)
    marked.ledger.requests.submit([marked.ids[0]], model="risk", verified=True)
    leak(marked, person)
    assert find_own_words(marked.core, [person, "o'brien%_\\", "nul\0-person"]) == frozenset()


def test_words_of_the_desk_are_known_as_such(marked: MarkedLedger) -> None:
    (marked.home / "service.toml").write_text('hosts = ["desk.example.org"]\n')
    digest = "0123456789abcdef" * 4
    level_values = {"level": "V0", "reason": "each certificate was looked through", "root": digest}
    line = {"at": 1_234_567_890, "words": "exports everything", "found": {"other": digest}}
    values = {"id": "e" * 32, "kind": "audit", "state": "done", "created_at": 1, "asked": "{}"}
    with marked.core.database.transaction() as conn:
        values |= {"progress": json.dumps([line]), "result": json.dumps(level_values)}
        conn.execute(insert(jobs).values(values))
        conn.execute(insert(actions).values(at=1, token_id="t", action="x", about=digest))
    words = {"service", "desk.example.org", "through", "exports", "1234567890", "bcdef0", "reason"}
    assert find_own_words(marked.core, words | {"abcd-ef"}) == words


def test_words_are_known_on_a_server(postgres_url: str, tmp_path: Path) -> None:
    with closing(make_marked(tmp_path / "home", 8, database=postgres_url)) as marked:
        words = ["calendar", str(marked.clock.now)]
        register_people(marked, words, "words")
        marked.ledger.requests.submit(words, model="words", verified=True)
        marked.run()
        assert marked.states() == {"purged"}
        assert find_own_words(marked.core, ["anna.smith", "nul\0-person", "100%_\\"]) == frozenset()
        assert isinstance(marked.ledger, Ledger)
