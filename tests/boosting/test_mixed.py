"""Boosting on frames with categories, and on sparse rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import letheon
from letheon import BoostingClassifier, DaREForestClassifier, state
from tests.forest.people import examples

TOWNS = ("Oslo", "Riga", "Bonn", "Lyon")
N_ROWS = 120


def make_frame(n_rows: int = N_ROWS, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    towns = rng.choice(TOWNS, n_rows).astype(object)
    towns[rng.random(n_rows) < 0.1] = None
    towns[0] = "Visby"  # one row only
    age = rng.normal(40, 9, n_rows)
    age[rng.random(n_rows) < 0.1] = np.nan
    frame = pd.DataFrame({"age": age, "town": towns, "member": rng.random(n_rows) < 0.5})
    return frame, ((towns == "Riga") ^ (rng.random(n_rows) < 0.2)).astype(int)


def make_model() -> BoostingClassifier:
    return BoostingClassifier(
        n_estimators=6, n_chains=2, max_leaves=8, min_samples_leaf=2, skeleton_people=40,
        random_state=3,
    )  # fmt: skip


def test_a_category_without_rows_leaves_the_state(tmp_path: Path) -> None:
    frame, y = make_frame()
    model = make_model().fit(frame, y, ids=np.arange(N_ROWS))
    assert "Visby" in model.boosting_.categories.names[0].values()
    model.forget([0])
    letheon.save(model, tmp_path / "model.letheon")
    assert b"Visby" not in (tmp_path / "model.letheon").read_bytes()
    fresh = make_model().fit(frame.iloc[1:], y[1:], ids=np.arange(1, N_ROWS))
    assert letheon.load(tmp_path / "model.letheon").digest() == fresh.digest()


@given(st.lists(st.sets(st.integers(0, N_ROWS - 1), min_size=1, max_size=30), max_size=4))
@examples(270)
def test_any_sequence_of_changes_ends_in_a_fresh_fit(changes: list[set[int]]) -> None:
    frame, y = make_frame()
    held = set(range(60))
    model = make_model().fit(frame.iloc[:60], y[:60], ids=np.arange(60))
    for people in changes:
        leaving, arriving = sorted(people & held), sorted(people - held)
        if leaving and len(leaving) < len(held):
            model.forget(leaving)
            held -= set(leaving)
        if arriving:
            model.learn(frame.iloc[arriving], y[arriving], ids=arriving)
            held |= set(arriving)
    rows = sorted(held)
    fresh = make_model().fit(frame.iloc[rows], y[rows], ids=rows)
    assert model.digest() == fresh.digest()


def test_unseen_and_missing_categories_are_predicted() -> None:
    frame, y = make_frame()
    model = make_model().fit(frame, y)
    unseen = frame.iloc[:2].assign(town=["Atlantis", None])
    shares = model.predict_proba(unseen)
    assert np.isfinite(shares).all()
    others = frame.iloc[:2].assign(town=["El Dorado", None])
    np.testing.assert_array_equal(shares, model.predict_proba(others))


def test_sparse_rows_give_the_model_of_dense_rows() -> None:
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.4, (80, 6)).astype(float)
    y = (dense[:, 0] > 0).astype(int)
    model = make_model().fit(sp.csr_array(dense), y)
    assert model.digest() == make_model().fit(dense, y).digest()
    np.testing.assert_array_equal(
        model.predict_proba(sp.csr_array(dense)), model.predict_proba(dense)
    )


def test_frames_with_other_columns_are_refused() -> None:
    frame, y = make_frame()
    model = make_model().fit(frame, y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"town": "city"}))


@pytest.mark.parametrize("kind", [BoostingClassifier, DaREForestClassifier])
def test_an_accident_while_categories_are_counted_changes_nothing(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows had left already, their categories had not, and the file could not be loaded."""
    frame, y = make_frame()
    model = kind(n_estimators=2, random_state=0).fit(frame, y, ids=np.arange(N_ROWS))
    before = model.digest()

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(np, "unique", fail)
        with pytest.raises(MemoryError):
            model.forget([0])
        with pytest.raises(MemoryError):
            model.learn(frame[:2], y[:2], ids=[200, 201])
    assert state.decode(state.encode(model)).digest() == before
