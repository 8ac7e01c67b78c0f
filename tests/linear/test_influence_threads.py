"""A request uses one BLAS thread wherever LAPACK, or a pass over all rows, would start more."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.linalg import lapack
from threadpoolctl import threadpool_info, threadpool_limits

import letheon
from letheon.linear import InfluenceClassifier
from letheon.linear._curvature import _MOST_DOWNDATES
from letheon.linear._problem import FitProblem

# Small enough for a request to go without `one_thread` as a whole.
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(90, 12))
LABELS = (ROWS[:, :3] + RNG.normal(size=(90, 3))).argmax(axis=1)

FEW = 10


def most_threads() -> int:
    return max(int(library["num_threads"]) for library in threadpool_info())


class ThreadSpy:
    """Notes how many threads a function would have had."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    def watch(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noting(first: Any, *args: Any, **options: Any) -> Any:
            # Factors of a few rows against each other never have threads.
            if not isinstance(first, np.ndarray) or len(first) > FEW:
                self.seen.setdefault(name, []).append(most_threads())
            return real(first, *args, **options)

        patch.setattr(owner, name, noting)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadSpy]:
    with threadpool_limits(limits=2):
        if most_threads() < 2:
            pytest.skip("libraries of one thread: nothing to limit")
        spy = ThreadSpy()
        for owner, name in ((lapack, "dpotri"), (lapack, "dpotrf"), (FitProblem, "hessian_at")):
            spy.watch(monkeypatch, owner, name)
        yield spy


def model(**settings: Any) -> InfluenceClassifier:
    settings = {"l2": 1e-2, "sigma": 1.0, "noise_seed": 0} | settings
    return InfluenceClassifier(**settings).fit(ROWS, LABELS)


def measures_often() -> InfluenceClassifier:
    """A model that has to recompute its Hessian."""
    return model()


def softmax_that_measures_often() -> InfluenceClassifier:
    return model(multi_class="softmax", sigma=0.3)


def without_cache() -> InfluenceClassifier:
    """A model whose Hessian is not there, as after loading."""
    fitted = model()
    fitted.cache_.content = None
    return fitted


def worn_out() -> InfluenceClassifier:
    """A model that factors its blocks again at the next request."""
    fitted = model(sigma=1e4)
    assert fitted.cache_.content is not None
    fitted.cache_.content.n_downdates = _MOST_DOWNDATES  # type: ignore[union-attr]
    return fitted


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        (measures_often, {"hessian_at", "dpotrf", "dpotri"}),
        (softmax_that_measures_often, {"hessian_at", "dpotrf", "dpotri"}),
        (without_cache, {"hessian_at", "dpotrf", "dpotri"}),
        (worn_out, {"dpotrf"}),
    ],
)
def test_hessians_are_made_factored_and_inverted_by_one_thread(
    make: Callable[[], InfluenceClassifier], needed: set[str], spy: ThreadSpy
) -> None:
    fitted = make()
    spy.seen.clear()
    for person in range(12):
        fitted.forget([person])
    assert needed <= set(spy.seen)
    assert {count for counts in spy.seen.values() for count in counts} == {1}
    assert most_threads() == 2


def test_rows_that_are_brought_are_removed_by_one_thread(spy: ThreadSpy, tmp_path: Any) -> None:
    declared = {"data_free": True, "rows": "clip", "row_norm": 3.0}
    letheon.save(model(l2=1.0, sigma=30.0, **declared), tmp_path / "model.letheon")
    loaded = letheon.load(tmp_path / "model.letheon")
    for person in range(3):
        loaded.forget([person], X=ROWS[[person]], y=LABELS[[person]])
    loaded.forget(np.arange(3, 13), X=ROWS[3:13], y=LABELS[3:13])
    assert {"dpotrf", "dpotri"} <= set(spy.seen)
    assert {count for counts in spy.seen.values() for count in counts} == {1}
