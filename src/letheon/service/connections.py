"""Limits on the number of connections and on the time that each may take.

uvicorn does not limit the time for the head of a request, the time for a client that does not read
the response, or the number of connections per address. Connections are counted when they are
accepted, so that an unfinished TLS handshake counts too. When the limit is reached, an idle
connection is closed.
"""

import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from letheon.service.addresses import address_group
from letheon.service.middleware import SLOWEST, log_line
from letheon.service.settings import ServiceSettings

_LOG_SECONDS = 60.0


class AcceptedSocket(socket.socket):
    """A connection that is counted until it is closed.

    Attributes
    ----------
    address : str
        Client address; see `address_group`.
    is_waiting : bool
        Whether no request is being served on the connection.
    """

    address = ""
    is_waiting = True
    places: "Connections | None" = None

    def close(self) -> None:
        """Close the connection and stop counting it."""
        if self.places is not None:
            self.places.release(self)
        super().close()


class Connections:
    """The open connections of the server and their limits.

    Parameters
    ----------
    settings : ServiceSettings
        The limits, and the proxies that are exempt from the limit per address.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The database, the worker and downloads need file descriptors too.
        self.most = min(settings.max_connections, max(files * 3 // 4, 1))
        self.most_per_address = settings.connections_per_address
        self._proxies = _parse_proxies(settings.trusted_proxies)
        self._open: dict[int, AcceptedSocket] = {}
        self._by_address: Counter[str] = Counter()
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, accepted: AcceptedSocket, host: str) -> bool:
        """Count a new connection; return False if a limit is reached and none can be closed."""
        address = address_group(host)
        is_full = self._by_address[address] >= self.most_per_address and not self._is_proxy(host)
        if is_full and not self._make_room(address):
            self._log_refusal("address", address)
            return False
        if len(self._open) >= self.most and not self._make_room():
            self._log_refusal("all", address)
            return False
        accepted.address, accepted.places = address, self
        self._open[accepted.fileno()] = accepted
        self._by_address[address] += 1
        return True

    def release(self, accepted: AcceptedSocket) -> None:
        """Stop counting a connection; repeated calls have no effect."""
        if self._open.get(accepted.fileno()) is accepted:
            del self._open[accepted.fileno()]
            self._by_address[accepted.address] -= 1
            if not self._by_address[accepted.address]:
                del self._by_address[accepted.address]

    def set_waiting(self, number: int, *, is_waiting: bool) -> None:
        """Record whether the connection with file descriptor `number` waits for a request."""
        if number in self._open:
            self._open[number].is_waiting = is_waiting

    def _make_room(self, address: str | None = None) -> bool:
        """Close the oldest idle connection of an address; return False if there is none.

        By default this is the address with the most idle connections.
        """
        candidates = (
            connection
            for connection in self._open.values()
            if address in (None, connection.address)
        )
        waiting = [connection for connection in candidates if connection.is_waiting]
        if not waiting:
            return False
        counts = Counter(connection.address for connection in waiting)
        victim = max(
            waiting, key=lambda connection: counts[connection.address]
        )  # the oldest connection of that address
        self.release(victim)
        victim.shutdown(socket.SHUT_RDWR)
        return True

    def _is_proxy(self, host: str) -> bool:
        if self._proxies is None:
            return True
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self._proxies)

    def _log_refusal(self, limit: str, address: str) -> None:
        """Log that a connection was refused, at most once a minute."""
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            log_line("connection-refused", limit=limit, address=address)


def _parse_proxies(proxies: Iterable[str]) -> list[Any] | None:
    """Return the networks of the trusted proxies; None if every address is trusted."""
    networks = []
    for text in proxies:
        if text == "*":
            return None
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError:
            continue  # a host name: uvicorn compares it as text, so it matches no address
    return networks


class ListeningSocket(socket.socket):
    """A listening socket that closes connections beyond the limits."""

    places: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection.

        Raises
        ------
        ConnectionAbortedError
            A limit on connections is reached; the new connection was closed.
        """
        plain, address = super().accept()
        accepted = AcceptedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        if self.places is not None and not self.places.admit(accepted, str(address[0])):
            accepted.close()
            raise ConnectionAbortedError("the limit on the number of connections is reached")
        return accepted, address


class LimitedProtocol(H11Protocol):
    """HTTP with a time limit wherever the server waits for the client.

    `check_limits` is called every second. A connection is closed if the head of a request is not
    complete in time. It is aborted if the client does not read the response, or if closing takes
    too long.
    """

    places: Connections
    settings: ServiceSettings
    _head_ends: float | None = None
    _write_ends: float | None = None
    _close_ends: float | None = None

    @property
    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for the head of the first request."""
        super().connection_made(transport)
        self._head_ends = time.monotonic() + self.settings.header_seconds

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the time limit for the head starts with the first byte."""
        super().data_received(data)
        self._update_head_limit()

    def on_response_complete(self) -> None:
        """Mark the connection as idle; uvicorn closes it if no further request arrives."""
        self._head_ends = None
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # the response came before the end of the body
            self._update_head_limit()
        self._mark_waiting()

    def pause_writing(self) -> None:
        """Start the time limit for a client that reads too slowly."""
        super().pause_writing()
        self._write_ends = self._time_to_flush()

    def resume_writing(self) -> None:
        """Continue writing, and end the time limit for the client."""
        super().resume_writing()
        self._write_ends = None

    def check_limits(self, now: float) -> None:
        """Close or abort the connection if a time limit has passed."""
        if self.transport.is_closing():
            if self._close_ends is None:
                self._close_ends = self._time_to_flush()
            elif now >= self._close_ends:
                self.transport.abort()
        elif self._write_ends is not None and now >= self._write_ends:
            self.transport.abort()
        elif self._head_ends is not None and now >= self._head_ends:
            self.transport.close()

    def _update_head_limit(self) -> None:
        if not self._is_waiting:
            self._head_ends = None
        elif self._head_ends is None:
            self._head_ends = time.monotonic() + self.settings.header_seconds
        self._mark_waiting()

    def _mark_waiting(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            self.places.set_waiting(connection.fileno(), is_waiting=self._is_waiting)

    def _time_to_flush(self) -> float:
        size = self.transport.get_write_buffer_size()
        return time.monotonic() + self.settings.response_seconds + size / SLOWEST


def protocol_for(places: Connections, settings: ServiceSettings) -> type[LimitedProtocol]:
    """Return a protocol class with these limits, for uvicorn to create its objects."""
    return type("Protocol", (LimitedProtocol,), {"places": places, "settings": settings})


class LimitedServer(uvicorn.Server):
    """A server that checks the time limits of its connections every second.

    Attributes
    ----------
    at_stop : callable
        Called when the server begins to stop.
    """

    at_stop: Callable[[], None] = staticmethod(lambda: None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Call `at_stop` and stop the server; current calls have a few seconds to finish."""
        self.at_stop()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Check the time limits; return whether the server should stop."""
        if counter % 10 == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedProtocol):
                    connection.check_limits(now)
        return await super().on_tick(counter)
