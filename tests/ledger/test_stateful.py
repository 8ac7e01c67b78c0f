"""Any history of a model's requests, against a reference in memory.

The rules do what people and workers do; the invariants compare the database with the reference
after each of them. Every example has a model of its own in one database.
"""

import inspect
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError

from letheon.data import as_ids
from letheon.exceptions import IdempotencyError, RequestStateError, UnknownIdError
from letheon.ledger.db import events as _events
from letheon.ledger.db.log import compute_root
from letheon.ledger.requests import intake
from letheon.ledger.requests import people as _people
from letheon.ledger.requests import requests as _requests
from letheon.ledger.requests.people import move_requests
from letheon.ledger.requests.states import ALLOWED, NEW, PUBLISHED, STATES
from letheon.ledger.tables import batches, blocked, events, intake_keys, requests
from letheon.ledger.worker.policy import Policy
from tests.ledger.databases import (
    LedgerSetup,
    add_model,
    desk,
    kind,
    place,
    requests_of,
    sqlite_desk,
    submit,
)

__all__ = ["desk", "kind", "place", "sqlite_desk"]

PEOPLE = [f"p{number}" for number in range(8)]
WITHDRAWN = ("cancelled", "rejected")
DONE = ("purged", "closed")
WITHDRAWABLE = ("received", "verified", "queued", "duplicate", "on_hold", "retry_wait", "stuck")
APPROVE_ABOVE = 1

people = st.sets(st.sampled_from(PEOPLE), min_size=1, max_size=3)
picks = st.integers(0, 10**6)


@dataclass
class KnownRequest:
    """What the reference knows of one request."""

    id: str
    key: str
    people: frozenset[str]
    verified: bool
    received: int
    states: list[str]
    batch: str | None = None
    has_body: bool = True
    extended: bool = False
    n_rows: int = 0

    @property
    def state(self) -> str:
        return self.states[-1]

    @property
    def when_it_owns(self) -> str:
        return "verified" if self.n_rows > APPROVE_ABOVE else "queued"


@dataclass
class ReferenceLedger:
    """Requests, and who owns whom: as plain as it can be."""

    all: dict[str, KnownRequest] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    claims: dict[str, list[str]] = field(default_factory=dict)
    erased: set[str] = field(default_factory=set)

    def claim(self, one: KnownRequest) -> None:
        one.states.append("verified")
        for person in one.people:
            owner = self.all.get(self.owners.get(person, ""))
            may_take = one.when_it_owns == "queued"
            if owner is None or (owner.state == "verified" and may_take):
                self.owners[person] = one.id
            self.claims.setdefault(person, []).append(one.id)
        owns = any(self.owners[person] == one.id for person in one.people)
        if not owns:
            one.states.append("duplicate")
            one.has_body = not self.is_covered(one)
        elif one.when_it_owns == "queued":
            one.states.append("queued")

    def withdraw(self, one: KnownRequest, state: str) -> None:
        one.states.append(state)
        one.has_body = False
        heirs = []
        for person in one.people:
            rest = [other for other in self.claims.get(person, []) if other != one.id]
            self.claims[person] = rest
            if self.owners.get(person) == one.id:
                del self.owners[person]
                if rest:
                    self.owners[person] = min(rest, key=self.rank)
                    heirs.append(self.all[self.owners[person]])
        for heir in heirs:
            if heir.state == "duplicate":
                heir.states.append(heir.when_it_owns)

    def rank(self, other: str) -> tuple[int, int]:
        one = self.all[other]
        has_erased = one.state in PUBLISHED or (one.state == "stuck" and one.batch is not None)
        waits = one.state == "verified" or (one.state, one.when_it_owns) == (
            "duplicate",
            "verified",
        )
        return (0 if has_erased else 1 + waits, one.received)

    def loses_people(self, one: KnownRequest) -> bool:
        others = {other for person in one.people for other in self.claims[person]} - {one.id}
        return any(
            self.all[other].state == "applying" or not self.rank(other)[0] for other in others
        )

    def is_covered(self, one: KnownRequest, batch: str | None = None) -> bool:
        def over(other: KnownRequest) -> bool:
            return other.state in DONE or (batch is not None and other.batch == batch)

        return all(
            any(over(self.all[other]) for other in self.claims[person]) for person in one.people
        )


class LedgerHistory(RuleBasedStateMachine):
    """One model's requests."""

    place: ClassVar[LedgerSetup]
    visited: ClassVar[set[tuple[str, str]]]
    numbers: ClassVar["itertools.count[int]"]

    def __init__(self) -> None:
        super().__init__()
        self.desk = self.place
        self.name = f"m{next(self.numbers)}"
        with self.desk.database.transaction() as connection:
            self.model = add_model(connection, self.name)
        self.known = ReferenceLedger()
        self.keys = (f"{self.name}-{number}" for number in itertools.count())

    @property
    def core(self) -> Any:
        return self.desk.core

    def in_state(self, *states: str) -> list[KnownRequest]:
        return [one for one in self.known.all.values() if one.state in states]

    def pick(self, number: int, *states: str) -> KnownRequest | None:
        candidates = self.in_state(*states)
        return candidates[number % len(candidates)] if candidates else None

    def submit(self, whom: Any, key: str, verified: bool) -> Any:
        held = as_ids(
            [person for person in PEOPLE if person not in self.known.erased] or ["unknown-person"]
        )
        core, model, ids = self.core, self.model, sorted(whom)
        return submit(core, model, ids, key=key, verified=verified, held=held, ground="internal")

    @rule(whom=people, verified=st.booleans())
    def asks(self, whom: set[str], verified: bool) -> None:
        self.desk.clock.now += 1
        key = next(self.keys)
        unknown = {one for one in whom & self.known.erased if not self.known.claims.get(one)}
        assert not unknown
        request = self.submit(whom, key, verified)
        one = KnownRequest(
            request.id, key, frozenset(whom), verified, self.desk.clock.now, ["received"]
        )
        one.n_rows = len(whom - self.known.erased)
        self.known.all[one.id] = one
        if verified:
            self.known.claim(one)
        assert request.state == one.state

    @rule(number=picks)
    def repeats(self, number: int) -> None:
        one = self.pick(number, *STATES)
        if one is not None:
            assert self.submit(one.people, one.key, one.verified).id == one.id

    @rule(number=picks, whom=people)
    def asks_something_else_under_an_old_key(self, number: int, whom: set[str]) -> None:
        one = self.pick(number, *STATES)
        if one is not None and whom != one.people and not whom & self.known.erased:
            with pytest.raises(IdempotencyError):
                self.submit(whom, one.key, one.verified)

    @rule(whom=people)
    def submits_an_unknown_id(self, whom: set[str]) -> None:
        with pytest.raises(UnknownIdError):
            self.submit({*whom, "stranger"}, next(self.keys), True)

    @rule(number=picks)
    def is_verified(self, number: int) -> None:
        one = self.pick(number, "received")
        if one is not None:
            self.known.claim(one)
            assert requests_of(self.core).verify(one.id).state == one.state

    @rule(number=picks)
    def is_approved(self, number: int) -> None:
        one = self.pick(number, "verified")
        if one is not None:
            assert requests_of(self.core).approve(one.id).state == "queued"
            one.states.append("queued")

    @rule(number=picks)
    def is_asked_who_it_is(self, number: int) -> None:
        one = self.pick(number, "received")
        if one is not None:
            assert requests_of(self.core).await_identity(one.id).state == "received"

    @rule(number=picks)
    def is_cancelled(self, number: int) -> None:
        self.is_withdrawn(number, "cancelled", lambda one: requests_of(self.core).cancel(one))

    @rule(number=picks)
    def is_rejected(self, number: int) -> None:
        self.is_withdrawn(
            number, "rejected", lambda one: requests_of(self.core).reject(one, "internal")
        )

    def is_withdrawn(self, number: int, state: str, call: Callable[[str], object]) -> None:
        one = self.pick(number, *WITHDRAWABLE)
        if one is None:
            return
        if one.state == "stuck" and one.batch is not None:
            with pytest.raises(RequestStateError):
                call(one.id)
            return
        call(one.id)
        self.known.withdraw(one, state)

    @rule(number=picks)
    def is_held(self, number: int) -> None:
        one = self.pick(number, "queued", "retry_wait")
        if one is None:
            return
        if self.known.loses_people(one):
            with pytest.raises(RequestStateError):
                requests_of(self.core).hold(one.id, "litigation-hold", date(2099, 1, 1))
            return
        requests_of(self.core).hold(one.id, "litigation-hold", date(2099, 1, 1))
        one.states.append("on_hold")

    @rule(number=picks)
    def is_released(self, number: int) -> None:
        one = self.pick(number, "on_hold")
        if one is not None:
            requests_of(self.core).release(one.id)
            one.states.append("queued")

    @rule(number=picks)
    def is_extended(self, number: int) -> None:
        one = self.pick(number, *(set(STATES) - {"rejected", *WITHDRAWN, *DONE}))
        if one is None:
            return
        if one.extended:
            with pytest.raises(RequestStateError):
                requests_of(self.core).extend(one.id)
        else:
            requests_of(self.core).extend(one.id)
            one.extended = True

    @rule(number=picks)
    def is_retried(self, number: int) -> None:
        one = self.pick(number, "stuck", "retry_wait")
        if one is not None:
            requests_of(self.core).retry(one.id)
            mates = [other for other in self.in_state("stuck") if other.batch == one.batch]
            for mate in mates if one.batch else [one]:
                mate.states.append("purging" if one.batch else "queued")

    @rule(number=picks)
    def is_closed(self, number: int) -> None:
        one = self.pick(number, "purged", "duplicate")
        if one is None:
            return
        if one.state == "duplicate" and not self.known.is_covered(one):
            with pytest.raises(RequestStateError):
                requests_of(self.core).answer(one.id)
            return
        requests_of(self.core).answer(one.id, recipients=1)
        one.states.append("closed")
        one.has_body = False

    @precondition(lambda self: self.in_state("queued") and not self.in_state("applying"))
    @rule(number=picks)
    def batch_is_sealed(self, number: int) -> None:
        queued = self.in_state("queued")
        start = number % len(queued)
        chosen = queued[start : start + 1 + number % 3]
        batch = f"{len(self.desk.rows(batches)):064x}"
        values = {"id": batch, "model_id": self.model.id, "kind": "erase", "parent_id": 1}
        rest = {"state": "open", "created_at": 0, "reason": "operator", "fence": 1}
        with self.desk.database.transaction() as connection:
            connection.execute(insert(batches).values(**values, **rest))
            ids = [one.id for one in chosen]
            move_requests(connection, ids, "applying", at=self.desk.clock(), batch_id=batch)
        with self.desk.database.reading() as connection:
            whom = _people.decrypt_ids(self.core, connection, batch)
        for one in chosen:
            one.states.append("applying")
            one.batch = batch
        assert whom is not None
        assert set(whom.to_list()) == set().union(*(one.people for one in chosen))

    def step(self, before: str, after: str, batch_state: str, **columns: Any) -> list[KnownRequest]:
        """Move all requests of the oldest batch that has any in a state."""
        requests = self.in_state(before)
        together = [request for request in requests if request.batch == requests[0].batch]
        with self.desk.database.transaction() as connection:
            ids = [one.id for one in together]
            move_requests(connection, ids, after, at=self.desk.clock(), **columns)
            change = update(batches).where(batches.c.id == together[0].batch)
            connection.execute(change.values(state=batch_state))
        for one in together:
            one.states.append(after)
        return together

    @precondition(lambda self: self.in_state("applying"))
    @rule(how=st.sampled_from(["applied", "applied", "applied", "queued", "retry_wait", "stuck"]))
    def batch_is_computed(self, how: str) -> None:
        if how == "applied":
            for one in self.step("applying", "applied", "published"):
                self.known.erased |= one.people
        else:
            for one in self.step("applying", how, "abandoned", batch_id=None):
                one.batch = None

    @precondition(lambda self: self.in_state("queued"))
    @rule()
    def worker_finds_no_people_left(self) -> None:
        """All people of a queued request were erased with another request."""
        left = [one for one in self.in_state("queued") if one.people <= self.known.erased]
        assert set(_people.mark_queued_duplicates(self.core, self.model.id)) == {
            one.id for one in left
        }
        for one in left:
            one.states.append("duplicate")
            one.has_body &= not self.known.is_covered(one)

    @precondition(lambda self: self.in_state("retry_wait"))
    @rule(after=st.sampled_from(["queued", "stuck"]), number=picks)
    def pause_is_over(self, after: str, number: int) -> None:
        one = self.pick(number, "retry_wait")
        assert one is not None
        with self.desk.database.transaction() as connection:
            move_requests(connection, one.id, after, at=self.desk.clock())
        one.states.append(after)

    @precondition(lambda self: self.in_state("applied"))
    @rule()
    def batch_is_certified(self) -> None:
        self.step("applied", "certified", "certified")

    @precondition(lambda self: self.in_state("certified"))
    @rule()
    def purge_begins(self) -> None:
        self.step("certified", "purging", "certified")

    @precondition(lambda self: self.in_state("purging"))
    @rule(fails=st.sampled_from([False, False, True]))
    def purge_goes_on(self, fails: bool) -> None:
        if fails:
            self.step("purging", "stuck", "certified")
            return
        batch = str(self.in_state("purging")[0].batch)
        _people.rotate_intake_key(self.core, batch)
        for one in self.known.all.values():
            waits = one.state == "duplicate" and self.known.is_covered(one, batch)
            one.has_body &= not (waits or one.batch == batch)
        self.step("purging", "purged", "purged")

    @rule(number=picks, after=st.sampled_from(STATES))
    def illegal_move_is_tried(self, number: int, after: str) -> None:
        one = self.pick(number, *STATES)
        if one is None or one.state == after or (one.state, after) in ALLOWED:
            return
        with pytest.raises(RequestStateError), self.desk.database.transaction() as connection:
            move_requests(connection, one.id, after, at=self.desk.clock())
        change = text("UPDATE requests SET state = :after WHERE id = :id")
        with pytest.raises(DBAPIError), self.desk.database.transaction() as connection:
            connection.execute(change, {"after": after, "id": one.id})

    @rule()
    def checkpoint_is_taken(self) -> None:
        with self.desk.database.transaction() as connection:
            head = _events.integrate_events(connection)
            assert head.root == compute_root(_events.read_leaves(connection))

    @rule()
    def process_starts_again(self) -> None:
        self.desk.database.dispose()
        self.desk.database.cached_values.clear()

    @invariant()
    def states_are_those_of_the_reference(self) -> None:
        rows = self.mine(requests)
        assert {row.id: row.state for row in rows} == {
            one.id: one.state for one in self.known.all.values()
        }

    @invariant()
    def owners_are_those_of_the_reference(self) -> None:
        tags = dict(
            zip(
                _people.compute_person_tags(self.core, "default", as_ids(PEOPLE)),
                PEOPLE,
                strict=True,
            )
        )
        rows = self.mine(blocked)
        assert {tags[row.tag]: row.request_id for row in rows if row.owner} == self.known.owners
        claims = {(tags[row.tag], row.request_id) for row in rows}
        assert claims == {(p, one) for p, asked in self.known.claims.items() for one in asked}

    @invariant()
    def nothing_large_passes_without_an_approval(self) -> None:
        with self.desk.database.reading() as connection:
            query = select(events.c.about).where(events.c.kind == "approved")
            approved = set(connection.scalars(query))
        for one in self.known.all.values():
            is_past = "queued" in one.states and one.n_rows > APPROVE_ABOVE
            assert not is_past or one.id in approved

    @invariant()
    def no_duplicate_waits_in_vain(self) -> None:
        """A person who asked, verified, is erased or has an owner that will do it."""
        for one in self.in_state("duplicate"):
            for person in one.people - self.known.erased:
                assert self.known.all[self.known.owners[person]].state not in WITHDRAWN

    @invariant()
    def bodies_are_readable_while_they_are_needed(self) -> None:
        for row in self.mine(requests):
            one = self.known.all[row.id]
            assert (row.sealed is not None) == one.has_body
            assert one.has_body or one.batch or one.state in ("duplicate", *WITHDRAWN, "closed")
            if one.has_body:
                read = _people.read_body(self.core, row.intake_key, row.id, row.sealed)
                assert set(read.to_list()) == one.people

    @invariant()
    def one_intake_key_is_left(self) -> None:
        left = [row.id for row in self.desk.rows(intake_keys) if row.destroyed_at is None]
        assert self.core.keys.list_ids("intake") == left
        assert len(left) <= 1

    @invariant()
    def every_move_is_an_event(self) -> None:
        with self.desk.database.reading() as connection:
            ids = list(self.known.all)
            query = select(events.c.about, events.c.kind).where(events.c.about.in_(ids))
            rows = connection.execute(query.order_by(events.c.id)).all()
        for one in self.known.all.values():
            told = [row.kind for row in rows if row.about == one.id and row.kind in STATES]
            assert told == one.states

    def mine(self, table: Any) -> list[Any]:
        with self.desk.database.reading() as connection:
            return list(connection.execute(table.select().where(table.c.model_id == self.model.id)))

    def teardown(self) -> None:
        for one in self.known.all.values():
            self.visited.update(itertools.pairwise([NEW, *one.states]))


def here(desk: LedgerSetup) -> type[LedgerHistory]:
    """The machine of one database; requests of several people need an approval."""
    policy = Policy(approve_above=APPROVE_ABOVE)
    desk.core = replace(desk.core, settings=replace(desk.core.settings, policy=policy))

    class SeededHistory(LedgerHistory):
        place, visited, numbers = desk, set(), itertools.count()

    return SeededHistory


def play(desk: LedgerSetup, examples: int, steps: int) -> None:
    """Let Hypothesis look for a history that goes wrong, and shrink it."""
    chosen = settings(max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(here(desk), settings=chosen)


# Which states a rule needs to find; those without any can always be played.
RULES: dict[str, tuple[str, ...]] = {
    "asks": (),
    "repeats": STATES,
    "asks_something_else_under_an_old_key": STATES,
    "submits_an_unknown_id": (),
    "is_verified": ("received",),
    "is_approved": ("verified",),
    "is_asked_who_it_is": ("received",),
    "is_cancelled": WITHDRAWABLE,
    "is_rejected": WITHDRAWABLE,
    "is_held": ("queued", "retry_wait"),
    "is_released": ("on_hold",),
    "is_extended": STATES,
    "is_retried": ("stuck", "retry_wait"),
    "is_closed": ("purged", "duplicate"),
    "batch_is_sealed": ("queued",),
    "batch_is_computed": ("applying",),
    "worker_finds_no_people_left": ("queued",),
    "pause_is_over": ("retry_wait",),
    "batch_is_certified": ("applied",),
    "purge_begins": ("certified",),
    "purge_goes_on": ("purging",),
    "illegal_move_is_tried": STATES,
    "checkpoint_is_taken": (),
    "process_starts_again": (),
}
OFTEN = (
    "asks",
    "worker_finds_no_people_left",
    "batch_is_sealed",
    "batch_is_computed",
    "purge_goes_on",
)
COMPUTED = ["applied", "applied", "applied", "queued", "retry_wait", "stuck"]
HISTORY = 100


def walk(desk: LedgerSetup, seed: int, steps: int) -> set[tuple[str, str]]:
    """Walk at random, with a new model now and then; return the pairs visited."""
    draw, machines = random.Random(seed), here(desk)
    for start in range(0, steps, HISTORY):
        machine = machines()
        for _ in range(min(HISTORY, steps - start)):
            step(machine, draw)
        machine.teardown()
    return machines.visited


def step(machine: LedgerHistory, draw: random.Random) -> None:
    name = draw.choice([*playable(machine), *(one for one in OFTEN if one in playable(machine))])
    given = {
        "whom": set(draw.sample(PEOPLE, draw.randint(1, 2))),
        "verified": draw.random() < 0.6,
        "number": draw.randrange(1000),
        "how": draw.choice(COMPUTED),
        "fails": draw.random() < 0.3,
        "after": draw.choice(STATES if name.startswith("illegal") else ["queued", "stuck"]),
    }
    call = getattr(machine, name)
    wanted = inspect.signature(call).parameters
    call(**{key: value for key, value in given.items() if key in wanted})
    for check in CHECKS:
        getattr(machine, check)()


def playable(machine: LedgerHistory) -> list[str]:
    names = [name for name, states in RULES.items() if not states or machine.in_state(*states)]
    if machine.in_state("applying") and "batch_is_sealed" in names:
        names.remove("batch_is_sealed")
    return names


CHECKS = (
    "states_are_those_of_the_reference",
    "owners_are_those_of_the_reference",
    "nothing_large_passes_without_an_approval",
    "no_duplicate_waits_in_vain",
    "bodies_are_readable_while_they_are_needed",
    "one_intake_key_is_left",
    "every_move_is_an_event",
)
STEPS = {"sqlite": 500, "sqlite-delete": 60, "postgresql": 150}
# The events tell the states in between.
PASSED_THROUGH = {(NEW, "queued"), (NEW, "verified")}


def test_a_long_history_is_as_the_reference_says(desk: LedgerSetup) -> None:
    visited = walk(desk, 1, STEPS[desk.kind])
    assert visited <= ALLOWED
    assert len(visited) >= {"sqlite": 26, "sqlite-delete": 8, "postgresql": 15}[desk.kind]


def test_no_short_history_goes_wrong(sqlite_desk: LedgerSetup) -> None:
    play(sqlite_desk, 10, 25)
    assert sqlite_desk.rows(requests)


@pytest.mark.soak
def test_long_histories_visit_every_pair(desk: LedgerSetup) -> None:
    visited = walk(desk, 1, 40 * STEPS[desk.kind])
    play(desk, 300, 100)
    assert visited == ALLOWED - PASSED_THROUGH


def test_the_rules_of_the_walk_are_all_of_them() -> None:
    marks = {name: vars(method) for name, method in vars(LedgerHistory).items() if callable(method)}
    rules = {name for name, mark in marks.items() if "hypothesis_stateful_rule" in mark}
    checks = {name for name, mark in marks.items() if "hypothesis_stateful_invariant" in mark}
    assert rules == set(RULES)
    assert checks == set(CHECKS)


@pytest.mark.parametrize("bug", ["no heir", "no event", "body kept", "no owner", "no approval"])
def test_the_net_catches_a_planted_bug(
    bug: str, sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches: dict[str, tuple[Any, str, Any]] = {
        "no heir": (_requests, "release_claims", lambda *_, **__: []),
        "no event": (intake, "_make_events", lambda *_: []),
        "body kept": (_people, "_drop_bodies", lambda *_: None),
        "no owner": (_people, "_assign_owners", lambda *_: {}),
        "no approval": (Policy, "needs_approval", lambda *_: False),
    }
    monkeypatch.setattr(*patches[bug])
    with pytest.raises(AssertionError):
        walk(sqlite_desk, 7, 1000)
