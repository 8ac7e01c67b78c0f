"""The log of events: append only, complete, in one order, silent about people."""

import hashlib
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import DBAPIError

from letheon.exceptions import ClockError
from letheon.ledger.db import events as _events
from letheon.ledger.db.database import Database
from letheon.ledger.db.log import compute_root
from letheon.ledger.tables import certificates, checkpoints, events, log
from letheon.verifier import canonical, parse_strict
from tests.ledger.databases import (
    NOON,
    LedgerSetup,
    database,
    desk,
    in_processes,
    kind,
    open_kind,
    place,
    sqlite_database,
)
from tests.sharded.people import examples

__all__ = ["database", "desk", "kind", "place", "sqlite_database"]


def write(database: Database, count: int = 1, at: int = NOON) -> None:
    with database.transaction() as connection:
        for number in range(count):
            _events.record_event(connection, "test", {"number": number}, at)


def row(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return _events._event_row(_events.Event(kind, body, NOON), 0)


def integrate(database: Database) -> _events.LogHead:
    with database.transaction() as connection:
        return _events.integrate_events(connection)


def reference_root(leaves: list[bytes]) -> bytes:
    """The tree of RFC 6962, section 2.1, by its recursive definition."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    parts = reference_root(leaves[:half]) + reference_root(leaves[half:])
    return hashlib.sha256(b"\x01" + parts).digest()


def test_places_are_given_in_order_and_once(database: Database) -> None:
    sizes = []
    for count in (0, 3, 1, 0, 5):
        write(database, count)
        head = integrate(database)
        sizes.append(head.size)
        with database.reading() as connection:
            assert _events.read_log_head(connection) == head
            assert head.root == reference_root(list(_events.read_bodies(connection)))
            assert head.root == compute_root(_events.read_leaves(connection))
    assert sizes == [0, 3, 4, 4, 9]


def test_an_event_that_was_rolled_back_has_no_place(sqlite_database: Database) -> None:
    def fail() -> None:
        with sqlite_database.transaction() as connection:
            _events.record_event(connection, "test", {}, NOON)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert integrate(sqlite_database).size == 0


def test_bodies_are_canonical_and_hold_kind_and_time(sqlite_database: Database) -> None:
    with sqlite_database.transaction() as connection:
        _events.record_event(connection, "test", {"z": [1, True], "a": {"b": "c"}}, NOON)
    integrate(sqlite_database)
    with sqlite_database.reading() as connection:
        body = next(iter(_events.read_bodies(connection)))
    assert body == b'{"a":{"b":"c"},"at":1800000000,"kind":"test","z":[1,true]}'
    assert parse_strict(body)["kind"] == "test"


def test_workers_that_integrate_at_once_give_each_event_one_place(
    database: Database, kind: str, place: Any
) -> None:
    def work() -> None:
        mine = open_kind(kind, place)
        for _ in range(8):
            write(mine, 2)
            integrate(mine)

    assert in_processes([work, work, work]) == [0, 0, 0]
    head = integrate(database)
    with database.reading() as connection:
        places = [row.log_index for row in connection.execute(events.select())]
        assert head.root == reference_root(list(_events.read_bodies(connection)))
    assert sorted(places) == list(range(48))


def test_writers_do_not_wait_for_who_integrates(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    write(database)
    done = threading.Event()

    def other() -> None:
        write(database)
        done.set()

    with database.transaction() as connection:
        _events.integrate_events(connection)
        thread = threading.Thread(target=other)
        thread.start()
        assert done.wait(10)
    thread.join()
    assert integrate(database).size == 2
    database.dispose()


@pytest.mark.parametrize(
    "value",
    ["Alice Smith", "alice@example.org", "", "a" * 129, "x\ny", "é", "a,b", "'; DROP TABLE x"],
)
@pytest.mark.parametrize("where", ["value", "name", "list", "nested", "kind"])
def test_a_text_that_is_no_code_is_refused(value: str, where: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "value": {"x": value},
        "name": {value: 1},
        "list": {"x": ["ok", value]},
        "nested": {"x": {"y": value}},
        "kind": {},
    }
    with pytest.raises(ValueError, match="not a code") as caught:
        row(value if where == "kind" else "test", bodies[where])
    assert value == "" or value not in str(caught.value)


@pytest.mark.parametrize("value", [1.5, float("nan"), 2**53, b"x", object()])
def test_values_without_canonical_bytes_are_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        row("test", {"x": value})


@given(
    st.lists(
        st.dictionaries(
            st.text("abcxyz", min_size=1, max_size=8),
            st.integers(-(2**50), 2**50) | st.text("0123abc.", min_size=1).map("v".__add__),
        )
    )
)
@examples(50)
def test_different_events_have_different_leaves(bodies: list[dict[str, Any]]) -> None:
    rows = [row("test", body) for body in bodies]
    assert len({one["leaf"] for one in rows}) == len({one["body"] for one in rows})
    assert len({one["body"] for one in rows}) == len({repr(sorted(b.items())) for b in bodies})


def test_the_clock_may_be_a_little_behind(sqlite_database: Database) -> None:
    write(sqlite_database)
    write(sqlite_database, at=NOON - 300)
    write(sqlite_database, at=NOON + 10**6)
    with pytest.raises(ClockError, match="1000301 seconds"):
        write(sqlite_database, at=NOON - 301)
    assert integrate(sqlite_database).size == 3


def test_the_clock_cannot_walk_back(database: Database) -> None:
    """Each step is tolerated by itself; together they would lead anywhere."""
    write(database)
    write(database, at=NOON - 299)
    with pytest.raises(ClockError, match="598 seconds behind the latest"):
        write(database, at=NOON - 2 * 299)
    assert integrate(database).size == 2


def accept(database: Database, at: int) -> bool:
    with database.transaction() as connection:
        return _events.accept_clock(connection, at)


def test_an_operator_accepts_the_clock_after_it_was_ahead(database: Database) -> None:
    write(database)
    write(database, at=NOON + 10**7)
    with pytest.raises(ClockError):
        write(database, at=NOON + 60)
    assert accept(database, NOON + 60)
    write(database, at=NOON + 61)
    write(database, at=NOON + 61 - 300)
    with pytest.raises(ClockError, match="301 seconds"):
        write(database, at=NOON + 61 - 301)
    with database.reading() as connection:
        told = connection.execute(events.select().order_by(events.c.id)).all()
    assert [one.kind for one in told] == ["test", "test", "clock-corrected", "test", "test"]
    assert parse_strict(told[2].body.encode())["seconds"] == 10**7 - 60
    assert integrate(database).size == 5


def test_a_clock_that_goes_wrong_again_is_accepted_again(sqlite_database: Database) -> None:
    for ahead in (10**7, 10**8):
        write(sqlite_database, at=NOON + ahead)
        assert accept(sqlite_database, NOON)
        write(sqlite_database, at=NOON)
    with pytest.raises(ClockError):
        write(sqlite_database, at=NOON - 301)


def test_there_is_nothing_to_accept_of_a_right_clock(sqlite_database: Database) -> None:
    assert not accept(sqlite_database, NOON)
    write(sqlite_database)
    assert not accept(sqlite_database, NOON - 300)
    assert integrate(sqlite_database).size == 1


def test_looking_at_the_clock_does_not_read_the_log(sqlite_database: Database) -> None:
    with sqlite_database.reading() as connection:
        query = str(_events._LATEST.compile(connection, compile_kwargs={"literal_binds": True}))
        plans = [
            " ".join(str(value) for value in one)
            for statement in (query, "SELECT body FROM events WHERE kind = 'key-rotation'")
            for one in connection.execute(text(f"EXPLAIN QUERY PLAN {statement}"))
        ]
    assert all("INDEX ix_events_" in plan for plan in plans), plans
    assert not any("TEMP B-TREE" in plan for plan in plans), plans


def refused(database: Database, *statements: str) -> list[bool]:
    def run(connection: Connection, statement: str) -> None:
        connection.execute(text(statement))

    results = []
    for statement in statements:
        try:
            with database.transaction() as connection:
                run(connection, statement)
        except DBAPIError as error:
            results.append("letheon" in str(error.orig))
        else:
            results.append(False)
    return results


def test_events_cannot_be_changed_by_sql(database: Database) -> None:
    write(database, 3)
    integrate(database)
    write(database)
    statements = [
        *(f"UPDATE events SET {name} = '7'" for name in ("kind", "about", "body", "leaf")),
        "UPDATE events SET at = 7",
        "UPDATE events SET era = 7",
        "UPDATE events SET log_index = NULL",
        "UPDATE events SET log_index = log_index + 10",
        "UPDATE events SET log_index = 99, body = '{}' WHERE log_index IS NULL",
        "DELETE FROM events",
        "DELETE FROM events WHERE log_index IS NULL",
    ]
    if database.dialect == "postgresql":
        statements.append("TRUNCATE events")
    else:
        columns = "id, at, era, kind, about, body, leaf"
        statements.append(f"INSERT OR REPLACE INTO events ({columns}) SELECT {columns} FROM events")
    assert refused(database, *statements) == [True] * len(statements)
    assert integrate(database).size == 4


def test_certificates_and_checkpoints_cannot_be_changed_by_sql(desk: LedgerSetup) -> None:
    database = desk.database
    with database.transaction() as connection:
        connection.execute(checkpoints.insert().values(size=1, root="0" * 64, note="note", at=NOON))
        connection.execute(text(_VERSION), {"model": desk.model.id})
        connection.execute(
            certificates.insert().values(
                sequence=1, id="a" * 64, version_id=1, envelope=b"{}", at=NOON
            )
        )
    statements = [
        f"{verb} {table}{rest}"
        for table, change in (
            ("certificates", "envelope = id"),
            ("checkpoints", "note = 'x'"),
            ("allowed_moves", "after = 'closed'"),
        )
        for verb, rest in (("UPDATE", f" SET {change}"), ("DELETE FROM", ""))
    ]
    if database.dialect == "postgresql":
        statements[0] = "UPDATE certificates SET envelope = '\\x00'"
        statements += ["TRUNCATE certificates CASCADE", "TRUNCATE allowed_moves"]
    else:
        statements.append("REPLACE INTO certificates VALUES (1, 'b', 1, x'00', 5)")
        statements.append("REPLACE INTO checkpoints VALUES (1, 'b', 'other', 5)")
    assert refused(database, *statements) == [True] * len(statements)


_VERSION = """
INSERT INTO versions (id, model_id, number, model_blob, rows_blob, ids_blob, vault_blob, epoch_key,
                      root, live, facts, published_at)
VALUES (1, :model, 0, 'a', 'b', 'c', 'd', 'e', 'f', 1, '{}', 0)
"""


def test_the_log_has_one_row(sqlite_database: Database) -> None:
    with pytest.raises(DBAPIError), sqlite_database.transaction() as connection:
        connection.execute(log.insert().values(id=2, size=0, frontier="0"))


def test_a_log_that_was_tampered_with_shows(database: Database) -> None:
    """The net's own test: the root of the log is not the root of other events."""
    write(database, 3)
    head = integrate(database)
    with database.transaction() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("ALTER TABLE events DISABLE TRIGGER USER"))
        else:
            connection.execute(text("DROP TRIGGER events_stay"))
        change = update(events).where(events.c.log_index == 1)
        connection.execute(change.values(body='{"kind":"other"}'))
    with database.reading() as connection:
        assert reference_root(list(_events.read_bodies(connection))) != head.root


codes = st.text("abcXYZ019._:/+-", max_size=12)
fields = st.dictionaries(
    codes, codes | st.integers(-(2**60), 2**60) | st.booleans() | st.none() | st.lists(codes)
)


@given(kind=codes, body=fields)
def test_the_short_way_writes_what_the_long_way_does(kind: str, body: dict[str, Any]) -> None:
    """The same bytes, or the same refusal."""
    try:
        _events._require_codes([kind, body])
        expected = canonical({**body, "at": NOON, "kind": kind}).decode()
    except ValueError:
        with pytest.raises(ValueError, match=r"not a code|beyond"):
            row(kind, body)
    else:
        assert row(kind, body)["body"] == expected
