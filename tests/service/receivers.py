"""Receivers of webhooks: real servers on this machine that note what they are sent."""

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Call(NamedTuple):
    """What a receiver was sent."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


Answering = Callable[[BaseHTTPRequestHandler, Call], None]


class Receiver:
    """A server that can be stopped and started again on its port."""

    def __init__(self, port: int = 0, *, context: ssl.SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.statuses: list[int] = []  # answered with first; 204 when they are used up
        self.answer: Answering | None = None
        receiver = self

        class ReceiverHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                headers = {name.lower(): value for name, value in self.headers.items()}
                call = Call(self.path, headers, self.rfile.read(length))
                receiver.calls.append(call)
                if receiver.answer is not None:
                    receiver.answer(self, call)
                    return
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *given: Any) -> None:
                """Say nothing."""

        class ReceiverServer(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A peer that hangs up, or refuses our certificate, is what tests are about."""

        self._server = ReceiverServer(("127.0.0.1", port), ReceiverHandler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    @property
    def entry(self) -> dict[str, object]:
        return {"host": f"http://127.0.0.1:{self.port}", "internal": True}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def receiving(port: int = 0, **given: Any) -> Iterator[Receiver]:
    receiver = Receiver(port, **given)
    try:
        yield receiver
    finally:
        receiver.close()
