"""Example ledger for ``letheon serve --demo``: six weeks of requests to a small company.

The example is created by calling the real service with a clock that starts six weeks ago and ends
now. The people are fictional.
"""

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from letheon.forest import DaREForestClassifier
from letheon.ledger import Ledger, Policy, Request
from letheon.ledger.db.elapsed import proven_now
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.db.tokens import ROLES, Tokens
from letheon.linear import InfluenceClassifier
from letheon.monitor import Monitor, MonitorTolerances
from letheon.naive import NaiveUnlearner
from letheon.service.jobs import READING_KINDS, JobRunner
from letheon.sharded import SISAClassifier

__all__ = ["DemoInfo", "make_demo"]

_DAY = 86_400
_DAYS = 42
OTHER = "acme"
_SEED = 2026
# Requests with more rows need an approval by a second person.
_APPROVE_ABOVE = 5


@dataclass(frozen=True)
class DemoInfo:
    """Tokens and receipt code for trying the example.

    Attributes
    ----------
    tokens : dict of str to str
        The token of each role; the last token has access to the tenant ``acme`` only.
    receipt_code : str
        The receipt code of one person's request.
    """

    tokens: dict[str, str]
    receipt_code: str


def make_demo(folder: Path) -> DemoInfo:
    """Create the example in a new or empty folder. This takes a few seconds.

    Raises
    ------
    LedgerError
        The folder contains a ledger or other files.
    """
    clock = _Clock(int(time.time()) - _DAYS * _DAY)
    policy = Policy(pin_seconds=1, settle=False, approve_above=_APPROVE_ABOVE)
    with Ledger.create(folder, name="demo", policy=policy, clock=clock) as ledger:
        tokens, texts, ids = Tokens(ledger, clock), {}, {}
        for role in ROLES:
            texts[role], token = tokens.create(f"demo-{role}", role, days=365)
            ids[role] = token.id
        texts[f"operator of {OTHER}"], _ = tokens.create(
            f"{OTHER}-operator", "operator", tenant=OTHER, days=365
        )
        story = _Story(ledger, clock, ids)
        _register_models(ledger)
        # Every purge searches this folder.
        exports = folder.resolve().with_name(f"{folder.name}-exports")
        exports.mkdir(mode=0o700, exist_ok=True)
        note = "Folder for exports of the demo. It is empty.\n"
        (exports / "README.txt").write_text(note, "utf-8")
        ledger.stores.add("exports", exports, owner="analytics", scope="exports")
        code = _file_weekly_requests(story)
        _make_special_cases(story)
        _leave_open_requests(story)
        # The auditor runs all levels.
        clock.move_to(_DAYS)
        settings = {"levels": None, "drill": "none"}
        Jobs(ledger).add("audit", asked=settings, by=ids["auditor"])
        JobRunner(ledger, threading.Event()).run_all(READING_KINDS)
        proven_now(ledger._core)  # continue with the clock of the machine
        return DemoInfo(texts, code)


class _Clock:
    """Clock that the example sets; it is never ahead of the real time."""

    def __init__(self, start: int) -> None:
        self.start = self.now = start

    def __call__(self) -> int:
        return self.now

    def move_to(self, day: float) -> None:
        """Move the clock forward to `day` days after the start; never move it back."""
        target = self.start + int(day * _DAY)
        self.now = max(self.now + 60, min(target, int(time.time()) - 1))


@dataclass
class _Story:
    """Example ledger with its clock; `ids` maps roles to token ids."""

    ledger: Ledger
    clock: _Clock
    ids: dict[str, str]
    _next: dict[str, int] = field(default_factory=dict)

    def next_people(self, model: str, n: int) -> list[str]:
        """Return `n` ids of a model for which there is no request yet."""
        first = self._next.get(model, 1)
        self._next[model] = first + n
        return [_person_id(model, number) for number in range(first, first + n)]

    def act_as(self, role: str) -> AbstractContextManager[Any]:
        """Return a context in which calls are made with the token of a role."""
        return self.ledger.acting(self.ids[role])

    def file_request(self, model: str, n: int = 1, **options: Any) -> Request:
        """File an unverified request for new ids as the requester."""
        people, tenant = self.next_people(model, n), _tenant_of(model)
        with self.act_as("requester"):
            return self.ledger.requests.submit(people, model=model, tenant=tenant, **options)

    def verify_request(self, request: Request) -> Request:
        """Verify a request as the operator."""
        with self.act_as("operator"):
            return self.ledger.requests.verify(request.id)

    def queue_request(self, model: str, n: int = 1, **options: Any) -> Request:
        """File and verify a request; approve it if it is large."""
        request = self.verify_request(self.file_request(model, n, **options))
        if request.state == "verified":
            with self.act_as("approver"):
                request = self.ledger.requests.approve(request.id)
        return request


def _person_id(model: str, number: int) -> str:
    return f"{model}-person-{number:04d}"


def _tenant_of(model: str) -> str:
    return OTHER if model in ("churn", "pilot") else "default"


def _make_table(model: str, n_people: int) -> tuple[Any, Any, list[str]]:
    """Return rows of fictional people; every third person has two rows."""
    rng = np.random.default_rng([_SEED, len(model), n_people])
    numbers = [number for number in range(1, n_people + 1) for _ in range(1 + (number % 3 == 0))]
    X = rng.normal(size=(len(numbers), 6))
    y = (X[:, 0] - 0.5 * X[:, 1] + 0.4 * rng.normal(size=len(numbers)) > 0).astype(int)
    return X, y, [_person_id(model, number) for number in numbers]


def _register_models(ledger: Ledger) -> None:
    """Register an exact forest, an exact sharded model, a certified model and a tiny model."""
    forest = DaREForestClassifier(n_estimators=20, max_depth=8, random_state=_SEED)
    steps = InfluenceClassifier(l2=0.02, sigma=0.0125, bound="worst-case", random_state=_SEED)
    estimators: dict[str, tuple[int, Any]] = {
        "credit": (600, forest),
        "churn": (300, SISAClassifier(LogisticRegression(), n_shards=5, random_state=_SEED)),
        "marketing": (900, steps),
        "pilot": (12, NaiveUnlearner(GaussianNB(), random_state=_SEED)),
    }
    for name, (n_people, estimator) in estimators.items():
        X, y, ids = rows = _make_table(name, n_people)
        model, test = estimator.fit(X, y, ids=ids), _make_table(f"{name}-test", 150)[:2]
        about: dict[str, Any] = {
            "name": name,
            "tenant": _tenant_of(name),
            "dataset": f"{name}-rows",
        }
        if name == "marketing":
            # No rehearsals: they take too long for an example.
            about["monitor"] = Monitor(
                model,
                *test,
                tolerances=MonitorTolerances(effectiveness=0.05, certifiability=20.0),
                calibration=None,
                retrain_with=rows,
                random_state=_SEED,
            )
        else:
            about["test"] = test
        ledger.models.register(model, X, y, ids=ids, **about)


def _file_weekly_requests(story: _Story) -> str:
    """File and apply six weeks of requests; return a person's receipt code."""
    story.clock.move_to(0.2)
    story.file_request("credit")  # never handled, so it becomes overdue
    person = story.next_people("credit", 1)
    with story.act_as("requester"):
        first, code = story.ledger.requests.submit_with_code(person, model="credit")
    story.verify_request(first)
    if code is None:
        raise RuntimeError("the service returned a new request without a receipt code")
    for week in range(5):
        story.clock.move_to(3 + 7 * week)
        wave = [
            story.queue_request("credit", 1 + week % 2),
            story.queue_request("credit", ground="gdpr.art17.1.a"),
            story.queue_request("churn", regime="ccpa", ground="ccpa.1798.105"),
            story.queue_request("churn", 2),
            story.queue_request("marketing"),
            story.queue_request("marketing", ground="gdpr.art17.1.c"),
            story.queue_request("marketing", 2),
        ]
        story.clock.move_to(3.1 + 7 * week)
        story.ledger.run_once(force=True)
        if week < 4:
            story.clock.move_to(4 + 7 * week)
            with story.act_as("operator"):
                for request in [*wave, *([first] if week == 0 else [])]:
                    story.ledger.requests.answer(request.id, recipients=1)
        if week == 2:
            story.clock.move_to(5 + 7 * week)
            story.queue_request("marketing")
            story.ledger.models.retrain("marketing")
    return code


def _make_special_cases(story: _Story) -> None:
    """Create requests in less common states, such as rejected or on hold."""
    ledger = story.ledger
    story.clock.move_to(33)
    large = story.queue_request("pilot", 12)  # no rows would remain to train on
    ledger.run_once(force=True, model="pilot", tenant=large.tenant)
    refused, withdrawn, on_hold = (
        story.file_request(name) for name in ("credit", "churn", "marketing")
    )
    exempt, other = story.file_request("churn"), story.file_request("credit")
    story.clock.move_to(35)
    with story.act_as("operator"):
        ledger.requests.reject(refused.id, "gdpr.art12.6")
        ledger.requests.reject(exempt.id, "gdpr.art17.3.b")
        ledger.requests.cancel(withdrawn.id)
        ledger.requests.cancel(other.id)
        ledger.requests.verify(on_hold.id)
        until = datetime.now(UTC) + timedelta(days=60)
        ledger.requests.hold(on_hold.id, "litigation-hold", until)
    story.clock.move_to(36)
    unidentified, longer = (
        story.file_request("marketing"),
        story.file_request("churn", regime="ccpa", ground="internal"),
    )
    with story.act_as("operator"):
        ledger.requests.await_identity(unidentified.id)
        ledger.requests.extend(longer.id)


def _leave_open_requests(story: _Story) -> None:
    """File the requests of the last two days, and leave them open."""
    story.clock.move_to(_DAYS - 2)
    for name, n in (("credit", 6), ("marketing", 5)):
        story.verify_request(story.file_request(name, n))  # large requests: they need an approval
    story.clock.move_to(_DAYS - 1.2)
    person = story.next_people("credit", 1)
    for _ in range(2):  # the second is a duplicate
        with story.act_as("operator"):
            story.ledger.requests.submit(person, model="credit", verified=True)
    for name, n in (("credit", 1), ("churn", 2), ("marketing", 1), ("churn", 1), ("credit", 2)):
        story.queue_request(name, n)
    story.clock.move_to(_DAYS - 0.3)
    for name in ("credit", "churn", "marketing", "credit"):
        story.file_request(name)
