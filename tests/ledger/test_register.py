"""Registering: what is accepted, what is refused, and that nothing is left after a refusal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner, SISAClassifier
from letheon.exceptions import (
    BlockedIdsError,
    CannotForgetError,
    LedgerError,
    LedgerMissingError,
    NotFittedError,
    SignerRefusedError,
    UnknownModelError,
)
from letheon.ledger import Ledger
from letheon.ledger.keys.derivation import derive_training_seed
from letheon.verifier import note_digest
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import EXACT, IDS, X, Y, fitted, make, person


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return make(tmp_path, clock=SettableClock(NOON))


def _files(ledger: Ledger) -> set[str]:
    parts = ("blobs", "keys", "proofs")
    return {
        str(path.relative_to(ledger.folder))
        for part in parts
        for path in (ledger.folder / part).rglob("*")
    }


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "taken name": ({"name": "risk"}, LedgerError, "registered for tenant"),
    "name with a blank": ({"name": "my model"}, ValueError, "is not a valid name"),
    "tenant in capitals": ({"tenant": "ACME"}, ValueError, "tenant='ACME'"),
    "no estimator of ours": ({"model": GaussianNB().fit(X, Y)}, CannotForgetError, "wrap it"),
    "class": ({"model": NaiveUnlearner}, CannotForgetError, "pass an instance"),
    "not fitted": ({"model": EXACT["naive"]()}, NotFittedError, "call fit first"),
    "other rows": ({"X": X + 1}, LedgerError, "a fresh fit on these rows gives a different model"),
    "other order": ({"X": X[::-1], "y": Y[::-1], "ids": IDS[::-1]}, LedgerError, "a fresh fit"),
    "too few rows": ({"X": X[:9], "y": Y[:9], "ids": IDS[:9]}, LedgerError, "has 60 rows"),
    "other people": (
        {"ids": np.roll(IDS, 1)[::-1] + "x"},
        LedgerError,
        "differ from the ids of the model",
    ),
    "other kind of ids": ({"ids": None}, LedgerError, "int ids"),
    "lengths": ({"y": Y[:-1]}, ValueError, "one target per row"),
    "stronger releases": ({"releases": "every-version"}, SignerRefusedError, "every-version"),
    "no such releases": ({"releases": "secret"}, ValueError, "is unknown"),
    "test": ({"test": X}, ValueError, "test must be"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_leave_nothing(ledger: Ledger, what: str) -> None:
    given, error, words = REFUSED[what]
    arguments = {"model": fitted(), "X": X, "y": Y, "ids": IDS, "name": "new"} | given
    before = _files(ledger)
    model, table, target = (arguments.pop(name) for name in ("model", "X", "y"))
    with pytest.raises(error, match=words):
        ledger.models.register(model, table, target, **arguments)
    assert _files(ledger) == before
    assert [info.name for info in ledger.models.list()] == ["risk"]


def test_a_model_with_a_folder_of_its_own_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    inner = SISAClassifier(
        LogisticRegression(), n_shards=2, random_state=0, checkpoint_dir=tmp_path / "states"
    )
    with pytest.raises(CannotForgetError, match="checkpoint_dir=None"):
        ledger.models.register(inner.fit(X, Y, ids=IDS), X, Y, ids=IDS, name="new")


def test_generators_and_notes_are_not_stored(ledger: Ledger) -> None:
    model = NaiveUnlearner(GaussianNB(), random_state=np.random.default_rng(3))
    model.fit(X, Y, ids=IDS).declare_tuning("by hand, on a person's row")
    ledger.models.register(model, X, Y, ids=IDS, name="new")
    stored = ledger.models.load("new")
    assert stored.random_state == model.seed_
    assert stored.guarantee_.tuning is None
    assert model.guarantee_.tuning is not None, "the caller's model is as it was"
    seeded = LogisticRegression(random_state=np.random.RandomState(0))
    inner = SISAClassifier(seeded, n_shards=2, random_state=0).fit(X, Y, ids=IDS)
    with pytest.raises(LedgerError, match="estimator__random_state is a random generator"):
        ledger.models.register(inner, X, Y, ids=IDS, name="third")


def test_rows_with_risk_are_given_to_fit_again(ledger: Ledger) -> None:
    risk = np.repeat(np.linspace(0.1, 0.9, 30), 2)
    model = SISAClassifier(LogisticRegression(), n_shards=4, risk_edges=[0.3, 0.6], random_state=0)
    model.fit(X, Y, ids=IDS, risk=risk)
    with pytest.raises(ValueError, match="pass risk="):
        ledger.models.register(model, X, Y, ids=IDS, name="new")
    ledger.models.register(model, X, Y, ids=IDS, name="new", row_params={"risk": risk})
    ledger.requests.submit([person(4)], model="new", verified=True)
    ledger.run_once(force=True)
    model.forget([person(4)])
    assert ledger.models.load("new").digest() == model.digest()


def test_people_who_asked_are_not_trained_on_again(ledger: Ledger) -> None:
    ledger.requests.submit([person(3)], model="risk", verified=True)
    with pytest.raises(BlockedIdsError, match="1 of the people"):
        ledger.models.register(fitted(), X, Y, ids=IDS, name="new")
    rest = ledger.models.without_blocked(X, Y, IDS)
    assert [len(part) for part in rest] == [58, 58, 58]
    model = EXACT["naive"]().fit(rest[0], rest[1], ids=rest[2])
    ledger.models.register(model, rest[0], rest[1], ids=rest[2], name="new")
    # Tenants do not learn who asked another one.
    ledger.models.register(fitted(), X, Y, ids=IDS, name="new", tenant="other")
    ledger.run_once(force=True)
    with pytest.raises(BlockedIdsError):
        ledger.models.register(fitted(), X, Y, ids=IDS, name="third")


def test_a_trained_model_has_the_seed_of_key_and_beacon(ledger: Ledger) -> None:
    info = ledger.models.train(EXACT["sisa"](), X, Y, ids=IDS, name="new", test=(X[:9], Y[:9]))
    core = ledger._core
    with core.database.reading() as conn:
        from letheon.ledger.models.versions import find_head, find_model

        training = find_head(conn, find_model(conn, "new", "default").id).run["training"]
    beacon = training["beacon"].removeprefix("checkpoint:")
    notes = [path.read_text() for path in (ledger.folder / "checkpoints").iterdir()]
    assert beacon in {note_digest(note) for note in notes}
    seed = derive_training_seed(core.keys.read_secret(training["key"]), bytes.fromhex(beacon))
    assert ledger.models.load("new").seed_ == seed
    assert info.n_rows == 60
    again = ledger.models.train(EXACT["sisa"](), X, Y, ids=IDS, name="again")
    assert again.name == "again"
    assert ledger.models.load("again").seed_ != seed


def test_only_what_can_forget_is_trained(ledger: Ledger, tmp_path: Path) -> None:
    before = _files(ledger)
    with pytest.raises(CannotForgetError, match=r"NaiveUnlearner\(estimator\)"):
        ledger.models.train(LogisticRegression(), X, Y, ids=IDS, name="new")
    kept = SISAClassifier(LogisticRegression(), n_shards=2, checkpoint_dir=tmp_path / "states")
    with pytest.raises(CannotForgetError, match="checkpoint_dir=None"):
        ledger.models.train(kept, X, Y, ids=IDS, name="new")
    assert _files(ledger) == before


def test_an_estimator_that_cannot_be_trained_leaves_nothing(ledger: Ledger) -> None:
    before = _files(ledger)
    with pytest.raises(ValueError, match="NaN"):
        ledger.models.train(EXACT["sisa"](), X, np.zeros(60, int) + np.nan, ids=IDS, name="new")
    assert _files(ledger) == before


def test_making_and_opening(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    with pytest.raises(LedgerError, match="already"):
        Ledger.create(ledger.folder, name="other")
    with pytest.raises(LedgerMissingError, match="letheon init"):
        Ledger.open(tmp_path / "nowhere")
    with Ledger.open(ledger.folder) as again:
        assert again.public_key == ledger.public_key
        assert repr(again).startswith("Ledger('test'")
        with pytest.raises(UnknownModelError, match="letheon model list"):
            again.models.load("churn")
    assert ledger.folder.stat().st_mode & 0o777 == 0o700


def test_keys_of_another_ledger_are_refused(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    for ledger in (first, second):
        ledger.close()
    for part in ("keys", "public"):
        (first.folder / part).rename(first.folder / f"old-{part}")
        (second.folder / part).rename(first.folder / part)
    with pytest.raises(LedgerError, match="do not belong to its database"):
        Ledger.open(first.folder)


def test_one_database_serves_one_ledger(tmp_path: Path) -> None:
    first = make(tmp_path / "a")
    url = f"sqlite:///{first.folder / 'ledger.db'}"
    with pytest.raises(LedgerError, match="use one database per ledger"):
        Ledger.create(tmp_path / "b", name="second", database=url)
    assert not (tmp_path / "b" / "letheon.toml").exists()
    with pytest.raises(LedgerError, match="use another database"):
        Ledger.create(tmp_path / "c", name="test", database=url)


def test_rotations_are_logged_even_after_a_kill(ledger: Ledger) -> None:
    from sqlalchemy import select

    from letheon.ledger.tables import events

    ledger._core.keys.rotate("test", 0)  # and a kill before its event
    with Ledger.open(ledger.folder, clock=SettableClock(NOON)) as again:
        old = again._core.keys.trust().keys
        again.keys.rotate()
        again.keys.revoke(next(iter(old)), after=0)
        with again._core.database.reading() as conn:
            kinds = list(conn.scalars(select(events.c.kind).order_by(events.c.id)))
    assert kinds[-3:] == ["key-rotation", "key-rotation", "key-revocation"]
