"""Calls of an application without a client in between that would put them right."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["RawResponse", "call"]


class RawResponse(NamedTuple):
    """What an application answered, and how many bytes of the body it had taken until then."""

    status: int
    headers: dict[str, str]
    body: bytes
    n_read: int


def call(
    app: Any,
    method: str,
    path: str,
    *,
    raw_path: bytes | None = None,
    query: bytes = b"",
    headers: dict[str, str] | None = None,
    chunks: Iterable[bytes] = (),
) -> RawResponse:
    """Call an ASGI application with exactly these bytes."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode() if raw_path is None else raw_path,
        "root_path": "",
        "query_string": query,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in {"host": "localhost", **(headers or {})}.items()
        ],
        "client": ("127.0.0.1", 50000),
        "server": ("localhost", 80),
        "state": {},
    }
    return asyncio.run(_called(app, scope, iter(chunks)))


async def _called(app: Any, scope: dict[str, Any], chunks: Any) -> RawResponse:
    sent: list[Any] = []
    n_read = 0
    is_sent = False

    async def receive() -> dict[str, Any]:
        nonlocal n_read, is_sent
        if is_sent:
            await asyncio.Event().wait()  # the caller does not hang up
        chunk = next(chunks, None)
        n_read, is_sent = n_read + len(chunk or b""), chunk is None
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    head = sent[0]
    by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return RawResponse(head["status"], by_name, body, n_read)
