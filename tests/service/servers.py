"""Real servers for tests: ``letheon serve`` as a process of its own, with its worker."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

__all__ = ["LETHEON", "DeskServer", "serving", "wait_for"]

LETHEON = Path(sys.executable).with_name("letheon")
PATIENCE = 60.0
_TOKEN = re.compile(r"^(\w+) token[^:]*: (\S+)")
_OPEN = re.compile(r"The desk is running at (\S+)")


class DeskServer:
    """``letheon serve`` on a free port.

    Parameters
    ----------
    home : Path
        Folder of the ledger; made by the first start.
    words : str
        Further words of the command.
    """

    def __init__(self, home: Path, *words: str) -> None:
        self.home = home
        self.words = words
        self.tokens: dict[str, str] = {}
        self.said: list[str] = []
        self.url = ""
        self._process: subprocess.Popen[str] | None = None
        self._clients = contextlib.ExitStack()

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    @property
    def errors(self) -> Path:
        return self.home.with_name(self.home.name + "-errors.txt")

    def start(self) -> None:
        """Start it and wait until it listens; where it did before, if it did."""
        command = [str(LETHEON), "serve", "--ledger", str(self.home)]
        port = self.url.rpartition(":")[2] or "0"
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--port", port, *self.words],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            self.tokens.update((role.lower(), text) for role, text in _TOKEN.findall(line))
            if match := _OPEN.search(line):
                self.url = match[1]
                return
        self._reap()
        raise AssertionError(f"no server: {self.errors.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill the server and its worker at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Tell the server to stop, and return its exit status."""
        self._clients.close()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        self._reap()
        return status

    def _reap(self) -> None:
        self._clients.close()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def worker(self) -> int:
        """Return the process id of its worker, once it has started one."""

        def children() -> list[str]:
            paths = Path(f"/proc/{self.process.pid}/task").glob("*/children")
            return [child for path in paths for child in path.read_text().split()]

        return int(wait_for(children, what="a worker")[0])

    def client(self, role: str = "admin") -> httpx2.Client:
        """Return a client with a token that the server printed or that was put into `tokens`."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        client = httpx2.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False
        )
        return self._clients.enter_context(client)


@contextlib.contextmanager
def serving(home: Path, *words: str) -> Iterator[DeskServer]:
    """Yield a server that runs; it is killed at the end if it still does."""
    server = DeskServer(home, *words)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def wait_for(look: Any, *, what: str) -> Any:
    """Return what `look` returns once that is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if value := look():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited too long for: {what}")
