"""Clients that hold connections: slow heads, bodies and readers, and too many at a time."""

import contextlib
import http.client
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from letheon.ledger import Ledger
from letheon.service import ServiceSettings
from letheon.service.connections import AcceptedSocket, Connections, ListeningSocket
from tests.service.servers import PATIENCE, DeskServer, serving

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
PER_ADDRESS, MOST = 40, 120
SETTINGS = f"""
max_connections = {MOST}
connections_per_address = {PER_ADDRESS}
header_seconds = 1
body_seconds = 1
response_seconds = 1
idle_seconds = 1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeskServer]:
    home = tmp_path_factory.mktemp("connections") / "home"
    Ledger.create(home, name="connections").close()
    (home / "service.toml").write_text(SETTINGS)
    with serving(home, "--no-worker") as made:
        yield made


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process hold more than a thousand sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if before[1] == resource.RLIM_INFINITY else min(4096, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def dial(server: DeskServer, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), PATIENCE, (source, 0))


def ask(server: DeskServer, source: str) -> int:
    """Return the status of a call that comes from an address."""
    with contextlib.closing(dial(server, source)) as sent:
        sent.sendall(WHOLE)
        answer = http.client.HTTPResponse(sent)
        answer.begin()
        return answer.status


def is_cut(sent: socket.socket) -> bool:
    """Wait until the server closes a connection; what it says before is not looked at."""
    try:
        while sent.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_half_sent_requests_of_one_address_do_not_block_others(
    server: DeskServer, many_files: None
) -> None:
    held = []
    for _ in range(1100):
        sent = dial(server)
        with contextlib.suppress(ConnectionError):
            sent.sendall(HALF)
        held.append(sent)
    assert [ask(server, f"127.0.0.{number}") for number in range(2, 8)] == [200] * 6
    assert all(map(is_cut, held))
    assert ask(server, "127.0.0.1") == 200
    for sent in held:
        sent.close()


def test_a_flood_of_many_addresses_makes_room_for_others(server: DeskServer) -> None:
    held = [dial(server, f"127.0.0.{2 + number % 8}") for number in range(2 * MOST)]
    assert [ask(server, f"127.0.1.{number}") for number in range(1, 6)] == [200] * 5
    assert all(map(is_cut, held))
    for sent in held:
        sent.close()


def test_bytes_that_trickle_do_not_prolong_a_head(server: DeskServer) -> None:
    with contextlib.closing(dial(server)) as sent:
        sent.sendall(WHOLE)
        assert b"200 OK" in sent.recv(65536)
        sent.settimeout(0.1)
        is_open = True
        deadline = time.monotonic() + PATIENCE
        while is_open and time.monotonic() < deadline:
            try:
                sent.sendall(b"X")
                is_open = bool(sent.recv(1))
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False
        assert not is_open


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/receipts/check"])
def test_slow_bodies_are_cut(server: DeskServer, path: str) -> None:
    """The first is answered before its body came, the second is read."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n"
    head += "Content-Type: application/json\r\n\r\n{"
    with contextlib.closing(dial(server)) as sent:
        sent.sendall(head.encode())
        sent.settimeout(0.1)
        deadline = time.monotonic() + PATIENCE
        is_open, said = True, b""
        while is_open and time.monotonic() < deadline:
            try:
                sent.sendall(b" ")
                part = sent.recv(65536)
                said, is_open = said + part, bool(part)
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False
        assert not is_open
        assert said.startswith(b"HTTP/1.1 40")


def test_a_long_upload_that_makes_progress_is_not_cut(server: DeskServer) -> None:
    """It takes twice as long as a body may that does not grow."""
    head = "POST /api/v1/receipts/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    body = b'{"code": "' + b"x" * 399_988 + b'"}'
    with contextlib.closing(dial(server)) as sent:
        sent.sendall(head.encode())
        for start in range(0, len(body), 40_000):
            sent.sendall(body[start : start + 40_000])
            time.sleep(0.2)
        answer = http.client.HTTPResponse(sent)
        answer.begin()
        assert answer.status == 422


def test_a_reader_that_takes_nothing_is_cut(server: DeskServer) -> None:
    call = b"GET /static/vendor/htmx.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = socket.socket()
    sent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sent.settimeout(PATIENCE)
    host, _, port = server.url.removeprefix("http://").partition(":")
    sent.connect((host, int(port)))
    calls = call * 400
    with contextlib.closing(sent):
        sent.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sent.send(calls)
        number = sent.getsockname()[1]
        wait_for_end(server, number)


def wait_for_end(server: DeskServer, port: int) -> None:
    """Wait until the server has no socket any more to a port of this machine."""
    own = int(server.url.rpartition(":")[2])
    ends = (f":{own:04X}", f":{port:04X}")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        log_lines = [
            line for line in lines if line[1].endswith(ends[0]) and line[2].endswith(ends[1])
        ]
        # The inode of a socket that no process holds is 0.
        if not any(line[9] != "0" for line in log_lines):
            return
        time.sleep(0.1)
    raise AssertionError("the server still holds the connection")


def test_pipelined_requests_are_all_answered(server: DeskServer) -> None:
    with contextlib.closing(dial(server)) as sent:
        sent.sendall(WHOLE * 5 + HALF)
        said = b""
        while part := sent.recv(65536):
            said += part
        assert said.count(b"HTTP/1.1 200 OK") == 5


def test_a_signal_stops_it_in_time_whatever_is_held(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home, "--no-worker") as server:
        held = [dial(server, f"127.0.0.{2 + number % 3}") for number in range(60)]
        for number, sent in enumerate(held):
            slow = b"POST /api/v1/receipts/check HTTP/1.1\r\nHost: localhost\r\n"
            slow += b"Content-Length: 9000\r\nContent-Type: application/json\r\n\r\n{"
            sent.sendall((HALF, slow, WHOLE)[number % 3])
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 20, "it took 30 seconds for calls that are held"
        for sent in held:
            sent.close()


class Door:
    """Takes places for connections as if these had been accepted."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()

    def admit(self, places: Connections, host: str) -> AcceptedSocket | None:
        near, far = socket.socketpair()
        far.close()
        accepted = self._open.enter_context(AcceptedSocket(fileno=near.detach()))
        return accepted if places.admit(accepted, host) else None

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def settings_of(**given: Any) -> ServiceSettings:
    return ServiceSettings(max_connections=4, connections_per_address=2, **given)


def busy(door: Door, places: Connections, host: str) -> Any:
    """Admit a connection on which a request is being served."""
    admitted = door.admit(places, host)
    if admitted is not None:
        places.set_waiting(admitted.fileno(), is_waiting=False)
    return admitted


def test_trusted_proxies_have_no_limit_of_their_own(door: Door) -> None:
    places = Connections(settings_of(trusted_proxies=("10.0.0.0/8", "::1")))
    values = [door.admit(places, "10.1.1.1") for _ in range(3)]
    values += [busy(door, places, "192.0.2.1") for _ in range(3)]
    assert [item is not None for item in values] == [True] * 5 + [False]
    trusting = Connections(settings_of(trusted_proxies=("*",)))
    admitted = [door.admit(trusting, "192.0.2.1") for _ in range(4)]
    assert None not in admitted
    door.close()
    assert len(places) == 0


def test_a_house_of_ipv6_is_one_address(door: Door) -> None:
    places = Connections(settings_of())
    kept = [busy(door, places, f"2001:db8::{number}") for number in range(1, 4)]
    assert [item is not None for item in kept] == [True, True, False]


def test_an_address_makes_room_by_its_own_waiting_connections(door: Door) -> None:
    """Half-sent heads of one user must not lock out others behind the same address."""
    places = Connections(settings_of())
    other = door.admit(places, "192.0.2.7")
    mine = [door.admit(places, "192.0.2.1") for _ in range(5)]
    assert None not in mine
    assert len(places) == 3, "the address has two places"
    assert other is not None
    assert other.fileno() in places._open


def test_room_is_made_by_those_who_serve_nothing(door: Door) -> None:
    places = Connections(settings_of())
    kept = [door.admit(places, f"192.0.2.{number // 2}") for number in range(4)]
    for item in kept:
        assert item is not None
        places.set_waiting(item.fileno(), is_waiting=False)
    assert door.admit(places, "192.0.2.9") is None
    assert kept[2] is not None
    places.set_waiting(kept[2].fileno(), is_waiting=True)
    newest = door.admit(places, "192.0.2.9")
    assert newest is not None
    assert len(places) == 4
    kept[2].close()
    assert len(places) == 4, "a place is given back once"
    newest.close()
    assert len(places) == 3


def test_a_place_is_refused_at_the_door() -> None:
    with ListeningSocket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        door.places = Connections(ServiceSettings(max_connections=1, connections_per_address=1))
        with contextlib.ExitStack() as open_ones:
            open_ones.enter_context(socket.create_connection(door.getsockname()))
            first, _ = door.accept()
            door.places.set_waiting(first.fileno(), is_waiting=False)
            second = open_ones.enter_context(socket.create_connection(door.getsockname()))
            with pytest.raises(ConnectionAbortedError, match="number of connections"):
                door.accept()
            assert second.recv(1) == b""
            first.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"header_seconds": 0}, "header_seconds=0 must be a whole number of at least 1"),
        ({"max_connections": 10}, "connections_per_address=256 must be at most max_connections"),
    ],
)
def test_limits_are_checked(given: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServiceSettings(**given)  # type: ignore[arg-type]


def test_files_of_the_process_bound_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(getrlimit=lambda _: (100, 200), RLIMIT_NOFILE=7)
    monkeypatch.setattr("letheon.service.connections.resource", limits)
    assert Connections(ServiceSettings()).most == 75
