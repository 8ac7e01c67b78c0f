"""The story of a desk through HTTP while its processes die.

``python -m tests.service.killing FOLDER``: one process with one thread imports everything once and
forks a server and a worker, which share a process group. A hook in one of them kills the whole
group at the chosen moment: in the server before or after its n-th commit, in the worker at a named
place of the ledger. The client tries again, as a client must, until its step is done. A report of
what is left goes to the standard output as JSON.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from letheon.ledger import Ledger, Policy
from letheon.ledger import core as faults
from letheon.ledger.db.database import Database
from letheon.service import Binding, ServiceSettings, Tokens, serve
from letheon.service.worker import main as work

__all__ = ["PLACES", "Kill"]

MODEL = "example-forest"
# The token that created the approver's token may not approve its own requests with it.
FILER = "operator"
PATIENCE = 60.0
SETTINGS = ServiceSettings(rate_per_token="1000000/minute", rate_failed="1000000/minute")
# In the order in which one application passes them: each is reached once, by the worker that goes
# on with what the one before it left.
PLACES = (
    "lease.taken",
    "intent.before-commit",
    "intent.after-commit",
    "compute.forgotten",
    "blob.before-sync",
    "compute.written",
    "publish.before-commit",
    "publish.after-commit",
    "certify.signed",
    "certify.before-commit",
    "certify.after-commit",
    "purge.started",
    "purge.blobs-destroyed",
    "purge.signed",
    "purge.before-commit",
    "purge.after-commit",
)


@dataclass(frozen=True)
class Kill:
    """When all processes die: at the `nth` time that one of them comes to a place.

    Attributes
    ----------
    of : str
        ``"server"`` or ``"worker"``.
    place : str
        ``"before-commit"``, ``"after-commit"`` or a place of `letheon.ledger.core`.
    nth : int
        How often it may pass.
    """

    of: str
    place: str
    nth: int = 1


@dataclass
class Processes:
    """A server and a worker that die, and that are started again."""

    home: Path
    port: int
    kills: Iterator[Kill]
    died_of: list[str] = field(default_factory=list)
    _pids: list[int] = field(default_factory=list)
    _told: int = -1
    _kill: Kill | None = None

    def start(self) -> None:
        self._kill = next(self.kills, None)
        self._told, telling = os.pipe()
        for name, run in (("server", self._serve), ("worker", self._work)):
            group = self._pids[0] if self._pids else 0
            self._pids.append(_forked(lambda: self._live(name, run, telling), group))  # noqa: B023
        os.close(telling)

    def revive(self) -> None:
        """Start both again if they died; else give them a moment."""
        if self._is_alive():
            time.sleep(0.01)
            return
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill whatever of them is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pids[0], signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        with os.fdopen(self._told) as told:
            self.died_of.append(told.read() or "killed from outside")
        self._pids.clear()

    def _is_alive(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return not any(os.waitid(os.P_PID, pid, flags) for pid in self._pids)

    def _live(self, name: str, run: Callable[[], object], telling: int) -> None:
        if self._kill is not None and self._kill.of == name:
            _arm(self._kill, telling)
        run()

    def _serve(self) -> None:
        with Ledger.open(self.home) as ledger:
            serve(ledger, SETTINGS, Binding("127.0.0.1", self.port), with_worker=False)

    def _work(self) -> None:
        # The removal is computed in this process, where it can be killed, and starts quicker.
        steps = Ledger.steps
        Ledger.steps = lambda self, **given: steps(self, **given | {"apart": False})  # type: ignore[method-assign]
        work([str(self.home), "--poll", "0.05"])


def _forked(run: Callable[[], object], group: int) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, group)
        return pid
    os.setpgid(0, group)
    try:
        run()
    finally:
        os._exit(1)


def _arm(kill: Kill, telling: int) -> None:
    """Let this process kill its group when it comes to the place."""
    passed = itertools.count(1)

    def reach(place: str) -> None:
        if place == kill.place and next(passed) == kill.nth:
            os.write(telling, f"{kill.of} {kill.place}".encode())
            os.killpg(0, signal.SIGKILL)
            signal.pause()

    transaction = Database.transaction

    @contextlib.contextmanager
    def mortal(self: Database) -> Iterator[Any]:
        with transaction(self) as connection:
            yield connection
            reach("before-commit")
        reach("after-commit")

    Database.transaction = mortal  # type: ignore[method-assign]
    faults.hook = reach


class RetryingClient:
    """Sends a call again until it is answered.

    Parameters
    ----------
    processes : Processes
        Who answers.
    tokens : dict of str to str
        Token of each role.
    """

    def __init__(self, processes: Processes, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.n_lost = 0
        self._processes = processes
        self._http = httpx2.Client(
            base_url=f"http://127.0.0.1:{processes.port}", timeout=PATIENCE, trust_env=False
        )

    def call(self, method: str, path: str, *, role: str = "admin", **given: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} | given.pop("headers", {})
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                return self._http.request(method, path, headers=headers, **given)
            except httpx2.TransportError:
                self.n_lost += 1
                self._processes.revive()
        raise TimeoutError(f"no answer: {method} {path}")

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, *allowed: int, role: str = "admin", **given: Any) -> Any:
        answer = self.call("POST", path, role=role, **given)
        assert answer.status_code in allowed, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def wait(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + 2 * PATIENCE
        while time.monotonic() < deadline:
            if is_so(response := self.get(path)):
                return response
            time.sleep(0.05)
        raise TimeoutError(f"{path} stays {response}")


def story(client: RetryingClient, processes: Processes) -> dict[str, Any]:
    """Go through the story, each step until it is done; return what came of it."""
    # 201, or 409: the call before had no response, but was done.
    client.post("/api/v1/models/example", 201, 409, json={"kind": "forest", "name": MODEL})
    made = client.post("/api/v1/tokens", 201, json={"name": "second-eyes", "role": "approver"})
    client.tokens["approver"] = made["token"]
    codes = dict(_file(client, number) for number in range(2, 6))
    _file_many(client)
    requests = [item["id"] for item in client.get("/api/v1/requests?limit=200")["items"]]
    for request in requests:
        client.post(f"/api/v1/requests/{request}/approve", 200, 409, role="approver")
    job = client.post(f"/api/v1/models/{MODEL}/apply", 202)["id"]
    client.wait(f"/api/v1/jobs/{job}", lambda item: item["is_over"])
    for request in requests:
        client.wait(f"/api/v1/requests/{request}", lambda item: item["state"] == "purged")
    passed = _audit(client, processes)
    for request in requests:
        client.post(f"/api/v1/requests/{request}/answer", 200, 409, json={"recipients": 0})
    return {"passed": passed, **_left(client, codes)}


def _file(client: RetryingClient, number: int) -> tuple[str, str]:
    """File a request with a receipt; return its id and the code."""
    body = {"model": MODEL, "ids": [f"person-{number:04d}"], "verified": True, "receipt": True}
    headers = {"Idempotency-Key": f"person-{number}"}
    filed = client.post("/api/v1/requests", 200, 201, role=FILER, json=body, headers=headers)
    code = filed["receipt_code"]
    if code is None:  # the response with the code was lost
        code = client.post(f"/api/v1/requests/{filed['id']}/receipt-code", 201, role=FILER)["code"]
    return filed["id"], code


def _file_many(client: RetryingClient) -> None:
    items = [{"model": MODEL, "ids": [f"person-{n:04d}"], "key": f"bulk-{n}"} for n in (7, 8, 9)]
    client.post("/api/v1/requests/bulk", 200, role=FILER, json={"items": items})
    table = "model,id,key\n" + "".join(f"{MODEL},person-{n:04d},csv-{n}\n" for n in (12, 13))
    files = {"file": ("people.csv", table, "text/csv")}
    client.post("/api/v1/requests/upload", 200, role=FILER, files=files)
    for item in client.get("/api/v1/requests?state=received&limit=200")["items"]:
        client.post(f"/api/v1/requests/{item['id']}/verify", 200, 409, role=FILER)


def _audit(client: RetryingClient, processes: Processes) -> bool:
    """Audit; everything is killed once it has begun."""
    audit = client.post("/api/v1/audits", 202, json={})["id"]
    client.wait(f"/api/v1/audits/{audit}", lambda item: item["state"] != "queued")
    processes.kill()
    processes.start()
    state = client.wait(f"/api/v1/audits/{audit}", lambda item: item["is_over"])
    return bool(state["passed"])


def _left(client: RetryingClient, codes: dict[str, str]) -> dict[str, Any]:
    requests = client.get("/api/v1/requests?limit=200&state=closed")
    timelines = [
        [entry["code"] for entry in client.get(f"/api/v1/requests/{item['id']}/timeline")["items"]]
        for item in requests["items"]
    ]
    checks = [
        client.post("/api/v1/receipts/check", 200, json={"code": code}) for code in codes.values()
    ]
    return {
        "counts": {k: n for k, n in client.get("/api/v1/summary")["counts"].items() if n},
        "timelines": timelines,
        "covered": [check["covered"] for check in checks],
        "certificates": [item["sequence"] for item in client.get("/api/v1/certificates")["items"]],
        "models": [item["name"] for item in client.get("/api/v1/models")["items"]],
        "live_rows": client.get(f"/api/v1/models/{MODEL}")["live_rows"],
        "readmitted": client.n_lost,
    }


def _kills() -> Iterator[Kill]:
    """Deaths of the server while there is something to file, then one at each place."""
    for nth in (1, 2, 3):
        yield Kill("server", "before-commit", nth)
        yield Kill("server", "after-commit", nth)
    for place in PLACES:
        yield Kill("worker", place)


def double(client: RetryingClient, _: Processes) -> dict[str, Any]:
    """File a request as a client does that has no idempotency key: it must be found out."""
    client.post("/api/v1/models/example", 201, json={"kind": "sisa", "name": MODEL})
    client.post("/api/v1/requests", 201, json={"model": MODEL, "ids": ["person-0002"]})
    return {"counts": client.get("/api/v1/summary")["counts"]}


Play = Callable[[RetryingClient, Processes], dict[str, Any]]


def played(home: Path, play: Play, kills: Iterator[Kill]) -> dict[str, Any]:
    """Make a desk and go through a story; return what is left, and of what the processes died."""
    policy = Policy(approve_above=0, pin_seconds=1)
    with Ledger.create(home, name="killed", policy=policy) as ledger:
        known = Tokens(ledger, lambda: int(time.time()))
        tokens = {role: known.create(f"first-{role}", role)[0] for role in ("admin", FILER)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = Processes(home, port, kills)
    processes.start()
    try:
        report = play(RetryingClient(processes, tokens), processes)
    finally:
        processes.kill()
    return report | {"died_of": processes.died_of[:-1]}


def main(folder: Path) -> None:
    """Go through both stories, and print what is left."""
    planted = iter([Kill("server", "submit.after-commit")])
    report = {
        "story": played(folder / "story", story, _kills()),
        "planted": played(folder / "planted", double, planted),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
