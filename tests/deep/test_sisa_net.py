"""SISA for nets: after any sequence of requests the bytes of a fresh fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import letheon
from letheon import SISANetClassifier
from letheon.deep import MLP
from letheon.deep._base import TrainingContext
from letheon.deep._loop import Loop
from letheon.exceptions import CheckpointWarning, EmptyModelError, ShardingWarning, TrainingError
from tests.deep.sisa_people import NETS, fitted, joined, refitted
from tests.sharded.people import ShardPeople, examples, make_people


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[int]], bool]:
    """Settings, requests one after the other, and whether the first to leave come back."""
    settings = {
        "module": draw(st.sampled_from(NETS)),
        "n_shards": draw(st.integers(1, 4)),
        "n_slices": draw(st.integers(1, 3)),
        "epochs": draw(st.integers(2, 3)),
        "lane_width": draw(st.sampled_from([None, 1, 2, 4])),
        "optimizer": draw(st.sampled_from(["sgd", "adam", "adamw"])),
        "schedule": draw(st.sampled_from(["constant", "cosine", "one-cycle"])),
        "batch_size": draw(st.integers(2, 5)),
        "calibration_rows": draw(st.sampled_from([2, 3, 4096])),
        "random_state": draw(st.integers(0, 2**128 - 1)),
    }
    leaving = draw(st.permutations(range(12)))[: draw(st.integers(1, 6))]
    cut = draw(st.integers(0, len(leaving)))
    requests = [part for part in (leaving[:cut], leaving[cut:]) if part]
    return settings, requests, draw(st.booleans())


@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
@examples(200)
@given(stories(), st.integers(0, 50))
def test_requests_end_in_the_bytes_of_a_fresh_fit(
    story: tuple[dict[str, Any], list[list[int]], bool], seed: int
) -> None:
    settings, requests, come_back = story
    people = make_people(14, seed=seed)
    model = fitted(people, **settings)
    rest = people
    for request in requests:
        rest = rest.without(request)
        model.forget(request)
    if come_back:
        again = people.without(set(people.ids.tolist()) - set(requests[0]))
        model.learn(again.X, again.y, ids=again.ids)
        rest = joined(rest, again)
    fresh = refitted(model, rest)
    assert fresh.digest() == model.digest()
    assert np.array_equal(fresh.predict_proba(people.X), model.predict_proba(people.X))


def test_one_by_one_at_once_and_in_any_order_are_the_same() -> None:
    people = make_people(30, seed=1)
    digests = set()
    for requests in ([[1, 2, 3]], [[3], [1], [2]], [[2, 1], [3]]):
        model = fitted(people, n_slices=2)
        for request in requests:
            model.forget(request)
        digests.add(model.digest())
    assert len(digests) == 1


@pytest.mark.parametrize("lane_width", [1, 2, 3, 5])
def test_only_touched_shards_are_trained(lane_width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    people = make_people(30, seed=2)
    model = fitted(people, n_shards=5, n_slices=2, lane_width=lane_width)
    shard = int(model.rows_.extra["shard"][0])
    seen: list[int] = []
    original = Loop.train

    def spy(self: Loop, flat: Tensor, phase: Any, *args: Any) -> Tensor:
        lanes = self._lanes.tolist()
        seen.extend(
            lane for lane, slots in zip(lanes, phase.slots, strict=True) if slots is not None
        )
        return original(self, flat, phase, *args)

    monkeypatch.setattr(Loop, "train", spy)
    receipt = model.forget([int(people.ids[0])])
    assert set(seen) == {shard}
    assert receipt.rebuilt["shards"] == 1
    assert receipt.work < 0.5


def test_a_late_slice_starts_from_the_state_before_it() -> None:
    people = make_people(60, seed=3)
    model = fitted(people, n_shards=2, n_slices=3)
    slices = model.rows_.extra["slice"]
    works = [model_work(people, int(people.ids[slices == number][0])) for number in range(3)]
    assert works[0] > works[1] > works[2]


def model_work(people: ShardPeople, person: int) -> float:
    return fitted(people, n_shards=2, n_slices=3).forget([person]).work


def test_starting_after_the_slice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a retrain that starts from a state which saw the person."""
    people = make_people(60, seed=3)
    model = fitted(people, n_shards=2, n_slices=3)
    person = int(people.ids[model.rows_.extra["slice"] == 1][0])
    original = SISANetClassifier._find_start

    def late(self: Any, context: Any, shard: int, first: int, messages: list[str]) -> Any:
        return original(self, context, shard, first + 1, messages)

    with monkeypatch.context() as patch:
        patch.setattr(SISANetClassifier, "_find_start", late)
        model.forget([person])
    assert refitted(model, people.without([person])).digest() != model.digest()


def test_a_lane_that_looks_at_its_neighbours_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: gradients of all lanes are mixed a little."""
    people = make_people(30, seed=4)
    original = TrainingContext.get_loop

    def mixing(self: TrainingContext, lanes: tuple[int, ...], group: int) -> Loop:
        loop = original(self, lanes, group)
        step = loop._optimizer.step

        def mixed(gradient: Tensor, rate: Tensor, active: Tensor) -> None:
            step(gradient + 1e-3 * gradient.mean(dim=0), rate, active)

        if "mixed" not in vars(loop):
            vars(loop)["mixed"] = True
            monkeypatch.setattr(loop._optimizer, "step", mixed)
        return loop

    monkeypatch.setattr(TrainingContext, "get_loop", mixing)
    model = fitted(people, lane_width=3)
    model.forget([0])
    assert refitted(model, people.without([0])).digest() != model.digest()


def test_shards_are_isolated() -> None:
    """What one shard becomes does not depend on the rows of another, at the same lane width."""
    people = make_people(30, seed=5)
    one = fitted(people, lane_width=3)
    shards = one.rows_.extra["shard"]
    X = people.X.copy()
    X[shards == 1] *= -3.0
    two = fitted(people._replace(X=X), lane_width=3)
    assert torch.equal(one.nets_.flat[[0, 2]], two.nets_.flat[[0, 2]])
    assert not torch.equal(one.nets_.flat[1], two.nets_.flat[1])


def test_every_shard_starts_from_weights_of_its_own() -> None:
    model = fitted(make_people(30), lane_width=3)
    template = model._current_context().template
    starts = [template.initial_flat(shard) for shard in range(3)]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])


def test_last_row_of_a_class() -> None:
    people = make_people(20, seed=6)
    people.y[people.ids == 0] = 9
    rest = people.without([0])
    model = fitted(people)
    receipt = model.forget([0])
    assert model.classes_.tolist() == sorted(set(rest.y.tolist()))
    assert receipt.rebuilt == {"retrains": 1}
    assert refitted(model, rest).digest() == model.digest()
    with pytest.raises(EmptyModelError, match="only one class"):
        model.forget(rest.ids[rest.y != rest.y[0]].tolist())


def test_a_new_class_is_learned() -> None:
    people = make_people(20, seed=7)
    model = fitted(people.without([3]))
    more = ShardPeople(people.X[:2], np.array([8, 8]), np.array([3, 99]))
    model.learn(more.X, more.y, ids=more.ids)
    assert 8 in model.classes_
    assert refitted(model, joined(people.without([3]), more)).digest() == model.digest()


def test_shards_without_people_do_not_answer() -> None:
    people = make_people(4, seed=8)
    with pytest.warns(ShardingWarning, match="some shards stay empty"):
        model = fitted(people, n_shards=12)
    assert 0 < sum(model.nets_.answers) < 12
    shares = model.predict_proba(people.X)
    assert np.allclose(shares.sum(axis=1), 1.0)
    with pytest.warns(ShardingWarning):
        fresh = refitted(model, people)
    assert fresh.digest() == model.digest()


def test_a_shard_without_people_no_longer_answers() -> None:
    people = make_people(12, seed=9)
    model = fitted(people)
    shards = model.rows_.extra["shard"]
    leaving = sorted(set(people.ids[shards == 2].tolist()))
    rest = people.without(leaving)
    assert len(set(rest.y.tolist())) == 3
    model.forget(leaving)
    assert model.nets_.answers == (True, True, False)
    assert refitted(model, rest).digest() == model.digest()


@pytest.mark.parametrize("aggregation", ["mean", "vote"])
def test_aggregation_against_the_modules(aggregation: str) -> None:
    people = make_people(30, seed=10)
    model = fitted(people, aggregation=aggregation)
    x = torch.from_numpy(people.X.astype(np.float32))
    shares = np.stack([torch.softmax(net(x).double(), 1).numpy() for net in model.to_modules()])
    if aggregation == "vote":
        shares = np.eye(3)[shares.argmax(axis=2)]
    assert np.allclose(model.predict_proba(people.X), shares.mean(axis=0))


def test_files_and_memory_give_the_same_model(tmp_path: Path) -> None:
    people = make_people(40, seed=11)
    digests = set()
    for settings in ({}, {"checkpoint_dir": tmp_path}, {"max_memory": 0}):
        model = fitted(people, n_slices=3, **settings)
        model.forget([1, 2])
        model.forget([5])
        digests.add(model.digest())
    assert len(digests) == 1
    files = list(tmp_path.rglob("*.letheon-state"))
    assert {file.name.split(".")[0] for file in files} == set(model_files(people, tmp_path))


def model_files(people: ShardPeople, directory: Path) -> frozenset[str]:
    """Names of the states that the only home in a directory should hold."""
    model = fitted(people, n_slices=3, checkpoint_dir=directory / "other")
    model.forget([1, 2])
    model.forget([5])
    names = model.vault_.files
    model._destroy_files()
    return names


def test_states_that_saw_a_person_are_destroyed(tmp_path: Path) -> None:
    people = make_people(40, seed=12)
    model = fitted(people, n_shards=2, n_slices=3, checkpoint_dir=tmp_path)
    before = model.vault_.files
    person = int(people.ids[model.rows_.extra["slice"] == 0][0])
    model.forget([person])
    gone = before - model.vault_.files
    assert len(gone) == 2
    left = {file.name.split(".")[0] for file in tmp_path.rglob("*.letheon-state")}
    assert left == model.vault_.files


def test_a_lost_state_is_trained_again(tmp_path: Path) -> None:
    people = make_people(40, seed=13)
    model = fitted(people, n_shards=2, n_slices=3, checkpoint_dir=tmp_path)
    for file in tmp_path.rglob("*.letheon-state"):
        file.write_bytes(b"nonsense")
    person = int(people.ids[model.rows_.extra["slice"] == 2][0])
    with pytest.warns(CheckpointWarning, match="trained again"):
        model.forget([person])
    assert refitted(model.set_params(checkpoint_dir=None), people.without([person])).digest() == (
        model.digest()
    )


def test_save_load_then_requests(tmp_path: Path) -> None:
    people = make_people(40, seed=14)
    model = fitted(people, module=MLP(widths=(4,), batch_norm=True), n_slices=2)
    letheon.save(model, tmp_path / "net.letheon")
    loaded = letheon.load(tmp_path / "net.letheon")
    assert loaded.digest() == model.digest()
    for each in (model, loaded):
        each.forget([3, 4])
    assert loaded.digest() == model.digest()
    assert np.array_equal(loaded.predict(people.X), model.predict(people.X))


def test_a_module_that_changed_since_it_was_saved(tmp_path: Path) -> None:
    people = make_people(20, seed=21)
    model = fitted(people)
    letheon.save(model, tmp_path / "net.letheon")
    loaded = letheon.load(tmp_path / "net.letheon").set_params(module=MLP(widths=(5,)))
    with pytest.raises(TrainingError, match="use the factory that the model was trained with"):
        loaded.predict(people.X)


def test_other_libraries_train_everything_again() -> None:
    people = make_people(30, seed=15)
    model = fitted(people)
    model.environment_ = {**model.environment_, "torch": "0.1"}
    receipt = model.forget([0])
    assert receipt.rebuilt["shards"] == 3
    assert refitted(model, people.without([0])).digest() == model.digest()
