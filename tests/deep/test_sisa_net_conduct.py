"""SISA for nets: failures, settings, files and callbacks."""

import copy
import pickle
import threading
from functools import partial
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
from letheon import SISANetClassifier, checks, state
from letheon.data import SlotRows, as_ids
from letheon.deep import MLP
from letheon.deep._base import TrainingContext
from letheon.deep._checkpoints import CheckpointChange
from letheon.deep._loop import Loop, Progress
from letheon.deep._slots import ShardGrid
from letheon.exceptions import (
    ChangedParametersError,
    CheckpointError,
    CheckpointWarning,
    TrainingError,
    UnknownIdError,
    UnsupportedStateError,
    UntrustedClassError,
)
from tests.deep.sisa_people import TINY, fitted, joined, refitted
from tests.deep.test_checkpoints import in_a_fork
from tests.sharded.people import ShardPeople, make_people


class Stop(Exception):
    pass


def failing(_: Any) -> None:
    raise Stop


def full_disk(*_: Any, **__: Any) -> None:
    raise CheckpointError("no space left")


@pytest.mark.parametrize("how", ["callback", "disk", "memory", "nan"])
def test_a_failed_request_changes_nothing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    people = make_people(30, seed=16)
    model = fitted(people, n_slices=2)
    before, answers = model.digest(), model.predict_proba(people.X)
    kinds: dict[str, type[Exception]] = {
        "callback": Stop,
        "disk": CheckpointError,
        "memory": MemoryError,
        "nan": TrainingError,
    }
    with monkeypatch.context() as patch:
        if how == "disk":
            patch.setattr(CheckpointChange, "set", full_disk)
        elif how == "memory":
            patch.setattr(Loop, "train", out_of_memory)
        elif how == "nan":
            model._current_context().data.X[:] = float("inf")
        with pytest.raises(kinds[how]):
            model.forget([0], callback=failing if how == "callback" else None)
        if how == "nan":
            model._current_context().data.X[:] = torch.from_numpy(people.X.astype(np.float32))
    assert model.digest() == before
    assert np.array_equal(model.predict_proba(people.X), answers)
    model.forget([0])
    assert refitted(model, people.without([0])).digest() == model.digest()


def out_of_memory(*_: Any) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_out_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "train", out_of_memory)
    with pytest.raises(MemoryError, match=r"was not changed.*smaller batch_size"):
        fitted(make_people(20))


def seven_logits(shape: Any, n_classes: int) -> nn.Module:
    return nn.Linear(shape[0], 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_shards": 0}, "n_shards=0; expected a whole number, 1 or more"),
        ({"n_slices": 0}, "n_slices=0"),
        ({"n_slices": 6}, "epochs"),
        ({"aggregation": "median"}, "aggregation='median'; expected one of"),
        ({"lane_width": 0}, "lane_width=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"optimizer": "lbfgs"}, "optimizer='lbfgs'; expected one of"),
        ({"optimizer": torch.optim.SGD, "schedule": "cosine"}, "schedule='cosine' needs"),
        ({"loss": "mse"}, "loss='mse'"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "loss is a module \\(CrossEntropyLoss"),
        ({"module": "MLP"}, "module='MLP'"),
        (
            {"module": nn.Sequential()},
            "module is an instance \\(Sequential\\); expected a factory that",
        ),
        ({"module": nn.Linear}, "module is a torch layer \\(Linear\\); expected a factory"),
        (
            {"module": MLP(batch_norm=True), "batch_size": 1},
            "BatchNorm needs at least 2",
        ),
        ({"device": "tpu"}, "device='tpu' is unknown; expected one of"),
        ({"precision": "float16"}, "precision='float16'"),
        ({"max_memory": -1}, "max_memory=-1"),
        ({"module": seven_logits}, "expected a tensor of shape \\(2, 3\\), with one logit"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(make_people(20), **settings)


def test_unknown_people_and_changed_settings() -> None:
    people = make_people(20)
    model = fitted(people)
    before = model.digest()
    with pytest.raises(UnknownIdError, match="ids not in this model"):
        model.forget([0, 1000])
    with pytest.raises(ChangedParametersError):
        copy.copy(model).set_params(epochs=4).forget([0])
    assert model.digest() == before


def test_rows_to_learn_must_fit() -> None:
    people = make_people(20)
    model = fitted(people)
    before = model.digest()
    with pytest.raises(ValueError, match="features"):
        model.learn(np.ones((1, 4)), [0], ids=[50])
    with pytest.raises(ValueError, match="labels"):
        model.learn(np.ones((1, 3)), ["zero"], ids=[50])
    assert model.digest() == before


def test_images_of_bytes() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (40, 6, 5), np.uint8)
    y = (X.mean(axis=(1, 2)) > 127).astype(int)
    model = SISANetClassifier(**{**TINY, "module": MLP(widths=(4,), scale=1 / 255)}).fit(X, y)
    model.forget([3])
    keep = np.delete(np.arange(40), 3)
    fresh = clone(model).fit(X[keep], y[keep], ids=keep)
    assert model.rows_.X.dtype == np.uint8
    assert fresh.digest() == model.digest()
    with pytest.raises(ValueError, match="rows of shape"):
        model.predict(X[:, :5])


def test_an_optimiser_and_a_loss_of_the_callers() -> None:
    people = make_people(30, seed=17)
    model = fitted(people, lane_width=3, optimizer=rmsprop, loss=margin)
    model.forget([2])
    assert refitted(model, people.without([2])).digest() == model.digest()


@pytest.mark.parametrize("words", [{}, {"reduction": "none"}, {"reduction": "mean"}])
def test_a_loss_of_torch_is_told_to_reduce_nothing(words: dict[str, str]) -> None:
    people = make_people(20, seed=17)
    loss: Any = nn.functional.multi_margin_loss
    own = fitted(people, loss=partial(loss, **words) if words else loss)
    assert torch.equal(own.nets_.flat, fitted(people, loss=margin).nets_.flat)


def rmsprop(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.01)


def margin(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.multi_margin_loss(logits, targets, reduction="none")


def test_guarantee() -> None:
    people = make_people(20)
    exact = fitted(people).guarantee_
    assert (exact.kind, exact.requests) == ("exact", "oblivious")
    assert "same-libraries-and-device" in exact.assumptions
    free = fitted(people, deterministic=False)
    for now in (False, True):
        # What a model was trained with counts, not what it is set to now.
        free.set_params(deterministic=now)
        assert "equal-but-for-rounding" in free.guarantee_.assumptions
        assert "same-libraries-and-device" not in free.guarantee_.assumptions


@parametrize_with_checks([SISANetClassifier(n_shards=2, epochs=25, device="cpu", random_state=0)])
@pytest.mark.filterwarnings("ignore::letheon.exceptions.ShardingWarning")
def test_scikit_learn(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@checks.parametrize_with_checks([SISANetClassifier(**{**TINY, "n_slices": 2})])
def test_letheon(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


@pytest.mark.soak
@checks.parametrize_with_checks(
    [SISANetClassifier(**{**TINY, "lane_width": 3, "module": MLP(batch_norm=True)})]
)
def test_letheon_with_other_settings(estimator: Any, check: Any) -> None:
    assert check(estimator) is None


def hardest(logits: Tensor, targets: Tensor) -> Tensor:
    """Return losses divided by the largest of the batch."""
    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    return losses / losses.detach().max()


class Clipped(torch.optim.SGD):
    """Gradient descent that divides by the norm over all parameters it was given."""

    def step(self, closure: Any = None) -> Any:
        parts = [part.grad for group in self.param_groups for part in group["params"]]
        norm = torch.sqrt(sum((part * part).sum() for part in parts))
        for part in parts:
            part.div_(norm)
        return super().step(closure)


def clipped(parameters: Any) -> Clipped:
    return Clipped(parameters, lr=0.05)


@pytest.mark.parametrize("settings", [{"loss": hardest}, {"optimizer": clipped}])
def test_what_looks_at_a_whole_net_sees_one_net(settings: dict[str, Any]) -> None:
    people = make_people(30, seed=18)
    model = fitted(people, lane_width=3, **settings)
    model.forget([2])
    assert refitted(model, people.without([2])).digest() == model.digest()


def test_a_new_class_destroys_the_files_of_a_loaded_model(tmp_path: Path) -> None:
    people = make_people(30, seed=19)
    model = fitted(people, n_slices=2, checkpoint_dir=tmp_path / "states")
    letheon.save(model, tmp_path / "net.letheon")
    loaded = letheon.load(tmp_path / "net.letheon", trusted=[SISANetClassifier])
    loaded.learn(people.X[:1], [9], ids=[99])
    left = {file.name.split(".")[0] for file in (tmp_path / "states").rglob("*.letheon-state")}
    assert left == loaded.vault_.files


def test_a_failed_fit_leaves_the_earlier_model_and_its_files(tmp_path: Path) -> None:
    people = make_people(30, seed=20)
    model = fitted(people, n_slices=2, checkpoint_dir=tmp_path)
    answers, files = model.predict_proba(people.X), sorted(tmp_path.rglob("*"))
    model.set_params(loss=lambda *given: margin(*given) + 0.0)
    with pytest.raises(UnsupportedStateError, match=r"top level of a \.py file"):
        model.fit(np.ones((4, 2)), [0, 1, 0, 1])
    model.set_params(loss="cross_entropy")
    with pytest.raises(Stop):
        model.fit(np.ones((4, 2)), [0, 1, 0, 1], callback=failing)
    assert sorted(tmp_path.rglob("*")) == files
    assert np.array_equal(model.predict_proba(people.X), answers)
    model.forget([0])
    assert refitted(model.set_params(checkpoint_dir=None), people.without([0])).digest() == (
        model.digest()
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda model, _: model.forget([1]),
        lambda model, people: model.learn(people.X[:1], people.y[:1], ids=[99]),
        lambda model, people: model.fit(people.X, people.y, ids=people.ids),
    ],
)
def test_a_callback_may_look_but_not_change(change: Any) -> None:
    people = make_people(30, seed=22)
    model = fitted(people, n_slices=2)
    before, answers = model.digest(), model.predict(people.X)

    def look(_: Progress) -> None:
        assert model.digest() == before
        assert np.array_equal(model.predict(people.X), answers)

    def meddle(_: Progress) -> None:
        change(model, people)

    with pytest.raises(RuntimeError, match="SISANetClassifier was called while another change was"):
        model.forget([0], callback=meddle)
    look(Progress(0, 1, 0, 1, 0.0))
    model.forget([0], callback=look)
    assert refitted(model, people.without([0])).digest() == model.digest()


def test_a_callback_may_wait_for_the_answer_of_another_model() -> None:
    people = make_people(20, seed=23)
    model = fitted(people)
    other = pickle.loads(pickle.dumps(model))

    def wait(_: Progress) -> None:
        thread = threading.Thread(target=other.predict, args=(people.X,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    model.forget([0], callback=wait)
    assert refitted(model, people.without([0])).digest() == model.digest()


def test_answers_do_not_depend_on_the_callers_autocast() -> None:
    people = make_people(20, seed=24)
    model = fitted(people)
    expected = model.predict_proba(people.X)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(model.predict_proba(people.X), expected)


def test_where_a_net_lies_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    people = make_people(20, seed=25)
    model = fitted(people, n_slices=2)
    before = model.digest()
    assert model.set_params(device="auto", max_memory=0).digest() == before
    model.forget([0])
    assert refitted(model, people.without([0])).digest() == model.digest()


def without_its_directory(people: ShardPeople, tmp_path: Path) -> SISANetClassifier:
    model = fitted(people, n_slices=3, checkpoint_dir=tmp_path / "states")
    (tmp_path / "states").rename(tmp_path / "gone")
    return model.set_params(checkpoint_dir=None)


def test_a_directory_that_is_gone_stops_no_request(tmp_path: Path) -> None:
    people = make_people(30, seed=26)
    model = without_its_directory(people, tmp_path)
    with pytest.warns(CheckpointWarning) as warned:
        model.forget([0])
    assert "everything was trained again" in str(warned[0].message)
    assert model.checkpoint_home_ is None
    assert refitted(model, people.without([0])).digest() == model.digest()
    assert len(model.unaccounted_) == 6


@pytest.mark.parametrize("label", [0, 9])
def test_a_directory_that_is_gone_stops_no_learning(label: int, tmp_path: Path) -> None:
    people = make_people(30, seed=26)
    model = without_its_directory(people, tmp_path)
    more = ShardPeople(people.X[:1], np.array([label]), np.array([99]))
    with pytest.warns(CheckpointWarning) as warned:
        model.learn(more.X, more.y, ids=more.ids)
    assert "everything was trained again" in str(warned[0].message)
    assert f"not found in {tmp_path / 'states'}" in str(warned[1].message)
    assert model.checkpoint_home_ is None
    assert refitted(model, joined(people, more)).digest() == model.digest()
    model.forget([0])
    assert refitted(model, joined(people, more).without([0])).digest() == model.digest()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_do_not_write_into_each_others_states() -> None:
    """The child still has a person whom the parent has forgotten."""
    people = make_people(40, seed=3)
    model = fitted(people, n_slices=3, n_shards=1, max_memory=0)
    slices = model.rows_.extra["slice"]
    gone, late = (int(people.ids[slices == number][0]) for number in (0, 2))
    other = int(people.ids[slices == 0][-1])
    kept = copy.copy(model)

    def in_the_child() -> None:
        with pytest.warns(CheckpointWarning, match="forked from; everything was trained again"):
            model.forget([other], digest=True)
        assert refitted(model, people.without([other])).digest() == model.digest()
        with pytest.warns(CheckpointWarning, match="forked from; everything was trained again"):
            kept.learn(people.X[:1], people.y[:1], ids=[99])
        kept.forget([other])

    in_a_fork(in_the_child)
    model.forget([gone])
    receipt = model.forget([late])
    assert receipt.rebuilt["stages"] == 1
    assert refitted(model, people.without([gone, late])).digest() == model.digest()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
)
def test_visits_against_a_slow_count(rows: list[tuple[int, int, bool]], epochs: list[int]) -> None:
    shard, slices, alive = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    held = SlotRows(
        np.ones((n, 1), np.float32),
        np.zeros(n, np.int64),
        as_ids(list(range(n))),
        {"shard": shard, "slice": slices},
    )
    grid = ShardGrid(held, alive, ~alive, tuple(epochs))
    visits = grid.count_visits(5)
    assert visits.shape == (5, 3)
    for one, stage in np.ndindex(5, 3):
        expected = sum(here and a == one and b <= stage for a, b, here in rows)
        assert visits[one, stage] == epochs[stage] * expected
        assert len(grid.slots_of(one, stage)) == expected
        both = sum(a == one and b <= stage for a, b, _ in rows)
        assert len(grid.list_held_out(one, stage)) == both - expected


def test_statistics_that_fail_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingContext, "compute_statistics", out_of_memory)
    with pytest.raises(MemoryError):
        fitted(make_people(20), n_slices=2, checkpoint_dir=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_fit_destroys_files_that_were_moved(tmp_path: Path) -> None:
    people = make_people(20)
    model = fitted(people, n_slices=2, checkpoint_dir=tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    model.set_params(checkpoint_dir=tmp_path / "new").fit(people.X, people.y, ids=people.ids)
    left = {file.name.split(".")[0] for file in tmp_path.rglob("*.letheon-state")}
    assert left == model.vault_.files
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == len(left)


@pytest.mark.parametrize("name", ["predict", "facts", "_train_all", "classes_", "_parameter_rules"])
def test_a_file_replaces_parameters_and_nothing_else_of_the_class(name: str) -> None:
    model = fitted(make_people(30, seed=1), epochs=3)
    assert state.decode(state.encode(model)).epochs == 3
    vars(model)[name] = 1
    with pytest.raises(UntrustedClassError, match=f"attribute '{name}'"):
        state.decode(state.encode(model))
