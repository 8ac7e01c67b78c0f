"""A pinned version is not purged, pins expire, and a version being destroyed cannot be pinned."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from letheon.exceptions import LedgerMissingError
from letheon.ledger import core as faults
from letheon.ledger.models.versions import (
    count_pins,
    find_head,
    pin_version,
    release_pin,
    renew_pin,
)
from tests.ledger.residue import MarkedLedger, make_marked, quick_folder


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 6)) as marked_ledger:
        yield marked_ledger


def head_id(marked: MarkedLedger) -> int:
    with marked.core.database.reading() as conn:
        return find_head(conn, marked.model.id).id


def n_pins(marked: MarkedLedger, version_id: int) -> int:
    with marked.core.database.transaction() as conn:
        return count_pins(marked.core, conn, version_id)


def test_pin_counts_until_it_is_released(marked: MarkedLedger) -> None:
    version = head_id(marked)
    first, second = (
        pin_version(marked.core, "reader", version, 30),
        pin_version(marked.core, "reader", version, 30),
    )
    assert first != second
    assert n_pins(marked, version) == 2
    release_pin(marked.core, first)
    release_pin(marked.core, first)
    assert n_pins(marked, version) == 1


def test_pin_runs_out_unless_it_is_renewed(marked: MarkedLedger) -> None:
    version = head_id(marked)
    pin = pin_version(marked.core, "reader", version, 30)
    marked.clock.now += 20
    renew_pin(marked.core, pin, 30)
    marked.clock.now += 20
    assert n_pins(marked, version) == 1
    marked.clock.now += 10
    assert n_pins(marked, version) == 0
    with pytest.raises(LedgerMissingError, match="load the current version"):
        renew_pin(marked.core, pin, 30)


def test_purge_waits_for_a_pin_and_goes_on_when_it_ran_out(marked: MarkedLedger) -> None:
    old = head_id(marked)
    pin_version(marked.core, "reader", old, 30)
    marked.erase(marked.ids[0])
    assert marked.states() == {"purging"}
    marked.clock.now += 31
    marked.run()
    assert marked.states() == {"purged"}


@pytest.mark.parametrize("at", ["purge.pins-drained", "purge.blobs-half", "purge.after-commit"])
def test_version_that_is_being_purged_cannot_be_pinned(
    at: str, marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, refused = head_id(marked), []

    def try_to_pin(name: str) -> None:
        if name == at:
            with pytest.raises(LedgerMissingError, match="being purged"):
                pin_version(marked.core, "late", old, 30)
            refused.append(name)

    monkeypatch.setattr(faults, "hook", try_to_pin)
    marked.erase(marked.ids[0])
    assert refused == [at]


def test_later_purge_waits_for_the_version_that_knows_its_people_too(marked: MarkedLedger) -> None:
    pin = pin_version(marked.core, "reader", head_id(marked), 500)
    marked.erase(marked.ids[0])
    marked.erase(marked.ids[1])
    reasons = {request.state: request.reason for request in marked.ledger.requests.list()}
    assert reasons == {"purging": None, "certified": None}
    release_pin(marked.core, pin)
    marked.run()
    assert marked.states() == {"purged"}


def test_pin_of_a_clock_that_was_ahead_holds_nothing_up(marked: MarkedLedger) -> None:
    version = head_id(marked)
    marked.clock.now += 200
    pin_version(marked.core, "reader", version, 600)
    marked.clock.now += 365 * 86_400
    pin_version(marked.core, "reader", version, 30)
    marked.clock.now -= 365 * 86_400 + 200
    assert n_pins(marked, version) == 1
    marked.erase(marked.ids[0])
    marked.clock.now += 801
    marked.run()
    assert marked.states() == {"purged"}


def test_pin_longer_than_any_that_counts_is_refused(marked: MarkedLedger) -> None:
    version = head_id(marked)
    with pytest.raises(ValueError, match="seconds=601"):
        pin_version(marked.core, "reader", version, 601)
    pin = pin_version(marked.core, "reader", version, 600)
    with pytest.raises(ValueError, match="seconds=601"):
        renew_pin(marked.core, pin, 601)
