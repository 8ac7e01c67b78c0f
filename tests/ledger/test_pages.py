"""Lists page by page: together the whole list, whatever is filed meanwhile."""

import contextlib
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, insert, text

from letheon.ledger import Page
from letheon.ledger.db.cursor import LARGEST_PAGE, decode_cursor, encode_cursor
from letheon.ledger.requests.listing import list_requests
from letheon.ledger.requests.requests import LedgerRequests
from letheon.ledger.requests.states import FINAL, STATES
from letheon.ledger.schemas import Request
from letheon.ledger.tables import requests
from tests.ledger.databases import NOON, LedgerSetup, add_model, open_kind, requests_of, sqlite_desk
from tests.ledger.homes import make, person
from tests.postgres import PostgresServer
from tests.sharded.people import examples

__all__ = ["sqlite_desk"]

FILERS = (None, "a1", "b2")
REGIMES = ("gdpr", "ccpa")
N_REQUESTS = 60


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], LedgerSetup]]:
    """Makes ledgers on one kind of database."""
    with contextlib.ExitStack() as stack:

        def make_desk() -> LedgerSetup:
            folder = tmp_path_factory.mktemp("desk")
            place: Any = folder
            if request.param == "postgresql":
                server: PostgresServer = request.getfixturevalue("postgres_server")
                place = server.create()
            desk = LedgerSetup(folder, request.param, place)
            stack.callback(desk.database.dispose)
            return desk

        yield make_desk


@pytest.fixture(scope="module")
def full(opened: Callable[[], LedgerSetup]) -> LedgerSetup:
    """A ledger with requests in every state, of three models and two tenants."""
    desk = opened()
    with desk.database.transaction() as connection:
        add_model(connection, "risk", "rival")
    fill(desk, N_REQUESTS, random.Random(3))
    return desk


@pytest.fixture(scope="module")
def busy(opened: Callable[[], LedgerSetup]) -> LedgerSetup:
    """A ledger to which requests are added while they are read."""
    desk = opened()
    for number in range(12):
        desk.clock.now += 86_400 * (number % 3)
        desk.submit(number)
    return desk


def fill(desk: LedgerSetup, count: int, draw: random.Random) -> None:
    """Insert requests as they may be after years; the trigger of first states is away meanwhile."""
    models = [(1, "default"), (2, "default"), (3, "rival")]
    rows = [row_of(number, *draw.choice(models), draw) for number in range(count)]
    is_server = desk.kind == "postgresql"
    with desk.database.transaction() as connection:
        if is_server:
            connection.execute(text("ALTER TABLE requests DISABLE TRIGGER first_state"))
            connection.execute(insert(requests), rows)
            connection.execute(text("ALTER TABLE requests ENABLE TRIGGER first_state"))
            return
        query = "SELECT sql FROM sqlite_master WHERE name = 'first_state'"
        trigger = connection.scalars(text(query)).one()
        connection.execute(text("DROP TRIGGER first_state"))
        connection.execute(insert(requests), rows)
        connection.exec_driver_sql(trigger)


def row_of(number: int, model: int, tenant: str, draw: random.Random) -> dict[str, Any]:
    # Few different days and seconds, so that the order needs the ids.
    received = NOON - 86_400 * draw.randrange(90)
    day = date.fromtimestamp(received) + timedelta(days=31)
    state = draw.choice(STATES)
    return {
        "id": draw.randbytes(16).hex(),
        "tenant": tenant,
        "model_id": model,
        "state": state,
        "regime": draw.choice(REGIMES),
        "ground": "internal",
        "received_at": received,
        "due_on": day.isoformat(),
        "extended_to": draw.choice([None, None, (day + timedelta(days=60)).isoformat()]),
        "key_tag": f"key-{number}-{draw.random()}",
        "body_tag": "b",
        "nonce": "n",
        "n_ids": 1,
        "n_rows": 1,
        "closed_at": NOON if state in FINAL else None,
        "filed_by": draw.choice(FILERS),
    }


FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "tenant": st.sampled_from([None, None, "default", "rival", "unknown"]),
    "model": st.sampled_from([None, None, "risk", "churn", "none"]),
    "states": st.lists(st.sampled_from(STATES), max_size=5),
    "regime": st.sampled_from([None, None, *REGIMES]),
    "overdue": st.booleans(),
    "due_before": st.none() | st.dates(date(2026, 11, 1), date(2027, 6, 1)),
    "search": st.sampled_from([None, None, None, "a", "0f", "ABCD", "#1", "zz", "' OR 1=1 --"]),
    "filed_by": st.sampled_from([None, None, "a1", "c3"]),
}
filters = st.fixed_dictionaries({}, optional=FILTERS)
orders = st.sampled_from(["due", "newest"])


def fits(one: Request, day: date, wanted: dict[str, Any]) -> bool:
    """What the filters say, in plain Python."""
    wanted = {name: value for name, value in wanted.items() if value not in (None, [], False)}
    checks: dict[str, Callable[[Any], bool]] = {
        "tenant": lambda value: one.tenant == value,
        "model": lambda value: one.model == value,
        "states": lambda value: one.state in value,
        "regime": lambda value: one.regime == value,
        "overdue": lambda _: one.is_open and one.due_on < day,
        "due_before": lambda value: one.due_on < value,
        "filed_by": lambda value: one.filed_by == value,
        "search": lambda value: one.id.startswith(value.lower()),
    }
    return all(checks[name](value) for name, value in wanted.items())


def expected(desk: LedgerSetup, order: str, wanted: dict[str, Any]) -> list[str]:
    with desk.database.reading() as connection:
        items = [
            request for request in list_requests(connection) if fits(request, today(desk), wanted)
        ]
    if order == "due":
        items.sort(key=lambda one: (one.due_on, one.received_at, one.id))
    else:
        items.sort(key=lambda one: (one.received_at, one.id), reverse=True)
    return [one.id for one in items]


def today(desk: LedgerSetup) -> date:
    return desk.core.settings.calendar.day_of(datetime.fromtimestamp(desk.clock(), UTC))


def pages(public: LedgerRequests, **given: Any) -> Iterator[Page[Request]]:
    after = None
    for _ in range(1000):
        page = public.find(after=after, **given)
        yield page
        after = page.next
        if after is None:
            return
    raise AssertionError("the pages do not end")


@given(wanted=filters, order=orders, limit=st.integers(4, 61))
@examples(40)
def test_all_pages_together_are_the_list(
    full: LedgerSetup, wanted: dict[str, Any], order: Any, limit: int
) -> None:
    public, whole = requests_of(full.core), expected(full, order, wanted)
    items = list(pages(public, order=order, limit=limit, **wanted))
    assert [one.id for page in items for one in page.items] == whole
    assert {page.total for page in items} == {len(whole)}
    assert all(len(page.items) == limit for page in items[:-1])
    assert [one.id for one in public.iterate(order=order, **wanted)] == whole


def test_a_request_is_late_after_its_last_day_and_not_on_it(busy: LedgerSetup) -> None:
    request, public, before = busy.submit(1), requests_of(busy.core), busy.clock.now
    noon = datetime.combine(request.due_on, time(12), UTC)
    items = []
    for seconds in (0, 86_400):
        busy.clock.now = int(noon.timestamp()) + seconds
        late = [one.id for one in public.iterate(overdue=True)]
        assert public.count().overdue == len(late)
        items.append(request.id in late)
    busy.clock.now = before
    assert items == [False, True]


@given(wanted=filters)
@examples(10)
def test_counts_are_those_of_the_list(full: LedgerSetup, wanted: dict[str, Any]) -> None:
    public = requests_of(full.core)
    given_too: dict[str, Any] = {name: wanted.get(name) for name in ("tenant", "model", "filed_by")}
    counts, days = public.count(**given_too), public.count_due(**given_too)
    with full.database.reading() as connection:
        fitting = [
            request
            for request in list_requests(connection)
            if fits(request, today(full), given_too)
        ]
    assert counts.by_state == dict.fromkeys(STATES, 0) | Counter(one.state for one in fitting)
    assert counts.overdue == len(expected(full, "due", given_too | {"overdue": True}))
    assert counts.total == len(fitting)
    assert counts.n_open == sum(days.values())
    assert counts.overdue == sum(count for day, count in days.items() if day < today(full))


@given(
    order=orders,
    limit=st.integers(1, 5),
    news=st.lists(st.integers(0, 2), max_size=6),
    wanted=st.fixed_dictionaries({}, optional={"regime": st.sampled_from(REGIMES)}),
)
@examples(15)
def test_what_is_filed_between_pages_hides_and_doubles_nothing(
    busy: LedgerSetup, order: Any, limit: int, news: list[int], wanted: dict[str, Any]
) -> None:
    public, numbers = requests_of(busy.core), itertools.count()
    there = set(expected(busy, order, wanted))
    seen: list[str] = []
    for page, days in itertools.zip_longest(
        pages(public, order=order, limit=limit, **wanted), news
    ):
        if page is None:
            break
        seen += [one.id for one in page.items]
        if days is not None:
            busy.clock.now += 86_400 * days
            regime = REGIMES[next(numbers) % 2]
            ground = "ccpa.1798.105" if regime == "ccpa" else "internal"
            busy.submit(next(numbers), regime=regime, ground=ground)
    assert len(seen) == len(set(seen))
    assert there <= set(seen)


def test_a_search_finds_batches_and_certificates_duplicates_too(tmp_path: Any) -> None:
    with make(tmp_path) as ledger:
        first = ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
        again = ledger.requests.submit([person(1)], model="risk", verified=True)
        other = ledger.requests.submit([person(2)], model="risk", verified=True)
        batch = ledger.requests.get(first.id).batch
        assert batch is not None

        def actual(search: str) -> set[str]:
            return {request.id for request in ledger.requests.find(search=search).items}

        assert actual("#1") == {first.id, again.id}
        assert actual("#2") == set()
        assert actual(batch) == actual(batch[:8].upper()) == {first.id}
        assert actual(other.id[:12]) == {other.id}
        assert ledger.requests.find(search="#1").items[0].certificate == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"after": "x"},
        {"after": ""},
        {"after": "é"},
        {"after": 3},
        {"limit": 0},
        {"limit": LARGEST_PAGE + 1},
        {"limit": True},
        {"order": "best"},
        {"states": ["nonsense"]},
        {"states": "queued"},
    ],
)
def test_what_makes_no_sense_is_refused(still_desk: LedgerSetup, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("s")):
        requests_of(still_desk.core).find(**wrong)


@pytest.fixture(scope="module")
def still_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerSetup]:
    folder = tmp_path_factory.mktemp("still")
    made = LedgerSetup(folder, "sqlite", folder)
    for number in range(4):
        made.submit(number)
    yield made
    made.database.dispose()


def test_every_changed_cursor_is_refused(still_desk: LedgerSetup) -> None:
    public = requests_of(still_desk.core)
    good = public.find(limit=1).next
    assert good is not None
    alphabet = "ABCxyz019-_=%"
    changed = {
        good[:place] + letter + good[place + 1 :]
        for place in range(len(good))
        for letter in alphabet
    }
    changed |= {good[:place] + good[place + 1 :] for place in range(len(good))}
    changed |= {
        good[:place] + letter + good[place:] for place in range(0, len(good), 7) for letter in "A="
    }
    changed |= {good + "=", good + "A", good * 2} - {good}
    accepted = [text for text in changed - {good} if accepts(public, text)]
    assert accepted == []


def accepts(public: LedgerRequests, after: str) -> bool:
    try:
        public.find(after=after, limit=1)
    except ValueError as error:
        return "cursor" not in str(error)
    return True


def test_a_cursor_is_of_one_list_and_one_ledger(
    still_desk: LedgerSetup, sqlite_desk: LedgerSetup
) -> None:
    core = still_desk.core
    text = encode_cursor(core, "batches", (NOON, "00"))
    assert decode_cursor(core, "batches", text) == (NOON, "00")
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(core, "requests/due", text)
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(sqlite_desk.core, "batches", text)
    due = requests_of(core).find(limit=1).next
    with pytest.raises(ValueError, match="cursor"):
        requests_of(core).find(after=due, order="newest")


@pytest.mark.parametrize(
    "call",
    [lambda lists: lists.list(state="foo"), lambda lists: lists.find(states=["queued", "foo"])],
)
def test_an_unknown_state_is_refused_with_all_states(
    still_desk: LedgerSetup, call: Callable[[LedgerRequests], object]
) -> None:
    with pytest.raises(
        ValueError, match=r"unknown states?: 'foo'; expected one of: received"
    ) as info:
        call(requests_of(still_desk.core))
    assert all(state in str(info.value) for state in STATES)


def test_no_list_reads_rows_that_do_not_match(still_desk: LedgerSetup) -> None:
    """On SQLite every filter is answered along an index in the order of the list."""
    statements: list[str] = []

    def keep(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    public, engine = requests_of(still_desk.core), still_desk.database.engine
    event.listen(engine, "before_cursor_execute", keep)
    for order in ("due", "newest"):
        for wanted in (
            {},
            {"tenant": "default"},
            {"states": ["stuck", "closed"]},
            {"filed_by": "a"},
        ):
            public.find(order=order, limit=2, **wanted)
    event.remove(engine, "before_cursor_execute", keep)
    lists = [one for one in statements if "LIMIT" in one and "FROM requests" in one]
    assert len(lists) == 8
    with still_desk.database.reading() as connection:
        for statement in lists:
            plan = connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", ("x",) * statement.count("?")
            ).all()
            assert "INDEX requests_" in plan[0][-1]
            assert not any("TEMP B-TREE" in row[-1] for row in plan)


def test_a_request_is_what_the_list_says(full: LedgerSetup) -> None:
    page = requests_of(full.core).find(limit=20)
    for one in page.items:
        assert full.reload(one.id) == one
        assert dataclasses.asdict(one)["filed_by"] in FILERS


def test_pages_continue_after_the_ledger_is_opened_again(full: LedgerSetup) -> None:
    page = requests_of(full.core).find(limit=7)
    again = dataclasses.replace(full.core, database=open_kind(full.kind, full.place))
    rest = requests_of(again).find(limit=7, after=page.next)
    again.database.dispose()
    assert not {one.id for one in rest.items} & {one.id for one in page.items}
