"""What may be read of a boosted model and when: deferred work, threads, damaged files, wiping."""

import copy
import pickle
import struct
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import letheon
from letheon import BoostingClassifier, BoostingRegressor, state
from letheon.boosting._model import BoostingSettings
from letheon.exceptions import StateError

N = 400
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
GONE = range(0, 60, 2)


def make_model(**parameters: Any) -> BoostingClassifier:
    settings: dict[str, Any] = {"n_estimators": 20, "max_leaves": 8, "n_chains": 2}
    return BoostingClassifier(**settings | {"random_state": 0} | parameters)


def make_unsettled() -> BoostingClassifier:
    model = make_model().fit(X, Y, ids=range(N))
    model.forget(GONE)
    assert not model.boosting_.core.is_settled
    return model


def make_fresh() -> BoostingClassifier:
    keep = ~np.isin(np.arange(N), GONE)
    return make_model().fit(X[keep], Y[keep], ids=np.flatnonzero(keep))


LOOKS: dict[str, Callable[[Any], Any]] = {
    "digest": lambda model: model.digest(),
    "encode": lambda model: state.encode(model.boosting_),
    "pickle": lambda model: pickle.loads(pickle.dumps(model)).digest(),
    "copy": lambda model: copy.deepcopy(model).digest(),
    "predict": lambda model: model.predict_proba(X).tobytes(),
    "few": lambda model: model.predict_proba(X[:2]).tobytes(),
    "staged": lambda model: next(iter(model.staged_predict_proba(X))).tobytes(),
    "importances": lambda model: model.feature_importances_.tobytes(),
    "tree": lambda model: {k: v.tobytes() for k, v in model.boosting_.core.tree(3).items()},
}


@pytest.mark.parametrize("look", LOOKS)
def test_deferred_work_is_done_before_anything_is_read(look: str) -> None:
    model = make_unsettled()
    assert LOOKS[look](model) == LOOKS[look](make_fresh())
    assert model.boosting_.core.is_settled


def test_a_file_has_no_deferred_work(tmp_path: Path) -> None:
    for model, name in ((make_unsettled(), "unsettled"), (make_fresh(), "fresh")):
        letheon.save(model, tmp_path / name)
    loaded = letheon.load(tmp_path / "unsettled")
    assert loaded.boosting_.core.is_settled
    assert loaded.digest() == letheon.load(tmp_path / "fresh").digest()


def test_the_cost_of_a_request_leaves_deferred_work_as_it_is() -> None:
    model = make_unsettled()
    model.forget_cost([1, 3])
    assert not model.boosting_.core.is_settled
    assert model.digest() == make_fresh().digest()


def test_readers_see_whole_states_while_rows_leave() -> None:
    model = make_model(class_weight="balanced").fit(X, Y, ids=range(N))
    steps = [[i, i + 1, i + 2] for i in range(0, 90, 3)]
    legal = {model.predict_proba(X).tobytes()}
    twin = copy.deepcopy(model)
    for step in steps:
        twin.forget(step)
        legal.add(twin.predict_proba(X).tobytes())
    seen: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(model.predict_proba(X).tobytes())

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for step in steps:
        model.forget(step)
    done.set()
    for reader in readers:
        reader.join()
    assert set(seen) <= legal
    assert model.digest() == twin.digest()


@pytest.mark.parametrize("rebuild", ["lazy", "eager"])
@pytest.mark.parametrize("kind", [BoostingClassifier, BoostingRegressor])
def test_forgotten_values_and_ids_are_in_no_bytes(kind: Any, rebuild: str, tmp_path: Path) -> None:
    rows, target = X.copy(), Y.astype(float)
    odd = np.float32(1234.5678)
    rows[7] = odd
    target[7] = 0.8765432109
    ids = [f"person-{i}" for i in range(N)]
    ids[7] = "somebody unusual"
    model = kind(n_estimators=8, max_leaves=16, min_samples_leaf=1, rebuild=rebuild, random_state=0)
    weight = np.ones(N)
    weight[7] = 54321
    model.fit(rows, target if kind is BoostingRegressor else Y, ids=ids, sample_weight=weight)
    patterns = [odd.tobytes(), b"somebody unusual", struct.pack("<I", 54321)]
    if kind is BoostingRegressor:
        patterns.append(np.float64(target[7]).tobytes())
    path = tmp_path / "model.letheon"
    letheon.save(model, path)
    assert all(pattern in path.read_bytes() for pattern in patterns)
    model.forget([ids[7]])
    letheon.save(model, path)
    for content in (path.read_bytes(), pickle.dumps(model), state.encode(model)):
        assert not any(pattern in content for pattern in patterns)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(BoostingSettings) if field.type is int]
)
@pytest.mark.parametrize("wrong", ["a" * 1000, [1] * 1000, 2.0, True, None])
def test_settings_that_are_no_integers_are_refused(name: str, wrong: Any) -> None:
    settings = make_model().fit(X, Y).boosting_.settings
    good = settings._to_state()
    assert BoostingSettings._from_state(good) == settings
    with pytest.raises(ValueError, match="expected an integer"):
        BoostingSettings._from_state(good | {name: wrong})


CHANGES: list[dict[str, Any]] = [
    {"n_rounds": 21},
    {"n_rounds": 2**40},
    {"n_chains": 2**33},
    {"max_leaves": 65},
    {"l2": 2**300},
    {"l2": -1},
    {"step_bits": 60},
    {"max_bins": 10**6},
    {"tree_columns": 4},
    {"n_columns": 2},
    {"categorical": (5,)},
    {"categorical": [0]},
    {"loss": "absolute"},
    {"weight_bits": 17},
    {"class_weight": {0: -1}},
    {"min_samples_leaf": 0},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_forged_settings_are_refused(change: dict[str, Any]) -> None:
    model = make_fresh()
    parts = model.boosting_._to_state()
    forged = parts | {"settings": replace(parts["settings"], **change)}
    vars(model.boosting_)["_to_state"] = lambda: forged
    content = state.encode(model)
    with pytest.raises(StateError):
        state.decode(content)
