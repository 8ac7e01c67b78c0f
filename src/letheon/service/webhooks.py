"""Delivery of signed webhook messages, at least once, with growing pauses between attempts.

A message has the same id in all attempts, so that a receiver can ignore duplicates. Before an
attempt the message is claimed for five minutes, so that only one courier sends it. If that courier
is killed, the message is sent again later. Environment variables such as ``HTTPS_PROXY`` have no
effect on connections.

The secret of a webhook is not stored. It is derived with HKDF-SHA-256 from the webhook's id and a
key in the ledger's key folder. The database alone is not enough to sign messages.
"""

import base64
import contextlib
import hashlib
import hmac
import http.client
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Self

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import letheon
from letheon.ledger import Ledger
from letheon.ledger.db.webhooks import Message, Webhooks, read_service_key
from letheon.ledger.worker.compute import failure_code
from letheon.service import addresses as hosts
from letheon.service.middleware import log_line
from letheon.service.settings import ServiceSettings

TRIES = 12
_SHORTEST, _LONGEST = 5, 6 * 3600
_GROWTH = 4
# Longer than a round can take: 64 messages, four at a time, 15 seconds each.
_CLAIM_SECONDS = 300
_ROUND, _PER_WEBHOOK, _AT_ONCE = 64, 16, 4

_CONNECT_SECONDS = 5.0
_IN_ALL_SECONDS = 15.0
_MOST_READ = 64 * 1024
_GONE = 410
_INFO = b"letheon/webhook/v1\n"

WebhookOutcome = Literal["delivered", "answered", "unreachable", "refused"]


def derive_secret(key: bytes, webhook_id: str) -> str:
    """Derive the secret of a webhook from a key and the webhook's id.

    The secret is ``whsec_`` followed by 32 bytes of HKDF-SHA-256 in base64. Neither the database
    nor the secrets of other webhooks reveal it.
    """
    info = _INFO + webhook_id.encode()
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key)
    return "whsec_" + base64.b64encode(derived).decode()


def sign_message(secret: str, message_id: str, at: int, body: bytes) -> str:
    """Return the value of the header ``webhook-signature`` (Standard Webhooks, version 1).

    It is ``v1,`` followed by the HMAC-SHA-256 of ``id.timestamp.body`` in base64.
    """
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def sign_headers(secret: str, message_id: str, at: int, body: str) -> dict[str, str]:
    """Return the HTTP headers of a message, with its signature (Standard Webhooks)."""
    return {
        "Content-Type": "application/json",
        "User-Agent": f"letheon/{letheon.__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign_message(secret, message_id, at, body.encode()),
    }


@dataclass(frozen=True)
class WebhookResult:
    """The result of sending one message.

    Attributes
    ----------
    outcome : {"delivered", "answered", "unreachable", "refused"}
        "answered" means that the status was not 2xx, "refused" that the address is not allowed.
    status : int or None
        HTTP status of the receiver; None if it did not respond.
    delivered : bool
        Whether the status was 2xx.
    """

    outcome: WebhookOutcome
    status: int | None = None
    delivered: bool = False


def longest_pause(tries: int) -> int:
    """Return the longest pause after `tries` attempts, in seconds: 5, 20, 80, ..., up to 6 h.

    The actual pause is drawn uniformly between 5 s and this value. A receiver that works again
    therefore does not get all messages at once.
    """
    return int(min(_LONGEST, _SHORTEST * _GROWTH ** (tries - 1)))


def send_message(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    allowed: Sequence[hosts.AllowedHost],
    lookup: hosts.Resolver | None = None,
) -> WebhookResult:
    """Send a POST request to an allowed URL; return the result instead of raising an error.

    Redirects are not followed, proxies are not used, and TLS certificates are checked. Sending
    takes at most 15 seconds. At most 64 KiB of the response are read and then discarded.
    """
    try:
        target = hosts.parse_url(url, allowed)
        status = _post_message(target, hosts.resolve_target(target, lookup), body, headers)
    except hosts.AddressRefusedError:
        return WebhookResult("refused")
    except (OSError, http.client.HTTPException, UnicodeError):
        return WebhookResult("unreachable")
    if 200 <= status < 300:
        return WebhookResult("delivered", status, delivered=True)
    return WebhookResult("answered", status)


def _post_message(
    target: hosts.Target, addresses: Sequence[str], body: bytes, headers: dict[str, str]
) -> int:
    port = target.entry.port
    connection = http.client.HTTPConnection(target.host, port, timeout=_CONNECT_SECONDS)
    plain = _open_connection(addresses, port)
    with contextlib.closing(connection), _time_limit(plain) as was_cut:
        connection.sock = _start_tls(plain, target)
        connection.request("POST", target.path, body, {"Host": target.authority, **headers})
        result = connection.getresponse()
        if was_cut.is_set():  # a cut connection looks like the end of the headers
            raise TimeoutError("the response did not arrive in time")
        with contextlib.suppress(OSError, http.client.HTTPException):
            result.read(_MOST_READ)
        return result.status


def _open_connection(addresses: Sequence[str], port: int) -> socket.socket:
    """Return a connection to the first of two addresses that accepts it."""
    last: OSError = OSError("no address")
    for address in addresses[:2]:
        try:
            # An IP address is not resolved again.
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            last = error
    raise last


def _start_tls(plain: socket.socket, target: hosts.Target) -> socket.socket:
    if target.entry.scheme == "http":
        return plain
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)
    except BaseException:
        plain.close()
        raise


@contextlib.contextmanager
def _time_limit(plain: socket.socket) -> Iterator[threading.Event]:
    """Cut a connection after the total time limit; yield an event that is set if this happens.

    A receiver could otherwise keep it open by sending a byte every few seconds.
    """
    duplicate = plain.dup()
    was_cut = threading.Event()

    def cut_connection() -> None:
        was_cut.set()
        with contextlib.suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_IN_ALL_SECONDS, cut_connection)
    timer.daemon = True
    timer.start()
    try:
        yield was_cut
    finally:
        timer.cancel()
        timer.join()
        duplicate.close()


def deliver_due(
    ledger: Ledger,
    settings: ServiceSettings,
    *,
    overdue: bool = True,
    lookup: hosts.Resolver | None = None,
) -> int:
    """Create messages for new events, and send the messages that are due.

    Parameters
    ----------
    ledger : Ledger
        The ledger with the events; its clock is used.
    settings : ServiceSettings
        Settings with the allowed hosts.
    overdue : bool, default=True
        Whether to create messages for overdue requests too.
    lookup : callable, optional
        Function that resolves host names; by default the resolver of the system.

    Returns
    -------
    int
        Number of messages that the function tried to send.
    """
    hooks, clock = Webhooks(ledger), ledger.clock
    allowed = hosts.parse_hosts(settings.webhook_hosts)
    hooks.write_new_messages(overdue=overdue)
    claimed = hooks.claim_due(_CLAIM_SECONDS, most=_ROUND, most_each=_PER_WEBHOOK)
    if not claimed:
        return 0
    key = read_service_key(ledger.folder)

    def deliver_message(message: Message) -> None:
        secret = derive_secret(key, message.webhook_id)
        headers = sign_headers(secret, message.id, clock(), message.body)
        body = message.body.encode()
        result = send_message(message.url, body, headers, allowed=allowed, lookup=lookup)
        _record_attempt(hooks, message, result)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(deliver_message, claimed))
    return len(claimed)


def _record_attempt(hooks: Webhooks, message: Message, result: WebhookResult) -> None:
    """Record whether a message was delivered, will be sent again later, or was given up."""
    tries, pause = message.tries + 1, 0
    outcome: Literal["delivered", "gone", "given-up", "later"] = "delivered"
    if result.status == _GONE:
        outcome = "gone"
    elif not result.delivered and tries >= TRIES:
        outcome = "given-up"
    elif not result.delivered:
        outcome, pause = "later", random.randint(_SHORTEST, longest_pause(tries))
    hooks.record_attempt(message, result.status, outcome=outcome, pause=pause)


def _log_error(error: Exception) -> None:
    log_line("courier-error", error=failure_code(error))


class Courier:
    """A thread that delivers webhook messages during a ``with`` block.

    Parameters
    ----------
    ledger : Ledger
        The ledger with the events.
    settings : ServiceSettings
        Settings with the allowed hosts.
    pause : float, default=2.0
        Seconds to wait after a round in which no message was due.
    report : callable, optional
        Called with the error of a failed round; the courier then continues with the next round. By
        default the type of the error is logged.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: ServiceSettings,
        *,
        pause: float = 2.0,
        report: Callable[[Exception], None] = _log_error,
    ) -> None:
        self._ledger, self._settings = ledger, settings
        self._pause, self._report = pause, report
        self._is_stopping = False
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run_rounds, name="courier", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread after its current round, which takes a few seconds."""
        self._is_stopping = True
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        """Start the next round immediately, without the pause."""
        self._awake.set()

    def _run_rounds(self) -> None:
        minute = 0
        while not self._is_stopping:
            self._awake.clear()
            now = self._ledger.clock() // 60
            is_new_minute, minute = now != minute, now
            n_tried = 0
            try:
                if is_new_minute:  # deadlines pass with time
                    Webhooks(self._ledger).forget_old()
                n_tried = deliver_due(self._ledger, self._settings, overdue=is_new_minute)
            except Exception as error:  # noqa: BLE001 - the next round may succeed
                self._report(error)
            if not n_tried:
                self._awake.wait(self._pause)
