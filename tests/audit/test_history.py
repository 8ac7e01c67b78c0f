"""Re-derivation over a whole history, through a real ledger and its bundles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner, SISAClassifier
from letheon.audit import check_rederivation
from letheon.data import Rows
from letheon.sharded._shards import Ensemble
from tests.audit.bundles import KINDS, erase, judged, ledger_of, verdicts
from tests.audit.people import held, table, without

PASSED = {"V0": "pass", "V1": "pass", "V2": "pass", "V4": "pass"}


def check_history(folder: Path, kind: str, n_requests: int) -> None:
    with ledger_of(folder / "home", kind, n=2 * n_requests + 20) as ledger:
        for number in range(n_requests):
            erase(ledger, kind, 2 * number)
            report = judged(ledger, folder / f"bundle-{number}", *PASSED)
            assert verdicts(report) == PASSED
            assert report.subjects[0]["sequence"] == number + 1
        report = judged(ledger, folder / "newest")
    assert report.passed
    assert not report.skipped


@pytest.mark.parametrize("kind", KINDS)
def test_every_certificate_verifies_at_issue_and_the_newest_after_purge(
    kind: str, tmp_path: Path
) -> None:
    check_history(tmp_path, kind, 3)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_requests(kind: str, tmp_path: Path) -> None:
    check_history(tmp_path, kind, 50)


def kept_by_naive(rows: Rows, all_rows: Rows) -> Any:
    """A model that says it holds `rows` and was trained on `all_rows`."""
    model = NaiveUnlearner(GaussianNB(), random_state=1)
    model.fit(rows.X, rows.y, ids=rows.ids.to_array())
    other = NaiveUnlearner(GaussianNB(), random_state=1)
    model.estimator_ = other.fit(all_rows.X, all_rows.y, ids=all_rows.ids.to_array()).estimator_
    return model


def kept_by_sisa(rows: Rows, all_rows: Rows) -> Any:
    model, other = (SISAClassifier(GaussianNB(), n_shards=3, random_state=1) for _ in range(2))
    model.fit(rows.X, rows.y, ids=rows.ids.to_array())
    other.fit(all_rows.X, all_rows.y, ids=all_rows.ids.to_array())
    mixed = [
        type(mine)(mine.number, mine.rows, mine.states, theirs.model)
        for mine, theirs in zip(model.ensemble_.shards, other.ensemble_.shards, strict=True)
    ]
    before = model.ensemble_
    model.ensemble_ = Ensemble(before.assignment, tuple(mixed), before.classes)
    return model


def kept_by_forest(rows: Rows, all_rows: Rows) -> Any:
    model = KINDS["forest"]().fit(all_rows.X, all_rows.y, ids=all_rows.ids.to_array())
    assert model.n_rows_ == len(rows) + 1
    return model


@pytest.mark.parametrize("kept", [kept_by_naive, kept_by_sisa, kept_by_forest])
def test_a_model_that_kept_one_forgotten_row_fails_fifty_times_of_fifty(kept: Any) -> None:
    X, y = table(60)
    all_rows = held(X, y, np.arange(60))
    verdict_list = []
    for person in range(50):
        rows = without(all_rows, [person])
        verdict_list.append(check_rederivation(kept(rows, all_rows), rows)[0].verdict)
    assert verdict_list == ["fail"] * 50
