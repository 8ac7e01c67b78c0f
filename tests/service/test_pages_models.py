"""Pages of models and plans: what they show, to whom, and what their forms do."""

import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB

import letheon
from letheon import NaiveUnlearner
from letheon.ledger.db.jobs import Jobs
from letheon.service.pages._shared import DRILLS, LEVEL_WORDS, MEASURES, make_templates
from tests.browser import chromium
from tests.service.desks import OTHER, Desk, make_desk, person
from tests.service.servers import serving

PAGES = (
    "/models",
    "/models/risk",
    f"/models/churn?tenant={OTHER}",
    "/models/risk/compare?a=0&b=2",
    "/models/risk/plan",
    "/models/new",
)


@cache
def figures() -> Any:
    return make_templates().env.get_template("figures.html").module


def words_of(text: str) -> str:
    """What a page says, without its marks."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text))).strip()


def csrf_of(client: TestClient, path: str = "/models") -> str:
    match = re.search(r'name="csrf" value="([^"]+)"', client.get(path).text)
    assert match is not None
    return match[1]


def send(client: TestClient, path: str, **given: Any) -> Any:
    data = {"csrf": csrf_of(client), **given.pop("data", {})}
    return client.post(path, data=data, **given)


def erase(desk: Desk, *numbers: int, model: str = "risk", tenant: str = "default") -> None:
    ids = [person(number) for number in numbers]
    desk.ledger.requests.submit(ids, model=model, tenant=tenant, verified=True)
    desk.work()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk whose models have versions; tests of this file only read it."""
    desk = make_desk(tmp_path_factory.mktemp("filled"))
    for numbers in ((1,), (2, 3), (4,)):
        desk.clock.now += 86_400
        erase(desk, *numbers)
    erase(desk, 5, model="churn", tenant=OTHER)
    desk.ledger.requests.submit([person(7)], model="risk", verified=True)
    yield desk
    desk.close()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_a_twin_in_json(filled: Desk, path: str) -> None:
    text = filled.browser("admin").get(path).text
    twin = re.search(r'rel="alternate" type="application/json" href="([^"]+)"', text)
    assert twin is not None
    assert filled.client("admin").get(unescape(twin[1])).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_every_control_has_a_name_for_a_screen_reader(filled: Desk, path: str) -> None:
    text = filled.browser("admin").get(path).text
    fields = re.findall(r"<(?:input|select|textarea)[^>]*>", text)
    shown = [field for field in fields if 'type="hidden"' not in field and "checkbox" not in field]
    ids = [re.search(r'\bid="([^"]+)"', one) for one in shown]
    labelled = set(re.findall(r'<label[^>]*for="([^"]+)"', text))
    bare = [one for one, actual in zip(shown, ids, strict=True) if actual is None]
    assert {actual[1] for actual in ids if actual} <= labelled
    assert all(re.search(r"<label[^>]*>[^§]*?" + re.escape(one), text) for one in bare)


@pytest.mark.parametrize("path", PAGES)
def test_no_id_stands_twice_and_headings_begin_at_the_top(filled: Desk, path: str) -> None:
    text = filled.browser("admin").get(path).text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("<h1>") == 1


def test_the_list_says_what_is_guaranteed_and_what_waits(filled: Desk) -> None:
    said = words_of(filled.browser("operator").get("/models").text)
    assert re.search(r"risk naive, version 3 · default Exact 72 no budget 1 none", said)
    assert re.search(r"churn naive, version 1 · rival", said)


def test_a_requester_sees_names_only(filled: Desk) -> None:
    client = filled.browser("requester")
    for path in ("/models", "/models/risk"):
        said = words_of(client.get(path).text)
        assert "risk" in said
        assert not re.search(r"naive|Exact|Remaining rows|Budget|version \d", said)


def test_another_tenants_model_is_as_one_that_is_not_there(filled: Desk) -> None:
    client = filled.browser(f"operator@{OTHER}")
    for path in ("/models/{}", "/models/{}/plan", "/models/{}/compare?a=0&b=1"):
        other, missing = client.get(path.format("risk")), client.get(path.format("nothing"))
        assert (other.status_code, missing.status_code) == (404, 404)
        assert other.text == missing.text.replace("nothing", "risk")
    assert "risk" not in words_of(client.get("/models").text)


@pytest.mark.parametrize(
    "path",
    [
        "/models?after=x",
        "/models/risk?after=-1",
        "/models/RISK'--",
        "/models/risk/plan?job=zz",
        "/models/risk/compare?a=0&b=x",
        "/models/risk/compare?a=0",
    ],
)
def test_an_address_that_makes_no_sense_is_refused(filled: Desk, path: str) -> None:
    assert filled.browser("admin").get(path).status_code == 422


def test_the_table_beside_the_charts_has_the_numbers_of_the_history(filled: Desk) -> None:
    text = filled.browser("auditor").get("/models/risk").text
    history = filled.client("auditor").get("/api/v1/models/risk/history").json()
    rows = re.findall(r'<tr data-at="(\d+)">(.*?)</tr>', text, re.DOTALL)
    assert len(rows) == len(history["items"]) == 4
    for (_, row), point in zip(rows, history["items"], strict=True):
        shown = re.findall(r'data-value="([^"]+)" data-basis="([^"]+)"', row)
        measures = [(point["measures"] or {}).get(name) for name in MEASURES]
        wanted = [(m["value"], m["basis"]) for m in measures if m and m["value"] is not None]
        assert [(float(value), basis) for value, basis in shown] == wanted
        assert f'data-value="{point["live_rows"]}"' in row


def test_versions_are_paged_and_each_has_an_anchor(filled: Desk) -> None:
    text = filled.browser("operator").get("/models/risk?after=2").text
    assert re.findall(r'<tr id="v(\d+)">', text) == ["1", "0"]
    assert "First page" in text


def test_two_versions_are_compared_as_the_api_does(filled: Desk) -> None:
    text = filled.browser("approver").get("/models/risk/compare?a=3&b=1").text
    document = filled.client("approver").get("/api/v1/models/risk/compare?a=3&b=1").json()
    differs, same = text.split('aria-label="Equal values"')
    lines = re.findall(r'<th scope="row" class="main-cell">([^<]+)</th>', differs)
    changed = [one["what"] for one in document["changes"] if one["changed"]]
    assert len(lines) == len(changed)
    assert {"Remaining rows", "SHA-256 of the model file"} <= set(lines)
    assert len(re.findall(r'class="main-cell">', same)) == len(document["changes"]) - len(lines)
    assert "6 rows were erased between these versions, with 2 certificates" in words_of(text)


@given(st.floats(0, 1), st.floats(1e-6, 1e3))
def test_a_gauge_says_its_share_in_words_and_as_a_width(share: float, budget: float) -> None:
    made = figures().budget({"spent": share * budget, "budget": budget})
    width = re.search(r'width="([0-9.e+-]+)%"', made)
    said = re.search(r'aria-label="(\d+) percent', made)
    assert width is not None
    assert said is not None
    assert float(width[1]) == pytest.approx(100 * share, abs=0.01)
    assert abs(int(said[1]) - 100 * share) <= 0.51


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0001, "&lt; 1 ms"),
        (0.0123, "12 ms"),
        (1.234, "1.2 s"),
        (59.6, "60 s"),
        (600, "10 min"),
        (10_000, "3 h"),
        (None, '<span class="soft">–</span>'),
    ],
)
def test_a_time_has_the_unit_that_fits(seconds: float | None, words: str) -> None:
    assert str(figures().duration(seconds)) == words


def test_every_measure_level_and_drill_has_words() -> None:
    assert list(MEASURES) == ["efficiency", "effectiveness", "consistency", "certifiability"]
    assert set(LEVEL_WORDS) == {"V0", "V1", "V2", "V3", "V4", "V5", "V6", "own"}
    assert set(DRILLS) == {"none", "model", "certificate", "log"}


# A new model.


def saved_model(folder: Path) -> tuple[bytes, bytes]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30, 2))
    y = (X[:, 0] > 0).astype(int)
    ids = [f"u{number}" for number in range(30)]
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    letheon.save(model, folder / "m.letheon")
    lines = ["a,b,label,who"] + [
        f"{row[0]!r},{row[1]!r},{label},{who}"
        for row, label, who in zip(X.tolist(), y.tolist(), ids, strict=True)
    ]
    return (folder / "m.letheon").read_bytes(), "\n".join(lines).encode()


def upload(client: TestClient, saved: tuple[bytes, bytes], **data: str) -> Any:
    model, rows = map(io.BytesIO, saved)
    files = {"model": ("m.letheon", model), "rows": ("r.csv", rows)}
    fields = {"name": "mine", "target": "label", "ids": "who", **data}
    return send(client, "/models/new", data=fields, files=files)


def test_an_uploaded_model_is_registered_and_shown(desk: Desk, tmp_path: Path) -> None:
    client = desk.browser("operator@default")
    answer = upload(client, saved_model(tmp_path), tenant="default")
    assert answer.status_code == 303, words_of(answer.text)
    assert answer.headers["location"] == "/models/mine"
    said = words_of(client.get("/models/mine").text)
    assert "Remaining rows 30" in said
    assert "Model registered." in said


def test_what_is_no_model_is_refused_and_the_form_keeps_what_was_sent(
    desk: Desk, tmp_path: Path
) -> None:
    client = desk.browser("operator")
    model, rows = saved_model(tmp_path)
    for sent in ((b"PK\x03\x04 no", rows), (model[:-40], rows), (model, b"a,b\n1,2\n")):
        answer = upload(client, sent, dataset="people-2026")
        assert answer.status_code == 422
        assert 'value="people-2026"' in answer.text
        assert re.search("cannot be|can be used|column not found", answer.text, re.IGNORECASE)
    assert [info.name for info in desk.ledger.models.list()] == ["risk", "churn", "forest"]


@pytest.mark.parametrize("field", ["name", "tenant", "dataset", "target", "releases"])
def test_markup_in_a_field_stays_text(desk: Desk, tmp_path: Path, field: str) -> None:
    answer = upload(
        desk.browser("operator"), saved_model(tmp_path), **{field: '"><script>alert(1)</script>'}
    )
    assert answer.status_code in (404, 409, 422)
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize("field", ["target", "ids"])
def test_an_unknown_column_is_named_with_the_columns_there_are(
    desk: Desk, tmp_path: Path, field: str
) -> None:
    answer = upload(desk.browser("operator"), saved_model(tmp_path), **{field: "salary"})
    assert answer.status_code == 422
    error = "rows.csv has no column 'salary'; its columns are a, b, label, who."
    assert error in unescape(answer.text)


def test_missing_files_and_fields_are_named(desk: Desk) -> None:
    client = desk.browser("operator")
    answer = send(client, "/models/new", data={"name": "mine", "target": "y"})
    assert (answer.status_code, "No file selected for model" in answer.text) == (422, True)
    answer = send(client, "/models/new", data={"name": "mine"})
    assert (answer.status_code, "Fill in both" in answer.text) == (422, True)


def test_an_example_is_added_with_a_button(desk: Desk) -> None:
    client = desk.browser("admin")
    answer = send(client, "/models/example", data={"kind": "sisa", "example_name": "wines"})
    assert answer.headers["location"] == "/models/wines?tenant=default"
    assert "sisa, dataset wines" in words_of(client.get(answer.headers["location"]).text)
    again = send(client, "/models/example", data={"kind": "sisa", "example_name": "wines"})
    assert again.status_code == 409
    assert send(client, "/models/example", data={"kind": "tree"}).status_code == 422


# The plan.


def test_the_plan_says_when_and_why(filled: Desk) -> None:
    said = words_of(filled.browser("approver").get("/models/risk/plan").text)
    assert "Waiting for more requests (batched until 50 rows or 72 h)." in said
    assert "Queued requests 1 1 person" in said
    assert "Apply now" not in said


def test_nothing_can_be_applied_while_nothing_is_queued(desk: Desk) -> None:
    client = desk.browser("operator")
    before = client.get("/models/risk/plan").text
    assert 'value="apply"' not in before
    assert 'disabled title="No requests are queued' in before
    desk.ledger.requests.submit([person(3)], model="risk", verified=True)
    after = client.get("/models/risk/plan").text
    assert "1 request with 2 rows will be applied" in after
    assert 'value="apply"' in after


def test_a_job_is_asked_for_watched_and_over(desk: Desk) -> None:
    client = desk.browser("operator")
    desk.ledger.requests.submit([person(3)], model="risk", verified=True)
    answer = send(client, "/models/risk/plan", data={"action": "apply"})
    where = answer.headers["location"]
    assert re.fullmatch(r"/models/risk/plan\?job=[0-9a-f]{32}", where)
    waiting = client.get(where).text
    assert f'hx-get="{where}" hx-trigger="every 1s" hx-select="#job"' in waiting
    assert '<noscript><meta http-equiv="refresh"' in waiting
    jobs = Jobs(desk.ledger)
    job = jobs.claim("test")
    assert job is not None
    jobs.add_progress(job, "applied <b>78</b> rows left")
    jobs.finish(job, {"steps": [{"what": "certified", "sequence": 4}, {"sequence": 4}]})
    over = client.get(where).text
    assert "hx-trigger" not in over
    assert "applied &lt;b&gt;78&lt;/b&gt; rows left" in over
    assert over.count('href="/certificates/4"') == 1


def test_a_job_that_failed_says_why(desk: Desk) -> None:
    jobs = Jobs(desk.ledger)
    job_id = jobs.add("retrain", tenant="default", model="risk").id
    job = jobs.claim("test")
    assert job is not None
    jobs.fail(job, "too-long", "it took too long")
    said = words_of(desk.browser("operator").get(f"/models/risk/plan?job={job_id}").text)
    assert "Retrain Failed" in said
    assert "it took too long" in said


def test_what_if_is_a_table_of_methods(desk: Desk) -> None:
    method = {
        "method": "sisa",
        "name": "SISAClassifier",
        "is_current": True,
        "seconds": 0.5,
        "speedup": 12.0,
        "basis": "extrapolated",
        "guarantee": "Exact: the model is what a fresh training gives.",
        "kind": "exact",
        "epsilon": None,
        "delta": None,
        "requests": "adaptive",
        "releases": "every-version",
        "storage_bytes": 2048,
        "note": "",
    }
    jobs = Jobs(desk.ledger)
    job_id = jobs.add("what-if", tenant="default", model="risk", asked={"people": 1}).id
    job = jobs.claim("test")
    assert job is not None
    result = {"rows_held": 80, "sample_rows": 40, "people": 1, "methods": [method]}
    jobs.finish(job, result)
    said = words_of(desk.browser("operator").get(f"/models/risk/plan?job={job_id}").text)
    assert "SISAClassifier in use Exact for observers of every version 500 ms 12×" in said
    assert "measured on 40 of them and extrapolated. Nothing was written to the ledger." in said


def test_a_job_of_another_tenant_is_not_shown(desk: Desk) -> None:
    job_id = Jobs(desk.ledger).add("apply", tenant=OTHER, model="churn").id
    client = desk.browser("operator@default")
    assert client.get(f"/models/risk/plan?job={job_id}").status_code == 404


def test_only_the_buttons_of_the_page_are_actions(desk: Desk) -> None:
    assert (
        send(desk.browser("operator"), "/models/risk/plan", data={"action": "x"}).status_code == 422
    )
    refused = desk.browser("operator").post("/models/risk/plan", data={"action": "apply"})
    assert refused.status_code == 403
    assert Jobs(desk.ledger).list_page().items == ()


# In a browser.


# Wide after narrow, and the reverse: a canvas is drawn again only after the layout.
WIDTHS = (400, 700, 900, 1200, 640, 1000, 480, 1300, 820, 1200, 400, 1400, 960)


@dataclass
class Seen:
    """What a browser saw on the page of a model."""

    drawn: int
    empty: int
    said: str
    ink: list[int]
    complaints: list[str]


def look(browser: Any, url: str, token: str, theme: str) -> Seen:
    """Open the page of a model on a narrow screen, and point at a chart."""
    context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=theme)
    page, complaints = context.new_page(), []
    page.on("console", lambda one: complaints.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{url}/login")
    page.fill("[name=token]", token)
    page.press("[name=token]", "Enter")
    page.wait_for_url(lambda where: "/login" not in where)
    page.goto(f"{url}/models/risk")
    page.wait_for_selector("figure[data-chart] canvas")
    page.locator("figure[data-chart=rows] .u-over").hover(position={"x": 4, "y": 40})
    seen = Seen(
        drawn=page.locator("figure[data-chart]:has(canvas)").count(),
        empty=page.locator("figure.is-empty").count(),
        said=page.locator("figure[data-chart=rows] output").inner_text(),
        ink=page.evaluate(INK),
        complaints=complaints,
    )
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        reached = page.evaluate("document.documentElement.scrollWidth")
        complaints += [f"{reached} pixels on a screen of {width}"] if reached > width else []
    context.close()
    return seen


# Whether the chart has points of the line's colour in the present theme; canvas turns what it
# cannot read into black.
INK = """() => {
  const canvas = document.querySelector("figure[data-chart=rows] canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = window.desk.colour("--chart-line").match(/[0-9]+/g).map(Number);
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] === 255 && wanted.every((part, place) => data[at + place] === part))
      return wanted;
  return [];
}"""


def test_charts_are_drawn_under_the_content_policy(filled: Desk, tmp_path: Path) -> None:
    shutil.copytree(filled.folder / "home", tmp_path / "home")
    token = filled.tokens["auditor"].text
    with serving(tmp_path / "home", "--no-worker") as server, chromium() as browser:
        light, dark = (look(browser, server.url, token, theme) for theme in ("light", "dark"))
    for seen in (light, dark):
        assert seen.complaints == []
        assert seen.drawn + seen.empty == len(MEASURES) + 2
        assert seen.drawn >= 5
        assert seen.said.startswith("80 rows, version 0, ")
    assert light.ink
    assert dark.ink
    assert light.ink != dark.ink
