"""What the next batch would be, what it would cost, and what would be guaranteed."""

import threading
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from letheon import DaREForestClassifier, InfluenceClassifier, SISARegressor, state
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.models.examine import copy_rows
from letheon.ledger.tables import events
from letheon.methods import METHODS as REGISTERED
from letheon.sandbox import TimeLimitError
from letheon.service import jobs, what_if
from letheon.service.jobs import READING_KINDS, JobRunner
from letheon.service.what_if import RETRAIN, WhatIfOrder, measure_methods
from tests.service.desks import Desk, person
from tests.service.test_worker import _call_here

KINDS = {"retrain": "exact"} | {
    method.name: method.certificate
    for method in REGISTERED
    if method.is_candidate and method.module != "letheon.deep"
}
METHODS = set(KINDS)


def _rows(n: int = 200, *, numbers: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 4))
    y = X[:, 0] + 0.1 * rng.normal(size=n)
    ids = [f"person-{number // 2:04d}" for number in range(n)]
    return X, y if numbers else (y > 0).astype(int), ids


def _order(model: Any, data: tuple[Any, Any, Any], **given: Any) -> WhatIfOrder:
    X, y, ids = data
    fitted = model.fit(X, y, ids=ids)
    rows = state.encode(copy_rows(X, y, ids))
    return WhatIfOrder(state.encode(fitted), rows, (), **({"people": 3} | given))


def _measured(order: WhatIfOrder) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    heard: list[dict[str, Any]] = []
    measure_methods(order, heard.append)
    rows = {item["row"]["name"]: item["row"] for item in heard if "row" in item}
    begun = [item["begin"] for item in heard if "begin" in item]
    assert begun == list(rows)
    return heard[0]["sizes"], rows


@pytest.fixture(scope="module")
def forest() -> WhatIfOrder:
    return _order(DaREForestClassifier(n_estimators=3, random_state=0), _rows())


def test_every_method_is_measured_against_a_retrain(forest: WhatIfOrder) -> None:
    scene, rows = _measured(forest)
    assert scene == {"rows_held": 200, "sample_rows": 200, "people": 3, "sample_people": 3}
    assert {row["method"] for row in rows.values()} == METHODS
    retrain = rows["retrain"]
    assert retrain["speedup"] == 1.0
    for row in rows.values():
        assert row["basis"] == "measured", row
        assert row["speedup"] == pytest.approx(retrain["seconds"] / row["seconds"], rel=0.02)
    assert [row["method"] for row in rows.values() if row["is_current"]] == ["dare"]


def test_what_is_guaranteed_is_what_the_models_say(forest: WhatIfOrder) -> None:
    rows = {item["method"]: item for item in _measured(forest)[1].values()}
    kinds = {name: row["kind"] for name, row in rows.items()}
    assert kinds == KINDS
    for row in rows.values():
        assert (row["epsilon"] is not None) == (row["kind"] == "certified")
        assert row["guarantee"].lower().startswith(row["kind"])


def test_of_many_rows_a_sample_is_taken_and_called_so(forest: WhatIfOrder) -> None:
    sampled = WhatIfOrder(forest.model, forest.rows, (), people=20, sample_rows=100)
    scene, rows = _measured(sampled)
    assert scene == {"rows_held": 200, "sample_rows": 100, "people": 20, "sample_people": 10}
    assert {row["basis"] for row in rows.values()} == {"extrapolated"}


def test_seconds_and_bytes_of_a_sample_are_scaled(
    forest: WhatIfOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        what_if, "_run_method", lambda inputs, method: (2.0 * inputs.scale, 10, _FACTS)
    )
    sampled = WhatIfOrder(forest.model, forest.rows, (), people=20, sample_rows=50)
    rows = _measured(sampled)[1]
    assert {(row["seconds"], row["storage_bytes"]) for row in rows.values()} == {(8.0, 40)}


_FACTS = {
    "guarantee": {
        "kind": "exact",
        "requests": "oblivious",
        "releases": "latest-only",
        "accounting": {"rule": "none", "deletionsSinceRetrain": 0},
    }
}


def test_a_method_that_does_not_serve_the_task_says_why() -> None:
    from sklearn.tree import DecisionTreeRegressor

    model = SISARegressor(DecisionTreeRegressor(), n_shards=2, random_state=0)
    rows = {
        item["method"]: item for item in _measured(_order(model, _rows(numbers=True)))[1].values()
    }
    assert rows["sisa"]["is_current"]
    assert rows["dare"]["basis"] == rows["influence"]["basis"] == "measured"
    assert rows["fisher"]["basis"] == "not-run"
    assert "regression" in rows["fisher"]["note"]


def test_an_error_of_a_method_is_not_quoted(
    forest: WhatIfOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: Any) -> Any:
        raise ValueError("row of alice: 12.5")

    monkeypatch.setattr(what_if, "_train_method", boom)
    rows = _measured(forest)[1]
    assert {row["basis"] for row in rows.values()} == {"not-run"}
    assert "alice" not in str(rows)
    assert all("ValueError" in row["note"] for row in rows.values())


def _recorded(desk: Desk) -> list[str]:
    with desk.ledger._core.database.reading() as conn:
        return list(conn.scalars(select(events.c.body).order_by(events.c.id)))


def test_nothing_is_written_to_the_ledger_by_a_what_if(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "call", _call_here)
    desk.ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    before = _recorded(desk), desk.ledger.models.list()
    job = desk.client("operator").post("/api/v1/models/risk/what-if").json()
    assert JobRunner(desk.ledger, threading.Event()).run_all(READING_KINDS) == 1
    shown = desk.client("operator").get(f"/api/v1/jobs/{job['id']}").json()
    assert shown["result"]["people"] == 2
    assert {method["method"] for method in shown["result"]["methods"]} >= METHODS - {"sisa"}
    assert next(line["words"] for line in shown["progress"]) == "measuring retrain"
    assert (_recorded(desk), desk.ledger.models.list()) == before


def test_a_method_that_takes_too_long_is_left_out_and_the_rest_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[WhatIfOrder] = []

    def stuck(work: Any, order: WhatIfOrder, *, report: Any, **given: Any) -> Any:
        orders.append(order)

        def hear(message: dict[str, Any]) -> None:
            report(message)
            if message.get("method") == "deltagrad" and "begin" in message:
                raise TimeLimitError

        return _call_here(work, order, report=hear, **given)

    monkeypatch.setattr(jobs, "call", stuck)
    job = Jobs(desk.ledger).add("what-if", tenant="default", model="forest", asked={"people": 1})
    JobRunner(desk.ledger, threading.Event(), method_seconds=7).run_all(READING_KINDS)
    job_record = Jobs(desk.ledger).find(job.id)
    assert job_record is not None
    rows = {method["method"]: method for method in (job_record.result or {})["methods"]}
    assert rows["deltagrad"]["note"] == "it took more than 7 s"
    assert set(rows) == METHODS
    assert len(orders) == 2
    assert orders[1].baseline == rows[RETRAIN]["seconds"]


def test_the_plan_says_what_waits_and_why(desk: Desk) -> None:
    client = desk.client("operator")
    empty = client.get("/api/v1/models/risk/plan").json()
    assert (empty["requests"], empty["reason"], empty["seal"]) == (0, "nothing-queued", False)
    assert empty["cost"]["basis"] == "unknown"
    desk.ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    plan = client.get("/api/v1/models/risk/plan").json()
    assert (plan["requests"], plan["people"], plan["rows"]) == (1, 2, 4)
    assert plan["reason"] == "waiting"
    assert plan["when_next"] is not None
    assert plan["now"]["kind"] == plan["after"]["kind"] == "exact"
    assert plan["now"]["budget"] is None


def test_costs_are_those_that_were_measured(desk: Desk) -> None:
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    desk.work()
    cost = desk.client("operator").get("/api/v1/models/risk/plan").json()["cost"]
    assert (cost["basis"], cost["batches"]) == ("measured", 1)
    assert cost["retrain_basis"] == "extrapolated"
    assert cost["speedup"] == pytest.approx(cost["retrain_seconds"] / cost["seconds"], rel=0.02)


@pytest.fixture
def certified(desk: Desk) -> Desk:
    """A desk with a certified model that has spent some of its budget."""
    # A model that is settled after each removal has spent next to nothing.
    object.__setattr__(desk.ledger.settings.policy, "settle", False)
    X, y, ids = _rows(600)
    model = InfluenceClassifier(l2=0.05, sigma=0.0008, random_state=0).fit(X, y, ids=ids)
    desk.ledger.models.register(model, X, y, ids=ids, name="credit")
    desk.ledger.requests.submit(["person-0001"], model="credit", verified=True)
    desk.work()
    return desk


def test_what_will_be_spent_grows_at_the_rate_so_far(certified: Desk) -> None:
    client = certified.client("operator")
    certified.ledger.requests.submit(["person-0002"], model="credit", verified=True)
    plan = client.get("/api/v1/models/credit/plan").json()
    spent = certified.ledger.models.spending("credit")[-1][1]
    budget = plan["now"]["budget"]
    assert plan["now"]["kind"] == "certified"
    assert plan["now"]["spent"] >= spent
    assert plan["kind"] == "erase"
    assert min(2 * spent, budget) <= plan["after"]["spent"] <= budget
    assert plan["after"]["spent"] > plan["now"]["spent"]


def test_a_batch_that_the_budget_does_not_cover_is_announced_as_a_retrain(
    certified: Desk,
) -> None:
    people = [f"person-{number:04d}" for number in range(10, 290)]
    request = certified.ledger.requests.submit(people, model="credit", verified=True)
    if request.state == "verified":
        certified.ledger.requests.approve(request.id)
    plan = certified.client("operator").get("/api/v1/models/credit/plan").json()
    assert plan["retrain_due"]
    assert plan["kind"] == "retrain"
    assert (plan["after"]["kind"], plan["after"]["spent"]) == ("exact", 0)
    assert "budget" in plan["retrain_words"]


def test_a_plan_names_the_job_that_is_not_over(desk: Desk) -> None:
    client = desk.client("operator")
    assert client.get("/api/v1/models/risk/plan").json()["job"] is None
    job = client.post("/api/v1/models/risk/apply").json()
    assert client.get("/api/v1/models/risk/plan").json()["job"] == job["id"]
    assert client.post("/api/v1/models/risk/apply").json()["id"] == job["id"]


@pytest.mark.parametrize("path", ["apply", "retrain", "what-if"])
def test_another_tenants_model_is_as_if_it_were_not_there(desk: Desk, path: str) -> None:
    client = desk.client("operator@default")
    theirs = client.post(f"/api/v1/models/churn/{path}")
    none = client.post(f"/api/v1/models/missing/{path}")
    assert theirs.status_code == none.status_code == 404
    assert theirs.json() | {"instance": ""} == none.json() | {"instance": ""}
    assert client.post(f"/api/v1/models/churn/{path}?tenant=rival").status_code == 404
    assert (
        desk.client("operator").post(f"/api/v1/models/churn/{path}?tenant=rival").json()["tenant"]
        == "rival"
    )


def test_only_who_runs_batches_may_ask(desk: Desk) -> None:
    for name in ("requester", "approver", "auditor"):
        assert desk.client(name).post("/api/v1/models/risk/apply").status_code == 403
