"""Desks over small ledgers, for tests: two tenants, three models, tokens of every role."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner
from letheon.ledger import Ledger, Policy
from letheon.service import ROLES, ServiceSettings, Tokens, create_app
from tests.ledger.databases import NOON, SettableClock

__all__ = ["BASE", "OTHER", "Desk", "Secret", "make_desk", "make_empty_desk", "person"]

BASE = "http://localhost"
OTHER = "rival"
N_PEOPLE = 40
APPROVE_ABOVE = 6

# Much quicker than the default rates: tests call as fast as they can.
QUICK = ServiceSettings(
    rate_per_token="1000000/minute",
    rate_login="1000000/minute",
    rate_failed="1000000/minute",
    rate_receipt="1000000/minute",
)


def person(number: int) -> str:
    return f"person-{number:03d}"


@dataclass(frozen=True)
class Secret:
    """A token of a test desk, with its text."""

    text: str
    id: str
    role: str
    tenant: str | None


@dataclass
class Desk:
    """A desk in this process.

    `tokens` holds one token per role, for all tenants; `NAME@default` and `NAME@rival` are bound to
    a tenant; `expired` and `revoked` are an admin's.
    """

    folder: Path
    ledger: Ledger
    clock: SettableClock
    app: FastAPI
    tokens: dict[str, Secret] = field(default_factory=dict)

    def client(self, name: str | None = "admin", **given: Any) -> TestClient:
        """Return a client with a token; None for one without."""
        headers = {} if name is None else {"Authorization": f"Bearer {self.tokens[name].text}"}
        return TestClient(self.app, base_url=BASE, headers=headers, follow_redirects=False, **given)

    def browser(self, name: str = "admin") -> TestClient:
        """Return a client that has logged in with a token, as a browser does."""
        client = self.client(None)
        done = client.post("/login", data={"token": self.tokens[name].text})
        assert done.status_code == 303, done.text
        return client

    def work(self, *, force: bool = True) -> None:
        """Do what a worker would do."""
        self.ledger.run_once(force=force)

    def close(self) -> None:
        self.ledger.close()


def _table(seed: int, *, numbers: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * N_PEOPLE, 3))
    ids = [number // 2 if numbers else person(number // 2) for number in range(2 * N_PEOPLE)]
    return X, (X[:, 0] > 0).astype(int), ids


@cache
def _template() -> Path:
    """A ledger with its models, made once per process and copied: training takes its time."""
    place = Path(tempfile.mkdtemp(prefix="letheon-desk-test-"))
    with Ledger.create(
        place / "home",
        name="desk-test",
        policy=Policy(pin_seconds=1, approve_above=APPROVE_ABOVE),
        clock=SettableClock(NOON),
    ) as ledger:
        _fill(ledger)
    return place


def _fill(ledger: Ledger) -> None:
    for name, tenant, seed in (("risk", "default", 1), ("churn", OTHER, 2)):
        X, y, ids = _table(seed)
        model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
        ledger.models.register(model, X, y, ids=ids, name=name, tenant=tenant)
    X, y, ids = _table(3, numbers=True)
    forest = DaREForestClassifier(n_estimators=3, max_depth=4, random_state=0).fit(X, y, ids=ids)
    ledger.models.register(forest, X, y, ids=ids, name="forest")


def make_desk(
    folder: Path, *, database: str | None = None, settings: ServiceSettings | None = None
) -> Desk:
    """Make a desk in a folder; with a PostgreSQL database if its address is given."""
    home, clock = folder / "home", SettableClock(NOON)
    if database is None:
        shutil.copytree(_template() / "home", home)
        ledger = Ledger.open(home, clock=clock)
    else:
        policy = Policy(pin_seconds=1, approve_above=APPROVE_ABOVE)
        ledger = Ledger.create(
            home, name="desk-test", database=database, policy=policy, clock=clock
        )
        _fill(ledger)
    desk = Desk(folder, ledger, clock, create_app(ledger, settings or QUICK))
    desk.tokens = dict(_tokens(ledger, clock))
    return desk


def make_empty_desk(folder: Path) -> Desk:
    """Make a desk without a model."""
    clock = SettableClock(NOON)
    ledger = Ledger.create(folder / "home", name="empty-desk", clock=clock)
    return Desk(folder, ledger, clock, create_app(ledger, QUICK), dict(_tokens(ledger, clock)))


def _tokens(ledger: Ledger, clock: SettableClock) -> Iterator[tuple[str, Secret]]:
    known = Tokens(ledger, clock)

    def made(role: str, tenant: str | None = None, **given: Any) -> Secret:
        name = role if tenant is None else f"{role}-{tenant}"
        text, token = known.create(name, role, tenant=tenant, **given)
        return Secret(text, token.id, role, tenant)

    for role in ROLES:
        yield role, made(role)
        for tenant in ("default", OTHER):
            yield f"{role}@{tenant}", made(role, tenant)
    yield "narrow", made("admin", scopes=["metrics:read"])
    revoked = made("admin")
    known.revoke(revoked.id)
    yield "revoked", revoked
    clock.now -= 40 * 86_400
    expired = made("admin", days=30)
    clock.now += 40 * 86_400
    yield "expired", expired
