"""Models, their versions, and models that come to the desk."""

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

import letheon
from letheon import NaiveUnlearner
from letheon.ledger.certificates.explanations import ASSUMPTIONS, NOT_CLAIMED, explain_guarantee
from letheon.service import ServiceSettings
from letheon.service.routes import registration
from tests.ledger.forgetters import MAKERS, erased
from tests.service.desks import Desk, make_desk, person

ROOT = Path(__file__).resolve().parents[2]
MARK = "4242.4242424242"


class UploadFiles(NamedTuple):
    """The files of an upload."""

    model: bytes
    rows: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> UploadFiles:
    """A saved model and its rows; one value is easy to look for in an answer."""
    X = np.random.default_rng(5).normal(size=(30, 2)).round(6)
    X[3, 0] = float(MARK)
    y = (X[:, 1] > 0).astype(int)
    people = [f"client-{number:03d}" for number in range(30)]
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=people)
    path = tmp_path_factory.mktemp("files") / "model.letheon"
    letheon.save(model, path)
    lines = [
        f"{who},{a!r},{label},{b!r}"
        for who, (a, b), label in zip(people, X.tolist(), y, strict=True)
    ]
    return UploadFiles(path.read_bytes(), "\n".join(["who,a,label,b", *lines]) + "\n")


def send(desk: Desk, model: bytes, rows: str, *, who: str = "operator", **fields: str) -> Any:
    given = {"name": "brought", "target": "label", "ids": "who"} | fields
    return desk.client(who).post(
        "/api/v1/models",
        data={name: value for name, value in given.items() if value},
        files={"model": ("any.letheon", model), "rows": ("any.csv", rows.encode())},
    )


def rooms(desk: Desk) -> list[Path]:
    return list((desk.ledger.folder / ".desk").glob("*"))


def test_a_saved_model_is_registered_and_forgets(desk: Desk, files: UploadFiles) -> None:
    made = send(desk, *files, dataset="visits")
    assert made.status_code == 201, made.text
    assert made.json()["live_rows"] == 30
    assert made.json()["dataset"] == "visits"
    desk.ledger.requests.submit(["client-007"], model="brought", verified=True)
    desk.work()
    shown = desk.client("auditor").get("/api/v1/models/brought").json()
    assert (shown["live_rows"], shown["version"], shown["certificate"]) == (29, 1, 1)
    assert rooms(desk) == []


def _cut(files: UploadFiles) -> UploadFiles:
    return files._replace(model=files.model[:-7])


def _altered(files: UploadFiles) -> UploadFiles:
    middle = len(files.model) // 2
    flipped = bytes([files.model[middle] ^ 1])
    return files._replace(model=files.model[:middle] + flipped + files.model[middle + 1 :])


def _zipped(files: UploadFiles) -> UploadFiles:
    data = io.BytesIO()
    np.savez(data, X=np.zeros(3))
    return files._replace(model=data.getvalue())


def _pickled(files: UploadFiles) -> UploadFiles:
    return files._replace(model=b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.")


def _other_value(files: UploadFiles) -> UploadFiles:
    return files._replace(rows=files.rows.replace(MARK, "1.0"))


def _other_people(files: UploadFiles) -> UploadFiles:
    return files._replace(rows=files.rows.replace("client-003", "client-777"))


def _texts_for_numbers(files: UploadFiles) -> UploadFiles:
    return files._replace(rows=files.rows.replace("client-004,", f"client-004,x{MARK}"))


def _no_header(files: UploadFiles) -> UploadFiles:
    return files._replace(rows=files.rows.partition("\n")[2])


def _binary_rows(files: UploadFiles) -> UploadFiles:
    return files._replace(rows=f"who,a\n\0\0{MARK}\n" * 3)


@pytest.mark.parametrize(
    ("spoil", "status", "code"),
    [
        (_cut, 422, "model-file"),
        (_altered, 422, "model-file"),
        (_zipped, 422, "model-file"),
        (_pickled, 422, "model-file"),
        (_other_value, 409, "refused"),
        (_other_people, 409, "refused"),
        (_texts_for_numbers, 422, "model"),
        (_no_header, 422, "rows"),
        (_binary_rows, 422, "rows"),
    ],
)
def test_what_cannot_be_used_is_refused_without_a_trace(
    shared_desk: Desk, files: UploadFiles, spoil: Any, status: int, code: str
) -> None:
    answer = send(shared_desk, *spoil(files), name="spoilt")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (status, code)
    assert not re.search(f"{MARK}|client-|{shared_desk.ledger.folder}", answer.text)
    assert rooms(shared_desk) == []
    assert "spoilt" not in [info.name for info in shared_desk.ledger.models.list()]


def test_a_model_of_an_untrusted_class_is_refused(
    shared_desk: Desk, files: UploadFiles, tmp_path: Path
) -> None:
    path = tmp_path / "own.letheon"
    X = np.random.default_rng(0).normal(size=(8, 2))
    letheon.save(NaiveUnlearner(OwnModel(), random_state=0).fit(X, X[:, 0] > 0), path)
    answer = send(shared_desk, path.read_bytes(), files.rows, name="own")
    assert answer.status_code == 422
    assert "--trust" in answer.json()["detail"]


def test_a_model_that_would_read_files_of_the_server_is_refused(
    shared_desk: Desk, tmp_path: Path
) -> None:
    pd = pytest.importorskip("pandas")
    names = [str(tmp_path / name) for name in ("a", "b")]
    for name in names:
        Path(name).write_text(f"words {name[-1] * 3}")
    table = pd.DataFrame({"file": names * 6})
    reader = ColumnTransformer([("files", CountVectorizer(input="filename"), "file")])
    model = NaiveUnlearner(make_pipeline(reader, LogisticRegression()), random_state=0)
    people = [f"client-{number}" for number in range(12)]
    letheon.save(model.fit(table, [0, 1] * 6, ids=people), tmp_path / "model.letheon")
    lines = [
        f"{who},{name},{i % 2}" for i, (who, name) in enumerate(zip(people, names * 6, strict=True))
    ]
    rows = "\n".join(["who,file,label", *lines])
    answer = send(shared_desk, (tmp_path / "model.letheon").read_bytes(), rows, name="reader")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "model-file")
    assert "a setting that this desk does not trust" in answer.json()["detail"]
    assert "reader" not in [info.name for info in shared_desk.ledger.models.list()]


class OwnModel(GaussianNB):  # type: ignore[misc]
    """A class that is not letheon's nor scikit-learn's."""


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "No Name"},
        {"target": ""},
        {"releases": "all"},
        {"unknown": MARK},
        {"ids": "i" * 201},
    ],
)
def test_fields_that_cannot_be_used_are_named_and_not_repeated(
    shared_desk: Desk, files: UploadFiles, fields: dict[str, str]
) -> None:
    answer = send(shared_desk, files.model, files.rows, **dict[str, Any](fields))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:letheon:problem:invalid")
    (field,) = fields
    place = "body" if field == "unknown" else f"body/{field}"
    assert [error["at"] for error in answer.json()["errors"]] == [place]
    assert MARK not in answer.text


def test_a_form_without_its_files_is_refused(shared_desk: Desk, files: UploadFiles) -> None:
    client = shared_desk.client("operator")
    for parts in ({}, {"model": files.model}, {"rows": files.rows.encode()}):
        given = {name: ("x", data) for name, data in parts.items()} or {"other": ("x", b"")}
        answer = client.post("/api/v1/models", data={"name": "x", "target": "y"}, files=given)
        assert answer.json()["type"] == "urn:letheon:problem:form"
    assert client.post("/api/v1/models", json={}).status_code in (415, 422)


@pytest.mark.parametrize(("who", "status"), [(None, 401), ("approver", 403)])
def test_the_body_of_a_stranger_is_not_read(
    shared_desk: Desk, who: str | None, status: int
) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send_back(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=b")]
    if who is not None:
        headers.append((b"authorization", f"Bearer {shared_desk.tokens[who].text}".encode()))
    path = "/api/v1/models"
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
    }
    scope |= {"headers": headers, "query_string": b"", "client": ("127.0.0.1", 1), "scheme": "http"}
    scope |= {"http_version": "1.1", "server": ("localhost", 80), "root_path": ""}
    asyncio.run(shared_desk.app(scope, receive, send_back))
    assert sent[0]["status"] == status


def test_one_model_is_registered_at_a_time(
    shared_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_PATIENCE", 0.01)
    with registration._quiet:
        answer = shared_desk.client("operator").post("/api/v1/models/example", json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "example-forest" not in [info.name for info in shared_desk.ledger.models.list()]


def test_a_name_that_is_taken_is_refused(shared_desk: Desk, files: UploadFiles) -> None:
    answer = send(shared_desk, *files, name="risk")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:letheon:problem:refused")


def test_people_who_asked_to_be_erased_do_not_come_back(desk: Desk, files: UploadFiles) -> None:
    assert send(desk, *files).status_code == 201
    desk.ledger.requests.submit(["client-001"], model="brought", verified=True)
    answer = send(desk, *files, name="again")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:letheon:problem:blocked")
    assert "client-001" not in answer.text


def test_a_body_that_is_too_large_is_refused(tmp_path: Path, files: UploadFiles) -> None:
    desk = make_desk(tmp_path, settings=ServiceSettings(max_model_bytes=2_000))
    assert send(desk, *files).status_code == 413
    assert rooms(desk) == []
    desk.close()


def test_a_tenants_operator_registers_for_that_tenant_only(desk: Desk, files: UploadFiles) -> None:
    assert send(desk, *files, who="operator@rival").json()["tenant"] == "rival"
    assert send(desk, *files, who="operator@rival", tenant="default").status_code == 404
    assert desk.client("operator@default").get("/api/v1/models/brought").status_code == 404


@pytest.mark.parametrize(
    ("kind", "guarantee"),
    [("forest", "exact"), ("sisa", "exact"), ("certified", "certified")],
)
def test_an_example_is_trained_with_a_seed_of_the_log(
    shared_desk: Desk, kind: str, guarantee: str
) -> None:
    made = shared_desk.client("operator").post("/api/v1/models/example", json={"kind": kind})
    document = made.json()
    assert (made.status_code, document["name"]) == (201, f"example-{kind}")
    assert document["guarantee"]["kind"] == guarantee
    if kind == "certified":
        assert 0 == document["budget"]["spent"] < document["budget"]["budget"]
    else:
        assert document["budget"] is None
    everyone = [f"person-{number:04d}" for number in range(1, document["live_rows"] + 1)]
    named = shared_desk.ledger.requests.submit(everyone, model=document["name"])
    assert (named.n_ids, named.n_rows) == (document["live_rows"], document["live_rows"])


def test_examples_get_names_that_are_free_and_leave_out_who_left(desk: Desk) -> None:
    client = desk.client("operator")
    first = client.post("/api/v1/models/example", json={"kind": "sisa"}).json()
    desk.ledger.requests.submit(["person-0002"], model=first["name"], verified=True)
    second = client.post("/api/v1/models/example", json={"kind": "sisa"}).json()
    assert second["name"] == "example-sisa-2"
    assert second["live_rows"] == first["live_rows"] - 1


def test_a_requester_sees_names_only(shared_desk: Desk) -> None:
    listed = shared_desk.client("requester").get("/api/v1/models").json()["items"]
    one = shared_desk.client("requester").get("/api/v1/models/risk").json()
    for model in (*listed, one):
        told = {name for name, value in model.items() if value is not None}
        assert told == {"name", "tenant", "dataset"}
    assert shared_desk.client("requester").get("/api/v1/models/risk/versions").status_code == 403


def test_another_tenants_model_is_like_none(shared_desk: Desk) -> None:
    client = shared_desk.client("operator@rival")

    def told(path: str) -> dict[str, Any]:
        return {k: v for k, v in client.get(path).json().items() if k != "instance"}

    for end in ("", "/versions", "/versions/0", "/compare?a=0&b=0", "/history"):
        missing = told(f"/api/v1/models/missing{end}")
        assert missing["status"] == 404
        assert told(f"/api/v1/models/risk{end}") == missing
        joint = "&" if "?" in end else "?"
        assert told(f"/api/v1/models/risk{end}{joint}tenant=default") == missing
    assert [item["name"] for item in client.get("/api/v1/models").json()["items"]] == ["churn"]


def test_pages_of_models_are_the_whole_list(shared_desk: Desk) -> None:
    client, items, after = shared_desk.client("auditor"), [], ""
    while after is not None:
        page = client.get(f"/api/v1/models?limit=1{after and '&after=' + after}").json()
        items += [item["name"] for item in page["items"]]
        after = page["next"]
    assert items == [info.name for info in shared_desk.ledger.models.list()]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk whose model has four versions, the third a retrain."""
    desk = make_desk(tmp_path_factory.mktemp("worked"))
    for number in (1, 2):
        desk.ledger.requests.submit([person(number)], model="risk", verified=True)
        desk.work()
    desk.ledger.models.retrain("risk")
    desk.ledger.requests.submit([person(3), person(4)], model="risk", verified=True)
    desk.work()
    yield desk
    desk.close()


def test_versions_come_newest_first_page_by_page(worked: Desk) -> None:
    client = worked.client("auditor")
    first = client.get("/api/v1/models/risk/versions?limit=3").json()
    rest = client.get(f"/api/v1/models/risk/versions?after={first['next']}").json()
    items = [*first["items"], *rest["items"]]
    kinds = ["erase", "retrain", "erase", "erase", "registration"]
    assert [item["number"] for item in items] == [4, 3, 2, 1, 0]
    assert [item["kind"] for item in items] == kinds
    assert [item["rows_erased"] for item in items] == [4, 0, 2, 2, 0]
    assert (first["total"], rest["next"]) == (5, None)
    assert items[0] == client.get("/api/v1/models/risk/versions/4").json()


def test_versions_agree_with_their_certificates(worked: Desk) -> None:
    client = worked.client("auditor")
    for version in client.get("/api/v1/models/risk/versions").json()["items"][:-1]:
        said = client.get(f"/api/v1/certificates/{version['certificate']}").json()
        assert version["address"] == said["subject"]
        assert version["live_rows"] == said["rows_left"]
        for name in ("guarantee", "budget", "measures", "method"):
            assert version[name] == said[name]


def test_two_versions_side_by_side(worked: Desk) -> None:
    client = worked.client("auditor")
    comparison = client.get("/api/v1/models/risk/compare?a=4&b=1").json()
    assert (comparison["a"]["number"], comparison["b"]["number"]) == (1, 4)
    assert (comparison["rows_erased"], comparison["certificates"]) == (6, [2, 3, 4])
    assert comparison["same_parameters"] is True
    changed = {line["what"] for line in comparison["changes"] if line["changed"]}
    assert {"address", "live rows"} <= changed
    assert "method" not in changed
    same = client.get("/api/v1/models/risk/compare?a=2&b=2").json()
    assert [line for line in same["changes"] if line["changed"]] == []
    retrained = client.get("/api/v1/models/risk/compare?a=2&b=3").json()
    assert retrained["same_parameters"] is True


def test_a_version_that_is_not_there(worked: Desk) -> None:
    answer = worked.client("auditor").get("/api/v1/models/risk/versions/99")
    assert answer.json()["type"] == "urn:letheon:problem:unknown-version"


def test_every_assumption_of_letheons_methods_has_words() -> None:
    codes = {
        code
        for maker in MAKERS.values()
        for code in erased(maker).facts["guarantee"]["assumptions"]
    }
    assert codes
    assert codes - ASSUMPTIONS.keys() == set()


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())
def test_words_say_no_more_than_the_codes(maker: Any) -> None:
    section = erased(maker).facts["guarantee"]
    words = explain_guarantee(section)
    assert words.lower().startswith(section["kind"])
    assert ("e^" in words) == (section["kind"] == "certified")
    assert ("no bound is proved" in words) == (section["kind"] == "empirical")


def test_words_for_limits_are_those_of_the_documents() -> None:
    page = (ROOT / "docs" / "definitions.md").read_text("utf-8")
    table = page.partition("## Not claimed\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", table, re.MULTILINE)) == NOT_CLAIMED
