"""`serve`: the desk as a process, with a worker beside it.

The worker is a process of its own, so that training takes no time from answers. It is started
again when it ends, and ends when the server does; if the server is killed it notices and goes.
"""

import errno
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import uvicorn

from letheon.ledger import Ledger
from letheon.ledger.db.tokens import Tokens
from letheon.ledger.settings import FILE
from letheon.service import connections
from letheon.service.app import create_app
from letheon.service.middleware import configure, log_line
from letheon.service.settings import ServiceSettings
from letheon.service.temp_folders import sweep_temp_folders

_NAME = "desk"
# A signal stops everything within 10 seconds: the calls and, beside them, the worker.
_CALL_SECONDS = 3
_STOP_SECONDS = 6
_LATEST_SECONDS = 8.0
_LONGEST_PAUSE = 30.0
_BACKLOG = 2048


@dataclass(frozen=True)
class Binding:
    """Where a desk listens.

    Attributes
    ----------
    host : str
        Name or address.
    port : int
        0 for any that is free.
    certificate, key : Path or None
        Files of the server's certificate, for HTTPS.
    """

    host: str = "127.0.0.1"
    port: int = 8311
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def require_safe(self, settings: ServiceSettings, *, insecure: bool) -> None:
        """Refuse to send tokens over a network in the clear.

        Raises
        ------
        ValueError
            Others reach the desk, and neither it nor a proxy before it speaks HTTPS.
        """
        if (self.certificate is None) != (self.key is None):
            raise ValueError("HTTPS needs both a certificate and its key")
        if self.is_loopback or self.certificate is not None or settings.is_https or insecure:
            return
        raise ValueError(
            f"others would reach {self.host} without HTTPS and could read tokens on the way; give "
            "--certfile and --keyfile, or put it behind a proxy and write its https:// address as "
            "public_url into service.toml, or say --insecure"
        )

    def require_certificate(self) -> None:
        """Refuse files of a certificate that no browser could be served with.

        Raises
        ------
        FileNotFoundError, ValueError
            A file is not there; or the two are no certificate and its key.
        """
        if self.certificate is None or self.key is None:
            return
        for option, path in (("--certfile", self.certificate), ("--keyfile", self.key)):
            if not path.is_file():
                raise FileNotFoundError(f"{option} {path}: there is no such file")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.certificate} and {self.key} are no certificate with its private key (PEM); "
                "are --certfile and --keyfile swapped?"
            ) from error

    def listen(self) -> socket.socket:
        """Return a socket that listens; an address in use is an error now, not later.

        Raises
        ------
        OSError
            The address is taken, or not one of this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # The protocol by name: with 0 no answer is sent at once, and each waits 40 ms for an echo.
        bound = connections.ListeningSocket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
            bound.listen(_BACKLOG)
        except OSError as error:
            bound.close()
            where = f"{self.host}:{self.port}"
            if error.errno == errno.EADDRINUSE:
                raise OSError(
                    f"{where} is taken by another program, perhaps a second desk; choose another "
                    "port with --port N"
                ) from error
            raise OSError(f"cannot listen at {where}: {error.strerror}") from error
        return bound


class Worker:
    """The worker process beside a server.

    Parameters
    ----------
    home : Path
        Folder of the ledger.
    """

    def __init__(self, home: Path) -> None:
        program = [sys.executable, "-m", "letheon.service.worker", str(home)]
        self._command = [*program, "--parent", str(os.getpid())]
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)

    def __enter__(self) -> Self:
        """Start it, and again whenever it ends."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let it finish the step that it is in, if that is short, then end it."""
        self.ask_to_stop()
        self._thread.join(_STOP_SECONDS)
        if self.is_alive() and self._child is not None:
            self._child.kill()  # nothing is lost: the next worker goes on from what is on the disk
            self._child.wait()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.poll() is None

    def ask_to_stop(self) -> None:
        """Ask it to end after the step that it is in, and do not wait."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    def _run(self) -> int | None:
        """Run it once; return its status, or None if it could not be started."""
        try:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        except OSError as error:  # no memory, too many files: perhaps not for long
            log_line("worker-not-started", kind=type(error).__name__)
            return None
        if self._stopping.is_set():
            self._child.terminate()
        return self._child.wait()

    def _keep_alive(self) -> None:
        pause = 0.5
        while not self._stopping.is_set():
            start = time.monotonic()
            status = self._run()
            if self._stopping.is_set():
                return
            log_line("worker-ended", status=status)
            pause = 0.5 if time.monotonic() - start > 60 else min(2 * pause, _LONGEST_PAUSE)
            self._stopping.wait(pause)


def serve(
    ledger: Ledger,
    settings: ServiceSettings,
    binding: Binding,
    *,
    listening: socket.socket | None = None,
    with_worker: bool = True,
    is_demo: bool = False,
    said: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the desk of a ledger until a signal says stop.

    Parameters
    ----------
    ledger : Ledger
        It is closed by whoever opened it.
    settings : ServiceSettings
        What the operator decided.
    binding : Binding
        Where to listen.
    listening : socket, optional
        As ``binding.listen()`` gave it; it is closed at the end.
    with_worker : bool, default=True
        Whether a worker process is started beside.
    is_demo : bool, default=False
        Whether pages say that this is the filled example.
    said : callable
        Called with the address once the server listens.
    """
    configure()
    with suppress(OSError):  # on a disk that cannot be written nothing can be swept
        sweep_temp_folders(ledger)
    bound = listening or binding.listen()
    places = connections.Connections(settings)
    if isinstance(bound, connections.ListeningSocket):
        bound.places = places
    with bound, Worker(ledger.folder) if with_worker else nullcontext() as worker:
        is_secure = binding.certificate is not None or settings.is_https
        app = create_app(
            ledger,
            settings,
            bound=binding.host,
            is_secure=is_secure,
            is_demo=is_demo,
            has_worker=None if worker is None else worker.is_alive,
        )
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            http=connections.protocol_for(places, settings),
            ws="none",
            loop="asyncio",
            timeout_keep_alive=settings.idle_seconds,
            timeout_graceful_shutdown=_CALL_SECONDS,
            forwarded_allow_ips=list(settings.trusted_proxies),
            proxy_headers=bool(settings.trusted_proxies),
            ssl_certfile=binding.certificate,
            ssl_keyfile=binding.key,
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
        )
        server = connections.LimitedServer(config)

        def stop() -> None:
            app.state.context.stopping.set()
            if worker is not None:
                worker.ask_to_stop()
            _exit_in_time()

        server.at_stop = stop
        with _signals_held(server):
            scheme = "http" if binding.certificate is None else "https"
            host = f"[{binding.host}]" if ":" in binding.host else binding.host
            said(f"{scheme}://{host}:{bound.getsockname()[1]}")
            server.run(sockets=[bound])


def _exit_in_time() -> None:
    """End the process soon, also if the thread of a call does not; nothing acknowledged is lost."""

    def exit_now() -> None:
        log_line("stopped-hard")
        os._exit(1)

    timer = threading.Timer(_LATEST_SECONDS, exit_now)
    timer.daemon = True
    timer.start()


@contextmanager
def _signals_held(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server at a signal, also before it listens for them itself and after it has stopped.

    It raises the signal once more at its end; the worker has to be ended after that.
    """

    def stop(*_: object) -> None:
        server.should_exit = True

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_or_create(folder: Path, *, database: str | None = None, name: str | None = None) -> Ledger:
    """Open the ledger in a folder; make it where there is none, or go on where that stopped.

    Raises
    ------
    LedgerError
        The folder holds other things.
    ValueError
        A database was named, and the ledger that is there has another.
    """
    if (folder / FILE).exists():
        ledger = Ledger.open(folder)
        if database is not None and database != ledger.settings.database:
            ledger.close()
            raise ValueError(
                f"the ledger in {folder} has a database already, and it is not the one that was "
                f"given; leave --database out, or change {FILE}"
            )
        return ledger
    return Ledger.create(folder, name=name or _NAME, database=database)


def admin_token(ledger: Ledger, *, days: int) -> str | None:
    """Return the text of a new admin's token on the very first start; None later."""
    tokens = Tokens(ledger)
    if tokens.has_any():
        return None
    text, _ = tokens.create("first-admin", "admin", days=days)
    return text
