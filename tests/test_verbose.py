"""`verbose`: a bar that reaches its end, for every long fit, without any effect on the result."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler as SklearnScaler

from letheon import (
    BoostingClassifier,
    BoostingRegressor,
    DaREForestClassifier,
    DaREForestRegressor,
    ForgetPipeline,
    ForgetSearchCV,
    NaiveUnlearner,
    SISAClassifier,
    compose,
    search,
    terminal,
)
from letheon.forest import _model
from letheon.preprocessing import StandardScaler
from letheon.sharded import _base
from letheon.sums import RidgeClassifier

X = np.random.default_rng(0).normal(size=(80, 3))
Y = (X[:, 0] > 0).astype(int)
NAIVE = NaiveUnlearner(GaussianNB(), random_state=0)
FORESTS: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
# Each model with the number of units of work that its bar counts.
MODELS: dict[str, tuple[Any, int]] = {
    "forest": (DaREForestClassifier(**FORESTS), 5),
    "forest of numbers": (DaREForestRegressor(**FORESTS), 5),
    "boosting": (BoostingClassifier(**FORESTS), 10),
    "boosting of numbers": (BoostingRegressor(**FORESTS), 10),
    "shards": (SISAClassifier(GaussianNB(), n_shards=3, random_state=0), 3),
    "parallel shards": (SISAClassifier(GaussianNB(), n_shards=3, n_jobs=2, random_state=0), 3),
    "steps": (
        ForgetPipeline(
            [("s", StandardScaler(random_state=0)), ("m", DaREForestClassifier(**FORESTS))]
        ),
        2,
    ),
    "refitted steps": (
        ForgetPipeline([("s", NaiveUnlearner(SklearnScaler(), random_state=0)), ("m", NAIVE)]),
        2,
    ),
    "candidates": (
        ForgetSearchCV(
            RidgeClassifier(random_state=0), {"alpha": [1.0, 2.0]}, cv=2, random_state=0
        ),
        4,
    ),
}


class Bars:
    """Replaces `progress_bar`, and counts what its notes are told."""

    def __init__(self) -> None:
        self.bars: list[tuple[int, int]] = []
        self.steps: list[str] = []

    @contextmanager
    def open(self, _: str, total: int, *, is_shown: bool = True) -> Iterator[Callable[..., None]]:
        done = 0

        def note(step: str = "") -> None:
            nonlocal done
            done += not step
            self.steps += [step] if step else []

        yield note
        if is_shown:
            self.bars.append((done, total))


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Bars:
    replaced = Bars()
    for module in (terminal, compose, search, _base, _model):
        monkeypatch.setattr(module, "progress_bar", replaced.open)
    return replaced


def named(kind: str, **params: Any) -> Any:
    return clone(MODELS[kind][0]).set_params(**params)


@pytest.mark.parametrize("kind", MODELS)
def test_the_bar_reaches_its_end_and_changes_nothing(kind: str, bars: Bars) -> None:
    quiet = named(kind).fit(X, Y)
    assert bars.bars == []
    talking = named(kind, verbose=1).fit(X, Y)
    assert bars.bars == [(MODELS[kind][1],) * 2]
    assert talking.digest() == quiet.digest()
    assert clone(talking).get_params()["verbose"] == 1
    talking.set_params(verbose=0).forget([3])
    quiet.forget([3])
    assert talking.digest() == quiet.digest()
    assert len(bars.bars) == 1


def test_the_steps_of_a_pipeline_are_named(bars: Bars) -> None:
    for kind in ("steps", "refitted steps"):
        named(kind, verbose=True).fit(X, Y)
    assert bars.steps == ["s", "m", "s", "m"]


def test_blocks_of_trees_in_processes_are_counted(bars: Bars) -> None:
    with joblib.parallel_config(backend="loky", n_jobs=2):
        named("forest", verbose=1).fit(X, Y)
    assert bars.bars == [(2, 2)]


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "candidates"])
@pytest.mark.parametrize("verbose", [-1, "yes", None])
def test_other_values_are_refused(kind: str, verbose: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="verbose"):
        named(kind, verbose=verbose).fit(X, Y)


def test_a_failed_fit_ends_the_thread_of_its_bar() -> None:
    with pytest.raises(ZeroDivisionError), terminal.poll_bar("x", 3, lambda: 1):
        raise ZeroDivisionError
    assert not [thread for thread in threading.enumerate() if "follow" in thread.name]


def test_a_bar_is_drawn_on_standard_error_of_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named("boosting", verbose=1).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    named("boosting", verbose=1).fit(X, Y)
    output = capsys.readouterr()
    assert output.out == ""
    assert "rounds" in output.err
