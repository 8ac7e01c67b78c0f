"""The right to work on a model: a lease that ends by itself, and a fence that decides.

A lease only saves work. It may end while its holder still computes: a paused process, a clock that
jumps, a lost connection. What decides who publishes is the fence, a number that rises with every
lease and is compared in the very statement that moves the head.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, update

from letheon.exceptions import StaleWorkerError
from letheon.ledger.core import Core, fault_point
from letheon.ledger.tables import heads


@dataclass(frozen=True)
class Lease:
    """The right to work on one model until somebody takes a newer one.

    `was_abandoned` says that the last holder never gave it back: something may lie about.
    """

    model_id: int
    fence: int
    owner: str
    was_abandoned: bool = False


def owner_name() -> str:
    """Return the name of this thread of this process."""
    pid = os.getpid()
    return "/".join(
        (*_process_scope(), str(pid), _read_start_time(pid), str(threading.get_ident()))
    )


def _process_scope() -> tuple[str, str, str]:
    """Return host, boot and namespace of processes: what a process number means something in."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        space = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return socket.gethostname(), "", secrets.token_hex(8)
    return socket.gethostname(), boot, space


def _read_start_time(pid: int) -> str:
    """Return when a process of this machine was started, in ticks; "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The command stands in parentheses and may hold blanks itself. A zombie works no more.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def is_dead_owner(owner: str) -> bool:
    """Return whether the owner was a process that can be seen from here, and is gone."""
    *place, pid, started, _ = owner.split("/")
    return (
        tuple(place) == _process_scope() and bool(started) and _read_start_time(int(pid)) != started
    )


def is_current(until: int, now: int, seconds: int) -> bool:
    """Whether a lease of so many seconds has not run out.

    An end that no honest clock can have set is one of a clock that was ahead. Clocks of two hosts
    may differ by the length of a lease.
    """
    return now < until <= now + 2 * seconds


def take_lease(core: Core, model_id: int, owner: str) -> Lease | None:
    """Take the lease of a model; None if somebody else holds it and is alive."""
    with core.database.transaction() as conn:
        now, seconds, mine = core.clock(), core.settings.policy.lease_seconds, _is_head_of(model_id)
        head = conn.execute(select(heads).where(mine).with_for_update()).one()
        is_others = head.owner not in (None, owner)
        if (
            is_others
            and is_current(head.lease_until, now, seconds)
            and not is_dead_owner(head.owner)
        ):
            return None
        fence = head.fence + 1
        values = {"owner": owner, "fence": fence, "lease_until": now + seconds}
        conn.execute(update(heads).where(mine).values(values))
    fault_point("lease.taken")
    return Lease(model_id, fence, owner, was_abandoned=head.owner is not None)


def require_fence(conn: Connection, lease: Lease) -> None:
    """Raise `StaleWorkerError` unless the lease is the newest; holds the head till the commit."""
    query = select(heads.c.fence).where(_is_head_of(lease.model_id)).with_for_update()
    if conn.scalar(query) != lease.fence:
        raise StaleWorkerError(
            "another worker took this model over; what this one computed was not published"
        )


def renew_lease(core: Core, lease: Lease) -> None:
    """Put the end of a lease off, or raise `StaleWorkerError` if somebody took a newer one."""
    if not _update_lease(
        core, lease, lease_until=core.clock() + core.settings.policy.lease_seconds
    ):
        raise StaleWorkerError("another worker took this model over; this one gives up")


def release_lease(core: Core, lease: Lease) -> None:
    """Give a lease back, so that the next worker need not wait; a newer one is left alone."""
    _update_lease(core, lease, owner=None, lease_until=0)


def _is_head_of(model_id: int) -> ColumnElement[bool]:
    return heads.c.model_id == model_id


def _update_lease(core: Core, lease: Lease, **values: Any) -> bool:
    """Change the row of a lease, unless somebody took a newer one."""
    with core.database.transaction() as conn:
        mine = update(heads).where(_is_head_of(lease.model_id), heads.c.fence == lease.fence)
        return conn.execute(mine.values(values)).rowcount == 1


@contextlib.contextmanager
def keep_renewed(core: Core, lease: Lease) -> Iterator[None]:
    """Renew a lease in the background while something long is computed."""
    done = threading.Event()
    pause = max(core.settings.policy.lease_seconds / 3, 1)

    def renew_until_done() -> None:
        while not done.wait(pause):
            # If that fails the fence will tell; a computation is not stopped half-way.
            with contextlib.suppress(Exception):
                renew_lease(core, lease)

    thread = threading.Thread(target=renew_until_done, name="letheon-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
