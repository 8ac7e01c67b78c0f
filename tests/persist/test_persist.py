"""Save and load: the same model comes back, everything else is refused with a reason."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import Normalizer
from sklearn.tree import DecisionTreeClassifier

from letheon import Receipt, state
from letheon.compose import DataIndependent
from letheon.exceptions import (
    CannotForgetError,
    CorruptFileError,
    EnvironmentWarning,
    NewerFormatError,
    NotFittedError,
    StateError,
    UnsupportedStateError,
    UntrustedClassError,
)
from letheon.guarantee import Guarantee
from letheon.naive import NaiveUnlearner
from letheon.persist import inspect, load, save
from tests.state.forge import changed_bytes, file_of, truncations

X = np.arange(12.0).reshape(6, 2)
Y = np.array(["a", "b", "a", "b", "b", "a"])
IDS = ["u0", "u1", "u2", "u3", "u4", "u5"]


RECEIPT = Receipt(
    method="naive",
    n_ids=1,
    n_rows=1,
    guarantee=Guarantee(kind="exact", reference="a theorem"),
    seconds=0.1,
    work=1.0,
)


class Majority(ClassifierMixin, BaseEstimator):
    """An estimator of the caller."""

    def fit(self, X: Any, y: Any) -> "Majority":
        self.classes_, counts = np.unique(y, return_counts=True)
        self.label_ = self.classes_[counts.argmax()]
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.label_)


def fitted(estimator: Any = None) -> Any:
    model = NaiveUnlearner(estimator or DecisionTreeClassifier(), random_state=0)
    return model.fit(X, Y, ids=IDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "churn.letheon"


def test_model_comes_back(path: Path) -> None:
    model = fitted()
    save(model, path)
    loaded = load(path)
    assert loaded.digest() == model.digest()
    assert loaded.predict(X).tolist() == model.predict(X).tolist()
    assert loaded.get_params().keys() == model.get_params().keys()


def test_loaded_model_forgets_as_the_first_does(path: Path) -> None:
    model = fitted()
    save(model, str(path))
    loaded = load(str(path))
    for each in (model, loaded):
        each.forget(["u1", "u4"])
    assert loaded.digest() == model.digest()
    assert loaded.ids_.tolist() == ["u0", "u2", "u3", "u5"]


def test_the_same_model_gives_the_same_bytes(path: Path) -> None:
    save(fitted(), path)
    first = path.read_bytes()
    save(load(path), path)
    assert path.read_bytes() == first


def test_frame_and_texts_come_back(path: Path) -> None:
    frame = pd.DataFrame({"n": [1.0, 2, 3, 4], "m": [0, 1, 0, 1]})
    model = NaiveUnlearner(LogisticRegression(), random_state=1).fit(frame, list("xyxy"))
    save(model, path)
    assert load(path).predict(frame).tolist() == model.predict(frame).tolist()


def test_forgotten_person_is_not_in_the_file(path: Path) -> None:
    model = NaiveUnlearner(DecisionTreeClassifier(), random_state=0)
    rows = np.vstack([X, [[123456.789, 987.654321]]])
    model.fit(rows, [*Y, "a"], ids=[*IDS, "canary-person"])
    canary = np.float64(123456.789).tobytes()
    save(model, path)
    assert canary in path.read_bytes()
    model.forget(["canary-person"])
    save(model, path)
    raw = path.read_bytes()
    assert canary not in raw
    assert b"canary-person" not in raw


def test_class_of_the_caller(path: Path) -> None:
    save(fitted(Majority()), path)
    with pytest.raises(UntrustedClassError, match=r"Majority.*trusted="):
        load(path)
    assert load(path, trusted=[Majority]).predict(X[:1]).tolist() == ["a"]


@pytest.mark.parametrize(
    "item",
    [DecisionTreeClassifier(), [1], None, NaiveUnlearner, DataIndependent(Normalizer()), RECEIPT],
)
def test_only_models_that_forget_are_saved(path: Path, item: Any) -> None:
    with pytest.raises(CannotForgetError, match="NaiveUnlearner"):
        save(item, path)
    assert not path.exists()


def test_own_forgetting_class_is_saved(path: Path) -> None:
    class OwnForgetter:
        def forget(self, ids: Any) -> None: ...

        def digest(self) -> str:
            return state.digest(self)

    save(OwnForgetter(), path)
    assert load(path, trusted=[OwnForgetter]).digest() == OwnForgetter().digest()


def test_a_model_without_rows_is_not_saved(path: Path) -> None:
    with pytest.raises(NotFittedError, match="this NaiveUnlearner is not fitted"):
        save(NaiveUnlearner(DecisionTreeClassifier()), path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("trusted", "message"),
    [
        ("module.Own", r"trusted='module.Own' is a single value.*\['module.Own'\]"),
        (Majority, r"pass a list: trusted=\[Majority\]"),
        (None, "trusted=None is not a list"),
    ],
)
def test_trusted_is_a_list(path: Path, trusted: Any, message: str) -> None:
    save(fitted(Majority()), path)
    with pytest.raises(TypeError, match=message):
        load(path, trusted=trusted)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("nowhere/churn.letheon", FileNotFoundError, "directory to write into does not exist"),
        (".", IsADirectoryError, "Is a directory"),
        ("file/churn.letheon", NotADirectoryError, "Not a directory"),
    ],
)
def test_unwritable_targets_are_named(
    tmp_path: Path, name: str, kind: type[OSError], message: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=message) as error:
        save(fitted(), tmp_path / name)
    assert error.value.filename == str(tmp_path / name)
    assert "partial" not in str(error.value)


def test_unsupported_state_leaves_no_file(path: Path) -> None:
    model = fitted()
    model.note = lambda: None
    with pytest.raises(UnsupportedStateError, match="note"):
        save(model, path)
    assert list(path.parent.iterdir()) == []


def test_every_changed_byte_is_refused(path: Path) -> None:
    save(fitted(), path)
    for _ in changed_bytes(path, 0x20):
        with pytest.raises(StateError):
            load(path)
    assert load(path).digest() == fitted().digest()


def test_every_truncation_is_refused(path: Path) -> None:
    save(fitted(), path)
    for _ in truncations(path):
        with pytest.raises(CorruptFileError, match=re.escape(str(path))):
            load(path)


def checkpoint(path: Path) -> bytes:
    return state.encode([1, 2])


def foreign_safetensors(path: Path) -> bytes:
    return safetensors.numpy.save({"weights": np.zeros(3)})


def beginning(path: Path) -> bytes:
    save(fitted(), path)
    return path.read_bytes()[:30]


@pytest.mark.parametrize(
    ("content", "message", "restore"),
    [
        (lambda _: b"", "the file is empty", True),
        (lambda _: b"name,age\nann,7\n", "this is not a letheon file", False),
        (lambda _: b"short", "this is not a letheon file", False),
        (lambda _: b"\x80\x04K\x01.", "not a letheon file but a pickle or zip file", False),
        (checkpoint, "a checkpoint, not a model file; load the file", False),
        (foreign_safetensors, "not a letheon file but a safetensors file", False),
        (beginning, "truncated", True),
    ],
)
def test_each_wrong_file_gets_its_own_advice(
    path: Path, content: Callable[[Path], bytes], message: str, restore: bool
) -> None:
    path.write_bytes(content(path))
    with pytest.raises(CorruptFileError, match=message) as error:
        load(path)
    assert ("from a copy" in str(error.value)) == restore


def test_other_kind_of_file(path: Path) -> None:
    state.write_file(path, [1], kind="ledger")
    with pytest.raises(CorruptFileError, match="is a file of kind 'ledger'; expected a model"):
        load(path)


def test_newer_file(path: Path) -> None:
    file_of(path, None, kind="model", form="letheon-v2")
    with pytest.raises(NewerFormatError, match=r"letheon-v2.*letheon-v1.*newer version of letheon"):
        load(path)


def test_missing_file(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(path)


def test_other_versions_give_a_warning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(fitted(), path)
    versions = {**state.environment(), "numpy": "9.9"}
    monkeypatch.setattr("letheon.persist.environment", lambda: versions)
    with pytest.warns(EnvironmentWarning, match=r"numpy .* \(now 9\.9\)") as caught:
        load(path)
    assert caught[0].filename == __file__


def test_a_file_that_calls_something_else_a_model(path: Path) -> None:
    file_of(path, {"list": []}, kind="model")
    with pytest.raises(CorruptFileError, match="contains a list, which is not a model"):
        load(path)


def test_inspect_builds_nothing(path: Path) -> None:
    save(fitted(Majority()), path)
    info = inspect(path)
    assert info.format == "letheon-v1"
    assert info.class_name == "letheon.naive.NaiveUnlearner"
    assert info.size == path.stat().st_size
    assert info.versions == info.trained_with == state.environment()
    assert f"{Majority.__module__}.Majority" in info.classes
    text = str(info)
    assert text.startswith(f"letheon.naive.NaiveUnlearner, format letheon-v1, {info.size:,} bytes")
    assert "written with: " in text
    assert "trained with: " in text
    assert "needs trust: " in text


def test_inspect_of_a_hostile_file(path: Path) -> None:
    file_of(path, {"object": ["os.system", {"dict": {}}]}, kind="model")
    assert inspect(path).classes == ("os.system",)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"list": []}, {}),
        ({"object": ["a.B", {"dict": {"environment_": {"list": ["torch"]}}}]}, {}),
        (
            {"object": ["a.B", {"dict": {"environment_": {"dict": {"torch": "2", "x": 3}}}}]},
            {"torch": "2"},
        ),
    ],
)
def test_inspect_takes_only_words_for_versions(
    path: Path, tree: Any, expected: dict[str, str]
) -> None:
    file_of(path, tree, kind="model")
    assert inspect(path).trained_with == expected


def test_saving_waits_for_a_forget(path: Path) -> None:
    from threading import Thread

    from letheon.base import lock_model

    model = fitted()
    saver = Thread(target=save, args=(model, path))
    with lock_model(model):
        saver.start()
        saver.join(0.2)
        waited = not path.exists()
    saver.join(10)
    assert waited
    assert path.exists()
