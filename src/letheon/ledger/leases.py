"""Leases on models, and fencing numbers that decide which worker may publish.

A lease only avoids duplicate work. It may expire while its holder still computes, for example
because the process was paused, the clock jumped or the connection was lost. The fence decides which
worker may publish: it is a number that grows with every lease, and the transaction that publishes a
version checks it.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from letheon.exceptions import StaleWorkerError
from letheon.ledger.core import Core, fault_point
from letheon.ledger.tables import heads


@dataclass(frozen=True)
class Lease:
    """The right of one worker to work on a model, until another worker takes a newer lease.

    `was_abandoned` is True if the previous holder never released its lease and may have left files.
    """

    model_id: int
    fence: int
    owner: str
    was_abandoned: bool = False


def owner_name() -> str:
    """Return a name for the current thread, unique across machines and processes."""
    pid = os.getpid()
    return "/".join((*_scope(), str(pid), _start_time(pid), str(threading.get_ident())))


def _scope() -> tuple[str, str, str]:
    """Return host name, boot id and process namespace. Within them, a process id is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return socket.gethostname(), "", secrets.token_hex(8)
    return socket.gethostname(), boot, space


def _start_time(pid: int) -> str:
    """Return the start time of a local process in clock ticks since boot; "" if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The command is in parentheses and may contain blanks. A zombie counts as ended.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def is_dead(owner: str) -> bool:
    """Return whether the owner of a lease was a process of this machine that has ended."""
    *scope, pid, started, _ = owner.split("/")
    return tuple(scope) == _scope() and bool(started) and _start_time(int(pid)) != started


def is_current(until: int, now: int, seconds: int) -> bool:
    """Return whether a lease that ends at `until` has not expired at `now`, in seconds since 1970.

    A lease lasts `seconds`, and the clocks of two hosts may differ by the same time. If `until` is
    later than both allow, a wrong clock set it, and the lease counts as expired.
    """
    return now < until <= now + 2 * seconds


def take_lease(core: Core, model_id: int, owner: str) -> Lease | None:
    """Take the lease of a model; return None if another live worker holds it."""
    with core.database.transaction() as conn:
        now, seconds, mine = core.clock(), core.settings.policy.lease_seconds, _is_head_of(model_id)
        head = conn.execute(select(heads).where(mine).with_for_update()).one()
        is_others = head.owner not in (None, owner)
        if is_others and is_current(head.lease_until, now, seconds) and not is_dead(head.owner):
            return None
        fence = head.fence + 1
        values = {"owner": owner, "fence": fence, "lease_until": now + seconds}
        conn.execute(update(heads).where(mine).values(values))
    fault_point("lease.taken")
    return Lease(model_id, fence, owner, was_abandoned=head.owner is not None)


def require_fence(conn: Connection, lease: Lease) -> None:
    """Raise `StaleWorkerError` unless the lease is the newest lease of its model.

    The row of the model in `heads` stays locked until the transaction ends.
    """
    query = select(heads.c.fence).where(_is_head_of(lease.model_id)).with_for_update()
    if conn.scalar(query) != lease.fence:
        raise StaleWorkerError(
            "another worker took over this model; the result of this worker was not published"
        )


def renew_lease(core: Core, lease: Lease) -> None:
    """Extend a lease; raise `StaleWorkerError` if another worker has taken a newer lease."""
    if not _update(core, lease, lease_until=core.clock() + core.settings.policy.lease_seconds):
        raise StaleWorkerError(
            "another worker took over this model; this worker stops working on it"
        )


def release_lease(core: Core, lease: Lease) -> None:
    """Release a lease so that the next worker need not wait. A newer lease stays unchanged."""
    _update(core, lease, owner=None, lease_until=0)


def _is_head_of(model_id: int) -> ColumnElement[bool]:
    return heads.c.model_id == model_id


def _update(core: Core, lease: Lease, **values: Any) -> bool:
    """Update the row of a lease; return False if another worker has taken a newer lease."""
    with core.database.transaction() as conn:
        mine = update(heads).where(_is_head_of(lease.model_id), heads.c.fence == lease.fence)
        return conn.execute(mine.values(values)).rowcount == 1


def keep_renewed(core: Core, lease: Lease) -> contextlib.AbstractContextManager[None]:
    """Renew a lease in the background until the context ends."""
    pause = max(core.settings.policy.lease_seconds / 3, 1)
    return renew_in_background(lambda: renew_lease(core, lease), pause)


@contextlib.contextmanager
def renew_in_background(renew: Callable[[], None], pause: float) -> Iterator[None]:
    """Call `renew` every `pause` seconds in a thread until the context ends."""
    done = threading.Event()

    def renew_until_done() -> None:
        while not done.wait(pause):
            # After a failure the check at the end decides; the computation continues until then.
            with contextlib.suppress(Exception):
                renew()

    thread = threading.Thread(target=renew_until_done, name="letheon-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
