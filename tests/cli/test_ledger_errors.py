"""What the commands of the ledger say, and with which status they leave, when they cannot."""

import json
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import OperationalError

import letheon
from letheon import exceptions
from letheon.cli import _command
from letheon.cli._command import find_exit_status, report_errors, to_plain
from letheon.cli._requests import parse_numbers
from letheon.ledger import Ledger, Step
from letheon.ledger.leases import release_lease, take_lease
from letheon.ledger.models.models import Models
from tests.cli.ledgers import LEAVING, PEOPLE, call, done, files_in, table
from tests.ledger.old_copies import copy_database, inventory

STATUS = {
    1: {"CertificateError", "ResidueError", "CorruptFileError", "MemoryLimitError"},
    3: {
        "DatasetMissingError",
        "LedgerMissingError",
        "UnknownIdError",
        "UnknownModelError",
        "UnknownRequestError",
    },
    4: {
        "BlockedIdsError",
        "BudgetSpentError",
        "CannotForgetError",
        "ChangedParametersError",
        "CheckpointError",
        "ClockError",
        "EmptyModelError",
        "ForgetError",
        "IdempotencyError",
        "KeyFileError",
        "LedgerError",
        "NewerFormatError",
        "NewerLedgerError",
        "OldDatabaseError",
        "RequestStateError",
        "SignerRefusedError",
        "StateError",
        "UnsupportedStateError",
        "UntrustedClassError",
    },
    5: {"LedgerBusyError", "LedgerUnwritableError", "StaleWorkerError"},
}


def test_every_error_of_letheon_has_its_status() -> None:
    special = {name: status for status, names in STATUS.items() for name in names}
    for name in exceptions.__all__:
        kind = getattr(exceptions, name)
        if issubclass(kind, exceptions.LetheonError):
            assert find_exit_status(kind("text")) == special.get(name, 2), name


MISTAKES = [
    KeyError("person-0003"),
    ValueError("person-0003 is too long"),
    TypeError("person-0003"),
    ImportError("cannot import name 'x' from 'letheon.ledger'", name="letheon.ledger"),
    ImportError("cannot import name 'x' from 'numpy'", name="numpy"),
    ModuleNotFoundError("No module named 'letheon.gone'", name="letheon.gone"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda item: type(item).__name__)
def test_a_mistake_in_the_program_is_no_wrong_usage(
    mistake: Exception, home: "Home", monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise mistake

    monkeypatch.setattr(Models, "list", fail)
    words = ("model", "list", "--ledger", home.folder)
    result = call(*words)
    assert (result.exit_code, result.stdout) == (70, "")
    kind = type(mistake).__name__
    assert result.stderr.startswith(f"letheon: internal error: {kind} in _requests.py")
    assert "person-0003" not in result.stderr
    error = json.loads(call(*words, "--json").stderr)["error"]
    assert error["kind"] == "InternalError"
    monkeypatch.setenv("LETHEON_TRACEBACK", "1")
    assert call(*words).exception is mistake


def test_a_ledger_is_no_bundle(home: "Home") -> None:
    result = call("audit", "report", home.folder, "--key", "0" * 64)
    assert result.exit_code == 2
    assert "is a ledger, not a bundle" in result.stderr


def test_a_mistake_ends_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("person-0003")

    @contextmanager
    def opened(_: Path | None) -> Iterator[Busy]:
        yield Busy(fail)

    monkeypatch.setattr(_command, "open_ledger", opened)
    assert call("worker", "--interval", "0.1").exit_code == 70


def test_a_missing_extra_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(_: Path) -> None:
        try:
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        except ModuleNotFoundError as error:
            raise ImportError("pip install 'letheon[ledger]'", name="psycopg") from error

    monkeypatch.setattr(Ledger, "open", open_)
    result = call("model", "list", "--ledger", "somewhere")
    assert (result.exit_code, result.stderr) == (2, "letheon: pip install 'letheon[ledger]'\n")


def test_a_reader_that_has_seen_enough_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokenPipeError), report_errors(as_json=False):
        raise BrokenPipeError
    assert capsys.readouterr().err == ""


def test_no_command_leaves_a_core_file(home: "Home") -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    _, most = before
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    try:
        done("model", "list", "--ledger", home.folder)
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, most)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


class Home(NamedTuple):
    folder: Path
    files: Any
    queued: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A ledger with a model of texts, one of numbers, and a queued request."""
    folder = tmp_path_factory.mktemp("errors")
    files, (X, y) = files_in(folder), table()
    with Ledger.create(folder / "home", name="demo") as ledger:
        ledger.models.register(letheon.load(files.model), X, y, ids=list(PEOPLE), name="m")
        convex = letheon.InfluenceClassifier(l2=0.1).fit(X, y)
        ledger.models.register(convex, X, y, name="numbers")
        request = ledger.requests.submit([LEAVING[0]], model="m", key="case-1", verified=True)
    letheon.save(convex, folder / "numbers.letheon")
    return Home(folder / "home", files, request.id)


UNKNOWN = "0" * 32
CASES: list[tuple[int, tuple[str, ...], str]] = [
    (2, ("request", "add", "--model", "m"), "no ids are given; give either ID arguments or"),
    (2, ("request", "add", "--model", "m", "x", "--ids-file", "-"), "ids are given in two ways"),
    (
        2,
        ("request", "add", "--model", "numbers", "ann"),
        "id number 1 in the list is not an integer",
    ),
    (2, ("request", "add", "--model", "m", PEOPLE[5], "--ground", "why"), "unknown ground"),
    (2, ("request", "add", "--model", "m", PEOPLE[5], "--regime", "lex"), "expected one of"),
    (2, ("batch", "apply", "--retrain", "m", "--force"), "cannot be combined"),
    (2, ("init", "FRESH", "--name", "demo", "--timezone", "Mars/Base"), "Mars/Base"),
    (
        2,
        ("model", "add", "MODEL", "--rows", "MODEL", "--name", "n"),
        "expected .npz, .csv or .parquet",
    ),
    (2, ("model", "add", "MODEL", "--rows", "CSV", "--name", "n"), "--target COLUMN"),
    (2, ("model", "add", "MODEL", "--rows", "CSV", "--name", "n", "--target", "z"), "column 'z'"),
    (2, ("cert", "verify", "MODEL"), "--key KEY"),
    (2, ("cert", "verify", "1", "--purge", "--predictor", "f"), "out --purge or --predictor"),
    (2, ("audit", "residue"), "give BUNDLE with --key"),
    (2, ("init", "FRESH", "--name", "Not A Name"), "Not A Name"),
    (2, ("init", "FRESH", "--name", "demo", "--database", "elsewhere"), "postgresql"),
    (2, ("request", "add", "--model", "m", "--ids-file", "NPZ"), "not UTF-8 text"),
    (2, ("request", "reject", "QUEUED", "--ground", "why"), "unknown ground"),
    (
        2,
        ("request", "hold", "QUEUED", "--ground", "why", "--until", "2999-01-01"),
        "unknown ground",
    ),
    (2, ("store", "add", "a store", "HOME"), "a store"),
    (2, ("model", "add", "MODEL", "--rows", "BROKEN", "--name", "n"), "read as a .npz file"),
    (3, ("model", "show", "other"), "other"),
    (3, ("request", "add", "--model", "other", "x"), "other"),
    (3, ("request", "add", "--model", "m", "unknown-id"), "1 of 1 ids"),
    (3, ("request", "add", "--model", "m", "--ids-file", "no-such-file"), "no-such-file"),
    (3, ("request", "show", UNKNOWN), "unknown request"),
    (3, ("request", "cancel", UNKNOWN), "unknown request"),
    (3, ("cert", "show", "9"), "no certificate 9"),
    (3, ("cert", "show", "9" * 20), "nor the number of a certificate"),
    (3, ("cert", "verify", "no-such-file"), "no-such-file"),
    (
        3,
        ("cert", "chain", "--key", "no-such-file"),
        "neither 64 hexadecimal digits nor an existing file",
    ),
    (3, ("model", "add", "no-such-file", "--rows", "CSV", "--name", "n"), "no-such-file"),
    (3, ("store", "add", "s", "no-such-folder"), "no-such-folder"),
    (3, ("store", "remove", "s"), "no store 's'"),
    (3, ("ledger", "export", "FRESH", "--tier", "auditor", "--model", "other"), "other"),
    (4, ("request", "add", "--model", "m", PEOPLE[5], "--key", "case-1"), "idempotency key"),
    (4, ("request", "release", "QUEUED"), "not on hold"),
    (4, ("request", "close", "QUEUED"), "only a purged request"),
    (4, ("request", "retry", "QUEUED"), "only a failed request can be retried"),
    (4, ("init", "HOME", "--name", "demo"), "already"),
    (4, ("model", "add", "MODEL", "--rows", "NPZ", "--name", "n"), "erasure request"),
    (4, ("ledger", "export", "HOME"), "not empty"),
    (4, ("key", "revoke", "0" * 64, "--after", "0"), "not the id of a signing key"),
    (4, ("batch", "apply", "--retrain", "numbers"), "nothing was erased"),
]


@pytest.mark.parametrize(
    ("status", "words", "said"), CASES, ids=[" ".join(words) for _, words, _ in CASES]
)
def test_status_and_words(
    home: Home, tmp_path: Path, status: int, words: tuple[str, ...], said: str
) -> None:
    names = {
        "MODEL": home.files.model,
        "NPZ": home.files.arrays,
        "CSV": home.files.rows,
        "HOME": home.folder,
        "FRESH": tmp_path / "new",
        "QUEUED": home.queued,
        "BROKEN": tmp_path / "rows.npz",
    }
    names["BROKEN"].write_bytes(b"PK")
    there = () if words[0] == "init" or words[:2] == ("audit", "residue") else ("--ledger", home[0])
    filled = [names.get(word, word) for word in words]
    result = call(*filled, *there, "--json")
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert said in error["text"]
    assert call(*filled, *there).stderr == f"letheon: {error['text']}\n"


def test_people_are_not_named_in_errors(home: Home) -> None:
    for words in (
        ("unknown-id",),
        (LEAVING[1], "unknown-id"),
        (*PEOPLE[4:9], "--key", "case-1"),
    ):
        result = call("request", "add", "--model", "m", *words, "--ledger", home.folder)
        assert result.exit_code in (3, 4)
        assert not any(word in result.output for word in words if word.startswith(("p", "n")))


@pytest.mark.parametrize(
    "words",
    [
        ("request", "add", "--json"),
        ("request", "hold", "x", "--ground", "litigation-hold", "--until", "soon", "--json"),
        ("request", "forget", "--json"),
        ("cert", "show", "1", "--colour", "red", "--json"),
        ("ledger", "export", "d", "--tier", "secret", "--json"),
    ],
)
def test_wrong_usage_is_one_document_too(words: tuple[str, ...]) -> None:
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["kind"] == "UsageError"
    without = call(*words[:-1])
    assert without.exit_code == 2
    assert "Usage:" in without.stderr


def test_no_ledger_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("model", "list")
    assert result.exit_code == 3
    assert "--ledger DIR" in result.stderr
    assert call("doctor").exit_code == 3
    assert call("model", "list", "--ledger", tmp_path / "none").exit_code == 3


def test_the_current_folder_is_the_ledger(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.folder)
    assert [item["name"] for item in done("model", "list")] == ["m", "numbers"]


def test_a_claim_stronger_than_the_method_is_refused(home: Home, tmp_path: Path) -> None:
    X, y = table()
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    words = ("model", "add", home.folder.parent / "numbers.letheon", "--name", "again")
    strong = (*words, "--rows", tmp_path / "rows.npz", "--releases", "every-version")
    assert call(*strong, "--ledger", home.folder).exit_code == 4


def test_a_clock_that_jumped_back_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    result = call("request", "add", "--model", "m", PEOPLE[6], "--ledger", home.folder, "--json")
    assert result.exit_code == 4
    assert json.loads(result.stderr)["error"]["kind"] == "ClockError"


def test_a_clock_that_was_ahead_is_accepted(tmp_path: Path, monkeypatch: Any) -> None:
    files, (X, y) = files_in(tmp_path), table()
    here = ("--ledger", tmp_path / "home")
    ahead = time.time() + 10**7
    with monkeypatch.context() as patched:
        patched.setattr("time.time", lambda: ahead)
        with Ledger.create(tmp_path / "home", name="demo") as ledger:
            ledger.models.register(letheon.load(files.model), X, y, ids=list(PEOPLE), name="m")
    words = ("request", "add", "--model", "m", PEOPLE[6], *here)
    assert call(*words).exit_code == 4
    assert "the log continues" in call("doctor", "--accept-clock", *here).stdout
    assert done(*words)["state"] == "received"
    assert "nothing to correct" in call("doctor", "--accept-clock", *here).stdout


def test_a_clock_that_is_days_ahead_is_confirmed(tmp_path: Path, monkeypatch: Any) -> None:
    here, ahead = ("--ledger", tmp_path / "home"), time.time() + 10**7
    done("init", tmp_path / "home", "--name", "demo")
    monkeypatch.setattr("time.time", lambda: ahead)
    response = call("doctor", *here, columns=400)
    assert response.exit_code == 1
    assert "115.7 days ahead" in response.stdout
    assert "doctor --accept-clock" in response.stdout
    waits = call("worker", "--once", *here)
    assert "clock-unconfirmed" in waits.stdout
    assert call("batch", "apply", *here).exit_code == 5
    accepted = call("doctor", "--accept-clock", *here, columns=200)
    assert accepted.exit_code == 0
    assert "the log continues" in accepted.stdout
    assert call("batch", "apply", *here).exit_code == 0


def test_an_older_database_stops_the_worker_and_is_adopted(tmp_path: Path) -> None:
    files, (X, y) = files_in(tmp_path), table()
    here = ("--ledger", tmp_path / "home")
    with Ledger.create(tmp_path / "home", name="demo") as ledger:
        copy_database(tmp_path / "home", tmp_path / "old")
        ledger.models.register(letheon.load(files.model), X, y, ids=list(PEOPLE), name="m")
    copy_database(tmp_path / "old", tmp_path / "home")
    before = inventory(tmp_path / "home")
    assert "files agree" not in call("ledger", "adopt", *here).stdout
    for words in (("worker", "--once"), ("worker",), ("batch", "apply")):
        stopped = call(*words, *here)
        assert stopped.exit_code == 4
        assert "the files of this ledger are newer than its database" in stopped.stderr
        assert "Restore the newer database" in stopped.stderr
        assert "letheon ledger adopt" in stopped.stderr
    response = call("doctor", *here, columns=600)
    assert response.exit_code == 1
    assert "its log has 0 entries" in response.stdout
    listed = call("ledger", "adopt", *here)
    assert listed.exit_code == 4
    assert "models that are only in the files, deleted by the next worker: 1" in listed.stdout
    assert "add --yes" in listed.stdout
    assert inventory(tmp_path / "home") == before
    adopted = done("ledger", "adopt", "--yes", *here)
    assert adopted["is_done"]
    assert adopted["n_models"] == 1
    assert call("worker", "--once", *here).exit_code == 0
    assert list((tmp_path / "home" / "blobs").iterdir()) == []
    assert "files agree" in call("ledger", "adopt", "--yes", *here).stdout


def test_an_open_key_is_refused_and_is_what_doctor_finds(home: Home) -> None:
    key = next((home.folder / "keys").glob("sign-*.key"))
    key.chmod(0o644)
    try:
        assert call("model", "list", "--ledger", home.folder).exit_code == 4
        result = call("doctor", "--ledger", home.folder)
        assert result.exit_code == 1
        assert "chmod" in result.stdout
    finally:
        key.chmod(0o600)


def test_another_worker_is_a_reason_to_try_again(home: Home) -> None:
    with Ledger.open(home.folder) as ledger:
        elsewhere = "host/boot/space/1/2/3"
        taken = [take_lease(ledger._core, number, elsewhere) for number in (1, 2)]
        result = call("batch", "apply", "--force", "--ledger", home.folder)
        for lease in taken:
            assert lease is not None
            release_lease(ledger._core, lease)
    assert result.exit_code == 5, result.output
    assert "another-worker-is-at-it" in result.stdout


def test_a_failing_disk_is_a_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(_: Path) -> None:
        raise OperationalError("SELECT 1", {}, Exception("disk I/O error"))

    monkeypatch.setattr(Ledger, "open", open_)
    result = call("model", "list", "--ledger", "somewhere")
    assert result.exit_code == 5
    assert result.stderr == "letheon: the database failed: disk I/O error\n"


def test_a_server_that_denies_is_no_reason_to_try_again() -> None:
    denied = OperationalError("CREATE SCHEMA letheon", {}, InsufficientPrivilege("denied"))
    assert find_exit_status(denied) == 4


def test_a_damaged_model_file_is_noticed(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "m.letheon"
    data = bytearray(home.files.model.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    words = ("model", "add", file, "--rows", home.files.arrays, "--name", "n")
    assert call(*words, "--ledger", home.folder).exit_code == 1


def test_looking_after_a_request(home: Home) -> None:
    here = ("--ledger", home.folder)
    key = ("request", "add", "--model", "numbers", "--key", "case-2")
    asked = done(*key, "3", "5", *here)
    assert done(*key, "3", "5", *here)["id"] == asked["id"]
    assert done("request", "await", asked["id"], *here)["state"] == "received"
    assert done("request", "verify", asked["id"], *here)["state"] == "queued"
    until = ("--ground", "litigation-hold", "--until", "2999-01-01")
    assert done("request", "hold", asked["id"], *until, *here)["state"] == "on_hold"
    with Ledger.open(home.folder) as ledger:
        held = ledger.requests.timeline(asked["id"])[-1]
        begins = ledger.settings.calendar.end_of(date(2998, 12, 31))
    assert held.details["until"] == int(begins.timestamp())
    assert done("request", "release", asked["id"], *here)["state"] == "queued"
    told = done("request", "tell", asked["id"], "--recipients", "2", *here)
    assert told["state"] == "queued"
    told_of = done("request", "show", asked["id"], *here)["timeline"][-1]
    assert (told_of["kind"], told_of["details"]["recipients"]) == ("recipients-told", 2)
    later = done("request", "extend", asked["id"], *here)["due_on"]
    assert date.fromisoformat(later) > date.fromisoformat(asked["due_on"])
    assert done("request", "cancel", asked["id"], *here)["state"] == "cancelled"
    other = done("request", "add", "--model", "numbers", "8", "--verified", *here)
    ground = ("--ground", "gdpr.art17.3.e")
    assert done("request", "reject", other["id"], *ground, *here)["state"] == "rejected"
    assert done("request", "list", "--state", "cancelled", *here)[0]["id"] == asked["id"]
    unknown = call("request", "list", "--state", "foo", *here)
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "unknown state: 'foo'; expected one of: received, " in unknown.stderr


def test_keys_and_stores(home: Home, tmp_path: Path) -> None:
    here = ("--ledger", home.folder)
    (first,) = done("key", "list", *here)
    current = done("key", "rotate", *here)["keyid"]
    assert done("key", "revoke", first["keyid"], "--after", "0", *here)["after"] == 0
    states = [(item["keyid"], item["state"]) for item in done("key", "list", *here)]
    assert states == [(first["keyid"], "revoked"), (current, "current")]
    assert done("store", "add", "features", tmp_path, "--days", "30", *here)["store"] == "features"
    assert call("store", "add", "features", tmp_path, *here).exit_code == 4
    (store,) = done("store", "list", *here)
    assert (store["name"], store["days"]) == ("features", 30)
    done("store", "remove", "features", *here)
    assert done("store", "list", *here) == []


def test_checkpoints_and_upgrade(home: Home, tmp_path: Path) -> None:
    here = ("--ledger", home.folder)
    taken = done("ledger", "checkpoint", "--out", tmp_path / "note.txt", *here)
    assert (tmp_path / "note.txt").read_text("utf-8") == taken["note"]
    assert taken["note"].startswith(f"demo\n{taken['size']}\n")
    done("ledger", "upgrade", *here)
    assert done("ledger", "checkpoint", *here)["size"] >= taken["size"]


class Busy:
    """A ledger whose steps do as a test says."""

    def __init__(self, *acts: Any) -> None:
        self.acts, self.closed = list(acts), False

    def steps(self, *, apart: bool, stop: threading.Event) -> Iterator[Step]:
        assert apart
        assert isinstance(stop, threading.Event)
        try:
            for number, act in enumerate(self.acts):
                act()
                yield Step("applied", "m", number, "rows left")
        finally:
            self.closed = True

    def plan(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_finishes_its_step_and_stops(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> None:
        raise AssertionError("a step after the signal")

    busy = Busy(lambda: None, lambda: signal.raise_signal(number), never)

    @contextmanager
    def opened(_: Path | None) -> Iterator[Busy]:
        yield busy

    monkeypatch.setattr(_command, "open_ledger", opened)
    before = signal.getsignal(number)
    result = call("worker", "--json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == [0, 1]
    assert busy.closed
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (exceptions.LedgerBusyError("another process has locked the database"), 5),
        (exceptions.CorruptFileError("a blob was altered"), 1),
        (OSError(28, "No space left on device", "blobs"), 5),
    ],
)
def test_a_worker_outlives_what_is_in_its_way(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def fail() -> None:
        looks.append(1)
        if len(looks) == 3:
            signal.raise_signal(signal.SIGTERM)
        raise error

    @contextmanager
    def opened(_: Path | None) -> Iterator[Busy]:
        yield Busy(fail)

    monkeypatch.setattr(_command, "open_ledger", opened)
    result = call("worker", "--interval", "0.1")
    assert (result.exit_code, len(looks)) == (0, 3)
    assert result.stderr.count("will retry") == 3
    assert call("worker", "--once").exit_code == status


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_are_read_back(values: list[int]) -> None:
    assert parse_numbers([str(value) for value in values]) == values


@given(st.text(min_size=1))
def test_other_ids_are_refused_without_being_repeated(text: str) -> None:
    if text.removeprefix("-").isdecimal():
        assert parse_numbers([text]) == [int(text)]
    else:
        with pytest.raises(ValueError, match="id number 1 in the list is not an integer"):
            parse_numbers([text])


def test_what_json_knows() -> None:
    step = Step("failed", "m", None, "why")
    document = {"a": (step, date(2026, 1, 2), timedelta(hours=1), Path("x"))}
    read = json.loads(json.dumps(document, default=to_plain))["a"]
    assert read == [vars(step), "2026-01-02", 3600.0, "x"]
    assert _command.USAGE == 2
