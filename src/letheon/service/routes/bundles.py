"""Bundles: what a stranger or an auditor verifies, as one zip file that is made while it is sent.

The folder that it is made from lies in a private room of the ledger's home. It is destroyed when
the last byte was sent, when the client hangs up or is too slow, and at the next start after a
kill. Purges wait for it, so that a token has one at a time, and all tokens together few.
"""

import threading
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from letheon.ledger import Ledger
from letheon.service.auth import Principal, allows, require_unbound
from letheon.service.errors import Problem
from letheon.service.temp_folders import temp_folder

router = APIRouter(tags=["certificates"])

_CHUNK = 1 << 18
_LONGEST_SECONDS = 900.0
_MOST_AT_ONCE = 2
# Certificates have no time of a file; the same bundle gives the same names and times.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A zip file with the folder that `letheon audit` and verifier.py check.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_lock = threading.Lock()
# Tokens that are being sent a bundle of a ledger now.
_taken: weakref.WeakKeyDictionary[Ledger, list[str]] = weakref.WeakKeyDictionary()


@router.get("/api/v1/bundle", summary="Download a bundle", response_class=Response, responses=_ZIP)
def download_bundle(
    who: Annotated[Principal, Depends(allows("certificates:read", is_long=True))],
    tier: Annotated[
        Literal["public", "auditor"],
        Query(description="The auditor's holds rows of people, and needs the scope bundles:read."),
    ] = "public",
) -> Response:
    """Return what a stranger, or an auditor, needs to verify the ledger without it.

    The auditor's bundle is personal data, handed over in custody: its export is an event of the
    log, and it is to be destroyed within thirty days.
    """
    require_unbound(who)
    if tier == "auditor":
        who.require("bundles:read")
    ledger = who.ledger
    with ExitStack() as cleanup:
        cleanup.enter_context(take_slot(ledger, who.token_id))
        room = cleanup.enter_context(temp_folder(ledger, "bundle"))
        who.desk.tokens.note(who.token_id, f"bundle-{tier}")
        folder = ledger.export(room / "bundle", tier=tier)
        return BundleResponse(folder, f"{ledger.name}-{tier}", cleanup.pop_all())


@contextmanager
def take_slot(ledger: Ledger, token_id: str) -> Iterator[None]:
    """Count a bundle that is being sent, or raise the problem 429."""
    with _lock:
        taken = _taken.setdefault(ledger, [])
        if token_id in taken or len(taken) >= _MOST_AT_ONCE:
            raise Problem(
                429,
                "too-many-bundles",
                "bundles are being sent already",
                f"One at a time for each token, {_MOST_AT_ONCE} in all; ask again later.",
                headers={"Retry-After": "30"},
            )
        taken.append(token_id)
    try:
        yield
    finally:
        with _lock:
            taken.remove(token_id)


class BundleResponse(StreamingResponse):
    """A zip file of a folder, and what is to be cleaned up after it was sent.

    Parameters
    ----------
    folder : Path
        What is sent.
    name : str
        Name of the file, and of the folder in it.
    cleanup : ExitStack
        Closed afterwards, whatever happens; it destroys the room that the folder lies in.

    Guarantee
    ---------
    The room is gone after 15 minutes, however slowly the client reads.
    """

    def __init__(self, folder: Path, name: str, cleanup: ExitStack) -> None:
        # A name of a ledger has letters, digits and ._:- only; some systems dislike the colon.
        safe = name.replace(":", "-")
        headers = {"Content-Disposition": f'attachment; filename="{safe}.zip"'}
        super().__init__(zip_folder(folder, safe), media_type="application/zip", headers=headers)
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, then clean up: also when the client hung up."""
        try:
            # A file that breaks off is no zip file: its end is missing.
            with anyio.move_on_after(_LONGEST_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._cleanup.close)


def zip_folder(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip file of a folder, a piece at a time: memory does not grow with it.

    Parameters
    ----------
    folder : Path
        Its plain files are taken, in order of their names.
    name : str
        The folder's name in the file.
    """
    pieces: list[bytes] = []

    def write(data: bytes) -> int:
        pieces.append(bytes(data))
        return len(data)

    def take() -> bytes:
        data = b"".join(pieces)
        pieces.clear()
        return data

    sink = SimpleNamespace(write=write, flush=lambda: None)  # it is only written, piece by piece
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                inside = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", _EPOCH)
                inside.compress_type = zipfile.ZIP_DEFLATED
                inside.external_attr = 0o600 << 16
                with path.open("rb") as source, archive.open(inside, "w", force_zip64=True) as out:
                    while piece := source.read(_CHUNK):
                        out.write(piece)
                        yield take()
                yield take()
    yield take()
