"""What a worker does with requests: exactly what a fresh fit would, once, in time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from letheon import InfluenceClassifier, NaiveUnlearner
from letheon.exceptions import LedgerError, UnknownIdError, UnknownModelError
from letheon.ledger import Ledger, Policy, Step
from letheon.ledger.leases import release_lease, take_lease
from letheon.ledger.models.versions import find_model, list_versions
from letheon.ledger.worker.apply import apply_batch, start_batch
from letheon.ledger.worker.compute import Computation, ComputationResult, compute
from letheon.verifier import check_chain
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import EXACT, IDS, X, Y, fitted, make, person


class FragileNB(GaussianNB):  # type: ignore[misc]
    """Raises in `fit` when told to, by the number of rows."""

    fails_below = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if len(X) < type(self).fails_below:
            raise RuntimeError(f"secret row {X[0]}")
        return super().fit(X, y, sample_weight)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


def _statements(ledger: Ledger) -> list[dict[str, Any]]:
    envelopes = [ledger.certificates.envelope(number) for number in ledger.certificates.sequences()]
    return [opened.predicate for opened in check_chain(envelopes, ledger._core.keys.trust())]


@pytest.mark.parametrize("kind", EXACT)
def test_the_model_is_that_of_a_fresh_fit(tmp_path: Path, kind: str) -> None:
    ledger = make(tmp_path, model=fitted(kind))
    gone = [person(number) for number in (2, 3, 11)]
    ledger.requests.submit(gone[:2], model="risk", verified=True)
    ledger.requests.submit(gone[2:], model="risk", verified=True)
    steps = ledger.run_once(force=True)
    assert [step.what for step in steps] == ["applied", "certified", "purged"]
    keep = ~np.isin(IDS, gone)
    fresh = EXACT[kind]().fit(X[keep], Y[keep], ids=IDS[keep])
    assert ledger.models.load("risk").digest() == fresh.digest()
    (statement,) = _statements(ledger)
    assert statement["erasure"]["rows"] == 6
    assert statement["dataset"]["liveAfter"] == 54
    assert statement["guarantee"]["kind"] == "exact"
    assert {request.state for request in ledger.requests.list()} == {"purged"}


def test_requests_wait_for_company_and_for_their_day(tmp_path: Path, clock: SettableClock) -> None:
    ledger = make(tmp_path, clock=clock, policy=Policy(k_min_released=3))
    ledger.requests.submit([person(1)], model="risk", verified=True)
    assert ledger.run_once() == ()
    (plan,) = ledger.plan()
    assert (plan.decision.seal, plan.decision.reason, plan.n_requests) == (False, "waiting", 1)
    ledger.requests.submit([person(2)], model="risk")
    assert ledger.run_once() == (), "an unverified request waits"
    clock.now += int(timedelta(hours=72).total_seconds())
    assert [step.what for step in ledger.run_once()] == ["applied", "certified", "purged"]
    ledger.requests.submit([person(number) for number in (4, 5, 6)], model="risk", verified=True)
    assert ledger.run_once()[0].what == "applied", "three people are enough"


def test_a_method_that_fails_is_tried_again_and_then_stuck(
    tmp_path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(max_tries=3, backoff_first=timedelta(seconds=2))
    ledger = Ledger.create(tmp_path / "home", name="test", policy=policy, clock=clock)
    model = NaiveUnlearner(FragileNB(), random_state=0).fit(X, Y, ids=IDS)
    ledger.models.register(model, X, Y, ids=IDS, name="risk", trusted=[FragileNB])
    monkeypatch.setattr(FragileNB, "fails_below", 60)
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    for tries in (1, 2, 3):
        (step,) = ledger.run_once(force=True)
        assert (step.what, step.detail) == ("failed", "runtime-error")
        now = ledger.requests.get(request.id)
        assert now.tries == tries
        assert now.state == ("stuck" if tries == 3 else "retry_wait")
        clock.now += 10
    assert ledger.run_once(force=True) == ()
    texts = b"".join(path.read_bytes() for path in ledger.folder.glob("ledger.db*"))
    assert b"secret row" not in texts
    monkeypatch.setattr(FragileNB, "fails_below", 0)
    ledger.requests.retry(request.id)
    assert [step.what for step in ledger.run_once(force=True)] == ["applied", "certified", "purged"]
    assert ledger.models.load("risk").n_rows_ == 58


def test_a_removal_of_all_people_needs_an_operator(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    request = ledger.requests.submit(list(np.unique(IDS)), model="risk", verified=True)
    (step,) = ledger.run_once(force=True)
    assert (step.what, step.detail) == ("failed", "no-model-on-the-rest")
    assert ledger.requests.get(request.id).state == "stuck"
    assert ledger.models.load("risk").n_rows_ == 60


def test_a_hold_is_about_the_person(tmp_path: Path, clock: SettableClock) -> None:
    ledger = make(tmp_path, clock=clock)
    first = ledger.requests.submit([person(1)], model="risk", verified=True)
    until = datetime.fromtimestamp(clock.now, UTC) + timedelta(days=10)
    ledger.requests.hold(first.id, "litigation-hold", until)
    second = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    third = ledger.requests.submit([person(3)], model="risk", verified=True)
    ledger.run_once(force=True)
    states = [ledger.requests.get(one.id).state for one in (first, second, third)]
    assert states == ["on_hold", "queued", "purged"]
    assert ledger.models.load("risk").n_rows_ == 58
    ledger.requests.release(first.id)
    ledger.run_once(force=True)
    assert {request.state for request in ledger.requests.list()} == {"purged"}
    assert ledger.models.load("risk").n_rows_ == 54


def test_a_request_whose_people_are_gone_is_a_duplicate(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    late = ledger.requests.submit([person(1)], model="risk", verified=True)
    both = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    core = ledger._core
    lease = take_lease(core, 1, "a/b/c/1/1/1")
    assert lease is not None
    with core.database.reading() as conn:
        model = find_model(conn, "risk", "default")
    apply_batch(
        core, lease, model, start_batch(core, lease, model, "erase", [both.id], "operator"), compute
    )
    release_lease(core, lease)
    ledger.run_once(force=True)
    request = ledger.requests.get(late.id)
    assert (request.state, request.duplicate_of) == ("duplicate", both.id)
    assert ledger.models.load("risk").n_rows_ == 56


class PickyNB(GaussianNB):  # type: ignore[misc]
    """Cannot be fitted without one certain row."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if not (X[:, 0] == POISON).any():
            raise RuntimeError("never")
        return super().fit(X, y, sample_weight)


POISON = X[2 * 7, 0]


def test_one_bad_request_does_not_keep_others_from_being_erased(
    tmp_path: Path, clock: SettableClock
) -> None:
    ledger = Ledger.create(tmp_path / "home", name="test", clock=clock)
    model = NaiveUnlearner(PickyNB(), random_state=0).fit(X, Y, ids=IDS)
    ledger.models.register(model, X, Y, ids=IDS, name="risk", trusted=[PickyNB])
    people = range(4, 12)
    made = {
        one: ledger.requests.submit([person(one)], model="risk", verified=True).id for one in people
    }
    for _ in range(60):
        ledger.run_once(force=True)
        clock.now += 3600
    states = {one: ledger.requests.get(made[one]).state for one in people}
    assert states.pop(7) == "stuck"
    assert set(states.values()) == {"purged"}


def test_a_hold_that_comes_after_the_plan_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from letheon.ledger.worker import recover, worker

    ledger = make(tmp_path)
    first = ledger.requests.submit([person(1)], model="risk", verified=True)
    second = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    sound = recover.require_sound

    def hold_first(*given: Any) -> None:
        sound(*given)
        until = datetime.fromtimestamp(NOON, UTC) + timedelta(days=10)
        if ledger.requests.get(first.id).state == "queued":
            ledger.requests.hold(first.id, "litigation-hold", until)

    monkeypatch.setattr(worker, "require_sound", hold_first)
    assert [step.detail for step in ledger.run_once(force=True)] == ["queue-changed"]
    assert ledger.run_once(force=True) == ()
    assert ledger.requests.get(second.id).state == "queued"
    assert ledger.models.load("risk").n_rows_ == 60


def test_a_certified_model_is_settled_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    settle = InfluenceClassifier.settle

    def noted(model: Any) -> Any:
        settled.append(model.n_rows_)
        return settle(model)

    monkeypatch.setattr(InfluenceClassifier, "settle", noted)
    ledger = Ledger.create(tmp_path / "home", name="test", clock=SettableClock(NOON))
    model = InfluenceClassifier(l2=0.05, random_state=0).fit(X, Y, ids=IDS)
    ledger.models.register(model, X, Y, ids=IDS, name="risk")
    ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    assert settled == [58]


def test_a_retrain_is_a_certified_batch_of_its_own(tmp_path: Path) -> None:
    ledger = make(tmp_path, model=fitted("sisa"))
    with pytest.raises(LedgerError, match="nothing was erased"):
        ledger.models.retrain("risk")
    old_seed = ledger.models.load("risk").seed_
    for number in (1, 2):
        ledger.requests.submit([person(number)], model="risk", verified=True)
        ledger.run_once(force=True)
    ledger.requests.submit([person(3)], model="risk", verified=True)
    steps = ledger.models.retrain("risk")
    assert [step.what for step in steps] == ["retrained", "certified", "purged"]
    first, _, last = _statements(ledger)
    assert last["method"]["name"] == "retrain"
    assert last["erasure"]["rows"] == 6, "everything since the last training"
    assert last["dataset"]["rootBefore"] == first["dataset"]["rootBefore"]
    assert last["monitor"] | {"policy": 0} == {
        "decision": "retrained",
        "policy": 0,
        "lastRetrainSequence": 0,
    }
    model = ledger.models.load("risk")
    assert model.seed_ != old_seed
    keep = ~np.isin(IDS, [person(number) for number in (1, 2, 3)])
    fresh = EXACT["sisa"]().set_params(random_state=model.seed_)
    assert model.digest() == fresh.fit(X[keep], Y[keep], ids=IDS[keep]).digest()
    ledger.requests.submit([person(4)], model="risk", verified=True)
    ledger.run_once(force=True)
    assert _statements(ledger)[-1]["monitor"]["lastRetrainSequence"] == 3
    assert _statements(ledger)[-1]["guarantee"]["accounting"]["deletionsSinceRetrain"] == 2
    ledger.models.retrain("risk")
    assert _statements(ledger)[-1]["erasure"]["rows"] == 2, "a retrain with nothing queued"


def test_a_spent_budget_becomes_a_retrain(tmp_path: Path) -> None:
    tables = np.random.default_rng(0).normal(size=(300, 3))
    labels = (tables[:, 0] > 0).astype(int)
    model = InfluenceClassifier(
        epsilon=1.0,
        delta=1e-4,
        sigma=0.03,
        l2=0.05,
        data_free=True,
        rows="clip",
        row_norm=1.0,
        random_state=0,
    )
    ledger = Ledger.create(tmp_path / "home", name="test", clock=SettableClock(NOON))
    ledger.models.register(model.fit(tables, labels), tables, labels, name="risk")
    seen = []
    for start in range(0, 120, 20):
        ledger.requests.submit(list(range(start, start + 20)), model="risk", verified=True)
        seen += [step.what for step in ledger.run_once(force=True)]
    assert "retrained" in seen
    assert ledger.models.load("risk").n_rows_ == 180
    kinds = [statement["guarantee"]["kind"] for statement in _statements(ledger)]
    assert "exact" in kinds
    assert {request.state for request in ledger.requests.list()} == {"purged"}


def test_computing_apart_gives_the_same(tmp_path: Path) -> None:
    ledger = make(tmp_path, model=fitted("forest"))
    ledger.requests.submit([person(7)], model="risk", verified=True)
    assert ledger.run_once(force=True, apart=True)[0].what == "applied"
    expected = fitted("forest")
    expected.forget([person(7)])
    assert ledger.models.load("risk").digest() == expected.digest()


def test_what_fails_apart_is_raised_here(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    ledger.requests.submit(list(np.unique(IDS)), model="risk", verified=True)
    (step,) = ledger.run_once(force=True, apart=True)
    assert step.detail == "no-model-on-the-rest"


def test_requests_during_a_retrain_wait_for_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from letheon.ledger import core as faults

    ledger = make(tmp_path)
    ledger.requests.submit([person(1)], model="risk", verified=True)
    late: list[str] = []

    def ask(name: str) -> None:
        if name == "retrain.beacon" and not late:
            late.append(ledger.requests.submit([person(2)], model="risk", verified=True).id)

    monkeypatch.setattr(faults, "hook", ask)
    ledger.models.retrain("risk")
    assert ledger.requests.get(late[0]).state == "queued"
    assert ledger.models.load("risk").n_rows_ == 58
    ledger.run_once(force=True)
    assert ledger.requests.get(late[0]).state == "purged"
    assert ledger.models.load("risk").n_rows_ == 56


def test_tenants_and_models_are_apart(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    ledger.models.register(fitted(), X, Y, ids=IDS, name="risk", tenant="acme")
    ledger.requests.submit([person(1)], model="risk", tenant="acme", verified=True)
    with pytest.raises(UnknownModelError):
        ledger.requests.submit([person(1)], model="risk", tenant="other")
    with pytest.raises(UnknownIdError):
        ledger.requests.submit(["person-999"], model="risk")
    ledger.run_once(force=True)
    assert ledger.models.load("risk").n_rows_ == 60
    assert ledger.models.load("risk", tenant="acme").n_rows_ == 58
    assert ledger.requests.list(tenant="default") == ()


def test_a_reader_follows_the_head_and_pins_it(tmp_path: Path, clock: SettableClock) -> None:
    ledger = make(tmp_path, clock=clock, policy=Policy(pin_seconds=30))
    with ledger.models.reader("risk") as reader:
        assert reader.address == ""
        before = reader.model
        first = reader.address
        assert reader.model is before
        ledger.requests.submit([person(1)], model="risk", verified=True)
        assert [step.what for step in ledger.run_once(force=True)] == ["applied", "certified"]
        assert ledger.requests.list()[0].state == "purging", "a reader still uses the old version"
        assert (ledger.folder / "blobs").joinpath(*_folders(ledger), first).exists()
        assert reader.model.n_rows_ == 58
        assert len(reader.predict(X[:4])) == 4
        assert reader.predict_proba(X[:4]).shape == (4, 2)
        assert [step.what for step in ledger.run_once()] == ["purged"]
        assert not (ledger.folder / "blobs").joinpath(*_folders(ledger), first).exists()


def _folders(ledger: Ledger) -> list[str]:
    return [path.name for path in (ledger.folder / "blobs").iterdir()]


def test_a_reader_that_gave_no_sign_is_not_waited_for(tmp_path: Path, clock: SettableClock) -> None:
    ledger = make(tmp_path, clock=clock, policy=Policy(pin_seconds=30))
    reader = ledger.models.reader("risk")
    assert reader.model.n_rows_ == 60
    ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    clock.now += 31
    assert [step.what for step in ledger.run_once()] == ["purged"]
    assert reader.model.n_rows_ == 58


def test_an_altered_model_is_neither_served_nor_changed(tmp_path: Path) -> None:
    from letheon.exceptions import CorruptFileError

    ledger = make(tmp_path)
    (folder,) = (ledger.folder / "blobs").iterdir()
    blob = folder / ledger.models.list()[0].head.address
    content = bytearray(blob.read_bytes())
    content[40] ^= 1
    blob.write_bytes(content)
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    with pytest.raises(CorruptFileError):
        ledger.models.load("risk")
    ledger.models.register(fitted(), X, Y, ids=IDS, name="other", tenant="acme")
    ledger.requests.submit([person(2)], model="other", tenant="acme", verified=True)
    steps = ledger.run_once(force=True)
    assert [step.what for step in steps] == ["failed", "applied", "certified", "purged"]
    assert "Restore the file" in steps[0].detail
    assert ledger.requests.get(request.id).state == "queued"
    assert ledger.run_once(force=True)[0].what == "failed"
    content[40] ^= 1
    blob.write_bytes(content)
    assert ledger.run_once(force=True)[0].what == "applied"


def test_nothing_of_a_model_lies_about_in_clear(tmp_path: Path) -> None:
    ledger = make(tmp_path, model=fitted("forest"))
    ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    files = [path for path in ledger.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        content = path.read_bytes()
        assert person(5).encode() not in content
        assert X[7].tobytes() not in content


def test_a_reader_renews_its_pin_with_any_journal(tmp_path: Path, clock: SettableClock) -> None:
    ledger = make(tmp_path, clock=clock, policy=Policy(pin_seconds=30))
    toml = ledger.folder / "letheon.toml"
    ledger.close()
    toml.write_text('journal = "delete"\n' + toml.read_text())
    with Ledger.open(ledger.folder, clock=clock) as again, again.models.reader("risk") as reader:
        assert again._core.database.journal_mode == "delete"
        before = reader.model
        clock.now += 20
        assert reader.model is before


def test_a_monitor_that_wants_a_retrain_in_vain_is_not_tried_in_a_loop(
    tmp_path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from letheon.ledger.worker import compute as _compute
    from letheon.ledger.worker import worker as _plan

    ledger = make(tmp_path, clock=clock, policy=Policy(pin_seconds=1, max_tries=3))
    ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    with ledger._core.database.reading() as conn:
        head = list_versions(conn, 1)[-1]
    due = {**head.facts["certificate"], "monitor": {"decision": "retrain-due"}}
    wanting = replace(head, facts={**head.facts, "certificate": due})
    monkeypatch.setattr(_plan, "list_versions", lambda *_, **__: [wanting])
    monkeypatch.setattr(_compute, "_run_computation", _refuse)
    seen: list[Step] = []
    for _ in range(40):
        seen += ledger.run_once()
        clock.now += 1
    assert [step.detail for step in seen] == ["runtime-error"] * 3


def _refuse(job: Computation) -> ComputationResult:
    raise RuntimeError("not today")


def test_what_is_closed_does_nothing_more(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    reader = ledger.models.reader("risk")
    assert reader.model.n_rows_ == 60
    reader.close()
    with pytest.raises(LedgerError, match="reader is closed"):
        reader.predict(X)
    ledger.close()
    with pytest.raises(LedgerError, match=r"ledger is closed; open it again with Ledger\.open"):
        ledger.requests.submit([person(1)], model="risk")
    with pytest.raises(LedgerError, match="closed"):
        ledger.models.list()
    with Ledger.open(ledger.folder, clock=SettableClock(NOON)) as again:
        assert again.requests.list() == ()
