"""A forest in a file: the canonical state and nothing else, verified when it comes back."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import DaREForestClassifier, DaREForestRegressor, load, save, state
from letheon.data import IntIds, TextIds
from letheon.exceptions import CorruptFileError
from letheon.forest._inputs import ForestSettings
from letheon.forest._model import ForestModel

N = 90


def make(kind: str = "classes", *, gone: tuple[int, ...] = (), ids: str = "text") -> Any:
    """Return a forest of all rows but these; ids are one per row."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(N, 3)).round(1), rng.integers(1, 3, N)
    X[::7, 1] = np.nan
    y: Any = np.array(["ä", "elm", "oak"])[rng.integers(0, 3, N)]
    model: Any = DaREForestClassifier(n_estimators=3, max_depth=4, random_state=5, subsample=0.8)
    if kind == "numbers":
        model, y = DaREForestRegressor(n_estimators=3, max_depth=4, random_state=5), X[:, 0] * 3
    keep = np.setdiff1d(np.arange(N), gone)
    names: Any = [f"né {i}" for i in keep] if ids == "text" else keep
    return model.fit(X[keep], y[keep], sample_weight=weights[keep], ids=names)


def person(number: int, ids: str) -> Any:
    return f"né {number}" if ids == "text" else number


def file_of(model: Any, folder: Path) -> bytes:
    save(model, folder / "model.letheon")
    return (folder / "model.letheon").read_bytes()


cases = pytest.mark.parametrize(
    ("kind", "ids"), [("classes", "text"), ("classes", "int"), ("numbers", "text")]
)


@cases
def test_a_round_trip_keeps_everything(kind: str, ids: str, tmp_path: Path) -> None:
    model = make(kind, ids=ids)
    save(model, tmp_path / "model.letheon")
    X = np.random.default_rng(1).normal(size=(50, 3))
    for twin in (
        load(tmp_path / "model.letheon"),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        copy.copy(model),
    ):
        assert twin.digest() == model.digest()
        np.testing.assert_array_equal(twin.predict(X), model.predict(X))
        np.testing.assert_array_equal(twin.apply(X), model.apply(X))
        assert twin.ids_.tolist() == model.ids_.tolist()
        assert twin.n_rows_ == N
        twin.forget([person(3, ids)])
        assert twin.digest() == make(kind, ids=ids, gone=(3,)).digest()
        assert model.n_rows_ == N


@cases
def test_the_file_of_a_forgotten_person_is_that_of_a_fresh_fit(
    kind: str, ids: str, tmp_path: Path
) -> None:
    model = make(kind, ids=ids)
    for gone in ([4, 5], [6]):
        model.forget([person(number, ids) for number in gone])
    fresh = make(kind, ids=ids, gone=(4, 5, 6))
    assert file_of(model, tmp_path) == file_of(fresh, tmp_path)
    assert pickle.dumps(model.forest_) == pickle.dumps(fresh.forest_)


def test_the_file_does_not_depend_on_how_the_model_is_used(tmp_path: Path) -> None:
    first, other = make(), make()
    other.set_params(n_jobs=None)
    other.predict(np.zeros((3, 3)))
    other.settle()
    assert file_of(first, tmp_path) == file_of(other, tmp_path)


def test_the_digest_covers_rows_labels_settings_and_seed() -> None:
    base = make().forest_._to_state()
    changed: list[dict[str, Any]] = [
        {"X": base["X"] + np.float32(1)},
        {"classes": np.array(["a", "b", "c"])},
        {"weights": base["weights"] + np.uint32(1)},
        {"ids": IntIds(np.arange(N))},
        {"trees": base["trees"][::-1]},
        {"target": base["target"][::-1]},
    ]
    digests = {state.digest({**base, **change}) for change in ({}, *changed)}
    assert len(digests) == len(changed) + 1


def tampered(**changes: Any) -> dict[str, Any]:
    kind = changes.pop("kind", "classes")
    original = make(kind).forest_._to_state()
    settings = {name: changes.pop(name) for name in list(changes) if name not in original}
    if settings:
        changes["settings"] = ForestSettings(**{**vars(original["settings"]), **settings})
    return {**original, **changes}


WRONG: dict[str, Any] = {
    "no settings": {"settings": None},
    "settings of another kind": {"settings": {"n_trees": 3}},
    "too many trees": {"n_trees": 4},
    "far too many trees": {"n_trees": 2**62},
    "too few trees": {"n_trees": 2},
    "trees as text": {"n_trees": "3"},
    "another number of columns": {"n_columns": 4},
    "no column": {"n_columns": 0},
    "a criterion that forests do not have": {"criterion": "absolute_error"},
    "a criterion of the other kind": {"criterion": "squared_error"},
    "a seed that is too long": {"seed": 2**128},
    "a share above one": {"subsample": 1.5},
    "no share": {"subsample": float("nan")},
    "no classes": {"classes": None},
    "classes out of order": {"classes": np.array(["oak", "elm", "a"])},
    "a class twice": {"classes": np.array(["a", "a", "b"])},
    "a class too many": {"classes": np.array(["a", "b", "c", "d"])},
    "a class too few": {"classes": np.array(["a", "b"])},
    "classes that are objects": {"classes": np.array(["a", "b", None], object)},
    "a class that is NaN": {"classes": np.array([1.0, 2.0, np.nan])},
    "X of another kind": {"X": np.zeros((N, 3))},
    "X of another shape": {"X": np.zeros((N, 2), np.float32)},
    "X with infinity": {"X": np.full((N, 3), np.inf, np.float32)},
    "rows missing": {"X": np.zeros((N - 1, 3), np.float32)},
    "X flat": {"X": np.zeros(N, np.float32)},
    "no rows": {"X": np.zeros((0, 3), np.float32)},
    "other rows": {"X": np.zeros((N, 3), np.float32)},
    "targets missing": {"target": np.zeros(N - 1, np.uint32)},
    "targets of another kind": {"target": np.zeros(N, np.int64)},
    "targets of one class": {"target": np.zeros(N, np.uint32)},
    "targets beyond the classes": {"target": np.full(N, 7, np.uint32)},
    "weights of zero": {"weights": np.zeros(N, np.uint32)},
    "weights missing": {"weights": np.ones(N - 1, np.uint32)},
    "weights that are too large": {"weights": np.full(N, 2**31, np.uint32)},
    "ids missing": {"ids": TextIds.from_strings(["a"])},
    "ids of another kind": {"ids": np.arange(N)},
    "ids of another dtype": {"ids": IntIds(np.arange(N, dtype=np.int32))},
    "ids that are no UTF-8": {"ids": TextIds(np.full(N, 0xFF, np.uint8), np.arange(N + 1))},
    "ids cut inside a character": {
        "ids": TextIds(np.frombuffer("é".encode() * N, np.uint8), np.arange(N + 1))
    },
    "offsets that decrease": {"ids": TextIds(np.full(N, 97, np.uint8), np.arange(N, -1, -1))},
    "offsets outside": {"ids": TextIds(np.full(N, 97, np.uint8), np.arange(N + 1) * 2)},
    "no trees": {"trees": np.empty(0, np.uint8)},
    "trees of another kind": {"trees": "trees"},
    "trees of another dtype": {"trees": np.zeros(1000)},
    "numbers without an end": {"kind": "numbers", "target": np.full(N, np.inf)},
    "numbers that are none": {"kind": "numbers", "target": np.full(N, np.nan)},
    "numbers that are other numbers": {"kind": "numbers", "target": np.arange(N, dtype=float)},
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_state_that_makes_no_sense_is_refused(fault: str) -> None:
    wrong = tampered(**WRONG[fault])
    with pytest.raises(CorruptFileError, match=r"(is|are) not valid"):
        state.decode(_encoded(wrong))


class Forged:
    """Says that it is a `ForestModel`, with any state."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def _to_state(self) -> dict[str, Any]:
        return self.content

    @classmethod
    def _from_state(cls, content: dict[str, Any]) -> "Forged":
        return cls(content)


def _encoded(content: dict[str, Any]) -> bytes:
    """Return the bytes of a forest with this content, as an attacker could make them."""
    Forged.__module__, Forged.__qualname__ = ForestModel.__module__, ForestModel.__qualname__
    return state.encode(Forged(content))


@given(st.data())
def test_altered_trees_are_refused_or_harmless(data: st.DataObject) -> None:
    original = make(data.draw(st.sampled_from(["classes", "numbers"]))).forest_._to_state()
    trees = original["trees"].copy()
    for _ in range(data.draw(st.integers(1, 4))):
        trees[data.draw(st.integers(0, len(trees) - 1))] = data.draw(st.integers(0, 255))
    try:
        model = ForestModel._from_state({**original, "trees": trees})
    except ValueError:
        return
    answer = model.predict(np.zeros((2, 3)), 1).values
    assert np.isfinite(answer).all()


@given(st.integers(0, 10_000), st.booleans())
def test_cut_or_prolonged_trees_are_refused(size: int, prolong: bool) -> None:
    original = make().forest_._to_state()
    trees = original["trees"]
    size = size % len(trees)
    other = np.concatenate([trees, trees[: size + 1]]) if prolong else trees[:size]
    with pytest.raises(ValueError):  # noqa: PT011 - the core says what is wrong
        ForestModel._from_state({**original, "trees": other})


def test_pickling_while_another_thread_forgets() -> None:
    model = make()
    allowed = {make(gone=tuple(range(k))).digest() for k in range(20)}
    with ThreadPoolExecutor(1) as pool:
        copies = pool.submit(lambda: [pickle.loads(pickle.dumps(model)) for _ in range(15)])
        for number in range(19):
            model.forget([person(number, "text")])
        assert {twin.digest() for twin in copies.result()} <= allowed


def test_a_shallow_copy_lives_on_its_own() -> None:
    model = make()
    twin = copy.copy(model)
    model.forget([person(1, "text")])
    assert twin.digest() == make().digest()
    assert twin.get_params() == model.get_params()
    unfitted = copy.copy(DaREForestClassifier(max_depth=2))
    assert unfitted.max_depth == 2
    assert not hasattr(unfitted, "forest_")
