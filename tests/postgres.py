"""A real PostgreSQL server for tests: started on first use, a fresh database for each test.

One server for each process of the test run, in a temporary folder, gone at the end. As root it runs
as another user, since the server refuses root. Missing: a failure where ``CI=true``, else a skip
that says what to install.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

__all__ = ["PostgresServer", "find_binaries", "postgres_server", "postgres_url", "quick_place"]

MISSING = (
    "PostgreSQL is NOT TESTED: no initdb in PATH or /usr/lib/postgresql/*/bin. "
    "Debian: apt-get install postgresql (make setup does this as root)."
)
OWNER = "letheon"
SAFE = {"fsync": "on", "full_page_writes": "on"}
QUICK = {"fsync": "off", "full_page_writes": "off"}
SETTINGS = {
    "synchronous_commit": "on",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "logging_collector": "off",
    # A server that is killed leaves nothing outside its folder.
    "dynamic_shared_memory_type": "mmap",
}
START_SECONDS = 30.0
SERVER_BYTES = 2 << 30


def find_binaries() -> Path | None:
    """Return the folder of initdb and postgres, the newest of several, or None."""
    program = shutil.which("initdb")
    if program is not None:
        return Path(program).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    usable = [folder for folder in folders if (folder / "initdb").exists()]
    return max(usable, key=lambda folder: int(folder.parent.name.split(".")[0]), default=None)


def quick_place(n_bytes: int) -> Path:
    """Return a folder in memory if there is one with so much room, else one on the disk."""
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= n_bytes
    return memory if has_room else Path("/tmp")


class PostgresServer:
    """A PostgreSQL server of this process.

    Parameters
    ----------
    binaries
        Folder of ``initdb`` and ``postgres``.
    durable
        Whether commits reach the disk. Without it the server still survives its own death, only
        not that of the machine.
    """

    def __init__(self, binaries: Path, *, durable: bool = False) -> None:
        self.binaries = binaries
        self.settings = SETTINGS | (SAFE if durable else QUICK)
        # A socket's path has at most 107 bytes: not below pytest's own folders.
        place = Path("/tmp") if durable else quick_place(SERVER_BYTES)
        self.folder = Path(tempfile.mkdtemp(prefix="lpg-", dir=place))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count()
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        self.folder.chmod(0o700)
        if os.geteuid() == 0:
            user = _unprivileged()
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        data = ["--pgdata", str(self.folder / "data"), "--username", OWNER]
        subprocess.run(self._command("initdb", *options, *data), check=True, capture_output=True)

    def _command(self, name: str, *arguments: str) -> list[str]:
        # The server must not outlive a test run that is killed.
        prefix = ["setpriv", "--pdeathsig", "INT"]
        if os.geteuid() == 0:
            user = _unprivileged()
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            prefix += ids
        return [*prefix, "--", str(self.binaries / name), *arguments]

    def start(self) -> None:
        """Start the server and wait until it answers; again after it was stopped or killed."""
        deadline, first = time.monotonic() + START_SECONDS, self.port == 0
        while not self._started(deadline):
            if time.monotonic() > deadline:
                log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"the PostgreSQL server did not start:\n{log[-2000:]}")
            # Its port was taken in between, or processes of a killed server are still ending.
            time.sleep(0.1)
            self.port = 0 if first else self.port

    def _started(self, deadline: float) -> bool:
        self.port = self.port or _free_port()
        places = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
        }
        settings = itertools.chain.from_iterable(
            ("-c", f"{name}={value}") for name, value in (self.settings | places).items()
        )
        command = self._command("postgres", "-D", str(self.folder / "data"), *settings)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError), self.connect():
                return True
            time.sleep(0.02)
        self._process = None
        return False

    @property
    def pid(self) -> int:
        """Process of the postmaster, while it was not told to end."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database, by TCP."""
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """Return a connection that commits each statement."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    def create(self, template: str = "template1") -> str:
        """Create a database as a copy of another and return its address."""
        name = f"ledger_{next(self._names)}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, also one with open connections."""
        name = url.rpartition("/")[2]
        with self.connect() as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT in order, SIGQUIT at once, SIGKILL as a crash of the postmaster alone."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(timeout=START_SECONDS)

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return what the server has written about itself."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")


def _unprivileged() -> pwd.struct_passwd:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(65534)  # the user without rights on Linux
    raise RuntimeError("no user postgres or 65534 to run the PostgreSQL server as")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _missing() -> NoReturn:
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(MISSING, pytrace=False)
    pytest.skip(MISSING)


@contextlib.contextmanager
def serving(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Start a server of one's own; say so where there is none."""
    binaries = find_binaries()
    if binaries is None:
        _missing()
    server = PostgresServer(binaries, durable=durable)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server of this test process, with quick commits."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def _ledger_template(postgres_server: PostgresServer) -> str:
    """A database with the ledger's tables, to copy: cheaper than all migrations again."""
    from letheon.ledger.db.database import Database

    url = postgres_server.create()
    Database.open(url, create=True).dispose()
    return url.rpartition("/")[2]


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _ledger_template: str) -> Iterator[str]:
    """The address of a fresh database that has the ledger's tables and no ledger yet."""
    url = postgres_server.create(_ledger_template)
    yield url
    postgres_server.drop(url)
