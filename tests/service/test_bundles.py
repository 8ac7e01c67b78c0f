"""Bundles are what they should be, and nothing of them stays behind; private rooms."""

import asyncio
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from letheon.audit import audit
from letheon.exceptions import LedgerError
from letheon.ledger.tables import actions, events
from letheon.service.errors import ApiProblem
from letheon.service.routes import evidence as bundles
from letheon.service.routes.evidence import BundleResponse, zip_folder
from letheon.service.temp_folders import sweep_temp_folders, temp_folder
from letheon.verifier import verify_bundle
from tests.ledger.databases import in_processes
from tests.service.desks import Desk, make_desk, person
from tests.sharded.people import examples


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with a certificate of each of two models."""
    desk = make_desk(tmp_path_factory.mktemp("filled"))
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    desk.ledger.requests.submit([3], model="forest", verified=True)
    desk.work()
    yield desk
    desk.close()


def rooms(desk: Desk) -> list[Path]:
    return list((desk.ledger.folder / ".desk").glob("*"))


def unpacked(data: bytes, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    (only,) = folder.iterdir()
    return only


def test_a_stranger_verifies_the_public_bundle(filled: Desk, tmp_path: Path) -> None:
    answer = filled.client("approver").get("/api/v1/bundle")
    assert answer.headers["content-type"] == "application/zip"
    assert 'filename="desk-test-public.zip"' in answer.headers["content-disposition"]
    folder = unpacked(answer.content, tmp_path)
    assert folder.name == "desk-test-public"
    verdicts = {item.level: item.passed for item in verify_bundle(folder, filled.ledger.public_key)}
    assert verdicts == {"V0": True, "V1": True, "V2": None, "V3": True}
    assert not (folder / "models").exists()
    assert rooms(filled) == []


def test_an_auditor_audits_the_other_one_and_it_is_recorded(filled: Desk, tmp_path: Path) -> None:
    answer = filled.client("auditor").get("/api/v1/bundle?tier=auditor")
    folder = unpacked(answer.content, tmp_path)
    assert audit(folder, key=filled.ledger.public_key).passed
    with filled.ledger._core.database.reading() as conn:
        noted = conn.execute(
            select(actions.c.token_id).where(actions.c.action == "bundle-auditor")
        ).scalars()
        assert list(noted) == [filled.tokens["auditor"].id]
        assert conn.scalar(select(events.c.id).where(events.c.kind == "export")) is not None
    assert rooms(filled) == []


@pytest.mark.parametrize("who", ["operator", "approver"])
def test_rows_of_people_go_to_auditors_only(filled: Desk, who: str) -> None:
    answer = filled.client(who).get("/api/v1/bundle?tier=auditor")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:letheon:problem:not-allowed")


def test_an_export_that_fails_leaves_nothing(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, **_: Any) -> None:
        (folder.parent / "half").write_text("a row")
        raise LedgerError("let the worker finish")

    monkeypatch.setattr(filled.ledger, "export", fail)
    assert filled.client("auditor").get("/api/v1/bundle").status_code == 409
    assert rooms(filled) == []


def response(desk: Desk) -> BundleResponse:
    cleanup = ExitStack()
    folder = cleanup.enter_context(temp_folder(desk.ledger, "bundle")) / "bundle"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "rows.blob").write_bytes(os.urandom(1 << 20))
    return BundleResponse(folder, "a-bundle", cleanup)


async def nothing() -> dict[str, Any]:
    await asyncio.sleep(60)
    return {"type": "http.disconnect"}


def test_a_client_that_hangs_up_leaves_nothing(filled: Desk) -> None:
    answer = response(filled)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):
            raise OSError("the client hung up")

    async def serve() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        await answer(scope, nothing, send)

    with pytest.raises(Exception, match=r".*"):
        asyncio.run(serve())
    assert any(message.get("body") for message in sent)
    assert rooms(filled) == []


def test_a_client_that_does_not_read_is_left(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "_LONGEST_SECONDS", 0.1)
    answer, sent = response(filled), []

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):
            await anyio.sleep(60)

    async def serve() -> None:
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, nothing, send)

    asyncio.run(serve())
    assert sent[-1].get("more_body") is True, "it broke off"
    assert rooms(filled) == []


def test_few_bundles_are_sent_at_once(filled: Desk) -> None:
    take = filled.app.state.context.limiter.bundles.acquire
    tokens = [filled.tokens[name].id for name in ("auditor", "admin", "operator")]
    with take(tokens[1]):
        with take(tokens[0]):
            for token in (tokens[0], tokens[2]):
                with pytest.raises(ApiProblem, match="in total"):
                    take(token).__enter__()
            assert filled.client("auditor").get("/api/v1/bundle").status_code == 429
        for _ in range(2):  # it was given back
            assert filled.client("auditor").get("/api/v1/bundle").status_code == 200
    with take(tokens[0]), pytest.raises(ApiProblem, match="in total"):
        take(tokens[0]).__enter__()


def test_a_server_that_stops_leaves_nothing(filled: Desk) -> None:
    answer = response(filled)

    async def send(message: Any) -> None:
        if message.get("body"):
            await anyio.sleep(60)

    async def serve() -> None:
        with anyio.move_on_after(0.2):
            await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, nothing, send)

    asyncio.run(serve())
    assert rooms(filled) == []


names = st.lists(
    st.text("abc-._0", min_size=1, max_size=8).filter(lambda name: name.strip(".")),
    min_size=1,
    max_size=3,
)


@examples(30)
@given(st.lists(st.tuples(names, st.binary(max_size=600_000)), max_size=5))
def test_a_zip_that_is_made_piece_by_piece_holds_the_folder(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[list[str], bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("zip")
    wanted = {}
    for number, (parts, data) in enumerate(files):
        path = folder.joinpath(str(number), *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        wanted[f"top/{path.relative_to(folder).as_posix()}"] = data
    archive = zipfile.ZipFile(io.BytesIO(b"".join(zip_folder(folder, "top"))))
    assert {name: archive.read(name) for name in archive.namelist()} == wanted


def test_pieces_are_small_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "large").write_bytes(os.urandom(5 << 20))
    (tmp_path / "in" / "link").symlink_to("/etc/passwd")
    pieces = list(zip_folder(tmp_path / "in", "top"))
    assert max(map(len, pieces)) < 1 << 20
    archive = zipfile.ZipFile(io.BytesIO(b"".join(pieces)))
    assert archive.namelist() == ["top/large"]


def test_a_room_is_private_and_ends_with_its_block(desk: Desk) -> None:
    with temp_folder(desk.ledger, "audit") as folder:
        (folder / "rows").write_text("a row")
        assert folder.stat().st_mode & 0o077 == 0
        assert folder.parent.stat().st_mode & 0o077 == 0
        assert sweep_temp_folders(desk.ledger) == 0
        assert (folder / "rows").exists()
    assert rooms(desk) == []


def test_what_holds_people_is_overwritten(desk: Desk) -> None:
    with temp_folder(desk.ledger, "audit") as folder:
        (folder / "models").mkdir()
        opened = []
        for path in (folder / "upload.csv", folder / "models" / "rows.blob"):
            path.write_text("a row")
            opened.append(path.open("rb"))
    assert [file.read() for file in opened] == [bytes(5), bytes(5)]
    for file in opened:
        file.close()


def test_rooms_of_the_dead_are_swept(desk: Desk) -> None:
    def die() -> None:
        with temp_folder(desk.ledger, "bundle") as folder:
            (folder / "rows").write_text("a row")
            os._exit(0)

    assert in_processes([die]) == [0]
    (left,) = [path for path in rooms(desk) if path.is_dir()]
    assert (left / "rows").read_text() == "a row"
    with temp_folder(desk.ledger, "bundle") as mine:
        assert sweep_temp_folders(desk.ledger) == 1
        assert [path for path in rooms(desk) if path.is_dir()] == [mine]
    assert rooms(desk) == []


def test_a_purge_waits_for_a_room_that_holds_the_erased(desk: Desk) -> None:
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    with temp_folder(desk.ledger, "bundle") as folder:
        desk.ledger.export(folder / "bundle", tier="public")
        (folder / "copy.csv").write_text(f"{person(1)},1.0\n")
        desk.work()
        assert desk.ledger.certificates.get(1).purged_at is None
    desk.clock.now += 3600
    desk.work()
    assert desk.ledger.certificates.get(1).purged_at is not None
