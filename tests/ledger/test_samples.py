"""People outside the keyed samples of a model are erased at once; the others wait together."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from letheon import DaREForestClassifier, ForgetPipeline, ForgetSearchCV
from letheon.data import as_ids
from letheon.exceptions import RequestStateError
from letheon.ledger import Ledger, Policy, core
from letheon.ledger.worker import worker
from letheon.ledger.worker.compute import find_sampled_requests
from letheon.preprocessing import ForgetColumnTransformer, KeyedSample, QuantileBinner
from letheon.sums import RidgeClassifier
from letheon.verifier import Trust, open_envelope
from tests.ledger.databases import NOON, SettableClock

N = 400
IDS = np.array([f"person-{number:03d}" for number in range(N)])
X = np.random.default_rng(3).normal(size=(N, 4))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
DAY = 86_400


def make_model(n_people: int = 60) -> ForgetPipeline:
    pca = KeyedSample(PCA(2), n_people=n_people, random_state=0)
    columns = ForgetColumnTransformer([("pca", pca, [0, 1, 2]), ("rest", "passthrough", [3])])
    return ForgetPipeline([("columns", columns), ("model", RidgeClassifier(random_state=0))])


MODEL = make_model().fit(X, Y, ids=IDS)
MASK = MODEL["columns"].named_transformers_["pca"].is_sampled(IDS)
INSIDE, OUTSIDE = IDS[MASK].tolist(), IDS[~MASK].tolist()


def make_ledger(folder: Path, **policy: Any) -> tuple[Ledger, SettableClock]:
    clock = SettableClock(NOON)
    ledger = Ledger.create(folder / "home", name="test", policy=Policy(**policy), clock=clock)
    ledger.models.register(make_model().fit(X, Y, ids=IDS), X, Y, ids=IDS, name="risk")
    return ledger, clock


def submit(ledger: Ledger, *people: str) -> str:
    return ledger.requests.submit(list(people), model="risk", verified=True).id


def count_applied(ledger: Ledger) -> int:
    return sum(step.what == "applied" for step in ledger.run_once())


def test_every_container_passes_the_samples_of_its_parts_on() -> None:
    ids = as_ids(IDS)
    sampled = MODEL._find_sampled(ids)
    assert sampled is not None
    assert np.array_equal(sampled, MASK)
    assert 20 < MASK.sum() < N // 2
    search = ForgetSearchCV(
        make_model(), {"model__alpha": [1.0, 2.0]}, n_people=30, cv=2, random_state=1
    ).fit(X, Y, ids=IDS)
    both = search._find_sampled(ids)
    assert both is not None
    inner = search.model_._find_sampled(ids)
    assert np.array_equal(both, search.is_sampled(IDS) | inner)
    binner = QuantileBinner(n_bins=4, random_state=0).fit(X, ids=IDS)
    assert binner._find_sampled(ids) is not None
    forest = DaREForestClassifier(n_estimators=2, random_state=0).fit(X, Y, ids=IDS)
    assert forest._find_sampled(ids) is None


def test_people_outside_are_erased_at_once_and_the_others_at_the_batch(tmp_path: Path) -> None:
    ledger, clock = make_ledger(tmp_path)
    with ledger:
        inside, outside = submit(ledger, INSIDE[0]), submit(ledger, OUTSIDE[0])
        mixed = submit(ledger, INSIDE[1], OUTSIDE[1])
        assert count_applied(ledger) == 1
        assert count_applied(ledger) == 0
        states = [ledger.requests.get(name).state for name in (inside, outside, mixed)]
        assert states == ["queued", "purged", "queued"]
        assert ledger.batches.list().items[0].reason == "outside-sample"
        clock.now += 3 * DAY + 1
        assert count_applied(ledger) == 1
        assert ledger.requests.get(inside).state == ledger.requests.get(mixed).state == "purged"
        kept = ~np.isin(IDS, [*INSIDE[:2], *OUTSIDE[:2]])
        fresh = make_model().fit(X[kept], Y[kept], ids=IDS[kept])
        assert ledger.models.load("risk").digest() == fresh.digest()


def test_a_request_that_waits_is_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def count_requests(content: Any, ids: Any, **options: Any) -> Any:
        counts.append(len(ids))
        return find_sampled_requests(content, ids, **options)

    monkeypatch.setattr(worker, "find_sampled_requests", count_requests)
    ledger, _ = make_ledger(tmp_path)
    with ledger:
        submit(ledger, INSIDE[0])
        assert [count_applied(ledger), count_applied(ledger)] == [0, 0]
        submit(ledger, OUTSIDE[0])
        assert count_applied(ledger) == 1
    assert counts == [1, 1]


def test_waiting_requests_are_never_past_their_deadline(tmp_path: Path) -> None:
    ledger, clock = make_ledger(tmp_path, oldest_wait=timedelta(days=900))
    with ledger:
        request = ledger.requests.get(submit(ledger, INSIDE[0]))
        days = (request.due_on - request.received_at.date()).days
        clock.now += (days - 9) * DAY
        assert count_applied(ledger) == 0
        clock.now += 3 * DAY
        assert count_applied(ledger) == 1


def count_fits(model: ForgetPipeline, batches: list[list[str]]) -> int:
    """Return how many batches fit the sample again."""
    return sum(model.forget(batch).rebuilt.get("steps", 0) > 0 for batch in batches)


def test_fewer_batches_fit_the_sample_again() -> None:
    """200 requests in batches of 20: nearly all mixed batches have a sampled person."""
    people = np.random.default_rng(0).permutation(IDS)[:200].tolist()
    mixed = [people[begin : begin + 20] for begin in range(0, 200, 20)]
    sampled = [person for person in people if person in INSIDE]
    outside = [[person] for person in people if person not in INSIDE]
    waiting = [sampled[begin : begin + 20] for begin in range(0, len(sampled), 20)]
    n_mixed = count_fits(make_model().fit(X, Y, ids=IDS), mixed)
    n_split = count_fits(make_model().fit(X, Y, ids=IDS), waiting)
    # Without a sampled person only a change of the rounded number of people fits it again.
    n_border = count_fits(make_model().fit(X, Y, ids=IDS), outside[:20])
    assert n_mixed >= 9
    assert n_split == len(waiting) <= 3
    assert n_border <= 1


def test_the_holder_of_a_code_cannot_tell_who_is_in_the_sample(tmp_path: Path) -> None:
    """Both wait for the same batch and get the same certificate, without a duration."""
    ledger, clock = make_ledger(tmp_path)
    with ledger:
        codes = []
        for person in (INSIDE[0], OUTSIDE[0]):
            code = ledger.requests.submit_with_code([person], model="risk", verified=True)[1]
            assert code is not None
            codes.append(code)
        receipts = ledger.certificates.receipts
        assert count_applied(ledger) == 0
        assert [receipts.open(code) for code in codes] == [None, None]
        clock.now += 3 * DAY + 1
        assert count_applied(ledger) == 1
        opened = [receipts.open(code) for code in codes]
        covers = [receipts.coverage(receipt) for receipt in opened if receipt is not None]
        assert len(covers) == 2
        assert covers[0] == covers[1] is not None
        trust = Trust.from_pinned(ledger.public_key)
        claims = open_envelope(ledger.certificates.envelope(1), trust).predicate
        assert claims["measurements"]["efficiency"]["metric"] == "not-measured"
        assert "efficiency-not-measured" in claims["notClaimed"]


def test_a_code_for_a_request_that_waits_would_reveal_the_sample(tmp_path: Path) -> None:
    ledger, _ = make_ledger(tmp_path)
    with ledger:
        receipts = ledger.certificates.receipts
        late = submit(ledger, INSIDE[0])
        early = ledger.requests.submit([INSIDE[1]], model="risk").id
        receipts.new_code(early)
        ledger.requests.verify(early)
        assert count_applied(ledger) == 0
        with pytest.raises(RequestStateError, match="keyed sample"):
            receipts.new_code(late)
        assert receipts.key(late) is None
        assert receipts.new_code(early)  # instead of a lost code


def test_a_second_request_with_a_code_does_not_reveal_the_sample(tmp_path: Path) -> None:
    """A second request of a person inside and of a person outside the sample look alike."""
    ledger, clock = make_ledger(tmp_path)
    with ledger:
        receipts, people = ledger.certificates.receipts, (INSIDE[0], OUTSIDE[0])
        for person in people:
            submit(ledger, person)
        assert count_applied(ledger) == 1
        codes = []
        for person in people:
            again = ledger.requests.submit([person], model="risk").id
            codes.append(receipts.new_code(again))
            assert ledger.requests.verify(again).state == "duplicate"
            late = ledger.requests.submit_with_code([person], model="risk", verified=True)
            assert late[1] is None
        clock.now += 3 * DAY + 1
        assert count_applied(ledger) == 1
        assert [receipts.open(code) for code in codes] == [None, None]


@pytest.mark.parametrize("policy", [{"unsampled_at_once": False}, {"k_min_released": 1}])
def test_without_the_rule_all_requests_are_one_batch(tmp_path: Path, policy: Any) -> None:
    ledger, _ = make_ledger(tmp_path, **policy)
    with ledger:
        submit(ledger, INSIDE[0])
        submit(ledger, OUTSIDE[0])
        is_off = "unsampled_at_once" in policy
        assert count_applied(ledger) == (0 if is_off else 2)
        assert len(ledger.run_once(force=True)) == (3 if is_off else 0)


@pytest.mark.parametrize("point", ["intent.after-commit", "publish.after-commit"])
def test_a_worker_killed_in_the_batch_at_once_erases_each_person_once(
    tmp_path: Path, point: str
) -> None:
    ledger, clock = make_ledger(tmp_path)
    inside, outside = submit(ledger, INSIDE[0]), submit(ledger, OUTSIDE[0])
    ledger.close()
    pid = os.fork()
    if pid == 0:
        core.hook = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None
        Ledger.open(tmp_path / "home", clock=clock).run_once()
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    with Ledger.open(tmp_path / "home", clock=clock) as reopened:
        reopened.run_once()
        assert reopened.requests.get(outside).state == "purged"
        assert reopened.requests.get(inside).state == "queued"
        assert reopened.models.load("risk").n_rows_ == N - 1
        assert len(reopened.certificates.list().items) == 1


def test_a_policy_needs_a_bool() -> None:
    with pytest.raises(ValueError, match="unsampled_at_once=1 must be a bool"):
        Policy(unsampled_at_once=1)  # type: ignore[arg-type]
