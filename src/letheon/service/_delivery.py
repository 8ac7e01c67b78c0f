"""Messages on their way to webhooks: signed, at least once, each try later than the last.

A message keeps its id through all tries, so that a receiver can drop what it has seen. Before
a try the message is claimed for five minutes: of two couriers one sends, and what a killed one had
in hand is sent again. Nothing of the environment decides where a connection goes.
"""

import contextlib
import http.client
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, func, select, update

import letheon
from letheon.ledger import Ledger
from letheon.ledger.db.elapsed import proven_now
from letheon.ledger.tables import deliveries, webhooks
from letheon.service._addresses import (
    AddressRefusedError,
    Allowed,
    Resolver,
    Target,
    allow_list,
    look_up,
    target_of,
)
from letheon.service._feed import feed
from letheon.service._settings import ServiceSettings
from letheon.service._webhooks import Delivery, delivery_of, secret_of, service_key, sign

__all__ = ["TRIES", "Answer", "Courier", "deliver_due", "longest_pause", "send", "signed_headers"]

TRIES = 12
_SHORTEST, _LONGEST = 5, 6 * 3600
_GROWTH = 4
# Longer than a round can take: 64 messages, four at a time, 15 seconds each.
_CLAIM_SECONDS = 300
_KEPT_SECONDS = 30 * 86_400
_ROUND, _PER_WEBHOOK, _AT_ONCE = 64, 16, 4

_CONNECT_SECONDS = 5.0
_IN_ALL_SECONDS = 15.0
_MOST_READ = 64 * 1024
_GONE = 410


Outcome = Literal["delivered", "answered", "unreachable", "refused"]


class Answer(NamedTuple):
    """What came of one call.

    Attributes
    ----------
    outcome : str
        ``delivered``, ``answered`` (with another status than 2xx), ``unreachable`` or ``refused``
        (by the operator's list, or for its address).
    status : int or None
        Status of the answer, if there was one.
    """

    outcome: Outcome
    status: int | None = None


Send = Callable[[str, bytes, dict[str, str]], Answer]


def longest_pause(tries: int) -> int:
    """Return the longest pause after so many tries: 5 s, four times as long each time, 6 h.

    The pause itself is drawn from between 5 s and this, evenly: receivers that came back are not
    met by everybody at once.
    """
    return int(min(_LONGEST, _SHORTEST * _GROWTH ** (tries - 1)))


def send(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    allowed: Sequence[Allowed],
    resolve: Resolver | None = None,
) -> Answer:
    """Post to an address that the operator's list permits; never raise.

    Redirects are not followed, proxies not used, certificates checked. All of it takes 15 seconds
    at most, and 64 KiB of the answer are read at most and thrown away.
    """
    try:
        target = target_of(url, allowed)
        addresses = look_up(target, resolve)
        status = _post(target, addresses, body, headers)
    except AddressRefusedError:
        return Answer("refused")
    except (OSError, http.client.HTTPException, UnicodeError):
        return Answer("unreachable")
    return Answer("delivered" if 200 <= status < 300 else "answered", status)


def _post(target: Target, addresses: Sequence[str], body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=_CONNECT_SECONDS)
    plain = _connected(addresses, target.port)
    with contextlib.closing(connection), _ended_in_time(plain) as was_cut:
        connection.sock = _wrapped(plain, target)
        connection.request("POST", target.path, body, {"Host": target.authority, **headers})
        answer = connection.getresponse()
        if was_cut.is_set():  # the end of a connection passes for the end of the headers
            raise TimeoutError("the answer did not come in time")
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.read(_MOST_READ)
        return answer.status


def _connected(addresses: Sequence[str], port: int) -> socket.socket:
    """Return a connection to the first address that answers, of those that were looked at."""
    last: OSError = OSError("no address")
    for address in addresses[:2]:
        try:
            # An IP address is not resolved again.
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            last = error
    raise last


def _wrapped(plain: socket.socket, target: Target) -> socket.socket:
    if target.scheme == "http":
        return plain
    try:
        context = ssl.create_default_context()
        return context.wrap_socket(plain, server_hostname=target.host)
    except BaseException:
        plain.close()
        raise


@contextlib.contextmanager
def _ended_in_time(plain: socket.socket) -> Iterator[threading.Event]:
    """Cut a connection when all its time is over: a peer may send one byte every 4 seconds."""
    twin = plain.dup()
    was_cut = threading.Event()

    def cut() -> None:
        was_cut.set()
        with contextlib.suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_IN_ALL_SECONDS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield was_cut
    finally:
        timer.cancel()
        timer.join()
        twin.close()


def deliver_due(
    ledger: Ledger,
    settings: ServiceSettings,
    *,
    clock: Callable[[], int] | None = None,
    overdue: bool = True,
    resolve: Resolver | None = None,
) -> int:
    """Do one round: write the messages that became due, and send those whose time has come.

    Parameters
    ----------
    ledger : Ledger
        Whose events are told.
    settings : ServiceSettings
        Where messages may go.
    clock : callable, optional
        Seconds since 1970; the ledger's by default.
    overdue : bool, default=True
        Whether to look for requests that are past their last day, too.
    resolve : callable, optional
        Used in place of the system's resolver.

    Returns
    -------
    int
        How many messages were tried.
    """
    now = clock or ledger._core.clock
    allowed = allow_list(settings.webhook_hosts)

    def post(url: str, body: bytes, headers: dict[str, str]) -> Answer:
        return send(url, body, headers, allowed=allowed, resolve=resolve)

    feed(ledger, now(), overdue=overdue)
    claimed = _claim(ledger, now())
    if claimed:
        key = service_key(ledger.folder)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda one: _try(ledger, key, post, now, *one), claimed))
    return len(claimed)


def _claim(ledger: Ledger, now: int) -> list[tuple[Delivery, str]]:
    """Take the messages whose time has come, each with its address; nobody else sends them now.

    One receiver that is slow or gone has a share of the round only.
    """
    waiting = deliveries.c.delivered_at.is_(None) & deliveries.c.given_up_at.is_(None)
    place = func.row_number().over(
        partition_by=deliveries.c.webhook_id, order_by=(deliveries.c.not_before, deliveries.c.id)
    )
    due = (
        select(deliveries.c.id, webhooks.c.url, place.label("place"))
        .join(webhooks, webhooks.c.id == deliveries.c.webhook_id)
        .where(waiting, deliveries.c.not_before <= now, webhooks.c.disabled_at.is_(None))
        .subquery()
    )
    query = select(deliveries, due.c.url).join(due, due.c.id == deliveries.c.id)
    query = query.where(due.c.place <= _PER_WEBHOOK).order_by(due.c.place).limit(_ROUND)
    with ledger._core.database.reading() as conn:
        found = [(delivery_of(row), str(row.url)) for row in conn.execute(query)]
    if not found:
        return []

    def work(conn: Connection) -> list[tuple[Delivery, str]]:
        return [one for one in found if _claim_one(conn, one[0], now)]

    return ledger._core.database.run(work)


def _claim_one(conn: Connection, delivery: Delivery, now: int) -> bool:
    mine = (deliveries.c.id == delivery.id) & (deliveries.c.tries == delivery.tries)
    still = deliveries.c.delivered_at.is_(None) & deliveries.c.given_up_at.is_(None)
    values = {"tries": delivery.tries + 1, "not_before": now + _CLAIM_SECONDS}
    return conn.execute(update(deliveries).where(mine, still).values(values)).rowcount == 1


def _try(
    ledger: Ledger, key: bytes, post: Send, clock: Callable[[], int], delivery: Delivery, url: str
) -> None:
    secret = secret_of(key, delivery.webhook_id)
    answer = post(
        url, delivery.body.encode(), signed_headers(secret, delivery.id, clock(), delivery.body)
    )
    ledger._core.database.run(lambda conn: _note(conn, delivery, answer, clock()))


def signed_headers(secret: str, message_id: str, at: int, body: str) -> dict[str, str]:
    """Return the headers of a message (Standard Webhooks)."""
    return {
        "Content-Type": "application/json",
        "User-Agent": f"letheon/{letheon.__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, message_id, at, body.encode()),
    }


def _note(conn: Connection, delivery: Delivery, answer: Answer, now: int) -> None:
    """Write down what came of a try: done, later, or given up."""
    tries = delivery.tries + 1
    values: dict[str, int | None] = {"last_status": answer.status}
    if answer.outcome == "delivered":
        values["delivered_at"] = now
    elif answer.status == _GONE:
        values["given_up_at"] = now
        gone = webhooks.c.id == delivery.webhook_id
        conn.execute(update(webhooks).where(gone).values(disabled_at=now))
    elif tries >= TRIES:
        values["given_up_at"] = now
    else:
        values["not_before"] = now + random.randint(_SHORTEST, longest_pause(tries))
    mine = (deliveries.c.id == delivery.id) & (deliveries.c.tries == tries)
    conn.execute(update(deliveries).where(mine).values(values))


def drop_old(ledger: Ledger, now: int) -> int:
    """Remove what was delivered or given up a month ago; return how many.

    Notes of being overdue stay: they keep the same request from being told twice.
    """
    ended = func.coalesce(deliveries.c.delivered_at, deliveries.c.given_up_at)
    old = (ended < now - _KEPT_SECONDS) & (deliveries.c.kind != "overdue")
    change = delete(deliveries).where(old)
    return ledger._core.database.run(lambda conn: conn.execute(change).rowcount)


class Courier:
    """A thread that delivers, round after round, beside whoever applies batches.

    Parameters
    ----------
    ledger : Ledger
        Whose events are told.
    settings : ServiceSettings
        Where messages may go.
    pause : float, default=2.0
        Seconds between two rounds that had nothing to do.
    report : callable, optional
        Given the error of a round that failed; the next round is tried all the same.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: ServiceSettings,
        *,
        pause: float = 2.0,
        report: Callable[[Exception], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._pause = pause
        self._report = report
        self._is_leaving = False
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round at once."""
        self._awake.set()

    def stop(self) -> None:
        """End after the round in hand, which takes some seconds at most."""
        self._is_leaving = True
        self.wake()
        self._thread.join()

    def _run(self) -> None:
        looked_at = 0
        while not self._is_leaving:
            self._awake.clear()
            now = self._ledger._core.clock()
            is_new_minute = now // 60 != looked_at
            looked_at = now // 60
            if not self._round(is_new_minute=is_new_minute):
                self._awake.wait(self._pause)

    def _round(self, *, is_new_minute: bool) -> int:
        """Deliver; what is overdue changes with the day, so it is looked for once a minute."""
        try:
            if is_new_minute:
                drop_old(self._ledger, proven_now(self._ledger._core))
            return deliver_due(self._ledger, self._settings, overdue=is_new_minute)
        except Exception as error:  # noqa: BLE001 - the next round may go well
            if self._report is not None:
                self._report(error)
            return 0
