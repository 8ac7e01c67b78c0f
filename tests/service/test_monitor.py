"""Measures over time, tolerances, and the forecast of the next retrain."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import theilslopes

from letheon import InfluenceClassifier
from letheon.ledger.models.models import _cache
from letheon.monitor import Monitor, MonitorTolerances
from letheon.service.guarantees import compute_slope, forecast_budget
from tests.ledger.databases import NOON
from tests.service.desks import Desk, make_desk
from tests.sharded.people import examples

DAY = 86_400
TODAY = datetime.fromtimestamp(NOON, UTC).date()

times = st.integers(0, 1000)
amounts = st.floats(0, 1, allow_subnormal=False).map(lambda value: round(value, 6))
points = st.lists(st.tuples(times, amounts), min_size=2, max_size=30)


@examples(100)
@given(points)
def test_the_slope_is_that_of_theil_and_sen(pairs: list[tuple[int, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    ours = compute_slope(pairs)
    if len(set(x)) == 1:
        assert ours is None
    else:
        # SciPy also computes an interval, which need not exist.
        with np.errstate(invalid="ignore"):
            assert ours == pytest.approx(theilslopes(y, x).slope, abs=1e-12)


def line(days: int, per_day: float) -> list[tuple[int, float]]:
    """Return what a model spent that loses as much each day, up to now."""
    return [(NOON - (days - day) * DAY, day * per_day) for day in range(days + 1)]


@examples(100)
@given(st.integers(2, 60), st.floats(1e-3, 0.01))
def test_a_steady_rate_is_continued(days: int, per_day: float) -> None:
    spent = line(days, per_day)
    left = (1 - spent[-1][1]) / per_day
    outcome = forecast_budget(spent, 1.0, NOON)
    assert outcome.on is not None
    assert abs((outcome.on - TODAY).days - left) <= 1


def test_one_large_request_does_not_move_the_forecast_as_a_line_would() -> None:
    spent = line(30, 0.01)
    jump = [(at, value + (0.3 if place >= 29 else 0)) for place, (at, value) in enumerate(spent)]
    due_day = forecast_budget(jump, 1.0, NOON).on
    assert due_day is not None
    assert abs((due_day - TODAY).days - (1 - 0.6) / 0.01) <= 5


def test_days_without_requests_count() -> None:
    spent = [(NOON - 10 * DAY, 0.0), (NOON - 9 * DAY, 0.5)]
    quiet, busy = (
        forecast_budget(spent, 1.0, NOON).on,
        forecast_budget(spent, 1.0, NOON - 9 * DAY).on,
    )
    assert quiet == TODAY + timedelta(days=10)
    assert busy == TODAY - timedelta(days=8)


@pytest.mark.parametrize(
    ("spent", "due_day", "words"),
    [
        ([(NOON, 0.0)], None, "Nothing has been spent"),
        ([(NOON, 0.5)], None, "too early"),
        ([(NOON - DAY, 0.9), (NOON, 0.5)], None, "too early"),
        ([(NOON - DAY, 0.0), (NOON, 1e-9)], None, "twenty years"),
        ([(NOON - DAY, 0.0), (NOON, 1.0)], TODAY, "is spent"),
    ],
)
def test_what_cannot_be_foretold_says_why(
    spent: list[tuple[int, float]], due_day: date | None, words: str
) -> None:
    outcome = forecast_budget(spent, 1.0, NOON)
    assert outcome.on == due_day
    assert words in outcome.words


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with a certified model that a monitor watches, after two removals and a retrain."""
    desk = make_desk(tmp_path_factory.mktemp("watched"))
    rng = np.random.default_rng(3)
    X = rng.normal(size=(240, 3))
    y = (X[:, 0] + 0.3 * rng.normal(size=240) > 0).astype(int)
    X /= np.linalg.norm(X, axis=1).max()
    people = [f"client-{number:03d}" for number in range(200)]
    model = InfluenceClassifier(l2=0.05, epsilon=1.0, delta=1e-4, random_state=0)
    model.fit(X[:200], y[:200], ids=people)
    monitor = Monitor(
        model,
        X[200:],
        y[200:],
        retrain_with=(X[:200], y[:200], people),
        tolerances=MonitorTolerances(effectiveness=0.5, certifiability=60.0, efficiency=0.001),
        calibration=None,
        random_state=0,
    )
    desk.ledger.models.register(
        model, X[:200], y[:200], ids=people, name="watched", monitor=monitor
    )
    for number in (1, 2):
        desk.clock.now += 5 * DAY
        desk.ledger.requests.submit(
            people[3 * number : 3 * number + 2], model="watched", verified=True
        )
        desk.work()
    yield desk
    desk.close()


def test_tolerances_stand_beside_the_proxies(watched: Desk) -> None:
    history = watched.client("approver").get("/api/v1/models/watched/history").json()
    lines = {
        tolerance["measure"]: (tolerance["value"], tolerance["side"])
        for tolerance in history["tolerances"]
    }
    assert history["is_watched"] is True
    assert history["assumption"].startswith("no rehearsals")
    assert lines["effectiveness"] == (0.5, "at most")
    assert lines["certifiability"] == (60.0, "at most")
    assert lines["efficiency"] == (0.001, "at least")
    assert {limit["measure"] for limit in history["limits"]} == {"effectiveness", "certifiability"}
    last = history["items"][-1]["measures"]
    bases = {name: one["basis"] for name, one in last.items()}
    assert bases["effectiveness"] == bases["certifiability"] == "proxy"
    assert (bases["consistency"], last["consistency"]["value"]) == ("not-measured", None)


def test_history_is_oldest_first_and_agrees_with_the_certificates(watched: Desk) -> None:
    client = watched.client("auditor")
    history = client.get("/api/v1/models/watched/history").json()
    assert [point["number"] for point in history["items"]] == [0, 1, 2]
    assert history["items"][0]["measures"] is None
    for point in history["items"][1:]:
        said = client.get(f"/api/v1/certificates/{point['certificate']}").json()
        # Operators see times and what was spent; certificates of certified removals have neither.
        assert said["measures"].pop("efficiency")["basis"] == "not-measured"
        assert {name: point["measures"][name] for name in said["measures"]} == said["measures"]
        assert point["budget"]["spent"] is not None
        assert said["budget"]["spent"] is None
        assert said["budget"]["budget"] == point["budget"]["budget"]


def test_older_parts_of_a_long_history_follow(watched: Desk) -> None:
    client = watched.client("auditor")
    newest = client.get("/api/v1/models/watched/history?limit=1").json()
    older = client.get(f"/api/v1/models/watched/history?after={newest['next']}").json()
    assert [point["number"] for point in newest["items"]] == [2]
    assert [point["number"] for point in older["items"]] == [0, 1]
    assert older["next"] is None


def test_the_budget_is_shown_in_tenths(watched: Desk) -> None:
    watched_model = watched.client("operator").get("/api/v1/models/watched").json()
    budget = watched_model["budget"]
    assert (budget["rule"], budget["adds_up"]) == ("guo2020-residual-sum", True)
    assert budget["share"] * 10 == pytest.approx(round(budget["share"] * 10), abs=0.1)
    assert watched_model["deletions_since_retrain"] == 4
    assert watched_model["next_retrain"]["on"] is not None or watched_model["next_retrain"]["words"]


def test_after_a_retrain_nothing_is_spent_and_the_budget_is_still_known(desk: Desk) -> None:
    client = desk.client("operator")
    made = client.post("/api/v1/models/example", json={"kind": "certified", "name": "fresh"})
    budget = made.json()["budget"]["budget"]
    desk.ledger.requests.submit(["person-0002"], model="fresh", verified=True)
    desk.work()
    desk.clock.now += DAY
    desk.ledger.models.retrain("fresh")
    fresh_model = client.get("/api/v1/models/fresh").json()
    assert fresh_model["guarantee"]["kind"] == "exact"
    assert (fresh_model["budget"]["spent"], fresh_model["budget"]["budget"]) == (0, budget)
    assert budget > 0
    assert fresh_model["next_retrain"]["on"] is None
    assert fresh_model["monitor"] == "retrained"


def test_a_model_without_a_monitor_has_no_tolerances(shared_desk: Desk) -> None:
    history = shared_desk.client("approver").get("/api/v1/models/forest/history").json()
    assert (history["is_watched"], history["tolerances"], history["limits"]) == (False, [], [])
    assert [point["number"] for point in history["items"]] == [0]


def test_what_another_thread_forgets_is_read_again(
    watched: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Emptied(dict[str, Any]):
        """A cache that another thread empties after each read."""

        def __contains__(self, key: object) -> bool:
            is_there = super().__contains__(key)
            self.clear()
            return is_there

    models = watched.ledger.models
    claims = models.claims("watched")
    monkeypatch.setattr("letheon.ledger.models.models._cache", Emptied(_cache))
    assert models.claims("watched") == models.claims("watched") == claims
