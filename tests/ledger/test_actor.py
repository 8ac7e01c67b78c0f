"""Events of requests store the opaque id of the acting user, and only of that user."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.audit import audit
from letheon.exceptions import RequestStateError
from letheon.ledger import Ledger
from letheon.ledger.db.events import CODE, acting, current_actor
from letheon.ledger.requests.intake import GroupCommit
from tests.ledger.homes import make, person
from tests.sharded.people import examples

ANNA, BERT = "a" * 16, "b" * 16


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with make(tmp_path) as made:
        yield made


def hands(ledger: Ledger, request_id: str) -> dict[str, Any]:
    """Who did what, as the timeline tells."""
    return {event.kind: event.details.get("by") for event in ledger.requests.timeline(request_id)}


def test_every_event_says_who_acted(ledger: Ledger) -> None:
    with ledger.acting(ANNA):
        request = ledger.requests.submit([person(1)], model="risk")
    with ledger.acting(BERT):
        ledger.requests.await_identity(request.id)
        ledger.requests.verify(request.id)
    ledger.requests.extend(request.id)
    with ledger.acting(ANNA):
        ledger.requests.cancel(request.id)
    assert hands(ledger, request.id) == {
        "received": ANNA,
        "identity-asked": BERT,
        "verified": BERT,
        "queued": BERT,
        "extended": None,
        "cancelled": ANNA,
    }
    stored = ledger.requests.get(request.id)
    assert (stored.filed_by, stored.verified_by) == (ANNA, BERT)


def test_a_request_that_is_vouched_for_has_one_hand(ledger: Ledger) -> None:
    with ledger.acting(ANNA):
        request = ledger.requests.submit([person(1)], model="risk", verified=True)
    assert (request.filed_by, request.verified_by) == (ANNA, ANNA)
    assert request == ledger.requests.get(request.id)
    assert set(hands(ledger, request.id).values()) == {ANNA}


def test_a_repeat_by_another_actor_changes_nothing(ledger: Ledger) -> None:
    with ledger.acting(ANNA):
        first = ledger.requests.submit([person(1)], model="risk", key="k")
    with ledger.acting(BERT):
        again = ledger.requests.submit([person(1)], model="risk", key="k")
    assert again == first
    assert again.filed_by == ANNA


def test_events_of_a_worker_have_no_actor(ledger: Ledger) -> None:
    with ledger.acting(ANNA):
        request = ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    assert hands(ledger, request.id)["purged"] is None


def test_threads_that_share_a_commit_keep_their_hands_apart(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread stores the requests of all that wait."""
    rounds: list[int] = []
    gate, settle = threading.Event(), GroupCommit._write_items

    def slowly(self: Any, round_: Any) -> None:
        rounds.append(len(round_))
        if len(rounds) == 1:
            gate.wait(10)
        settle(self, round_)

    monkeypatch.setattr(GroupCommit, "_write_items", slowly)
    actors: dict[str, str] = {}

    def ask(number: int) -> None:
        by = f"{number:016x}"
        with ledger.acting(by):
            actors[by] = ledger.requests.submit([person(number)], model="risk", verified=True).id

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while len(ledger.requests._group._waiting) < 7:
        threading.Event().wait(0.005)
    gate.set()
    for thread in threads:
        thread.join()
    assert rounds == [1, 7]
    for by, request_id in actors.items():
        assert set(hands(ledger, request_id).values()) == {by}
        assert ledger.requests.get(request_id).filed_by == by


def test_acting_ends_with_its_context_also_after_an_error(ledger: Ledger) -> None:
    request = ledger.requests.submit([person(1)], model="risk")
    with ledger.acting(ANNA), pytest.raises(RequestStateError):
        ledger.requests.release(request.id)
    assert current_actor() is None
    with acting(ANNA):
        with acting(BERT):
            assert current_actor() == BERT
        assert current_actor() == ANNA


@given(st.text(max_size=40) | st.none() | st.integers())
@examples(100)
def test_only_what_may_stand_in_an_event_may_act(by: Any) -> None:
    if isinstance(by, str) and CODE.fullmatch(by):
        with acting(by):
            assert current_actor() == by
        return
    with pytest.raises(ValueError, match="opaque id"), acting(by):
        raise AssertionError("it was accepted")


def test_an_audit_accepts_a_log_with_hands(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.acting(ANNA):
        ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
    bundle = ledger.export(tmp_path / "bundle", tier="auditor")
    report = audit(bundle, key=ledger.public_key)
    assert report.passed
