"""`letheon receipt`: code, sealed file, opened receipt, and what covers it."""

import base64
import io
import json
import stat
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError

import pytest

from letheon.ledger import Ledger
from letheon.ledger.models.commitment import encode_rows
from letheon.ledger.models.examine import copy_rows
from letheon.verifier import Trust as Pinned
from letheon.verifier import check_receipt, open_envelope
from tests.cli.ledgers import call, done
from tests.ledger.databases import SettableClock
from tests.ledger.homes import IDS, X, Y, make, person


class ReceiptStory(NamedTuple):
    """A ledger whose first person was erased, with what they hold."""

    home: Path
    code: str
    waiting: str
    sealed: Path
    bundle: Path
    key: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> ReceiptStory:
    folder = tmp_path_factory.mktemp("receipts")
    with make(folder, clock=SettableClock(int(time.time()))) as ledger:
        home, key = ledger.folder, ledger.public_key
        request = ledger.requests.submit([person(1)], model="risk", verified=True)
    code = done("receipt", "code", request.id, "--ledger", home)["code"]
    with Ledger.open(home) as ledger:
        ledger.run_once(force=True)
        bundle = ledger.export(folder / "bundle", tier="auditor")
        waiting = ledger.requests.submit([person(2)], model="risk").id
    sealed = folder / "receipt.sealed"
    done("receipt", "export", request.id, "--out", sealed, "--ledger", home)
    return ReceiptStory(home, code, waiting, sealed, bundle, key)


def test_a_receipt_is_opened_and_checked_offline(story: ReceiptStory, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    words = ("receipt", "open", "-", "--sealed", story.sealed, "--out", file)
    opened = done(*words, "--bundle", story.bundle, "--key", story.key, stdin=story.code + "\n")
    levels = {level["level"]: level["passed"] for level in opened["levels"]}
    assert (opened["rows"], opened["left_out"]) == (2, 0)
    assert levels == {"V0": True, "V1": True, "V2": True, "V3": True, "W1": True}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = call("receipt", "check", file, "--bundle", story.bundle, "--key", story.key)
    assert (said.exit_code, "W1  pass    certificate 1 covers" in said.output) == (0, True)


def test_salts_go_to_a_file_of_their_own(story: ReceiptStory, tmp_path: Path) -> None:
    file, salts = tmp_path / "receipt.json", tmp_path / "salts.json"
    words = ("receipt", "open", story.code, "--sealed", story.sealed, "--out", file)
    shown = call(*words, "--salts", salts)
    rows = json.loads(file.read_bytes())
    document = json.loads(salts.read_bytes())
    certificate = (story.bundle / "certificates" / "000001.json").read_bytes()
    opened = open_envelope(certificate, Pinned.from_pinned(story.key))
    assert not any(item["salt"] in shown.output + file.read_text() for item in document)
    contents = list(encode_rows(copy_rows(X[2:4], Y[2:4], IDS[2:4])))
    for row, opening in zip(rows["rows"], document, strict=True):
        parts = {name: row[name] for name in ("slot", "before", "after")}
        parts |= {name: opening[name] for name in ("place", "salt")}
        receipt = json.dumps(
            parts | {"certificate": rows["certificate"]}, sort_keys=True, separators=(",", ":")
        )
        check_receipt(receipt.encode(), contents[opening["place"] - 2], opened)


@pytest.mark.parametrize("change", [(b'"slot":', b'"slot":1'), (b'"after":["', b'"after":["0')])
def test_a_changed_receipt_does_not_hold(
    change: tuple[bytes, bytes], story: ReceiptStory, tmp_path: Path
) -> None:
    file = tmp_path / "receipt.json"
    done("receipt", "open", story.code, "--sealed", story.sealed, "--out", file)
    file.write_bytes(file.read_bytes().replace(*change, 1))
    result = call("receipt", "check", file, "--bundle", story.bundle, "--key", story.key)
    assert (result.exit_code, "W1  FAIL" in result.output) == (1, True)


def test_what_cannot_be_done_is_said(story: ReceiptStory, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    typo = story.code[:-1] + ("0" if story.code[-1] != "0" else "1")
    cases: list[tuple[int, tuple[Any, ...], str]] = [
        (2, ("open", typo, "--sealed", story.sealed), "typing error"),
        (2, ("open", story.code), "--sealed FILE or --desk URL"),
        (2, ("open", story.code, "--desk", "desk.example.org"), "https://"),
        (3, ("open", story.code, "--sealed", file), "no file"),
        (
            1,
            ("open", story.code, "--sealed", story.bundle / "log.json"),
            "not an encrypted receipt",
        ),
        (2, ("check", story.sealed, "--bundle", story.bundle), "--key KEY"),
        (2, ("check", story.sealed), "--bundle DIR"),
        (3, ("export", story.waiting, "--out", file, "--ledger", story.home), "no receipt"),
        (3, ("export", "0" * 32, "--out", file, "--ledger", story.home), "unknown request"),
        (4, ("open", story.code, "--sealed", story.sealed, "--out", story.sealed), "exists"),
    ]
    for status, words, said in cases:
        result = call("receipt", *words)
        assert (result.exit_code, said in result.output) == (status, True), result.output
        assert story.code not in result.output


class _HttpResponse(io.BytesIO):
    """What `urlopen` returns."""


def test_the_desk_gets_the_public_key_only(
    story: ReceiptStory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, str]]] = []

    def answer(request: Any, timeout: float) -> _HttpResponse:
        body = json.loads(request.data)
        sent.append((request.full_url, body))
        with Ledger.open(story.home) as ledger:
            if "public_key" in body:
                sealed = ledger.certificates.receipts.get_encrypted(
                    body["request"], body["public_key"]
                )
                values: Any = {"sealed": sealed and base64.b64encode(sealed).decode()}
            else:
                covered = (
                    ledger.certificates.receipts.coverage(body["receipt"].encode()) is not None
                )
                values = {"covered": covered, "words": "as it is"}
        return _HttpResponse(json.dumps(values).encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    file, desk = tmp_path / "receipt.json", "http://localhost:8000/"
    done("receipt", "open", story.code, "--desk", desk, "--out", file)
    assert done("receipt", "check", file, "--desk", desk)["covered"]
    file.write_bytes(file.read_bytes().replace(b'"slot":', b'"slot":1', 1))
    assert call("receipt", "check", file, "--desk", desk).exit_code == 1
    assert [url.rpartition("/")[2] for url, _ in sent] == ["sealed", "check", "check"]
    assert sent[0][1].keys() == {"request", "public_key"}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (HTTPError("http://localhost", 429, "", None, None), 4),  # type: ignore[arg-type]
        (URLError("no server"), 5),
        (_HttpResponse(b"<html>"), 4),
        (_HttpResponse(b'{"sealed":null}'), 3),
    ],
    ids=["too many", "no server", "no JSON", "not yet"],
)
def test_a_desk_that_does_not_help_is_said(
    answer: Any, status: int, story: ReceiptStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(request: Any, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", respond)
    result = call("receipt", "open", story.code, "--desk", "http://localhost")
    assert result.exit_code == status, result.output
