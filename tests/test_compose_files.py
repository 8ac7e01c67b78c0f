"""Files of a step that is replaced go with it, whatever happens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import Normalizer, StandardScaler

from letheon import ForgetPipeline, NaiveUnlearner, SISAClassifier
from letheon.exceptions import CheckpointWarning, EmptyModelError
from tests.sharded.people import make_people

PEOPLE = make_people()
LEFT = PEOPLE.without([3])


def pipeline(path: Path | None, first: Any = None) -> ForgetPipeline:
    scale = NaiveUnlearner(StandardScaler(), random_state=0)
    last = SISAClassifier(
        SGDClassifier(max_iter=2, tol=None),
        n_shards=2,
        n_slices=3,
        checkpoint_dir=path,
        random_state=0,
    )
    inner = ForgetPipeline([("model", last)])  # files are found in nested pipelines too
    return ForgetPipeline([("first", first or scale), ("model", inner)])


def fitted(path: Path | None, people: Any = PEOPLE, first: Any = None) -> ForgetPipeline:
    return pipeline(path, first).fit(people.X, people.y, ids=people.ids)


def files_in(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def assert_only_files_of(model: ForgetPipeline, path: Path) -> None:
    sisa = model.steps_[-1][1].steps_[-1][1]
    names = {Path(file).name.partition(".")[0] for file in files_in(path)}
    assert names == sisa.ensemble_.files
    assert [str(home) for home in path.iterdir()] == [sisa.checkpoint_home_]


def failing(calls: int) -> Any:
    """Return a `partial_fit` that raises after so many calls."""
    whole, remaining = SGDClassifier.partial_fit, [calls]

    def partial_fit(*args: Any, **kwargs: Any) -> Any:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise RuntimeError("no luck")
        return whole(*args, **kwargs)

    return partial_fit


@pytest.mark.parametrize("again", ["forget", "fit"])
def test_files_of_replaced_steps_are_destroyed(again: str, tmp_path: Path) -> None:
    model = fitted(tmp_path)
    old = files_in(tmp_path)
    assert len(old) >= 4
    model.forget([3]) if again == "forget" else model.fit(LEFT.X, LEFT.y, ids=LEFT.ids)
    assert_only_files_of(model, tmp_path)
    assert not set(old) & set(files_in(tmp_path))
    assert not set(old.values()) & set(files_in(tmp_path).values())
    assert model.digest() == fitted(None, LEFT).digest()


def test_a_last_step_that_forgets_alone_destroys_what_saw_the_row(tmp_path: Path) -> None:
    model = fitted(tmp_path, first=Normalizer())
    model.forget([3])
    assert_only_files_of(model, tmp_path)
    assert model.digest() == fitted(None, LEFT, first=Normalizer()).digest()


@pytest.mark.parametrize("calls", [0, 3, 8])
@pytest.mark.parametrize("call", ["forget", "fit"])
def test_a_failure_leaves_the_files_as_they_were(
    call: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(tmp_path)
    files, before = files_in(tmp_path), model.digest()
    monkeypatch.setattr(SGDClassifier, "partial_fit", failing(calls))
    with pytest.raises(EmptyModelError if call == "forget" else RuntimeError, match="no luck"):
        model.forget([3]) if call == "forget" else model.fit(PEOPLE.X, PEOPLE.y)
    assert files_in(tmp_path) == files
    assert_only_files_of(model, tmp_path)
    assert model.digest() == before


@pytest.mark.parametrize("calls", [0, 3, 8])
def test_a_first_fit_that_fails_leaves_no_file(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SGDClassifier, "partial_fit", failing(calls))
    with pytest.raises(RuntimeError, match="no luck"):
        fitted(tmp_path)
    assert list(tmp_path.rglob("*")) == []


class Stacked(SISAClassifier):
    """A step with files whose votes the next step learns from."""

    def transform(self, X: Any) -> Any:
        return self.predict_proba(X)


def test_files_of_an_early_step_go_when_a_later_one_fails(tmp_path: Path) -> None:
    slices: dict[str, Any] = {
        "n_shards": 2,
        "n_slices": 3,
        "checkpoint_dir": tmp_path,
        "random_state": 0,
    }
    early = Stacked(SGDClassifier(loss="log_loss", max_iter=2, tol=None), **slices)
    steps = [("early", early), ("last", NaiveUnlearner(LogisticRegression(C=-1.0)))]
    with pytest.raises(ValueError, match="'C' parameter"):
        ForgetPipeline(steps).fit(PEOPLE.X, PEOPLE.y, ids=PEOPLE.ids)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("call", ["forget", "fit"])
def test_files_that_resist_are_a_warning_when_all_is_done(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(tmp_path)
    old = model.steps_[-1][1]
    monkeypatch.setattr(old, "_destroy_files", lambda: ["a file resists"])
    with pytest.raises(CheckpointWarning, match="a file resists"):  # warnings are errors here
        model.forget([3]) if call == "forget" else model.fit(LEFT.X, LEFT.y, ids=LEFT.ids)
    assert model.steps_[-1][1] is not old
    assert model.digest() == fitted(None, LEFT).digest()
    assert np.array_equal(model.ids_, np.unique(LEFT.ids))
