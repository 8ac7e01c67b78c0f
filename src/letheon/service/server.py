"""`serve`: run the desk and its worker.

The worker is a separate process, so that training does not slow down responses. It is restarted
when it ends. It stops when the server stops, even if the server is killed.
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
from letheon.service.middleware import configure_logging, log_line
from letheon.service.settings import ServiceSettings
from letheon.service.temp_folders import sweep_temp_folders

_NAME = "desk"
# A signal stops everything within 10 seconds: the calls and the worker.
_CALL_SECONDS = 3
_STOP_SECONDS = 6
_LATEST_SECONDS = 8.0
_LONGEST_PAUSE = 30.0
_BACKLOG = 2048


@dataclass(frozen=True)
class Binding:
    """The address that a desk listens on.

    Attributes
    ----------
    host : str
        Host name or IP address.
    port : int
        Port; 0 picks a free port.
    certificate, key : Path or None
        Files of the TLS certificate and its private key, for HTTPS.

    Examples
    --------
    >>> from letheon.service import Binding
    >>> with Binding(port=0).listen() as listening:
    ...     listening.getsockname()[0]
    '127.0.0.1'
    """

    host: str = "127.0.0.1"
    port: int = 8311
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the desk can be reached only from this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def require_safe(self, settings: ServiceSettings, *, insecure: bool) -> None:
        """Raise an error if tokens would be sent unencrypted over a network.

        Raises
        ------
        ValueError
            Other machines can reach the desk, and neither the desk nor a proxy uses HTTPS.
        """
        if (self.certificate is None) != (self.key is None):
            raise ValueError(
                "HTTPS needs both a certificate and its key: use --certfile and --keyfile together"
            )
        if self.is_loopback or self.certificate is not None or settings.is_https or insecure:
            return
        raise ValueError(
            f"--host {self.host} without HTTPS would send tokens unencrypted over the network; use "
            "--certfile and --keyfile, or set public_url in service.toml to the https:// address "
            "of a proxy, or accept the risk with --insecure"
        )

    def require_certificate(self) -> None:
        """Raise an error if the TLS certificate or its key cannot be used.

        Raises
        ------
        FileNotFoundError, ValueError
            A file is missing, or the files are not a certificate and its private key.
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
                f"{self.certificate} and {self.key} are not a certificate and its private key "
                "(PEM); "
                "are --certfile and --keyfile swapped?"
            ) from error

    def listen(self) -> socket.socket:
        """Return a socket that listens on this address.

        Raises
        ------
        OSError
            The address is in use, or does not belong to this machine.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With protocol 0, TCP_NODELAY is not set and each response waits 40 ms for an ACK.
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
                    f"{where} is in use by another program, perhaps a second desk; choose another "
                    "port with --port N"
                ) from error
            raise OSError(f"cannot listen on {where}: {error.strerror}") from error
        return bound


class WorkerProcess:
    """The worker process of a server.

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
        """Start the worker; it is restarted whenever it ends."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the worker after its current step; kill it if the step takes too long."""
        self.ask_to_stop()
        self._thread.join(_STOP_SECONDS)
        if self.is_alive() and self._child is not None:
            self._child.kill()  # the next worker continues from the disk
            self._child.wait()

    def is_alive(self) -> bool:
        """Return whether the worker is running."""
        return self._child is not None and self._child.poll() is None

    def ask_to_stop(self) -> None:
        """Ask the worker to stop after its current step, without waiting."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate()

    def _run_once(self) -> int | None:
        """Run the worker until it ends; return its exit status, None if it could not start."""
        try:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        except OSError as error:  # no memory or too many files, perhaps temporarily
            log_line("worker-not-started", kind=type(error).__name__)
            return None
        if self._stopping.is_set():
            self._child.terminate()
        return self._child.wait()

    def _keep_alive(self) -> None:
        pause = 0.5
        while not self._stopping.is_set():
            start = time.monotonic()
            status = self._run_once()
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
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the desk of a ledger until SIGTERM or SIGINT.

    Parameters
    ----------
    ledger : Ledger
        The ledger; the caller closes it.
    settings : ServiceSettings
        Settings of the operator.
    binding : Binding
        Address to listen on.
    listening : socket, optional
        Socket from ``binding.listen()``; it is closed at the end.
    with_worker : bool, default=True
        Whether to start a worker process.
    is_demo : bool, default=False
        Whether pages show a banner for the demo.
    on_ready : callable
        Called with the URL when the server is listening.

    Examples
    --------
    >>> from letheon.ledger import Ledger
    >>> from letheon.service import Binding, ServiceSettings, serve
    >>> with Ledger.open("erasures") as ledger:  # doctest: +SKIP
    ...     serve(ledger, ServiceSettings(), Binding(port=8311), on_ready=print)
    """
    configure_logging()
    with suppress(OSError):  # on a read-only disk nothing can be deleted
        sweep_temp_folders(ledger)
    bound = listening or binding.listen()
    places = connections.Connections(settings)
    if isinstance(bound, connections.ListeningSocket):
        bound.places = places
    with bound, WorkerProcess(ledger.folder) if with_worker else nullcontext() as worker:
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
        with _hold_signals(server):
            scheme = "http" if binding.certificate is None else "https"
            host = f"[{binding.host}]" if ":" in binding.host else binding.host
            on_ready(f"{scheme}://{host}:{bound.getsockname()[1]}")
            server.run(sockets=[bound])


def _exit_in_time() -> None:
    """End the process after a time limit even if a call hangs.

    Acknowledged requests are not lost, because they are stored before the response is sent.
    """

    def exit_now() -> None:
        log_line("stopped-hard")
        os._exit(1)

    timer = threading.Timer(_LATEST_SECONDS, exit_now)
    timer.daemon = True
    timer.start()


@contextmanager
def _hold_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server at a signal, even before and after uvicorn handles signals.

    uvicorn raises the signal again when it ends; the worker must still be stopped after that.
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
    """Open the ledger in a folder; create it if it is missing or only partly created.

    Raises
    ------
    LedgerError
        The folder contains other files.
    ValueError
        `database` differs from the database of the existing ledger.
    """
    if (folder / FILE).exists():
        ledger = Ledger.open(folder)
        if database is not None and database != ledger.settings.database:
            ledger.close()
            raise ValueError(
                f"the ledger in {folder} already uses another database; omit --database, or change "
                f"{FILE}"
            )
        return ledger
    return Ledger.create(folder, name=name or _NAME, database=database)


def create_admin_token(ledger: Ledger, *, days: int) -> str | None:
    """Return a new admin token if the ledger has no tokens; otherwise None."""
    tokens = Tokens(ledger)
    if tokens.has_any():
        return None
    text, _ = tokens.create("first-admin", "admin", days=days)
    return text
