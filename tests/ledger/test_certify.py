"""The signer: one certificate for each number, with killed, concurrent or malicious workers."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from letheon import verifier
from letheon.exceptions import CertificateError, SignerRefusedError
from letheon.ledger import Ledger
from letheon.ledger import core as faults
from letheon.ledger.certificates.certify import (
    _next_version,
    _set_certificate_time,
    certify_next,
    take_checkpoint,
)
from letheon.ledger.certificates.claims import certificate_account
from letheon.ledger.db.events import record_event
from letheon.ledger.models.versions import (
    VersionRow,
    find_model_by_id,
    find_version,
    locate_signed_file,
    proof_path,
)
from letheon.ledger.tables import (
    batches,
    certificates,
    checkpoints,
    events,
    models,
    requests,
    versions,
)
from letheon.verifier import canonical, check_chain, check_note, read_note
from tests.ledger.forgetters import MAKERS
from tests.ledger.published import NOW, all_envelopes, copied, core_of, published

POINTS = [
    "checkpoint.before-commit",
    "certify.claimed",
    "certify.signed",
    "certify.file-written",
    "certify.before-commit",
    "certify.after-commit",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certify") / "home"
    published(folder, [[0, 1, 2], [5]]).close()
    return folder


@pytest.fixture
def ledger(home: Path, tmp_path: Path) -> Iterator[Ledger]:
    with copied(home, tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def hook() -> Iterator[Callable[[Any], None]]:
    """Let a test wait at the named places; reset them afterwards."""

    def install(wanted: Any) -> None:
        faults.hook = wanted

    yield install
    faults.hook = None


def first(ledger: Ledger) -> VersionRow:
    with core_of(ledger).database.reading() as conn:
        return find_version(
            conn, conn.scalars(select(versions.c.id).where(versions.c.sequence == 1)).one()
        )


def counted(ledger: Ledger) -> tuple[int, int]:
    """Return how many certificates there are, and how many events say so."""
    with core_of(ledger).database.reading() as conn:
        rows = conn.scalar(select(func.count()).select_from(certificates)) or 0
        said = select(func.count()).select_from(events).where(events.c.kind == "certificate")
        return rows, conn.scalar(said) or 0


def require_sound(ledger: Ledger, n: int) -> list[verifier.SignedStatement]:
    """Check that there are n certificates, in one chain, in files and database alike."""
    envelopes = all_envelopes(ledger)
    core = core_of(ledger)
    files = [locate_signed_file(core, "certificates", each + 1).read_bytes() for each in range(n)]
    assert (len(envelopes), files) == (n, envelopes)
    assert counted(ledger) == (n, n)
    return check_chain(envelopes, core.keys.trust())


def refused(ledger: Ledger, match: str, error: type[Exception] = SignerRefusedError) -> None:
    """Check that nothing is signed."""
    with pytest.raises(error, match=match):
        certify_next(core_of(ledger))
    assert counted(ledger) == (0, 0)
    assert not locate_signed_file(core_of(ledger), "certificates", 1).exists()


def change(ledger: Ledger, statement: Any) -> None:
    with core_of(ledger).database.transaction() as conn:
        conn.execute(statement)


def test_every_version_gets_its_certificate_once(ledger: Ledger) -> None:
    core = core_of(ledger)
    assert [certify_next(core) for _ in range(4)] == [1, 2, None, None]
    opened = require_sound(ledger, 2)
    with core.database.reading() as conn:
        states = set(conn.scalars(select(requests.c.state)))
        kinds = set(conn.scalars(select(batches.c.state)))
        ids = list(conn.scalars(select(certificates.c.id).order_by(certificates.c.sequence)))
    assert (states, kinds) == ({"certified"}, {"certified"})
    assert ids == [each.id for each in opened]


def test_the_checkpoint_before_shows_the_publication(ledger: Ledger) -> None:
    certify_next(core_of(ledger))
    [opened] = require_sound(ledger, 1)
    digest = opened.predicate["ledger"]["checkpointBefore"]["sha256"]
    notes = [file.read_text() for file in (ledger.folder / "checkpoints").glob("*.txt")]
    [note] = [note for note in notes if verifier.note_digest(note) == digest]
    with core_of(ledger).database.reading() as conn:
        places = select(events.c.log_index).where(events.c.kind == "published")
        assert max(conn.scalars(places)) < read_note(note).size


def killed_at(folder: Path, name: str) -> int:
    """Certify in a child that dies at a named place; return how it ended."""
    child = os.fork()
    if child == 0:
        faults.hook = lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == name else None
        certify_next(core_of(Ledger.open(folder, clock=lambda: NOW)))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_any_worker_writes_the_same_bytes(
    home: Path, tmp_path: Path, point: str
) -> None:
    victim = tmp_path / "victim"
    copied(home, victim).close()
    assert killed_at(victim, point) == -signal.SIGKILL
    left = victim / "certificates" / "000001.json"
    written = [left.read_bytes()] if left.exists() else []
    assert bool(written) == (POINTS.index(point) >= POINTS.index("certify.file-written"))
    for name, clock in (("one", lambda: NOW), ("two", lambda: NOW + 1000)):
        with copied(victim, tmp_path / name, clock) as survivor:
            while certify_next(core_of(survivor)) not in (2, None):
                pass
            require_sound(survivor, 2)
            written.append(all_envelopes(survivor)[0])
    if point != "checkpoint.before-commit":
        assert len(set(written)) == 1


@pytest.mark.parametrize("point", POINTS)
def test_two_workers_at_once_give_one_certificate(
    ledger: Ledger, hook: Callable[[Any], None], point: str
) -> None:
    hook(met_at(point))
    done = certified_by_two(ledger)
    hook(None)
    assert set(done) <= {1, 2}
    require_sound(ledger, len(all_envelopes(ledger)))


def test_two_workers_at_once_on_postgresql(
    postgres_url: str, tmp_path: Path, hook: Callable[[Any], None]
) -> None:
    with published(tmp_path / "home", [[0, 1], [2]], database=postgres_url) as ledger:
        hook(met_at("certify.file-written"))
        assert certified_by_two(ledger) == [1, 1]
        hook(None)
        assert certify_next(core_of(ledger)) == 2
        require_sound(ledger, 2)


def test_the_first_claim_decides_for_all(ledger: Ledger) -> None:
    """A second worker that read the version before it was claimed takes over what was claimed."""
    unclaimed = _next_version(core_of(ledger))
    assert unclaimed is not None
    assert unclaimed.certified_at is None
    first_claim = _set_certificate_time(core_of(ledger), unclaimed)
    with Ledger.open(ledger.folder, clock=lambda: NOW + 60) as later:
        with core_of(later).database.transaction() as conn:
            record_event(conn, "noise", {"n": 1}, NOW + 60)
        assert _set_certificate_time(core_of(later), unclaimed) == first_claim
    assert certify_next(core_of(ledger)) == 1
    require_sound(ledger, 1)


def met_at(point: str) -> Callable[[str], None]:
    """Return a hook at which two workers wait for each other."""
    meeting = threading.Barrier(2)

    def wait(name: str) -> None:
        # A transaction admits one worker at a time, so no other worker is inside.
        if name == point and not name.endswith("before-commit"):
            meeting.wait(timeout=20)

    return wait


def certified_by_two(ledger: Ledger) -> list[int | None]:
    """Certify in two threads, each with the ledger opened for itself."""
    done: list[int | None] = []

    def work() -> None:
        with Ledger.open(ledger.folder, clock=lambda: NOW) as own:
            done.append(certify_next(core_of(own)))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return done


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "gone", "another"])
def test_an_altered_blob_is_not_certified(ledger: Ledger, how: str) -> None:
    version = first(ledger)
    [file] = (ledger.folder / "blobs").glob(f"*/{version.model_blob}")
    whole = file.read_bytes()
    half = len(whole) // 2
    changed = {
        "flipped": whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :],
        "cut": whole[:-1],
        "longer": whole + b"\0",
        "another": next(path.read_bytes() for path in file.parent.iterdir() if path not in (file,)),
    }
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(changed[how])
    refused(ledger, "cannot be read")
    file.write_bytes(whole)
    assert certify_next(core_of(ledger)) == 1


def edited(ledger: Ledger, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the facts of the first version in the database."""
    version = first(ledger)
    edit(version.facts["certificate"])
    text = canonical(version.facts).decode()
    change(ledger, update(versions).where(versions.c.id == version.id).values(facts=text))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("guarantee", "requests"), "adaptive"),
        (("guarantee", "assumptions"), []),
        (("guarantee", "accounting", "rule"), "other-rule"),
        (("method", "name"), "naive"),
        (("method", "definition", "sha256"), "00" * 32),
        (("method", "parameters", "n_estimators"), "100"),
    ],
)
def test_claims_that_the_model_does_not_make_are_not_signed(
    ledger: Ledger, path: tuple[str, ...], value: Any
) -> None:
    def edit(facts: dict[str, Any]) -> None:
        for name in path[:-1]:
            facts = facts[name]
        facts[path[-1]] = value

    edited(ledger, edit)
    refused(
        ledger, "stronger|omits|must also list|is missing or larger|the model has|differ from those"
    )


def test_stronger_releases_of_the_operator_are_not_signed(ledger: Ledger) -> None:
    change(ledger, update(models).values(releases="every-version"))
    refused(ledger, "releases='every-version' is stronger")


@pytest.mark.parametrize("name", ["influence", "descent", "fisher"])
def test_certified_models_and_their_cheats(tmp_path: Path, name: str) -> None:
    with published(tmp_path / "home", [[0, 1]], model=MAKERS[name]()) as ledger:
        honest = first(ledger).facts["certificate"]["guarantee"]["epsilon"]
        edited(ledger, lambda facts: facts["guarantee"].update(epsilon="0.5"))
        refused(ledger, "epsilon=.*stronger")
        edited(ledger, lambda facts: facts["guarantee"].update(epsilon=honest))
        edited(ledger, lambda facts: facts["guarantee"].update(kind="exact"))
        refused(ledger, "kind='exact' is stronger")
        edited(ledger, lambda facts: facts["guarantee"].update(kind="certified"))
        assert certify_next(core_of(ledger)) == 1
        [opened] = require_sound(ledger, 1)
        stored = first(ledger).facts["certificate"]["guarantee"]["accounting"]
        assert opened.predicate["guarantee"]["accounting"] == certificate_account(stored) != stored
        assert "speedup" not in json.dumps(opened.predicate["measurements"])
        assert "efficiency-not-measured" in opened.predicate["notClaimed"]
        assert "spent" not in json.dumps(opened.predicate)


@pytest.mark.parametrize("how", ["altered", "gone", "of another transition"])
def test_a_transition_that_the_proof_does_not_show_is_not_signed(ledger: Ledger, how: str) -> None:
    core, version = core_of(ledger), first(ledger)
    with core.database.reading() as conn:
        path = proof_path(core, find_model_by_id(conn, version.model_id), version.run["proof"])
    if how == "gone":
        path.unlink()
    elif how == "altered":
        path.write_bytes(path.read_bytes() + b"\n")
    else:
        [other] = [each for each in path.parent.iterdir() if each != path]
        path.write_bytes(other.read_bytes())
    refused(ledger, "transition proof")


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b'{"payload":"AAAA"}'])
def test_a_number_is_never_signed_with_two_contents(ledger: Ledger, content: bytes) -> None:
    path = locate_signed_file(core_of(ledger), "certificates", 1)
    path.write_bytes(content)
    with pytest.raises(SignerRefusedError, match="different content"):
        certify_next(core_of(ledger))
    assert path.read_bytes() == content
    assert counted(ledger) == (0, 0)


def test_a_certificate_of_this_number_from_a_fork_is_noticed(
    ledger: Ledger, home: Path, tmp_path: Path
) -> None:
    with copied(home, tmp_path / "fork", lambda: NOW + 60) as fork:
        certify_next(core_of(fork))
        [other] = all_envelopes(fork)
    locate_signed_file(core_of(ledger), "certificates", 1).write_bytes(other)
    with pytest.raises(SignerRefusedError, match="fork"):
        certify_next(core_of(ledger))


def test_a_database_that_contradicts_itself_is_not_signed(ledger: Ledger) -> None:
    edited(ledger, lambda facts: facts.update(rows=7))
    refused(ledger, "is 7 in the facts of the model, but", CertificateError)


def test_a_statement_outside_the_schema_is_not_signed(ledger: Ledger) -> None:
    edited(ledger, lambda facts: facts["notClaimed"].append("Free text about Jane"))
    refused(ledger, "does not match its schema")


def test_a_rotation_does_not_change_who_signs_numbers_given_before(ledger: Ledger) -> None:
    core = core_of(ledger)
    old = core.keys.signer.keyid
    core.keys.rotate("test-ledger", 2)
    assert [certify_next(core) for _ in range(2)] == [1, 2]
    assert core.keys.signer.keyid != old
    assert [each.keyids for each in require_sound(ledger, 2)] == [(old,)] * 2


def test_checkpoints_of_one_size_are_one(ledger: Ledger) -> None:
    core = core_of(ledger)
    one, two = take_checkpoint(core), take_checkpoint(core)
    assert one == two
    check_note(read_note(one.note), core.keys.trust())
    assert (ledger.folder / "checkpoints" / f"{one.size:012d}.txt").read_text() == one.note
    assert (read_note(one.note).size, read_note(one.note).root.hex()) == (one.size, one.root)


def test_a_file_that_a_kill_left_out_is_written_later(ledger: Ledger) -> None:
    core = core_of(ledger)
    old = take_checkpoint(core)
    path = ledger.folder / "checkpoints" / f"{old.size:012d}.txt"
    path.unlink()
    certify_next(core)
    assert path.read_text() == old.note


def test_a_checkpoint_that_was_not_committed_leaves_no_file(
    ledger: Ledger, hook: Callable[[Any], None]
) -> None:
    class StopWorker(BaseException):
        pass

    def stop(name: str) -> None:
        if name == "checkpoint.before-commit":
            raise StopWorker

    core = core_of(ledger)
    before = {file.name for file in (ledger.folder / "checkpoints").iterdir()}
    hook(stop)
    with pytest.raises(StopWorker):
        take_checkpoint(core)
    hook(None)
    assert {file.name for file in (ledger.folder / "checkpoints").iterdir()} == before
    with core.database.reading() as conn:
        rows = conn.scalar(select(func.count()).select_from(checkpoints))
    assert rows == len(before)
