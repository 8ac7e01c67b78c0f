"""Bundles: what a stranger or an auditor verifies, as one zip file that is made while it is sent.

The folder that it is made from lies in a private room of the ledger's home. It is destroyed when
the last byte was sent, when the client hangs up or is too slow, and at the next start after a
kill. Purges wait for it, so that a token has one at a time, and all tokens together few.
"""

import threading
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import anyio
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from letheon.ledger import Ledger
from letheon.ledger.db.tokens import note_action
from letheon.service.auth import Context, Principal, require_unbound
from letheon.service.errors import Problem
from letheon.service.temp_folders import TempFolder

__all__ = ["BundleResponse", "Tier", "open_bundle", "zipped"]

Tier = Literal["public", "auditor"]
_CHUNK = 1 << 18
_LONGEST_SECONDS = 900.0
_MOST_AT_ONCE = 2
# Certificates have no time of a file; the same bundle gives the same names and times.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class _Slots:
    """Who is being sent a bundle of a ledger now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: weakref.WeakKeyDictionary[Ledger, list[str]] = weakref.WeakKeyDictionary()

    def take(self, ledger: Ledger, token_id: str) -> Callable[[], None]:
        """Take a slot, and return what gives it back."""
        with self._lock:
            taken = self._taken.setdefault(ledger, [])
            if token_id in taken or len(taken) >= _MOST_AT_ONCE:
                raise Problem(
                    429,
                    "too-many-bundles",
                    "bundles are being sent already",
                    f"One at a time for each token, {_MOST_AT_ONCE} in all; ask again later.",
                    headers={"Retry-After": "30"},
                )
            taken.append(token_id)

        def give_back() -> None:
            with self._lock:
                if token_id in taken:
                    taken.remove(token_id)

        return give_back


_slots = _Slots()


def open_bundle(context: Context, who: Principal, tier: Tier) -> "BundleResponse":
    """Export a bundle and return the answer that sends it.

    The auditor's tier holds rows of people. Handing it out is an event of the ledger's log, and an
    action of the desk.
    """
    require_unbound(who)
    if tier == "auditor" and not who.may("bundles:read"):
        raise Problem(
            403,
            "not-allowed",
            "this token may not do that",
            f"It needs the scope bundles:read; its role is {who.role}.",
        )
    ledger = context.ledger
    give_back = _slots.take(ledger, who.token_id)
    try:
        room = TempFolder(ledger, "bundle")
    except BaseException:
        give_back()
        raise
    try:
        with ledger._core.database.transaction() as conn:
            note_action(conn, context.clock(), who.token_id, f"bundle-{tier}", None)
        folder = ledger.export(room.folder / "bundle", tier=tier)
    except BaseException:
        room.close()
        give_back()
        raise
    return BundleResponse(room, folder, f"{ledger.name}-{tier}", give_back)


class BundleResponse(StreamingResponse):
    """A zip file of a folder, and the end of the room that the folder lies in.

    Parameters
    ----------
    room : TempFolder
        Destroyed afterwards, whatever happens.
    folder : Path
        What is sent.
    name : str
        Name of the file, and of the folder in it.
    after : callable
        Called at the end, too.

    Guarantee
    ---------
    The room is gone after 15 minutes, however slowly the client reads.
    """

    def __init__(
        self, room: TempFolder, folder: Path, name: str, after: Callable[[], None] = lambda: None
    ) -> None:
        # A name of a ledger has letters, digits and ._:- only; some systems dislike the colon.
        safe = name.replace(":", "-")
        headers = {"Content-Disposition": f'attachment; filename="{safe}.zip"'}
        super().__init__(zipped(folder, safe), media_type="application/zip", headers=headers)
        self.room = room
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, then destroy the room: also when the client hung up."""
        try:
            # A file that breaks off is no zip file: its end is missing.
            with anyio.move_on_after(_LONGEST_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self.room.close)
            self._after()


class _Sink:
    """A file that is only written, and taken away piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.position = 0

    def write(self, data: bytes) -> int:
        self.pieces.append(bytes(data))
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Nothing waits."""

    def taken(self) -> bytes:
        found, self.pieces = b"".join(self.pieces), []
        return found


def zipped(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip file of a folder, a piece at a time: memory does not grow with it.

    Parameters
    ----------
    folder : Path
        Its plain files are taken, in order of their names.
    name : str
        The folder's name in the file.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[call-overload]
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                inside = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", _EPOCH)
                inside.compress_type = zipfile.ZIP_DEFLATED
                inside.external_attr = 0o600 << 16
                with path.open("rb") as source, archive.open(inside, "w", force_zip64=True) as out:
                    while piece := source.read(_CHUNK):
                        out.write(piece)
                        yield sink.taken()
                yield sink.taken()
    yield sink.taken()
