"""What was done, looked up: batches, certificates, versions and the log, page by page."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.exceptions import LedgerMissingError, UnknownModelError
from letheon.ledger import Ledger
from letheon.ledger.certificates import certificates
from letheon.ledger.certificates.certificates import Batches
from letheon.ledger.db import events, log
from letheon.ledger.db.log import Log, LogTree
from letheon.verifier import (
    VerificationError,
    check_consistency,
    check_inclusion,
    leaf_hash,
    open_envelope,
    transition_roots,
)
from tests.ledger.databases import LedgerSetup, SettableClock, erase, sqlite_desk
from tests.ledger.homes import IDS, X, Y, fitted, make, person
from tests.sharded.people import examples

__all__ = ["sqlite_desk"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Two models of two tenants, three erasures and a retrain."""
    clock = SettableClock()
    with make(tmp_path_factory.mktemp("story"), clock=clock) as ledger:
        ledger.models.register(fitted(), X, Y, ids=IDS, name="churn", tenant="rival")
        for number in (1, 2):
            ledger.requests.submit([person(number)], model="risk", verified=True)
            ledger.run_once(force=True)
            clock.now += 60
        ledger.requests.submit([person(7)], model="churn", tenant="rival", verified=True)
        ledger.run_once(force=True)
        clock.now += 60
        ledger.models.retrain("risk")
        ledger.log.checkpoint()
        yield ledger


def all_of(call: Any, **given: Any) -> list[Any]:
    """All items of a list, two at a time."""
    items, page = [], call(limit=2, **given)
    while True:
        items += page.items
        if page.next is None:
            assert len(items) == page.total
            return items
        page = call(limit=2, after=page.next, **given)


def test_certificates_in_short_say_what_they_say_at_length(story: Ledger) -> None:
    summaries = all_of(story.certificates.list)
    assert [summary.sequence for summary in summaries] == list(
        reversed(story.certificates.sequences())
    )
    trust = story._core.keys.trust()
    for one in summaries:
        opened = open_envelope(story.certificates.envelope(one.sequence), trust)
        said = opened.predicate
        assert one == story.certificates.get(one.sequence)
        assert (one.id, one.batch) == (opened.id, said["erasure"]["batch"])
        assert (one.method, one.n_rows) == (said["method"]["name"], said["erasure"]["rows"])
        assert one.guarantee == said["guarantee"]["kind"]
        assert one.purged_at is not None
    mine = all_of(story.certificates.list, tenant="rival")
    assert [(one.model, one.tenant) for one in mine] == [("churn", "rival")]
    assert mine == all_of(story.certificates.list, model="churn")


def test_a_certificate_of_another_tenant_is_none(story: Ledger) -> None:
    mine = story.certificates.list(tenant="rival").items[0].sequence
    texts = set()
    for sequence, tenant in ((mine, "default"), (99, "default")):
        with pytest.raises(LedgerMissingError) as caught:
            story.certificates.get(sequence, tenant=tenant)
        texts.add(str(caught.value).replace(str(sequence), "N"))
    assert len(texts) == 1


@given(st.data())
@examples(60)
def test_a_damaged_certificate_does_not_hide_the_others(story: Ledger, data: st.DataObject) -> None:
    envelope = bytearray(story.certificates.envelope(1))
    place = data.draw(st.integers(0, len(envelope) - 1))
    envelope[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([0, place, len(envelope)]))
    method, guarantee, n_rows = certificates._summarize(bytes(envelope[:cut]))
    assert isinstance(method, str)
    assert isinstance(guarantee, str)
    assert type(n_rows) is int


def test_batches_say_what_became_of_them(story: Ledger) -> None:
    batches = all_of(story.batches.list)
    assert [batch.certificate for batch in batches] == [4, 3, 2, 1]
    assert [batch.kind for batch in batches] == ["retrain", "erase", "erase", "erase"]
    assert [batch.n_rows for batch in batches] == [0, 2, 2, 2]
    assert [batch.n_requests for batch in batches] == [0, 1, 1, 1]
    assert {batch.state for batch in batches} == {"purged"}
    assert [one.version for one in all_of(story.batches.list, tenant="default")] == [3, 2, 1]
    assert story.batches.get(batches[0].id) == batches[0]
    for wrong in ("", "g" * 64, batches[1].id):
        with pytest.raises(LedgerMissingError):
            story.batches.get(wrong, tenant="default")


def test_a_batch_that_is_not_published_counts_what_is_asked(sqlite_desk: LedgerSetup) -> None:
    for number in range(3):
        request = sqlite_desk.submit(number, 100 + number, verified=True)
        erase(sqlite_desk, request.id, upto="applied")
    page = Batches(sqlite_desk.core).list()
    assert {(one.n_requests, one.n_rows, one.version) for one in page.items} == {(1, 2, None)}
    assert page.total == 3


def test_the_proof_of_a_certificate_is_the_one_that_it_names(story: Ledger) -> None:
    trust = story._core.keys.trust()
    for sequence in story.certificates.sequences():
        said = open_envelope(story.certificates.envelope(sequence), trust).predicate["dataset"]
        proof = story.certificates.proof(sequence)
        assert hashlib.sha256(proof).hexdigest() == said["transitionProof"]["sha256"]
        assert transition_roots(proof)[1].hex() == said["rootAfter"]
    with pytest.raises(LedgerMissingError):
        story.certificates.proof(99)


def test_versions_come_in_pages_too(story: Ledger) -> None:
    whole = story.models.versions("risk")
    assert [one.number for one in whole] == [0, 1, 2, 3]
    assert story.models.versions("risk", after=1) == whole[2:]
    assert story.models.versions("risk", limit=2) == whole[:2]
    assert story.models.versions("risk", after=0, limit=1) == whole[1:2]
    heads = {(model.tenant, model.name): model.head for model in story.models.list()}
    assert heads["default", "risk"] == whole[-1]
    assert [model.name for model in story.models.list(tenant="rival")] == ["churn"]


def test_facts_of_a_version_are_those_of_its_certificate(story: Ledger) -> None:
    trust = story._core.keys.trust()
    for number, sequence in ((1, 1), (2, 2), (3, 4)):
        said = open_envelope(story.certificates.envelope(sequence), trust).predicate
        facts = story.models.version_facts("risk", number)
        for part in ("guarantee", "measurements", "method"):
            assert facts[part] == said[part]
        assert facts["monitor"]["decision"] == said["monitor"]["decision"]
    assert story.models.version_facts("risk", 0)["kind"] == "registration"
    with pytest.raises(LedgerMissingError):
        story.models.version_facts("risk", 9)
    with pytest.raises(UnknownModelError):
        story.models.version_facts("churn", 0)


def test_the_log_is_told_in_its_order(story: Ledger) -> None:
    entries = all_of(story.log.entries)
    assert [entry.index for entry in entries] == list(range(len(entries)))
    with story._core.database.reading() as conn:
        hashes = [leaf_hash(body).hex() for body in events.read_bodies(conn)]
    assert hashes == [entry.leaf for entry in entries]
    by_index = {entry.index: entry for entry in entries}
    for one in story.certificates.list().items:
        assert one.log_index is not None
        assert by_index[one.log_index].details["certificate"] == one.id


def test_proofs_about_the_log_convince_the_verifier(story: Ledger) -> None:
    total = story.log.entries().total
    assert total is not None
    for index in range(0, total, 3):
        proof = story.log.inclusion(index)
        path = [bytes.fromhex(one) for one in proof.path]
        leaf, root = bytes.fromhex(proof.leaf), bytes.fromhex(proof.root)
        check_inclusion(leaf, index, proof.size, path, root)
        with pytest.raises(VerificationError):
            check_inclusion(leaf, (index + 1) % total, proof.size, path, root)
    grown = story.log.consistency(total // 2)
    roots = bytes.fromhex(grown.root1), bytes.fromhex(grown.root2)
    path = [bytes.fromhex(one) for one in grown.path]
    check_consistency(grown.size1, roots[0], grown.size2, roots[1], path)
    for wrong in ((total, None), (-1, None), (0, total + 1)):
        with pytest.raises(ValueError, match="the log has"):
            story.log.inclusion(wrong[0], size=wrong[1])
    with pytest.raises(ValueError, match="the log has"):
        story.log.consistency(total + 1)


class Leaves:
    """A log of random leaves in place of the database."""

    def __init__(self, count: int) -> None:
        self.hashes = [hashlib.sha256(bytes([n % 256, n >> 8])).digest() for n in range(count)]

    def read(self, _conn: Any, begin: int, end: int) -> list[bytes]:
        return self.hashes[begin:end]


@given(data=st.data(), count=st.integers(1, 300), block=st.sampled_from([1, 2, 8, 64]))
@examples(60)
def test_proofs_by_blocks_are_those_of_the_whole_tree(
    data: st.DataObject, count: int, block: int
) -> None:
    leaves = Leaves(count)
    tree = LogTree(leaves.hashes)
    size = data.draw(st.integers(1, count))
    index, smaller = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log, "BLOCK", block)
        patched.setattr(log, "_read_leaf_range", leaves.read)
        patched.setattr(events, "read_log_head", lambda _: type("Head", (), {"size": count}))
        no_core: Any = None
        blocks = Log(no_core)._load_tree(no_core)
        assert blocks.inclusion_path(index, size) == tree.inclusion_path(index, size)
        assert blocks.consistency_path(smaller, size) == tree.consistency_path(smaller, size)
        assert blocks.root(size) == tree.root(size)


def test_a_lost_proof_is_named(tmp_path: Path) -> None:
    with make(tmp_path) as ledger:
        ledger.requests.submit([person(3)], model="risk", verified=True)
        ledger.run_once(force=True)
        for path in (ledger.folder / "proofs").rglob("*.json"):
            path.unlink()
        with pytest.raises(LedgerMissingError, match="restore"):
            ledger.certificates.proof(1)
