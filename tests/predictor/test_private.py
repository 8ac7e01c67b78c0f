"""No row, id, key, seed or salt of 10,000 people is in the file of a predictor."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.preprocessing import KBinsDiscretizer
from sklearn.preprocessing import StandardScaler as SklearnScaler

import letheon
from letheon import (
    BoostingClassifier,
    DaREForestClassifier,
    DaREForestRegressor,
    FisherClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.data import CategoryColumns
from letheon.preprocessing import KeyedSample, OneHotEncoder, QuantileBinner, StandardScaler
from letheon.seeds import Purpose, keyed_hash_ints
from letheon.sums import GaussianNB, MultinomialNB, Ridge
from tests.predictor.models import make_pipeline

N = 10_000
RNG = np.random.default_rng(3)
# Different in float32, and with the same decimals in float64.
X = RNG.normal(size=(N, 6)).astype(np.float32).astype(np.float64)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
TARGET = X[:, 0] * 3 + RNG.normal(size=N)
TEXT_IDS = [f"person-{number:032x}" for number in RNG.integers(2**62, 2**63, N).tolist()]
INT_IDS = RNG.integers(2**40, 2**62, N)
CITIES = pd.DataFrame(X, columns=list("abcdef")).assign(city=RNG.choice(["Oslo", "Rome"], N))
SEED = 0x1F2E3D4C5B6A79880123456789ABCDEF

MODELS: dict[str, tuple[Any, Any, Any]] = {
    "forest": (DaREForestClassifier(n_estimators=10, random_state=SEED), X, Y),
    "categories": (DaREForestClassifier(n_estimators=5, random_state=SEED), CITIES, Y),
    "regression": (DaREForestRegressor(n_estimators=5, random_state=SEED), X, TARGET),
    "boosting": (BoostingClassifier(n_estimators=10, random_state=SEED), CITIES, Y),
    "ridge": (Ridge(random_state=SEED), X, TARGET),
    "gauss": (GaussianNB(random_state=SEED), X, Y),
    "influence": (InfluenceClassifier(sigma=0.1, random_state=SEED), X, Y),
    "fisher": (FisherClassifier(random_state=SEED), X, Y),
    "scaled": (
        make_pipeline(StandardScaler(random_state=SEED), Ridge(random_state=SEED)),
        X,
        TARGET,
    ),
    "bins": (
        make_pipeline(
            QuantileBinner(n_bins=16, random_state=SEED),
            OneHotEncoder(handle_unknown="ignore"),
            MultinomialNB(),
        ),
        X,
        Y,
    ),
    "sampled": (
        make_pipeline(
            KeyedSample(SklearnPCA(4, svd_solver="randomized"), random_state=SEED),
            KeyedSample(KBinsDiscretizer(8, encode="ordinal", quantile_method="linear")),
            DaREForestClassifier(n_estimators=2, random_state=SEED),
        ),
        X,
        Y,
    ),
    "naive scaler": (
        make_pipeline(
            NaiveUnlearner(SklearnScaler(), random_state=SEED), GaussianNB(random_state=SEED)
        ),
        X,
        Y,
    ),
    "sisa": (
        SISAClassifier(
            DaREForestClassifier(n_estimators=2, random_state=SEED), n_shards=2, random_state=SEED
        ),
        X,
        Y,
    ),
}


def find_bytes(content: bytes, wanted: Iterable[bytes]) -> set[bytes]:
    """Return the texts of one length that are somewhere in the content."""
    texts = set(wanted)
    (length,) = {len(text) for text in texts}
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), length)
    return texts & {row.tobytes() for row in windows}


def list_rows(dtype: Any) -> list[bytes]:
    return [row.tobytes() for row in X.astype(dtype)]


def read_bytes(model: Any, folder: Path) -> bytes:
    letheon.save(model, folder / "file")
    return (folder / "file").read_bytes()


def find_secrets(model: Any) -> list[bytes]:
    """Return seeds, keys and salts of a model and its parts, as bytes and as texts."""
    parts = [model, *(step for _, step in getattr(model, "steps_", ()))]
    ints = {SEED, *(part.seed_ for part in parts)} - {0}
    found = [str(vars(part).get("release_salt_", "")).encode() for part in parts]
    for seed in ints:
        found += [seed.to_bytes(16, "little"), seed.to_bytes(16, "big")]
        found += [str(seed).encode(), f"{seed:x}".encode()]
        for purpose in (Purpose.TREE, Purpose.TREE_ROWS, Purpose.BOOSTING):
            keys = keyed_hash_ints(seed, purpose, np.arange(50))
            found += [key.tobytes() for key in keys]
        values = CategoryColumns(seed, (6,), ("city",)).hash_texts(0, ["Oslo", "Rome"])
        found += [np.float32(value).tobytes() for value in values]
    return [secret for secret in found if secret]


def fit(name: str, ids: Any) -> Any:
    template, rows, y = MODELS[name]
    return clone(template).fit(rows, y, ids=ids)


@pytest.mark.parametrize("name", MODELS)
def test_no_row_and_no_id_is_in_the_file(name: str, tmp_path: Path) -> None:
    model = fit(name, TEXT_IDS)
    content = read_bytes(model.predictor(), tmp_path)
    for dtype in (np.float32, np.float64):
        assert not find_bytes(content, list_rows(dtype))
    assert not find_bytes(content, [text.encode() for text in TEXT_IDS])
    assert not [secret for secret in find_secrets(model) if secret in content]


@pytest.mark.parametrize("name", ["forest", "boosting", "ridge", "bins"])
def test_no_number_of_a_person_is_in_the_file(name: str, tmp_path: Path) -> None:
    content = read_bytes(fit(name, INT_IDS).predictor(), tmp_path)
    assert not find_bytes(content, [number.tobytes() for number in INT_IDS])


def test_the_search_finds_rows_ids_and_the_seed_in_the_file_of_the_model(tmp_path: Path) -> None:
    model = DaREForestClassifier(n_estimators=1, random_state=SEED).fit(X, Y, ids=TEXT_IDS)
    content = read_bytes(model, tmp_path)
    assert len(find_bytes(content, list_rows(np.float32))) == N
    assert len(find_bytes(content, [text.encode() for text in TEXT_IDS])) == N
    assert any(secret in content for secret in find_secrets(model))


def list_thresholds(model: Any) -> Any:
    return model.predictor().scores.thresholds


def test_values_of_a_forgotten_person_are_not_in_a_new_predictor() -> None:
    model = DaREForestClassifier(n_estimators=5, random_state=0).fit(X, Y, ids=INT_IDS)
    thresholds = list_thresholds(model)
    person = int(np.flatnonzero(np.isin(X.astype(np.float32), thresholds).any(axis=1))[0])
    values = X[person].astype(np.float32)
    assert np.isin(values, thresholds).any()
    model.forget([INT_IDS[person]])
    assert not np.isin(values, list_thresholds(model)).any()
