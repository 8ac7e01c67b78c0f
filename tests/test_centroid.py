"""NearestCentroid: contract, reference, planted bug, and all that the registry gives it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid as Reference
from sklearn.utils.estimator_checks import parametrize_with_checks

import letheon
from letheon import audit, checks
from letheon.bench._grid import CellContext, find_variant
from letheon.centroid import NearestCentroid, _class_mean
from letheon.exceptions import EmptyModelError
from letheon.ledger import Ledger
from letheon.select import Need, default_candidates

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3)).round(3)
Y = np.array(["no", "perhaps", "yes"])[np.argmax(X + RNG.normal(size=X.shape), axis=1)]
IDS = [f"p{row // 2}" for row in range(60)]


def fitted() -> NearestCentroid:
    return NearestCentroid().fit(X, Y, ids=IDS)


@parametrize_with_checks([NearestCentroid()])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks([NearestCentroid()])
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def test_it_agrees_with_scikit_learn() -> None:
    model, reference = fitted(), Reference().fit(X, Y)
    np.testing.assert_allclose(model.centroids_, reference.centroids_)
    np.testing.assert_array_equal(model.predict(X), reference.predict(X))


@given(st.lists(st.sampled_from(sorted(set(IDS))), unique=True, max_size=29))
def test_forgetting_is_a_fresh_fit(gone: list[str]) -> None:
    model = fitted()
    model.forget(gone)
    stays = [row for row, owner in enumerate(IDS) if owner not in gone]
    fresh = NearestCentroid().fit(X[stays], Y[stays], ids=[IDS[row] for row in stays])
    assert model.digest() == fresh.digest()


def test_the_last_row_cannot_leave() -> None:
    with pytest.raises(EmptyModelError, match="no rows would remain to fit"):
        NearestCentroid().fit([[1.0]], [0]).forget([0])


def test_a_downdated_mean_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a mean that is computed in another way than by `fit`."""

    def downdate(rows: Any, label: Any) -> Any:
        return _class_mean(rows, label) * (1.0 + 1e-15)

    model = fitted()
    monkeypatch.setattr("letheon.centroid._class_mean", downdate)
    model.forget([IDS[0]])
    monkeypatch.undo()
    assert model.digest() != NearestCentroid().fit(X[2:], Y[2:], ids=IDS[2:]).digest()


def test_certificate_and_audit_work(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger", name="test") as ledger:
        ledger.models.register(fitted(), X, Y, ids=IDS, name="m")
        ledger.requests.submit(["p3"], model="m", verified=True)
        ledger.run_once(force=True)
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
    report = audit.audit(bundle, key=key)
    assert report.verdict == "passed"
    claims = report.subjects[0]
    assert claims["method"] == "nearest-centroid"


def test_it_is_a_candidate() -> None:
    candidates, _ = default_candidates(Need(), "classification", LogisticRegression())
    assert "NearestCentroid" in candidates


def test_it_is_saved_under_its_public_name(tmp_path: Path) -> None:
    model = fitted()
    letheon.save(model, tmp_path / "m.letheon")
    assert letheon.load(tmp_path / "m.letheon").digest() == model.digest()
    assert letheon.state.tag_of(NearestCentroid) == "letheon.centroid.NearestCentroid"


def test_it_is_in_the_benchmark() -> None:
    place = CellContext(n_rows=60, n_columns=3, n_removed=1)
    made = find_variant("NearestCentroid", "linear", "defaults").make(place)
    assert isinstance(made, NearestCentroid)
