"""Columns that leave and arrive in a forest at the end of a pipeline."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import FunctionTransformer

import letheon
from letheon import DaREForestClassifier, DaREForestRegressor, ForgetPipeline
from letheon.forest import _columns
from letheon.forest._columns import keys_from_names
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)


def make_frame(n_rows: int, seed: int, n_cities: int = 8) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 10, n_rows).round(1)
    age[rng.random(n_rows) < 0.1] = np.nan
    city = rng.zipf(1.6, n_rows).clip(max=n_cities)
    job = rng.zipf(1.4, n_rows).clip(max=5)
    y = ((city % 2) ^ (rng.random(n_rows) < 0.2)).astype(int)
    frame = pd.DataFrame(
        {
            "age": age,
            "city": [f"c{value}" for value in city],
            "job": [None if value == 4 else f"j{value}" for value in job],
        }
    )
    return frame, y


def make_model(forest: Any = None, **options: Any) -> ForgetPipeline:
    texts = [
        ("fill", SimpleImputer(strategy="most_frequent", random_state=3)),
        ("encode", OneHotEncoder(handle_unknown="ignore", sparse_output=False, **options)),
    ]
    columns = ForgetColumnTransformer(
        [
            ("numbers", SimpleImputer(random_state=1), ["age"]),
            ("texts", ForgetPipeline(texts), ["city", "job"]),
        ]
    )
    if forest is None:
        forest = DaREForestClassifier(n_estimators=4, max_depth=5, max_features=3, random_state=0)
    return ForgetPipeline([("columns", columns), ("model", forest)])


def check_fresh(model: Any, fresh: Any, frame: Any, y: Any, ids: list[int]) -> None:
    """The digest is that of a fresh fit on these rows."""
    fresh.fit(frame.iloc[ids], y[ids], ids=ids)
    assert fresh.digest() == model.digest()
    assert np.array_equal(model.predict(frame), fresh.predict(frame))


FORESTS: dict[str, Callable[[], Any]] = {
    "three": lambda: DaREForestClassifier(
        n_estimators=3, max_depth=5, max_features=3, random_state=0
    ),
    "sqrt": lambda: DaREForestClassifier(n_estimators=3, max_depth=4, random_state=0),
    "all": lambda: DaREForestClassifier(
        n_estimators=2, max_depth=4, max_features=None, random_depth=1, random_state=0
    ),
    "subsample": lambda: DaREForestClassifier(
        n_estimators=3, max_features=2, subsample=0.6, rebuild="eager", random_state=0
    ),
    "entropy": lambda: DaREForestClassifier(
        n_estimators=2, criterion="entropy", min_samples_leaf=2, max_features=4, random_state=0
    ),
    "numbers": lambda: DaREForestRegressor(n_estimators=3, max_depth=5, random_state=0),
}


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(sorted(FORESTS)),
    options=st.sampled_from([{}, {"drop": "first"}, {"min_frequency": 2}, {"max_categories": 4}]),
    requests=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=6),
)
def test_any_sequence_gives_the_forest_of_a_fresh_fit(
    seed: int, kind: str, options: dict[str, Any], requests: list[tuple[bool, int]]
) -> None:
    frame, y = make_frame(40, seed)
    y = y * 1.5 if kind == "numbers" else y
    rng = np.random.default_rng(seed)
    order = rng.permutation(40).tolist()
    inside, outside = order[:30], order[30:]
    model = make_model(FORESTS[kind](), **options)
    model.fit(frame.iloc[inside], y[inside], ids=inside)
    for is_forget, n_rows in requests:
        if is_forget:
            moved, inside = inside[:n_rows], inside[n_rows:]
            model.forget(moved)
            outside += moved
        else:
            moved, outside = outside[:n_rows], outside[n_rows:]
            if moved:
                model.learn(frame.iloc[moved], y[moved], ids=moved)
            inside += moved
    check_fresh(model, make_model(FORESTS[kind](), **options), frame, y, inside)


def rare_frame() -> tuple[pd.DataFrame, np.ndarray]:
    """One person alone lives in c9."""
    frame, y = make_frame(60, 5)
    frame["city"] = [f"c{i % 4}" for i in range(60)]
    frame["job"] = [f"j{i % 3}" for i in range(60)]
    frame.loc[7, "city"] = "c9"
    frame["age"] = np.arange(60.0)
    return frame, y


def test_a_vanished_category_does_not_refit() -> None:
    frame, y = rare_frame()
    model = make_model().fit(frame, y)
    forest = model["model"]
    assert forest.n_features_in_ == 9
    receipt = model.forget([7])
    assert "models" not in receipt.rebuilt
    assert model["model"] is forest
    assert forest.n_features_in_ == 8
    assert forest.forest_.settings.n_columns == 8
    assert forest.predict(np.zeros((1, 8))).shape == (1,)
    check_fresh(model, make_model(), frame, y, [i for i in range(60) if i != 7])


def test_a_new_category_does_not_refit() -> None:
    frame, y = rare_frame()
    keep = [i for i in range(60) if i != 7]
    model = make_model().fit(frame.iloc[keep], y[keep], ids=keep)
    forest = model["model"].forest_
    model.learn(frame.iloc[[7]], y[[7]], ids=[7])
    assert model["model"].forest_ is forest
    check_fresh(model, make_model(), frame, y, [*keep, 7])
    model.forget([7])
    assert model["model"].forest_ is forest
    check_fresh(model, make_model(), frame, y, keep)


def test_a_learn_that_fails_takes_its_columns_back(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, y = rare_frame()
    keep = [i for i in range(60) if i != 7]
    model = make_model().fit(frame.iloc[keep], y[keep], ids=keep)
    before, forest = model.digest(), model["model"].forest_
    moves = []

    class Failing:
        def __init__(self, core: Any) -> None:
            self.core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def learn(self, **_: Any) -> None:
            moves.append(self.core.n_rows)
            raise MemoryError("no room")

    monkeypatch.setattr(forest, "core", Failing(forest.core))
    with pytest.raises(MemoryError, match="no room"):
        model.learn(frame.iloc[[7]], y[[7]], ids=[7])
    monkeypatch.undo()
    assert moves == [59]
    assert model.digest() == before
    check_fresh(model, make_model(), frame, y, keep)


def test_max_features_that_changes_refits() -> None:
    frame, y = rare_frame()
    forest = DaREForestClassifier(n_estimators=3, random_state=0)
    model = make_model(forest).fit(frame, y)
    assert model["model"].forest_.settings.max_features == 3  # of 9 columns
    assert model.forget([7]).rebuilt == {"models": 1}
    assert model["model"].forest_.settings.max_features == 2
    fresh = make_model(forest)
    check_fresh(model, fresh, frame, y, [i for i in range(60) if i != 7])


def test_a_scaler_behind_the_encoder_gives_new_columns_another_constant() -> None:
    frame, y = rare_frame()

    def make() -> ForgetPipeline:
        columns = make_model().steps[0]
        forest = DaREForestClassifier(n_estimators=3, max_features=3, random_state=0)
        return ForgetPipeline(
            [columns, ("scale", StandardScaler(random_state=5)), ("model", forest)]
        )

    keep = [i for i in range(60) if i != 7]
    model = make().fit(frame.iloc[keep], y[keep], ids=keep)
    model.learn(frame.iloc[[7]], y[[7]], ids=[7])
    check_fresh(model, make(), frame, y, [*keep, 7])
    model.forget([7])
    check_fresh(model, make(), frame, y, keep)


def test_colliding_keys_are_distinct_and_depend_on_the_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_columns, "_hash_texts", lambda texts, _: [len(t) % 2 for t in texts])
    names = ["a", "bb", "c", "dd"]
    keys = dict(zip(names, keys_from_names(names, 0).tolist(), strict=True))
    assert sorted(keys.values()) == [0, 1, 2, 3]
    assert keys_from_names(names[::-1], 0).tolist() == [keys[name] for name in names[::-1]]
    frame, y = rare_frame()
    model = make_model().fit(frame, y)
    model.forget([7])
    check_fresh(model, make_model(), frame, y, [i for i in range(60) if i != 7])


def test_equal_names_have_different_keys() -> None:
    keys = keys_from_names(["a", "a", "b", 3, "\ud800"], 1)
    assert len(set(keys.tolist())) == 5
    assert keys[0] == keys_from_names(["a"], 1)[0]
    assert keys[0] != keys_from_names(["a"], 2)[0]


def test_steps_without_names_keep_numbers() -> None:
    frame, y = rare_frame()
    columns = make_model().steps[0]
    nameless = letheon.DataIndependent(FunctionTransformer())
    forest = DaREForestClassifier(n_estimators=3, random_state=0)
    steps = [columns, ("same", nameless), ("model", forest)]
    model = ForgetPipeline(steps).fit(frame, y)
    assert model["model"].forest_.keys is None
    assert model.forget([7]).rebuilt["models"] == 1
    assert DaREForestClassifier().fit(np.zeros((2, 1)), [0, 1]).forest_.keys is None


def test_a_saved_pipeline_keeps_its_keys(tmp_path: Any) -> None:
    frame, y = rare_frame()
    model = make_model().fit(frame, y)
    letheon.save(model, tmp_path / "model.letheon")
    loaded = letheon.load(tmp_path / "model.letheon")
    assert loaded.digest() == model.digest()
    for each in (loaded, model):
        assert "models" not in each.forget([7]).rebuilt
    check_fresh(loaded, make_model(), frame, y, [i for i in range(60) if i != 7])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.arange(9), "array of uint32"),
        (np.arange(8, dtype=np.uint32), "one key per column"),
        (np.zeros(9, np.uint32), "distinct"),
    ],
)
def test_damaged_keys_are_refused(keys: Any, message: str) -> None:
    frame, y = rare_frame()
    forest = make_model().fit(frame, y)["model"].forest_
    state = forest._to_state() | {"column_keys": keys}
    with pytest.raises(ValueError, match=message):
        type(forest)._from_state(state)


def test_predictions_during_requests_that_change_the_columns() -> None:
    frame, y = rare_frame()
    frame.loc[20:50, "city"] = [f"only{i}" for i in range(31)]
    model = make_model().fit(frame, y)
    stop = threading.Event()

    def ask() -> int:
        n_asked = 0
        while not stop.is_set():
            n_asked += len(model.predict(frame)) // 60
        return n_asked

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask) for _ in range(2)]
        try:
            for person in range(20, 51):
                model.forget([person])
        finally:
            stop.set()
        assert all(answer.result() > 0 for answer in answers)
