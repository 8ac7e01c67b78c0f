"""SISA for nets that predict numbers, and nets of tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

import letheon
from letheon import SISANetRegressor, checks
from letheon.deep import MLP, Progress
from letheon.exceptions import EmptyModelError, TrainingError
from tests.deep.sisa_people import TINY
from tests.sharded.people import ShardPeople, examples, make_people


def make_numbers(n_people: int = 20, *, seed: int = 0, n_targets: int = 1) -> ShardPeople:
    people = make_people(n_people, seed=seed)
    y = people.X @ np.random.default_rng(seed).normal(size=(3, n_targets))
    return people._replace(y=y[:, 0] if n_targets == 1 else y)


def fitted(people: ShardPeople, **settings: Any) -> SISANetRegressor:
    return SISANetRegressor(**{**TINY, **settings}).fit(people.X, people.y, ids=people.ids)


def refitted(model: SISANetRegressor, people: ShardPeople) -> SISANetRegressor:
    fresh: SISANetRegressor = clone(model).set_params(random_state=model.seed_)
    return fresh.fit(people.X, people.y, ids=people.ids)


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[int]], bool]:
    """Settings, requests one after the other, and whether the first to leave come back."""
    nets = (MLP(widths=(3,), dropout=0.5), MLP(widths=(3,), batch_norm=True))
    settings = {
        "module": draw(st.sampled_from(nets)),
        "n_shards": draw(st.integers(1, 3)),
        "n_slices": draw(st.integers(1, 2)),
        "lane_width": draw(st.sampled_from([None, 2])),
        "aggregation": draw(st.sampled_from(["mean", "median"])),
        "augment": draw(st.sampled_from([None, "mixup"])),
        "validation_fraction": draw(st.sampled_from([0.0, 0.3])),
        "batch_size": draw(st.integers(2, 4)),
        "random_state": draw(st.integers(0, 2**64 - 1)),
    }
    leaving = draw(st.permutations(range(12)))[: draw(st.integers(1, 5))]
    cut = draw(st.integers(0, len(leaving)))
    return settings, [part for part in (leaving[:cut], leaving[cut:]) if part], draw(st.booleans())


@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
@examples(50)
@given(stories(), st.integers(0, 50), st.integers(1, 2))
def test_requests_end_in_the_bytes_of_a_fresh_fit(
    story: tuple[dict[str, Any], list[list[int]], bool], seed: int, n_targets: int
) -> None:
    settings, requests, come_back = story
    people = make_numbers(14, seed=seed, n_targets=n_targets)
    model, rest = fitted(people, **settings), people
    for request in requests:
        rest = rest.without(request)
        model.forget(request)
    if come_back:
        again = people.without(set(people.ids.tolist()) - set(requests[0]))
        model.learn(again.X, again.y, ids=again.ids)
        rest = ShardPeople(*(np.concatenate(parts) for parts in zip(rest, again, strict=True)))
    fresh = refitted(model, rest)
    assert fresh.digest() == model.digest()
    assert np.array_equal(fresh.predict(people.X), model.predict(people.X))


def test_the_float32_copy_of_the_targets_is_wiped() -> None:
    people = make_numbers(20, seed=1)
    model = fitted(people)
    copy = model._current_context().data.y
    gone = people.ids == people.ids[0]
    model.forget([people.ids[0]])
    assert not copy[torch.from_numpy(gone)].any()
    assert (copy[torch.from_numpy(~gone)] != 0).all()


@pytest.mark.parametrize("aggregation", ["mean", "median"])
@pytest.mark.parametrize("n_targets", [1, 2])
def test_predictions_against_the_modules(aggregation: str, n_targets: int) -> None:
    people = make_numbers(30, seed=2, n_targets=n_targets)
    model = fitted(people, aggregation=aggregation)
    x = torch.from_numpy(people.X.astype(np.float32))
    values = np.stack([net(x).numpy() for net in model.to_modules()])
    expected = np.median(values, axis=0) if aggregation == "median" else values.mean(axis=0)
    got = model.predict(people.X)
    assert got.shape == people.y.shape
    assert np.allclose(got.reshape(len(x), -1), expected, atol=1e-6)


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().sum(dim=1)


def test_losses() -> None:
    people = make_numbers(30, seed=3, n_targets=2)
    own = fitted(people, loss=nn.functional.mse_loss)
    assert torch.equal(own.nets_.flat, fitted(people).nets_.flat)
    half = fitted(people, loss=nn.functional.l1_loss, optimizer="sgd", learning_rate=0.02)
    full = fitted(people, loss=absolute, optimizer="sgd", learning_rate=0.01)
    assert torch.allclose(half.nets_.flat, full.nets_.flat, atol=1e-5)


def test_it_learns_a_plane() -> None:
    people = make_numbers(200, seed=4)
    model = fitted(people, module=MLP(widths=()), epochs=60, learning_rate=0.02)
    assert model.score(people.X, people.y) > 0.95


@pytest.mark.parametrize("bad", [["a"] * 4, [1.0, 2.0, np.nan, 4.0], [1.0, 2.0, 3.0, 1e200]])
def test_targets_that_are_not_numbers(bad: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"y contains|convert string"):
        SISANetRegressor(**TINY).fit(np.zeros((4, 2)), np.array(bad))


def test_errors() -> None:
    people = make_numbers(10, seed=5, n_targets=2)
    model = fitted(people)
    with pytest.raises(ValueError, match="y has 1 targets per row; the model was fitted with 2"):
        model.learn(people.X[:1], people.y[:1, 0], ids=[99])
    with pytest.raises(TrainingError, match="one number for each of the 2 targets"):
        fitted(people, module=one_output_too_many)
    with pytest.raises(EmptyModelError):
        model.forget(sorted(set(people.ids.tolist())))


def one_output_too_many(shape: Any, n_targets: int) -> nn.Module:
    return nn.Linear(shape[0], n_targets + 1)


def test_save_load_then_requests(tmp_path: Path) -> None:
    people = make_numbers(30, seed=6)
    model = fitted(people, n_slices=2)
    letheon.save(model, tmp_path / "net.letheon")
    loaded = letheon.load(tmp_path / "net.letheon")
    for each in (model, loaded):
        each.forget([3, 4])
    assert loaded.digest() == model.digest() == refitted(model, people.without([3, 4])).digest()
    assert np.array_equal(loaded.predict(people.X), model.predict(people.X))


@parametrize_with_checks([SISANetRegressor(n_shards=2, epochs=25, device="cpu", random_state=0)])
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_scikit_learn(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@checks.parametrize_with_checks([SISANetRegressor(**{**TINY, "n_slices": 2})])
def test_letheon(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


class Bar:
    """A progress bar that keeps what it shows."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.n_done = self.total = 0

    @contextmanager
    def show(self, _: str, total: int, *, is_shown: bool) -> Iterator[Any]:
        self.total = total if is_shown else 0
        yield self.note

    def note(self, step: str = "") -> None:
        self.steps += [step] if step else []
        self.n_done += not step


@pytest.mark.parametrize("verbose", [0, 1])
def test_progress_bar_and_validation_loss(verbose: int, monkeypatch: pytest.MonkeyPatch) -> None:
    people, bar, steps = make_numbers(30, seed=7), Bar(), list[Progress]()
    monkeypatch.setattr("letheon.deep._sisa.progress_bar", bar.show)
    model = SISANetRegressor(**TINY, validation_fraction=0.3, n_slices=2, verbose=verbose)
    model.fit(people.X, people.y, ids=people.ids, callback=steps.append)
    n_epochs = len(steps)
    assert (bar.total, bar.n_done) == ((n_epochs, n_epochs) if verbose else (0, 0))
    texts = [f"loss {each.loss:.4g}, validation loss {each.validation_loss:.4g}" for each in steps]
    assert bar.steps == (texts if verbose else [])
    quiet = fitted(people, validation_fraction=0.3, n_slices=2)
    assert model.digest() == quiet.digest()
