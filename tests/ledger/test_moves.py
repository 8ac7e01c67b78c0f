"""States of a request: every allowed pair works, every other is refused, by code and by SQL."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger.requests.people import move_requests
from letheon.ledger.requests.states import ALLOWED, FINAL, NEW, STATES
from letheon.ledger.tables import events, requests
from tests.ledger.databases import NOON, LedgerSetup, desk, kind, place, sqlite_desk

__all__ = ["desk", "kind", "place", "sqlite_desk"]

PAIRS = [(before, after) for before in STATES for after in STATES if before != after]


def route(state: str) -> list[str]:
    """A shortest way from the beginning to a state."""
    ways: dict[str, list[str]] = {NEW: []}
    todo = [NEW]
    for before in todo:
        for _, after in sorted(pair for pair in ALLOWED if pair[0] == before):
            if after not in ways:
                ways[after] = [*ways[before], after]
                todo.append(after)
    return ways[state]


def bring(desk: LedgerSetup, state: str, person: int) -> str:
    """A request in a state, by allowed moves."""
    first, *rest = route(state)
    if first == "verified":
        rest.insert(0, first)
    request = desk.submit(person, verified=first == "queued").id
    with desk.database.transaction() as connection:
        for step in rest:
            move_requests(connection, request, step, at=NOON)
    return request


def test_every_state_can_be_reached_and_left() -> None:
    assert {state for state in STATES if route(state)} == set(STATES)
    stays = {state for state in STATES if not any(before == state for before, _ in ALLOWED)}
    assert stays == set(FINAL)


def test_the_design_is_kept() -> None:
    """The way of a request, and that it can be cancelled before it is published only."""
    way = ["received", "verified", "queued", "applying", "applied", "certified"]
    way += ["purging", "purged", "closed"]
    assert all(pair in ALLOWED for pair in itertools.pairwise(way))
    cancelled_from = {before for before, after in ALLOWED if after == "cancelled"}
    before_publication = {"received", "verified", "queued", "on_hold", "duplicate", "retry_wait"}
    before_publication |= {"stuck"}
    assert cancelled_from == before_publication
    assert {before for before, after in ALLOWED if after == "rejected"} == before_publication
    assert {before for before, after in ALLOWED if after == "on_hold"} == {"queued", "retry_wait"}
    assert {after for before, after in ALLOWED if before == "received"} == {
        "verified",
        "rejected",
        "cancelled",
    }


def test_every_pair_by_code_and_by_sql(desk: LedgerSetup) -> None:
    """All 210 pairs: `move` and the trigger agree with the table, each by itself."""
    at_start = {state: bring(desk, state, number) for number, state in enumerate(STATES)}
    by_code, by_sql = set(), set()
    for before, after in PAIRS:
        if allows_move(desk, at_start[before], after):
            by_code.add((before, after))
        if allows_sql(desk, at_start[before], after):
            by_sql.add((before, after))
    expected = {pair for pair in ALLOWED if pair[0] != NEW}
    assert by_code == expected
    assert by_sql == expected


class Undo(Exception):
    """Ends a transaction that is only a trial."""


def allows_move(desk: LedgerSetup, request: str, after: str) -> bool:
    try:
        with desk.database.transaction() as connection:
            move_requests(connection, request, after, at=NOON)
            raise Undo
    except Undo:
        return True
    except RequestStateError:
        return False


def allows_sql(desk: LedgerSetup, request: str, after: str) -> bool:
    try:
        with desk.database.transaction() as connection:
            change = text("UPDATE requests SET state = :after WHERE id = :id")
            connection.execute(change, {"after": after, "id": request})
            raise Undo
    except Undo:
        return True
    except DBAPIError as error:
        if "this state cannot follow" not in str(error.orig):
            raise
        return False


def test_a_request_cannot_begin_in_the_middle(desk: LedgerSetup) -> None:
    desk.submit(1)
    columns = ", ".join(column.name for column in requests.c if column.computed is None)
    copied = columns.replace("id,", "'x',", 1).replace("key_tag", "'k'")
    for state in {"nonsense", "", "RECEIVED", *STATES} - {"received", "verified", "queued"}:
        values = copied.replace("state", f"'{state}'")
        copy = text(f"INSERT INTO requests ({columns}) SELECT {values} FROM requests")
        with pytest.raises(DBAPIError, match="first state"), desk.database.transaction() as conn:
            conn.execute(copy)
    assert len(desk.rows(requests)) == 1


@pytest.mark.parametrize(
    "column", ["id", "tenant", "regime", "ground", "key_tag", "body_tag", "nonce", "received_at"]
)
def test_what_a_request_is_cannot_be_changed_by_sql(sqlite_desk: LedgerSetup, column: str) -> None:
    sqlite_desk.submit(1)
    change = text(f"UPDATE requests SET {column} = '7'")
    with (
        pytest.raises(DBAPIError, match="is fixed"),
        sqlite_desk.database.transaction() as connection,
    ):
        connection.execute(change)


def test_a_request_cannot_be_removed_while_it_is_open(desk: LedgerSetup) -> None:
    request = desk.submit(1)
    statements = ["DELETE FROM requests"]
    if desk.kind == "postgresql":
        statements += ["TRUNCATE requests CASCADE", "UPDATE requests SET tenant = 'x'"]
    for statement in statements:
        with pytest.raises(DBAPIError, match="letheon"), desk.database.transaction() as connection:
            connection.execute(text(statement))
    assert desk.state(request) == "received"


def test_all_move_or_none(desk: LedgerSetup) -> None:
    one, two = desk.submit(1), desk.submit(2, verified=True)
    before = desk.snapshot()
    with (
        pytest.raises(RequestStateError, match="cannot change from queued"),
        desk.database.transaction() as conn,
    ):
        move_requests(conn, [one.id, two.id], "verified", at=NOON)
    assert desk.snapshot() == before


def test_many_move_in_one_call(sqlite_desk: LedgerSetup) -> None:
    ids = [sqlite_desk.submit(number, verified=True).id for number in range(3)]
    with sqlite_desk.database.transaction() as connection:
        move_requests(
            connection, [*ids, ids[0]], "applying", at=NOON, fields={"batch": "b1"}, tries=2
        )
    moved = sqlite_desk.rows(requests)
    assert {(row.state, row.tries) for row in moved} == {("applying", 2)}
    bodies = [row.body for row in sqlite_desk.rows(events) if row.kind == "applying"]
    assert len(bodies) == 3
    assert all('"batch":"b1"' in body and '"from":"queued"' in body for body in bodies)


def test_an_unknown_request_moves_nowhere(sqlite_desk: LedgerSetup) -> None:
    known = sqlite_desk.submit(1)
    with pytest.raises(UnknownRequestError), sqlite_desk.database.transaction() as connection:
        move_requests(connection, [known.id, "0" * 32], "verified", at=NOON)
    assert sqlite_desk.state(known) == "received"


def test_an_empty_move_writes_no_event(sqlite_desk: LedgerSetup) -> None:
    with sqlite_desk.database.transaction() as connection:
        move_requests(connection, [], "verified", at=NOON)
    assert sqlite_desk.rows(events) == []


@pytest.fixture
def without_trigger(tmp_path: Path) -> Iterator[LedgerSetup]:
    made = LedgerSetup(tmp_path, "sqlite", tmp_path)
    with made.database.transaction() as connection:
        connection.execute(text("DROP TRIGGER next_state"))
    yield made
    made.database.dispose()


def test_the_net_above_catches_a_missing_trigger(without_trigger: LedgerSetup) -> None:
    request = bring(without_trigger, "received", 1)
    assert allows_sql(without_trigger, request, "closed")
    assert not allows_move(without_trigger, request, "closed")
