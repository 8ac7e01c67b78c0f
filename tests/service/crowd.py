"""Many clients at once that file requests: some repeat a request, some hang up early."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["FilingClients", "FilingOrder", "FilingResult", "repeat_each"]

EVERY_NTH_HANGS_UP = 5


class FilingOrder(NamedTuple):
    """One request that a client sends: its key and the person."""

    key: str
    person: int | str


class FilingResult(NamedTuple):
    """What came of it."""

    key: str
    status: int
    request: str
    seconds: float


def repeat_each(orders: Iterable[FilingOrder]) -> Iterator[FilingOrder]:
    """Yield each order two times in a row, so that two clients send it at the same moment."""
    for order in orders:
        yield order
        yield order


@dataclass
class FilingClients:
    """Clients that share a list of orders.

    Attributes
    ----------
    url, token, model : str
        Whom they ask, and for what.
    n_clients : int
        How many there are; each has a connection of its own.
    answers : list of FilingResult
        In the order in which they came.
    """

    url: str
    token: str
    model: str
    n_clients: int = 200
    answers: list[FilingResult] = field(default_factory=list)
    n_hung_up: int = 0

    def send(self, orders: Iterable[FilingOrder], *, until: float = float("inf")) -> None:
        """Send all orders, or as many as fit before a moment of `time.monotonic`."""
        asyncio.run(self._send(iter(orders), until))

    async def _send(self, orders: Iterator[FilingOrder], until: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.n_clients):
                group.create_task(self._one(number, orders, until))

    async def _one(self, number: int, orders: Iterator[FilingOrder], until: float) -> None:
        reader, writer = await self._connected()
        for order in orders:
            if time.monotonic() > until:
                break
            if (number + len(self.answers)) % EVERY_NTH_HANGS_UP == 0:
                await self._hang_up(order)
            start = time.perf_counter()
            status, body = await _called(reader, writer, self._bytes(order))
            seconds = time.perf_counter() - start
            request = json.loads(body).get("id", body.decode())
            self.answers.append(FilingResult(order.key, status, request, seconds))
        await _closed(writer)

    async def _hang_up(self, order: FilingOrder) -> None:
        """Send it and leave; whether it was read does not matter."""
        _, writer = await self._connected()
        writer.write(self._bytes(order))
        await writer.drain()
        self.n_hung_up += 1
        await _closed(writer)

    async def _connected(self) -> tuple[Any, Any]:
        place = urlsplit(self.url)
        return await asyncio.open_connection(place.hostname, place.port)

    def _bytes(self, order: FilingOrder) -> bytes:
        body = json.dumps({"model": self.model, "ids": [order.person]}).encode()
        head = (
            "POST /api/v1/requests HTTP/1.1\r\n"
            "Host: localhost\r\n"
            f"Authorization: Bearer {self.token}\r\n"
            "Content-Type: application/json\r\n"
            f"Idempotency-Key: {order.key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _called(reader: Any, writer: Any, sent: bytes) -> tuple[int, bytes]:
    writer.write(sent)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = head.partition("content-length:")[2].partition("\r\n")[0]
    return int(head.split()[1]), await reader.readexactly(int(length))


async def _closed(writer: Any) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
