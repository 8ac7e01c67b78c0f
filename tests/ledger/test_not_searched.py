"""A purge never says clean where a person may still be: short ids, and files it cannot search."""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.audit import audit, check_residue
from letheon.exceptions import SearchWarning
from letheon.ledger import Ledger
from letheon.ledger.certificates.statement import gaps_in
from letheon.ledger.home import create_home
from letheon.ledger.keys.signing import sign_statement
from letheon.ledger.purge import purge, stores
from letheon.ledger.purge.scan import ScanResult
from letheon.ledger.settings import Settings
from letheon.verifier import (
    FILES_NOT_SEARCHED,
    VerificationError,
    check_purge,
    open_envelope,
    search_gaps,
)
from tests.ledger.residue import ManualClock, quick_folder

IDS: dict[str, list[Any]] = {
    "numbers": list(range(10_000_000, 10_000_040)),
    "codes": [f"P{number:04d}" for number in range(40)],
}


@dataclass
class SearchSetup:
    """A ledger with people of short ids, and a folder that the operator registered as a store."""

    ledger: Ledger
    ids: list[Any]
    store: Path
    clock: ManualClock

    def write_csv(self, ids: list[Any]) -> None:
        lines = [f"{value},{40 + number},{number % 2}" for number, value in enumerate(ids)]
        (self.store / "train.csv").write_text("\n".join(["patient,age,label", *lines]) + "\n")

    def erase(self, person: Any) -> Any:
        if not self.ledger.requests.list():
            self.ledger.requests.submit([person], model="risk", verified=True)
        self.clock.now += 4000
        steps = self.ledger.run_once(force=True)
        (request,) = self.ledger.requests.list()
        return request, [str(step) for step in steps if step.what == "purged"]

    def claims(self) -> dict[str, Any]:
        opened = open_envelope(
            self.ledger.certificates.purge_attestation(1), self.ledger._core.keys.trust()
        )
        claims: dict[str, Any] = opened.statement["predicate"]
        return claims

    def store_state(self) -> str:
        states = {claim["store"]: claim["state"] for claim in self.claims()["stores"]}
        return str(states["store:tables"])

    def audit(self) -> Any:
        bundle = self.store.parent / "bundle"
        self.ledger.log.checkpoint()
        self.ledger.export(bundle)
        return audit(bundle, key=self.ledger.public_key)


def make_scene(folder: Path, ids: list[Any]) -> SearchSetup:
    rng, clock = np.random.default_rng(0), ManualClock()
    X, y = rng.normal(size=(len(ids), 3)), np.arange(len(ids)) % 2
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    ledger = Ledger(create_home(folder / "home", Settings(name="short"), clock))
    ledger.models.register(model, X, y, ids=ids, name="risk")
    store = folder / "tables"
    store.mkdir()
    return SearchSetup(ledger, ids, store, clock)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[SearchSetup]:
    with quick_folder() as folder:
        made = make_scene(folder, IDS[getattr(request, "param", "codes")])
        with closing(made.ledger):
            yield made


any_ids = pytest.mark.parametrize("scene", sorted(IDS), indirect=True)


@any_ids
def test_a_row_that_is_still_there_is_residue_until_it_is_removed(scene: SearchSetup) -> None:
    """The case of issue 17: a table is registered as a store, and the row stays in it."""
    person = scene.ids[3]
    scene.write_csv(scene.ids)
    scene.ledger.stores.add("tables", scene.store)
    request, _ = scene.erase(person)
    assert (request.state, request.reason) == ("purging", "residue-found")
    (problem,) = purge.list_problems(scene.ledger._core)
    assert (problem.where.store, problem.where.file) == ("tables", "train.csv")
    assert "as a value in row 5" in problem.where.reason
    assert str(person) not in str(problem)
    scene.write_csv([value for value in scene.ids if value != person])
    request, _ = scene.erase(person)
    assert (request.state, request.reason) == ("purged", None)
    assert scene.store_state() == "purged"
    assert search_gaps(scene.claims()) == ""
    assert scene.audit().of("V3")[0].verdict == "pass"


@any_ids
def test_what_cannot_be_searched_is_said_everywhere(scene: SearchSetup) -> None:
    scene.write_csv(scene.ids[5:])
    (scene.store / "train.pkl").write_bytes(pickle.dumps(scene.ids))
    with pytest.warns(SearchWarning, match=r"1 of 2 files .* train.pkl \(file-kind\)"):
        scene.ledger.stores.add("tables", scene.store)
    request, (text,) = scene.erase(scene.ids[3])
    assert (request.state, request.reason) == ("purged", "not-fully-searched")
    assert "not fully searched: 1 file not searched" in text
    claims = scene.claims()
    assert scene.store_state() == "not-searched"
    assert claims["scanner"]["notSearched"] == {"files": 1, "ids": 0, "shortIds": 1}
    assert FILES_NOT_SEARCHED in claims["notClaimed"]
    report = scene.audit()
    (result,) = report.of("V3")
    assert result.verdict == "skipped"
    assert "not fully searched: certificate 1: 1 file not searched" in result.reason
    assert report.verdict == "incomplete"
    (info,) = scene.ledger.certificates.list().items
    assert info.purge_gaps == "1 file not searched"
    events = [
        entry for entry in scene.ledger.requests.timeline(request.id) if entry.kind == "purged"
    ]
    assert events[0].details["reason"] == "not-fully-searched"


def test_a_stray_file_in_the_home_is_searched_like_a_store(scene: SearchSetup) -> None:
    home = scene.ledger.folder
    (home / "notes.txt").write_text(f"seen: {scene.ids[3]}")
    (home / "certificates" / "copy.csv").write_text("\n".join(map(str, scene.ids)))
    request, _ = scene.erase(scene.ids[3])
    assert request.reason == "residue-found"
    assert [problem.where.file for problem in purge.list_problems(scene.ledger._core)] == [
        "copy.csv"
    ]
    (home / "certificates" / "copy.csv").unlink()
    request, _ = scene.erase(scene.ids[3])
    assert (request.state, request.reason) == ("purged", "not-fully-searched")
    assert scene.claims()["scanner"]["notSearched"]["files"] == 1


def test_short_ids_are_counted_even_without_a_store(scene: SearchSetup) -> None:
    request, _ = scene.erase(scene.ids[3])
    assert (request.state, request.reason) == ("purged", None)
    claims = scene.claims()
    assert claims["scanner"]["notSearched"] == {"files": 0, "ids": 0, "shortIds": 1}
    assert "search-for-short-ids-in-longer-texts-and-own-files" in claims["notClaimed"]


def test_a_backup_counts_no_file_as_searched(scene: SearchSetup) -> None:
    for name in ("one", "two"):
        (scene.store / name).write_text("a backup")
    scene.ledger.stores.add("tables", scene.store, days=30_000)
    scene.erase(scene.ids[3])
    record = _records(scene)["stores"]["tables"]
    assert (record["files"], record["not_searched"]) == (0, 0)
    assert scene.store_state() == "expires"


def _records(scene: SearchSetup) -> Any:

    (record,) = scene.ledger.certificates.purges()
    return record.evidence


def test_registering_a_model_with_short_ids_warns_of_files_of_the_stores(
    scene: SearchSetup,
) -> None:
    (scene.store / "notes.md").write_text("text")
    with pytest.warns(SearchWarning, match="short ids"):
        scene.ledger.stores.add("tables", scene.store)
    model = scene.ledger.models.load("risk")
    X = np.random.default_rng(0).normal(size=(40, 3))
    with pytest.warns(SearchWarning, match="notes.md"):
        scene.ledger.models.register(model, X, np.arange(40) % 2, ids=scene.ids, name="other")


def test_long_ids_give_no_warning_for_texts() -> None:
    with quick_folder() as folder:
        scene = make_scene(folder, [f"person-{number:06d}" for number in range(12)])
        (scene.store / "notes.md").write_text("text")
        with closing(scene.ledger), warnings.catch_warnings():
            warnings.simplefilter("error")
            scene.ledger.stores.add("tables", scene.store)
            request, _ = scene.erase(scene.ids[3])
            assert (request.state, request.reason) == ("purged", None)


def test_the_audit_of_residue_names_what_was_not_searched(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,age\n7,40\n8,41\n")
    result = check_residue({"exports": tmp_path}, ["9"])
    assert result.verdict == "pass"
    result = check_residue({"exports": tmp_path}, ["7"])
    assert result.verdict == "skipped"
    assert "'a.csv' (ambiguous-value)" in result.reason
    (tmp_path / "b.txt").write_text("nothing")
    assert check_residue({"exports": tmp_path}, ["9"]).verdict == "skipped"


def resigned(scene: SearchSetup, change: Any) -> bytes:
    """Return the attestation with other claims, signed by the ledger's key."""
    keys = scene.ledger._core.keys
    statement = open_envelope(
        scene.ledger.certificates.purge_attestation(1), keys.trust()
    ).statement
    change(statement["predicate"])
    return sign_statement(statement, keys.signer_at(1))


def _drop_counts(claims: dict[str, Any]) -> None:
    claims["scanner"] = claims["scanner"] | {"version": "letheon-scan:1"}
    del claims["scanner"]["notSearched"]
    for store in claims["stores"]:
        if store.pop("notSearched", None):
            store["state"] = "purged"


def _drop_code(claims: dict[str, Any]) -> None:
    claims["notClaimed"].remove(FILES_NOT_SEARCHED)


def _drop_total(claims: dict[str, Any]) -> None:
    claims["scanner"]["notSearched"]["files"] = 0
    claims["notClaimed"].remove(FILES_NOT_SEARCHED)


def _call_it_purged(claims: dict[str, Any]) -> None:
    for store in claims["stores"]:
        if store["state"] == "not-searched":
            store["state"] = "purged"


@pytest.fixture
def unsearched() -> Iterator[SearchSetup]:
    with quick_folder() as folder:
        scene = make_scene(folder, IDS["codes"])
        with closing(scene.ledger):
            (scene.store / "train.pkl").write_bytes(b"\x80\x04N.")
            with pytest.warns(SearchWarning):
                scene.ledger.stores.add("tables", scene.store)
            scene.erase(scene.ids[3])
            yield scene


def test_an_attestation_whose_counts_disagree_is_refused(unsearched: SearchSetup) -> None:
    trust = unsearched.ledger._core.keys.trust()
    certificate = open_envelope(unsearched.ledger.certificates.envelope(1), trust)
    check_purge(unsearched.ledger.certificates.purge_attestation(1), certificate, trust)
    for change in (_drop_code, _drop_total, _call_it_purged):
        with pytest.raises(VerificationError):
            check_purge(resigned(unsearched, change), certificate, trust)


def test_an_earlier_attestation_holds_and_is_not_called_fully_searched(
    unsearched: SearchSetup,
) -> None:
    trust = unsearched.ledger._core.keys.trust()
    certificate = open_envelope(unsearched.ledger.certificates.envelope(1), trust)
    old = resigned(unsearched, _drop_counts)
    opened = check_purge(old, certificate, trust)
    assert search_gaps(opened.predicate) == ("an older scanner did not report skipped files")
    assert gaps_in(old) == search_gaps(opened.predicate)
    assert gaps_in(b"{}") == "the attestation cannot be read"


def test_a_purge_that_an_earlier_version_searched_does_not_claim_more() -> None:
    searched = {"files": 3, "bytes": 5, "ambiguous": 0}
    store = searched | {"by": "", "scope": "copies"}
    assert stores._count_gaps({"whole": True}, [searched, store]) == {}
    assert stores._describe_state(store, "then")["state"] == "purged"
    counted: Any = [searched | {"not_searched": 2}, store | {"not_searched": 1}]
    assert stores._count_gaps({"whole": True}, counted) == {"files": 3, "ids": 0, "shortIds": 0}


@pytest.mark.parametrize("lie", ["values", "counts"])
def test_planted_bugs_would_sign_a_false_clean(
    lie: str, scene: SearchSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above rest on: without the search for values the row passes unseen."""
    if lie == "values":
        monkeypatch.setattr("letheon.ledger.purge.scan._Search._search_values", lambda *_: None)
        scene.write_csv(scene.ids)
    else:
        monkeypatch.setattr("letheon.ledger.purge.scan._Search._add_not_searched", lambda *_: None)
        (scene.store / "train.pkl").write_bytes(pickle.dumps(scene.ids))
    scene.ledger.stores.add("tables", scene.store)
    request, _ = scene.erase(scene.ids[3])
    assert (request.state, request.reason) == ("purged", None)
    assert scene.store_state() == "purged"


def test_clean_means_searched_as_a_whole() -> None:
    assert ScanResult(1, 1, (), ()).is_clean
    assert not ScanResult(1, 1, (), (), n_not_searched=1).is_clean
