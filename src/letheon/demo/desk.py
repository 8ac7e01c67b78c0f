"""A filled example ledger, for ``letheon serve --demo``: six weeks of a small company's requests.

Everything in it is made by the calls that a real desk makes, under a clock that runs ahead of the
story day by day and ends at the present moment. The people are made up.
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
# Above so many rows a second person must approve.
_APPROVE_ABOVE = 5


@dataclass(frozen=True)
class DemoInfo:
    """What a visitor of the example needs.

    Attributes
    ----------
    tokens : dict of str to str
        Text of a token for each role; the last one sees the tenant ``acme`` only.
    receipt_code : str
        The code that a person of the story got when they asked.
    """

    tokens: dict[str, str]
    receipt_code: str


def make_demo(folder: Path) -> DemoInfo:
    """Make the example in a folder that is new or empty; it takes some seconds.

    Raises
    ------
    LedgerError
        The folder holds a ledger already, or other files.
    """
    clock = _Clock(int(time.time()) - _DAYS * _DAY)
    policy = Policy(pin_seconds=1, settle=False, approve_above=_APPROVE_ABOVE)
    with Ledger.create(folder, name="demo", policy=policy, clock=clock) as ledger:
        known, texts, ids = Tokens(ledger, clock), {}, {}
        for role in ROLES:
            texts[role], token = known.create(f"demo-{role}", role, days=365)
            ids[role] = token.id
        texts[f"operator of {OTHER}"], _ = known.create(
            f"{OTHER}-operator", "operator", tenant=OTHER, days=365
        )
        story = _Story(ledger, clock, ids)
        _register(ledger)
        # A folder of exports; every purge searches it.
        exports = folder.resolve().with_name(f"{folder.name}-exports")
        exports.mkdir(mode=0o700, exist_ok=True)
        note = "Exports of the demo lie here; there is none.\n"
        (exports / "README.txt").write_text(note, "utf-8")
        ledger.stores.add("exports", exports, owner="analytics", scope="exports")
        code = _weeks(story)
        _side_states(story)
        _present(story)
        # The auditor looks at everything.
        clock.reach(_DAYS)
        asked = {"levels": None, "drill": "none"}
        Jobs(ledger).add("audit", asked=asked, by=ids["auditor"])
        JobRunner(ledger, threading.Event()).run_all(READING_KINDS)
        proven_now(ledger._core)  # the clock of the machine goes on from here
        return DemoInfo(texts, code)


class _Clock:
    """A clock that the story moves; it never passes the present moment."""

    def __init__(self, start: int) -> None:
        self.start = self.now = start

    def __call__(self) -> int:
        return self.now

    def reach(self, day: float) -> None:
        """Go to a moment of the story, in days; it never goes back."""
        wanted = self.start + int(day * _DAY)
        self.now = max(self.now + 60, min(wanted, int(time.time()) - 1))


@dataclass
class _Story:
    """A ledger whose people act one after the other; `ids` are those of the tokens by role."""

    ledger: Ledger
    clock: _Clock
    ids: dict[str, str]
    _next: dict[str, int] = field(default_factory=dict)

    def people(self, model: str, n: int) -> list[str]:
        """Return people of a model who have not asked yet."""
        first = self._next.get(model, 1)
        self._next[model] = first + n
        return [_person(model, number) for number in range(first, first + n)]

    def acting(self, role: str) -> AbstractContextManager[Any]:
        """Let the owner of the token of a role act."""
        return self.ledger.acting(self.ids[role])

    def file(self, model: str, n: int = 1, **options: Any) -> Request:
        """Let somebody file a request for new people; nobody has vouched for them."""
        people, tenant = self.people(model, n), _tenant(model)
        with self.acting("requester"):
            return self.ledger.requests.submit(people, model=model, tenant=tenant, **options)

    def verify(self, request: Request) -> Request:
        """Let the operator check who is asking."""
        with self.acting("operator"):
            return self.ledger.requests.verify(request.id)

    def queue(self, model: str, n: int = 1, **options: Any) -> Request:
        """File and verify; what is large is approved by somebody else."""
        request = self.verify(self.file(model, n, **options))
        if request.state == "verified":
            with self.acting("approver"):
                request = self.ledger.requests.approve(request.id)
        return request


def _person(model: str, number: int) -> str:
    return f"{model}-person-{number:04d}"


def _tenant(model: str) -> str:
    return OTHER if model in ("churn", "pilot") else "default"


def _table(model: str, n_people: int) -> tuple[Any, Any, list[str]]:
    """Return rows of people who are made up; every third has two."""
    rng = np.random.default_rng([_SEED, len(model), n_people])
    numbers = [number for number in range(1, n_people + 1) for _ in range(1 + (number % 3 == 0))]
    X = rng.normal(size=(len(numbers), 6))
    y = (X[:, 0] - 0.5 * X[:, 1] + 0.4 * rng.normal(size=len(numbers)) > 0).astype(int)
    return X, y, [_person(model, number) for number in numbers]


def _register(ledger: Ledger) -> None:
    """Register an exact forest, exact shards, a certified model, and one that is very small."""
    forest = DaREForestClassifier(n_estimators=20, max_depth=8, random_state=_SEED)
    steps = InfluenceClassifier(l2=0.02, sigma=0.0125, bound="worst-case", random_state=_SEED)
    made: dict[str, tuple[int, Any]] = {
        "credit": (600, forest),
        "churn": (300, SISAClassifier(LogisticRegression(), n_shards=5, random_state=_SEED)),
        "marketing": (900, steps),
        "pilot": (12, NaiveUnlearner(GaussianNB(), random_state=_SEED)),
    }
    for name, (n_people, estimator) in made.items():
        X, y, ids = rows = _table(name, n_people)
        model, test = estimator.fit(X, y, ids=ids), _table(f"{name}-test", 150)[:2]
        about: dict[str, Any] = {"name": name, "tenant": _tenant(name), "dataset": f"{name}-rows"}
        if name == "marketing":
            # Without rehearsals, which take longer than a visitor waits.
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


def _weeks(story: _Story) -> str:
    """Let six weeks of requests be filed and applied; return a person's receipt code."""
    story.clock.reach(0.2)
    story.file("credit")  # nobody looked after it: it will be overdue
    person = story.people("credit", 1)
    with story.acting("requester"):
        first, code = story.ledger.requests.submit_with_code(person, model="credit")
    story.verify(first)
    if code is None:
        raise RuntimeError("a new request has no receipt code")
    for week in range(5):
        story.clock.reach(3 + 7 * week)
        wave = [
            story.queue("credit", 1 + week % 2),
            story.queue("credit", ground="gdpr.art17.1.a"),
            story.queue("churn", regime="ccpa", ground="ccpa.1798.105"),
            story.queue("churn", 2),
            story.queue("marketing"),
            story.queue("marketing", ground="gdpr.art17.1.c"),
            story.queue("marketing", 2),
        ]
        story.clock.reach(3.1 + 7 * week)
        story.ledger.run_once(force=True)
        if week < 4:
            story.clock.reach(4 + 7 * week)
            with story.acting("operator"):
                for request in [*wave, *([first] if week == 0 else [])]:
                    story.ledger.requests.answer(request.id, recipients=1)
        if week == 2:
            story.clock.reach(5 + 7 * week)
            story.queue("marketing")
            story.ledger.models.retrain("marketing")
    return code


def _side_states(story: _Story) -> None:
    """Let things happen that are not the rule."""
    ledger = story.ledger
    story.clock.reach(33)
    large = story.queue("pilot", 12)  # nobody would be left to train on
    ledger.run_once(force=True, model="pilot", tenant=large.tenant)
    refused, withdrawn, held = (story.file(name) for name in ("credit", "churn", "marketing"))
    exempt, other = story.file("churn"), story.file("credit")
    story.clock.reach(35)
    with story.acting("operator"):
        ledger.requests.reject(refused.id, "gdpr.art12.6")
        ledger.requests.reject(exempt.id, "gdpr.art17.3.b")
        ledger.requests.cancel(withdrawn.id)
        ledger.requests.cancel(other.id)
        ledger.requests.verify(held.id)
        until = datetime.now(UTC) + timedelta(days=60)
        ledger.requests.hold(held.id, "litigation-hold", until)
    story.clock.reach(36)
    asked, longer = story.file("marketing"), story.file("churn", regime="ccpa", ground="internal")
    with story.acting("operator"):
        ledger.requests.await_identity(asked.id)
        ledger.requests.extend(longer.id)


def _present(story: _Story) -> None:
    """Let the last two days leave something to do."""
    story.clock.reach(_DAYS - 2)
    for name, n in (("credit", 6), ("marketing", 5)):
        story.verify(story.file(name, n))  # large: they wait for an approval
    story.clock.reach(_DAYS - 1.2)
    person = story.people("credit", 1)
    for _ in range(2):  # the second is a duplicate
        with story.acting("operator"):
            story.ledger.requests.submit(person, model="credit", verified=True)
    for name, n in (("credit", 1), ("churn", 2), ("marketing", 1), ("churn", 1), ("credit", 2)):
        story.queue(name, n)
    story.clock.reach(_DAYS - 0.3)
    for name in ("credit", "churn", "marketing", "credit"):
        story.file(name)
