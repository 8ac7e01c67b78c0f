"""``letheon serve``: first start, one admin token, graceful stop, the worker beside it."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from letheon import service
from letheon.cli import app
from letheon.ledger import Ledger
from letheon.service import Binding, ServiceSettings
from tests.ledger.old_copies import copy_database
from tests.service.servers import LETHEON, DeskServer, serving, wait_for


def run_serve(*words: str) -> Any:
    """Call the command in this process, where it must not come to serve anything."""

    def serve(*_: Any, **__: Any) -> None:
        raise AssertionError("it serves")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "serve", serve)
        return CliRunner().invoke(app, ["serve", *words])


def test_first_start_makes_a_ledger_and_one_token(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as server:
        assert set(server.tokens) == {"admin"}
        me = server.client().get("/api/v1/me").json()
        assert (me["role"], me["tenant"]) == ("admin", None)
        assert server.client().get("/readyz").status_code == 200
        assert server.stop() == 0
        first = dict(server.tokens)
        server.said.clear()
        server.start()
        assert not any("Token" in line for line in server.said), "it is shown once"
        assert server.tokens == first
        assert server.client().get("/api/v1/me").status_code == 200
    logged = server.errors.read_text()
    assert first["admin"] not in logged
    assert {json.loads(line)["event"] for line in logged.splitlines()} >= {"call"}


def test_a_start_with_an_older_database_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home, "--no-worker") as server:
        server.stop()
        copy_database(home, tmp_path / "old")
        with Ledger.open(home) as ledger:
            ledger.keys.rotate()
            ledger.log.checkpoint()
        copy_database(tmp_path / "old", home)
        server.said.clear()
        server.start()
        (line,) = [item for item in server.said if "The ledger is read-only" in item]
        assert "letheon ledger adopt" in line
        assert server.client().get("/readyz").status_code == 503


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in text for child in path.read_text().split()]


def worker_of(server: DeskServer) -> int | None:
    pids = (
        pid
        for pid in children_of(server.process.pid)
        if b"letheon.service.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return next(pids, None)


def test_a_worker_that_dies_is_started_again_and_leaves_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as server:
        first = wait_for(lambda: worker_of(server), what="a worker")
        os.kill(first, signal.SIGKILL)
        second = wait_for(
            lambda: (worker_pid := worker_of(server)) not in (None, first) and worker_pid,
            what="another",
        )
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(second), what="the worker to leave")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_scripts_get_one_document(tmp_path: Path) -> None:
    words = ["--ledger", str(tmp_path / "home"), "--port", "0", "--no-worker", "--json"]
    server = subprocess.Popen(
        [str(LETHEON), "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = server.stdout.readline()
        assert line, "it ended without a document"
        text += line
    server.terminate()
    server.communicate(timeout=60)
    document = json.loads(text)
    assert document["url"].startswith("http://127.0.0.1:")
    assert set(document["tokens"]) == {"admin"}


def test_an_address_in_use_is_an_error_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = run_serve("--ledger", str(tmp_path / "home"), "--port", port, "--no-worker")
    assert done.exit_code == 5
    assert f"127.0.0.1:{port} is in use" in done.stderr
    assert not (tmp_path / "home").exists(), "a token would be lost that is shown once"


def test_others_are_not_served_in_the_clear(tmp_path: Path) -> None:
    done = run_serve("--ledger", str(tmp_path / "home"), "--host", "0.0.0.0")
    assert done.exit_code == 2
    assert "HTTPS" in done.stderr


@pytest.mark.parametrize(
    ("certificate", "key", "status", "words"),
    [("none.pem", "text.pem", 3, "no such file"), ("text.pem", "text.pem", 2, "swapped")],
)
def test_a_wrong_certificate_is_told_before_anything_is_made(
    tmp_path: Path, certificate: str, key: str, status: int, words: str
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    files = ["--certfile", str(tmp_path / certificate), "--keyfile", str(tmp_path / key)]
    done = run_serve("--ledger", str(tmp_path / "home"), "--port", "0", *files)
    assert (done.exit_code, done.stdout) == (status, "")
    assert words in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_first_start_that_failed_goes_on(tmp_path: Path) -> None:
    """A database that does not answer leaves a folder with keys; the next start takes it up."""
    home = tmp_path / "home"
    nowhere = "postgresql://unknown@127.0.0.1:9/nothing?connect_timeout=2"
    done = run_serve("--ledger", str(home), "--port", "0", "--database", nowhere)
    assert done.exit_code == 5
    assert "Traceback" not in done.stderr
    with serving(home, "--no-worker") as server:
        assert server.client().get("/api/v1/me").status_code == 200
        assert server.client().get("/readyz").status_code == 200
        assert worker_of(server) is None


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run_serve("--ledger", str(tmp_path))
    assert done.exit_code == 4
    assert "contains other files" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("binding", "settings", "insecure", "safe"),
    [
        (Binding("127.0.0.1"), {}, False, True),
        (Binding("localhost"), {}, False, True),
        (Binding("::1"), {}, False, True),
        (Binding("192.0.2.1"), {}, False, False),
        (Binding("0.0.0.0"), {}, True, True),
        (Binding("0.0.0.0"), {"public_url": "https://desk.example.org"}, False, True),
        (Binding("0.0.0.0"), {"public_url": "http://desk.example.org"}, False, False),
        (Binding("0.0.0.0", certificate=Path("c"), key=Path("k")), {}, False, True),
        (Binding("127.0.0.1", certificate=Path("c")), {}, False, False),
    ],
)
def test_what_is_safe(
    binding: Binding, settings: dict[str, str], insecure: bool, safe: bool
) -> None:
    wanted = ServiceSettings(**settings)  # type: ignore[arg-type]
    if safe:
        binding.require_safe(wanted, insecure=insecure)
    else:
        with pytest.raises(ValueError, match="HTTPS"):
            binding.require_safe(wanted, insecure=insecure)


def test_answers_are_sent_at_once() -> None:
    """Without the protocol's name asyncio leaves Nagle's algorithm on: 40 ms for each answer."""
    with Binding(port=0).listen() as bound:
        assert bound.proto == socket.IPPROTO_TCP
