"""CSV uploads: a right file is filed line by line, a wrong one is refused as a whole."""

import csv
import io
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.service.errors import ApiProblem
from letheon.service.routes import filing as uploads
from tests.service.desks import OTHER, Desk, person
from tests.sharded.people import examples

URL = "/api/v1/requests/upload"


def _send(
    desk: Desk, text: str | bytes, who: str = "operator", *, key: str | None = None, **form: str
) -> Any:
    data = text if isinstance(text, bytes) else text.encode()
    headers = {} if key is None else {"Idempotency-Key": key}
    files = {"file": ("people.csv", data, "text/csv")}
    return desk.client(who).post(URL, files=files, data=form, headers=headers)


def test_each_line_becomes_a_request(desk: Desk) -> None:
    lines = [f"risk,{person(1)},gdpr", "forest,7,ccpa", f'risk,"{person(2)}",']
    answer = _send(desk, "\ufeffmodel,id,regime\r\n" + "\r\n".join(lines) + "\r\n\r\n")
    assert answer.status_code == 200
    requests = [item["request"] for item in answer.json()["items"]]
    assert [(item["model"], item["regime"], item["n_rows"]) for item in requests] == [
        ("risk", "gdpr", 2),
        ("forest", "ccpa", 2),
        ("risk", "gdpr", 2),
    ]
    assert {item["state"] for item in requests} == {"received"}


def test_columns_stand_in_any_order_and_people_may_be_vouched_for(desk: Desk) -> None:
    text = f"key,ground,id,model\nk1,internal,{person(1)},risk\n"
    answer = _send(desk, text, verified="true").json()["items"][0]["request"]
    assert (answer["state"], answer["ground"]) == ("queued", "internal")
    assert _send(desk, text, "requester", verified="true").status_code == 403


def test_a_repeated_upload_gives_the_same_requests(desk: Desk) -> None:
    text = "model,id\n" + "".join(f"risk,{person(number)}\n" for number in range(20))
    first, again = (_send(desk, text, key="may").json()["items"] for _ in range(2))
    assert [item["request"]["id"] for item in first] == [item["request"]["id"] for item in again]
    assert [item["status"] for item in again] == [200] * 20
    assert desk.ledger.requests.count().total == 20


def test_an_unknown_id_is_reported_by_line_and_other_lines_are_filed(desk: Desk) -> None:
    answer = _send(desk, f"model,id\nrisk,mallory\nrisk,{person(3)}\n").json()
    assert [item["status"] for item in answer["items"]] == [422, 201]
    assert "mallory" not in str(answer)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", 1),
        (b"model;id\nrisk;a\n", 1),
        (b"id\na\n", 1),
        (b"model,id,id\nrisk,a,a\n", 1),
        (b"model,id,name\nrisk,a,mallory\n", 1),
        (b"model,id\n", 1),
        (b"model,id\nrisk,mallory,x\n", 2),
        (b"model,id\nrisk\n", 2),
        (b"model,id\n\nrisk,\n", 3),
        (b"model,id\nRisk!,mallory\n", 2),
        (b"model,id\nnone,mallory\n", 2),
        (b"model,id\n*,mallory\n", 2),
        (b"model,id\nforest,mallory\n", 2),
        (b"model,id\nforest,9223372036854775808\n", 2),
        ("model,id\nforest,\u0663\n".encode(), 2),
        (b"model,id,regime\nrisk,mallory,law\n", 2),
        (b"model,id,ground\nrisk,mallory,BECAUSE\n", 2),
        (b"model,id,key\nrisk,mallory,\x07\n", 2),
        (b"model,id\nrisk,mal\xfflory\n", 2),
        (b"model,id\nrisk,a\nrisk,mal\0lory\n", 3),
        (b'model,id\nrisk,"mallory\n', 2),
        (b'model,id\nrisk,"mal"lory\n', 2),
        (b"model,id\nrisk," + b"m" * 200_000 + b"\n", 2),
        (b"model,id\nrisk," + b"m" * 10_001 + b"\n", 2),
    ],
)
def test_a_wrong_file_is_refused_by_line_without_its_content(
    shared_desk: Desk, text: bytes, line: int
) -> None:
    before = shared_desk.ledger.requests.count().total
    answer = _send(shared_desk, text)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:letheon:problem:csv")
    assert answer.json()["errors"][0]["at"] == f"line {line}"
    assert "mal" not in answer.text
    assert len(answer.text) < 1000
    assert shared_desk.ledger.requests.count().total == before


def test_one_wrong_line_refuses_all_and_twenty_are_named(shared_desk: Desk) -> None:
    before = shared_desk.ledger.requests.count().total
    text = f"model,id\nrisk,{person(1)}\n" + "forest,x\n" * 30
    answer = _send(shared_desk, text)
    assert answer.status_code == 422
    assert [error["at"] for error in answer.json()["errors"]] == [f"line {n}" for n in range(3, 23)]
    assert shared_desk.ledger.requests.count().total == before


def test_a_file_has_ten_thousand_lines_at_most(shared_desk: Desk) -> None:
    answer = _send(shared_desk, "model,id\n" + "risk,a\n" * 10_001)
    assert (answer.status_code, answer.json()["errors"][0]["at"]) == (422, "line 10002")


@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"file": "model,id\n"}},
        {"files": {"other": ("a.csv", b"model,id\n")}},
        {"files": [("file", ("a.csv", b"model,id\n"))] * 2},
        {"files": {"file": ("a.csv", b"model,id\n")}, "data": {"verified": "yes"}},
        {"files": {"file": ("a.csv", b"model,id\n")}, "data": {"name": "mallory"}},
        {"files": {"file": ("a.csv", b"model,id\n")}, "data": {"tenant": "x" * 2000}},
        {"content": b"model,id\n", "headers": {"Content-Type": "text/csv"}},
        {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": b"--y\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {
            "content": b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n",
            "headers": {"Content-Type": "multipart/form-data; boundary=x"},
        },
    ],
)
def test_a_malformed_form_is_refused(shared_desk: Desk, sent: dict[str, Any]) -> None:
    answer = shared_desk.client("operator").post(URL, **sent)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:letheon:problem:form")
    assert "mallory" not in answer.text


def test_a_file_that_is_too_large_is_refused_while_it_is_read(shared_desk: Desk) -> None:
    most = shared_desk.app.state.context.settings.max_upload_bytes
    answer = _send(shared_desk, b"model,id\n" + b"x" * most)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:letheon:problem:too-large")


def test_a_strangers_file_is_not_read(shared_desk: Desk) -> None:
    answer = shared_desk.client(None).post(URL, content=b"", headers={"Content-Type": "text/csv"})
    assert answer.status_code == 401
    assert _send(shared_desk, "", "auditor").status_code == 403


def test_no_upload_is_written_to_a_temporary_file(
    shared_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a temporary file")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    padding = "\n" * (3 << 20)
    answer = _send(shared_desk, f"model,id\nrisk,{person(1)}\n{padding}")
    assert answer.status_code == 200


def test_other_tenants_models_are_as_if_they_were_not_there(shared_desk: Desk) -> None:
    there = _send(shared_desk, f"model,id\nchurn,{person(1)}\n", "operator@default")
    absent = _send(shared_desk, f"model,id\nnone,{person(1)}\n", "operator@default")
    assert there.status_code == absent.status_code == 422
    assert {**there.json(), "instance": ""} == {**absent.json(), "instance": ""}
    other = _send(shared_desk, f"model,id\nchurn,{person(1)}\n", tenant=OTHER)
    assert other.json()["n_done"] == 1
    assert _send(shared_desk, "model,id\n", "operator@default", tenant=OTHER).status_code == 404


_CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@examples(200)
@given(st.lists(st.tuples(_CELLS, _CELLS), min_size=1, max_size=6))
def test_what_a_csv_writer_writes_is_read_again(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("id", "model"), *rows])
    values = [row for _, row in uploads.read_rows(text.getvalue().encode())]
    assert [(row["id"], row["model"]) for row in values] == rows


@examples(300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        rows = list(uploads.read_rows(b"model,id\n" + data))
    except ApiProblem as problem:
        assert problem.code == "csv"  # noqa: PT017  (either outcome is right)
    else:
        assert all(set(row) == {"model", "id"} for _, row in rows)
