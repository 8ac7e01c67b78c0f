"""The statement of a certificate: from database rows, always the same, without personal data."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from letheon.exceptions import CertificateError
from letheon.ledger import Ledger
from letheon.ledger.certificates.certify import (
    _next_version,
    _set_certificate_time,
    certify_next,
    find_covered,
)
from letheon.ledger.certificates.statement import make_statement, requests_root
from letheon.ledger.models.versions import (
    VersionRow,
    find_model_by_id,
    find_version,
    read_raw_model,
    read_row_slots,
)
from letheon.ledger.tables import certificates, models, requests, versions
from letheon.verifier import UNLEARNING, canonical, check_schema
from tests.ledger.forgetters import SEED, table
from tests.ledger.published import (
    NAME,
    NOW,
    ask,
    copied,
    core_of,
    forest,
    new_ledger,
    publish,
    published,
)
from tests.sharded.people import examples


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ledger with two published versions: of three people, and of one."""
    folder = tmp_path_factory.mktemp("statement") / "home"
    published(folder, [[0, 1, 2], [5]]).close()
    return folder


@pytest.fixture
def ledger(home: Path, tmp_path: Path) -> Iterator[Ledger]:
    with copied(home, tmp_path / "home") as opened:
        yield opened


def claimed(ledger: Ledger) -> VersionRow:
    version = _next_version(core_of(ledger))
    assert version is not None
    return _set_certificate_time(core_of(ledger), version)


def statement(ledger: Ledger) -> dict[str, Any]:
    version = claimed(ledger)
    with core_of(ledger).database.reading() as conn:
        return make_statement(conn, version, find_covered(conn, version))


def predicate(ledger: Ledger) -> dict[str, Any]:
    claims: dict[str, Any] = statement(ledger)["predicate"]
    return claims


def execute(ledger: Ledger, change: Any) -> None:
    with core_of(ledger).database.transaction() as conn:
        conn.execute(change)


def test_it_is_valid_and_the_same_every_time(ledger: Ledger) -> None:
    first = statement(ledger)
    check_schema(first)
    assert first["predicateType"] == UNLEARNING
    assert canonical(first) == canonical(statement(ledger))


def test_it_names_the_model_after_as_its_only_subject(ledger: Ledger) -> None:
    version, document = claimed(ledger), statement(ledger)
    core = core_of(ledger)
    with core.database.reading() as conn:
        model = find_model_by_id(conn, version.model_id)
    digest = hashlib.sha256(read_raw_model(core, model, version)).hexdigest()
    assert document["subject"] == [{"name": f"{NAME}@1", "digest": {"sha256": digest}}]
    assert document["predicate"]["model"]["before"]["sha256"] != digest


def test_times_of_receipt_have_the_precision_of_a_day(ledger: Ledger, tmp_path: Path) -> None:
    late = NOW + 8 * 3600
    with published(tmp_path / "late", [[0, 1, 2]], clock=lambda: late) as other:
        days = [predicate(each)["times"] for each in (ledger, other)]
    names = ("oldestReceivedOn", "earliestDueOn")
    assert [[times[name] for name in names] for times in days] == [["2026-11-15", "2026-12-15"]] * 2


def test_an_extension_moves_the_day_that_it_is_due(ledger: Ledger) -> None:
    execute(ledger, update(requests).values(extended_to="2027-02-15"))
    assert predicate(ledger)["times"]["earliestDueOn"] == "2027-02-15"


def test_a_batch_of_one_is_flagged(ledger: Ledger) -> None:
    assert "batch-of-one" not in predicate(ledger)["notClaimed"]
    assert certify_next(core_of(ledger)) == 1
    claims = predicate(ledger)
    assert "batch-of-one" in claims["notClaimed"]
    assert (claims["erasure"]["rows"], claims["ledger"]["sequence"]) == (1, 2)


def test_the_certificate_before_is_linked(ledger: Ledger) -> None:
    assert predicate(ledger)["ledger"]["previousCertificate"] == "genesis"
    certify_next(core_of(ledger))
    with core_of(ledger).database.reading() as conn:
        [known] = conn.scalars(select(certificates.c.id))
    assert predicate(ledger)["ledger"]["previousCertificate"] == {"sha256": known}


def test_a_gap_in_the_chain_is_an_error(ledger: Ledger) -> None:
    core = core_of(ledger)
    claimed(ledger)
    with core.database.reading() as conn:
        second = find_version(conn, conn.scalar(select(func.max(versions.c.id))) or 0)
    second = _set_certificate_time(core, second)
    with (
        core.database.reading() as conn,
        pytest.raises(CertificateError, match="2 cannot be issued before"),
    ):
        make_statement(conn, second, find_covered(conn, second))


def test_an_unclaimed_version_has_no_statement(ledger: Ledger) -> None:
    version = _next_version(core_of(ledger))
    assert version is not None
    with core_of(ledger).database.reading() as conn, pytest.raises(CertificateError):
        make_statement(conn, version, find_covered(conn, version))


@pytest.mark.parametrize("path", [("rows",), ("live",), ("guarantee", "accounting")])
def test_facts_that_contradict_the_versions_are_refused(ledger: Ledger, path: Any) -> None:
    facts = claimed(ledger).facts
    place = facts["certificate"]
    for name in path[:-1]:
        place = place[name]
    if path[-1] == "accounting":
        place["accounting"]["deletionsSinceRetrain"] += 1
    else:
        place[path[-1]] += 1
    execute(ledger, update(versions).values(facts=canonical(facts).decode()))
    with pytest.raises(CertificateError, match="in the facts of the model, but"):
        statement(ledger)


def test_a_version_that_erased_nothing_is_refused(ledger: Ledger) -> None:
    version = claimed(ledger)
    facts = version.facts
    facts["certificate"] |= {"rows": 0, "live": 60}
    facts["certificate"]["guarantee"]["accounting"]["deletionsSinceRetrain"] = 0
    mine = versions.c.id == version.id
    execute(
        ledger,
        update(versions).where(mine).values(live=60, facts=canonical(facts).decode()),
    )
    with pytest.raises(CertificateError, match="no certificate to issue"):
        statement(ledger)


@pytest.mark.parametrize(("tenant", "name"), [("default", NAME), ("acme", f"acme/{NAME}")])
def test_tenants_are_part_of_the_name(ledger: Ledger, tenant: str, name: str) -> None:
    execute(ledger, update(models).values(tenant=tenant))
    assert predicate(ledger)["model"]["id"] == name


def test_operators_may_claim_less_about_releases(ledger: Ledger) -> None:
    assert predicate(ledger)["guarantee"]["releases"] == "latest-only"
    execute(ledger, update(models).values(releases="labels-only"))
    assert predicate(ledger)["guarantee"]["releases"] == "labels-only"


def test_nothing_of_a_person_a_row_or_a_secret_is_in_it(ledger: Ledger) -> None:
    version, core = claimed(ledger), core_of(ledger)
    with core.database.reading() as conn:
        vault = read_row_slots(core, find_model_by_id(conn, version.model_id), version)
        asked = conn.execute(select(requests)).all()
    X, _, ids = table()
    text = json.dumps(statement(ledger))
    plain = [person.encode() for person in ids] + [row.tobytes() for row in X]
    secrets = [*plain, *(salt.tobytes() for salt in vault.salts), str(SEED).encode()]
    shown = [each.hex() for each in secrets] + [_core64(each) for each in secrets]
    shown += [*ids, str(SEED), *(row.id for row in asked), *(row.nonce for row in asked)]
    shown += [repr(float(value)) for value in X.ravel()]
    assert [each for each in shown if each in text] == []


def _core64(data: bytes) -> str:
    """Return base64 without what depends on the bytes after."""
    return base64.b64encode(data[: len(data) // 3 * 3]).decode()


def test_a_retrain_covers_what_was_erased_since_the_last_one(tmp_path: Path) -> None:
    with new_ledger(tmp_path / "home") as ledger:
        for person, ground in ((0, "gdpr.art17.1.b"), (1, "gdpr.art17.1.d")):
            ask(ledger, [person], ground=ground)
            publish(ledger)
        ask(ledger, [2])
        ledger.models.retrain(NAME)
        ask(ledger, [3])
        ledger.run_once(force=True)
        predicates = [
            json.loads(_payload(ledger.certificates.envelope(each)))["predicate"] for each in (3, 4)
        ]
        retrain, after = predicates
        assert (retrain["method"]["name"], retrain["erasure"]["rows"]) == ("retrain", 3)
        assert retrain["erasure"]["grounds"] == ["gdpr.art17.1.b", "gdpr.art17.1.d"]
        # With the certificates before it, it points at the one person who is new.
        assert "batch-of-one" in retrain["notClaimed"]
        assert "beacon-not-witnessed" in retrain["notClaimed"]
        last = [each["monitor"]["lastRetrainSequence"] for each in predicates]
        since = [each["guarantee"]["accounting"]["deletionsSinceRetrain"] for each in predicates]
        assert (last, since) == ([0, 3], [0, 1])
        assert after["dataset"]["rootBefore"] == retrain["dataset"]["rootAfter"]


def test_two_requests_of_one_person_are_a_batch_of_one(tmp_path: Path) -> None:
    X, y, ids = table()
    twice = [ids[0], *ids[:-1]]
    with Ledger.create(tmp_path / "home", name="test-ledger", clock=lambda: NOW) as ledger:
        ledger.models.register(forest().fit(X, y, ids=twice), X, y, ids=twice, name=NAME)
        for _ in range(2):
            ask(ledger, [0])
        ledger.run_once(force=True)
        claims = json.loads(_payload(ledger.certificates.envelope(1)))["predicate"]
    assert (claims["erasure"]["rows"], "batch-of-one" in claims["notClaimed"]) == (2, True)


def test_a_retrain_that_takes_two_new_people_along_is_no_batch_of_one(tmp_path: Path) -> None:
    with published(tmp_path / "home", [[0, 1]]) as ledger:
        ask(ledger, [2, 3])
        ledger.models.retrain(NAME)
        claims = json.loads(_payload(ledger.certificates.envelope(2)))["predicate"]
    assert (claims["erasure"]["rows"], "batch-of-one" in claims["notClaimed"]) == (4, False)


def test_a_retrain_without_requests_of_its_own_covers_those_before(tmp_path: Path) -> None:
    with published(tmp_path / "home", [[0, 1]]) as ledger:
        ledger.models.retrain(NAME)
        one, two = (
            json.loads(_payload(ledger.certificates.envelope(each)))["predicate"] for each in (1, 2)
        )
        assert two["erasure"]["requestsRoot"] == one["erasure"]["requestsRoot"]
        assert (two["erasure"]["rows"], two["dataset"]["liveAfter"]) == (2, 58)
        assert two["dataset"]["rootAfter"] == one["dataset"]["rootAfter"]
        assert two["times"]["oldestReceivedOn"] == one["times"]["oldestReceivedOn"]


def _payload(envelope: bytes) -> bytes:
    return base64.b64decode(json.loads(envelope)["payload"])


def test_what_an_erasure_covers_starts_at_the_version_before(ledger: Ledger) -> None:
    certify_next(core_of(ledger))
    version = claimed(ledger)
    with core_of(ledger).database.reading() as conn:
        covered = find_covered(conn, version)
    assert (covered.kind, covered.base.number, covered.last_retrain.number) == ("erase", 1, 0)
    assert covered.base == covered.parent


def test_a_registration_has_no_certificate(ledger: Ledger) -> None:
    with core_of(ledger).database.reading() as conn:
        registered = find_version(conn, conn.scalars(select(func.min(versions.c.id))).one())
        with pytest.raises(CertificateError, match="the first version"):
            find_covered(conn, registered)


def slow_root(leaves: list[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it, recursively."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return hashlib.sha256(b"\1" + slow_root(leaves[:half]) + slow_root(leaves[half:])).digest()


NONCE = st.binary(min_size=32, max_size=32).map(bytes.hex)
REQUEST = st.text("0123456789abcdef", min_size=32, max_size=32)


@examples(30)
@given(st.lists(st.tuples(NONCE, REQUEST), max_size=12), st.randoms())
def test_the_root_over_requests(asked: list[tuple[str, str]], random: Any) -> None:
    hidden = [hashlib.sha256(bytes.fromhex(n) + r.encode()).digest() for n, r in asked]
    shuffled = random.sample(asked, len(asked))
    assert requests_root(shuffled) == slow_root(sorted(hidden)).hex()
