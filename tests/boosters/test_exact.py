"""XGBoost and LightGBM inside exact methods: digests of fresh fits, files, ledger and audit."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import VotingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import letheon
from letheon import NaiveUnlearner, SISAClassifier, SISARegressor, checks, state
from letheon.ledger import Ledger, ModelFiles
from tests.audit.bundles import erase, judged, verdicts

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

N = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
X[::9, 1] = np.nan
Y = (X[:, 0] > 0).astype(int) + (X[:, 2] > 0.8)
LIGHT: dict[str, Any] = {"n_estimators": 4, "min_child_samples": 3, "verbose": -1}
LIGHT_SAMPLED = {**LIGHT, "subsample": 0.6, "subsample_freq": 1, "colsample_bytree": 0.7}


def any_labels(estimator: Any) -> Any:
    """XGBoost takes only the labels 0, 1, ...; a voting classifier of one member encodes others."""
    return VotingClassifier([("only", estimator)], voting="soft")


MODELS: dict[str, Any] = {
    "naive-lightgbm": lambda: NaiveUnlearner(lightgbm.LGBMClassifier(**LIGHT_SAMPLED)),
    "naive-xgboost": lambda: NaiveUnlearner(xgboost.XGBClassifier(n_estimators=4, subsample=0.6)),
    "naive-lightgbm-rows": lambda: NaiveUnlearner(
        lightgbm.LGBMRegressor(**LIGHT, force_row_wise=True, n_jobs=3)
    ),
    "naive-xgboost-regressor": lambda: NaiveUnlearner(xgboost.XGBRegressor(n_estimators=4)),
    "sisa-lightgbm": lambda: SISAClassifier(lightgbm.LGBMClassifier(**LIGHT), n_shards=3),
    "sisa-xgboost": lambda: SISAClassifier(
        any_labels(xgboost.XGBClassifier(n_estimators=3, colsample_bytree=0.5)), n_shards=3
    ),
    "sisa-regressor": lambda: SISARegressor(lightgbm.LGBMRegressor(**LIGHT_SAMPLED), n_shards=3),
    "pipeline": lambda: NaiveUnlearner(
        make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**LIGHT))
    ),
}


def fit(name: str, rows: Any = None) -> Any:
    rows = np.arange(N) if rows is None else np.asarray(rows)
    return MODELS[name]().set_params(random_state=7).fit(X[rows], Y[rows], ids=rows)


@pytest.mark.parametrize("name", MODELS)
def test_forget_and_learn_end_at_the_digest_of_a_fresh_fit(name: str) -> None:
    model = fit(name)
    together, gone = fit(name), [3, 40, 41]
    receipt = together.forget(gone, digest=True)
    for person in reversed(gone):
        model.forget([person])
    fresh = fit(name, np.setdiff1d(np.arange(N), gone))
    assert receipt.guarantee.kind == "exact"
    assert model.digest() == together.digest() == fresh.digest() == receipt.digest_after
    model.learn(X[[3]], Y[[3]], ids=[3])
    fresh.learn(X[[3]], Y[[3]], ids=[3])
    assert model.digest() == fresh.digest() != together.digest()


@pytest.mark.parametrize("name", ["naive-lightgbm-rows", "sisa-xgboost", "pipeline"])
def test_a_loaded_model_predicts_and_forgets_like_the_original(name: str, tmp_path: Path) -> None:
    model = fit(name)
    letheon.save(model, tmp_path / "m.letheon")
    again = letheon.load(tmp_path / "m.letheon")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.digest() == model.digest()
    again.forget([5])
    model.forget([5])
    assert again.digest() == model.digest()


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(["naive-lightgbm", "naive-xgboost"]), st.sets(st.integers(0, N - 1)))
def test_any_people_can_leave(name: str, gone: set[int]) -> None:
    stays = sorted(set(range(N)) - gone)
    if len(set(Y[stays])) < 3:
        return
    model = fit(name)
    model.forget(sorted(gone))
    assert model.digest() == fit(name, stays).digest()


CONTRACT = [
    NaiveUnlearner(any_labels(xgboost.XGBClassifier(n_estimators=3)), random_state=0),
    SISAClassifier(lightgbm.LGBMClassifier(**LIGHT), n_shards=2, random_state=0),
]


@checks.parametrize_with_checks(CONTRACT)
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


def test_threads_of_the_caller_change_nothing() -> None:
    table = np.random.default_rng(1).normal(size=(3000, 8))
    target = table[:, 0] * table[:, 1]

    def digest_with(n_jobs: int | None) -> str:
        model = NaiveUnlearner(lightgbm.LGBMRegressor(**LIGHT, n_jobs=n_jobs), random_state=0)
        params = model.fit(table, target).estimator_.get_params()
        fixed = (params["n_jobs"], params["deterministic"], params["force_col_wise"])
        assert fixed == (1, True, True)
        return model.digest()

    assert digest_with(None) == digest_with(1) == digest_with(4)


@pytest.mark.parametrize("params", [{}, {"n_jobs": 4}, {"tree_method": "auto"}])
def test_settings_of_xgboost_are_fixed(params: dict[str, Any]) -> None:
    booster = xgboost.XGBRegressor(n_estimators=2, **params)
    model = NaiveUnlearner(booster, random_state=0).fit(X[:30], X[:30, 0])
    used = model.estimator_.get_params()
    assert (used["n_jobs"], used["tree_method"]) == (1, "hist")
    assert booster.get_params()["n_jobs"] == params.get("n_jobs")


def frame() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    colours = rng.choice(["red", "green", "blue", "black", "white"], N).astype(object)
    colours[7] = "ultramarine"  # one person only
    table = pd.DataFrame(
        {
            "size of it": rng.normal(size=N),
            "colour": pd.Categorical(colours),
            "code": pd.Categorical(rng.choice([3, 5, 9], N)),
        }
    )
    return table, ((table["colour"].isin(["red", "blue"])) ^ (table["code"] == 5)).astype(int)


CATEGORICAL = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(
        **LIGHT, min_data_per_group=2, cat_smooth=1, max_cat_to_onehot=1
    ),
    "xgboost": lambda: xgboost.XGBClassifier(
        n_estimators=4, enable_categorical=True, max_cat_to_onehot=1
    ),
}


@pytest.mark.parametrize("library", CATEGORICAL)
def test_categories_of_a_frame_leave_with_their_last_row(library: str, tmp_path: Path) -> None:
    table, target = frame()
    model = NaiveUnlearner(CATEGORICAL[library](), random_state=0).fit(table, target)
    assert b"ultramarine" in state.encode(model)
    model.forget([7])
    rest = [row for row in range(N) if row != 7]
    table = table.iloc[rest]
    table = table.assign(colour=table["colour"].cat.remove_unused_categories())
    fresh = NaiveUnlearner(CATEGORICAL[library](), random_state=0)
    assert fresh.fit(table, target.iloc[rest], ids=rest).digest() == model.digest()
    letheon.save(model, tmp_path / "m.letheon")
    assert b"ultramarine" not in (tmp_path / "m.letheon").read_bytes()
    again = letheon.load(tmp_path / "m.letheon")
    np.testing.assert_array_equal(again.predict_proba(table), model.predict_proba(table))


@pytest.mark.parametrize("name", ["sisa-lightgbm", "naive-xgboost"])
def test_ledger_and_audit(name: str, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger", name="boosters") as ledger:
        ledger.models.register(fit(name), X, Y, ids=np.arange(N), name="model")
        erase(ledger, "model", 3, 17)
        report = judged(ledger, tmp_path / "bundle")
        assert "fail" not in set(verdicts(report).values()), str(report)
        assert verdicts(report)["V4"] == "pass"
        fresh = fit(name, np.setdiff1d(np.arange(N), [3, 17]))
        assert ledger.models.load("model").digest() == fresh.digest()


def test_an_uploaded_model_is_computed_in_the_sandbox(tmp_path: Path) -> None:
    letheon.save(fit("naive-lightgbm"), tmp_path / "m.letheon")
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    content, rows = (tmp_path / "m.letheon").read_bytes(), (tmp_path / "rows.npz").read_bytes()
    with Ledger.create(tmp_path / "ledger", name="boosters") as ledger:
        ledger.models.register_files(ModelFiles(model=content, rows=("rows.npz", rows)), name="m")
        erase(ledger, "m", 3)
        fresh = fit("naive-lightgbm", np.setdiff1d(np.arange(N), [3]))
        assert ledger.models.load("m").digest() == fresh.digest()
