"""DeepObliviate: blocks and slots, residuals and stops, failures, files and settings."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

import letheon
from letheon import state
from letheon.checkpoint_home import sweep_checkpoints
from letheon.deep._loop import Loop, Progress
from letheon.deep._obliviate import BLOCK, SLOT, Blocks, DeepObliviateClassifier
from letheon.deep._slots import assign_slots
from letheon.exceptions import (
    ChangedParametersError,
    CheckpointError,
    CheckpointWarning,
    EmptyModelError,
    EnvironmentWarning,
    ShardingWarning,
    TrainingError,
)
from tests.deep.obliviate_reference import (
    BlockPeople,
    block_of,
    fitted,
    linear,
    make,
    make_people,
    noisy,
    people_in,
    scratch_states,
    states,
)
from tests.sharded.people import examples

HASTY: dict[str, Any] = {"epsilon": 1e9, "n_blocks": 10}


class Sabotage(Exception):
    """Raised by a test in the middle of training."""


def loss_that_may_fail(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses * torch.nan if Sabotaged.on else losses


class Sabotaged:
    on = False


def same_people(model: DeepObliviateClassifier) -> tuple[str, NDArray[Any]]:
    """Return all that a refused request must leave as it was."""
    X = np.random.default_rng(9).normal(size=(20, 3)).astype(np.float32)
    return model.digest(), model.predict_proba(X)


def require_unchanged(
    model: DeepObliviateClassifier, before: tuple[str, NDArray[Any]], n_rows: int
) -> None:
    digest, said = same_people(model)
    assert digest == before[0]
    assert np.array_equal(said, before[1])
    assert model.n_rows_ == n_rows


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@examples(50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_slots_count_the_rows_of_a_block(blocks: list[int]) -> None:
    expected = [blocks[:i].count(block) for i, block in enumerate(blocks)]
    assert assign_slots(np.array(blocks)).tolist() == expected


def test_a_persons_block_depends_on_no_other_id() -> None:
    people = make_people()
    model = fitted(people)
    few = people.without(range(10, 24))
    rows = fitted(few).rows_
    held = dict(zip(rows.ids.to_list(), rows.extra[BLOCK].tolist(), strict=True))
    assert held == {person: block_of(model, person) for person in range(10)}


def test_people_keep_their_slots_when_others_leave_and_rows_move_together() -> None:
    people = make_people(30)
    model = fitted(people, epsilon=0.0)
    placed = _places(model)
    model.forget(list(range(12)))
    assert model.rows_.n_slots == len(model.rows_)  # moved together: a fifth was empty
    assert _places(model) == {key: place for key, place in placed.items() if key[0] >= 12}
    assert model.block_slots_.sum() == len(people.ids)


def _places(model: DeepObliviateClassifier) -> dict[tuple[int, ...], tuple[int, int]]:
    rows = model.rows_.compact_copy()
    keys = [(person, *row) for person, row in zip(rows.ids.to_list(), rows.X.tolist(), strict=True)]
    places = zip(rows.extra[BLOCK].tolist(), rows.extra[SLOT].tolist(), strict=True)
    return dict(zip(keys, places, strict=True))


def test_slots_of_who_left_are_empty() -> None:
    people = make_people()
    model = fitted(people)
    slots = Blocks(model.rows_, model.block_slots_).slots_of(block_of(model, 3))
    model.forget([3])
    after = Blocks(model.rows_, model.block_slots_).slots_of(block_of(model, 3))
    was_theirs = people.ids[slots] == 3
    assert (after[was_theirs] == -1).all()
    assert np.array_equal(after[~was_theirs], slots[~was_theirs])


def test_sizes_of_blocks() -> None:
    people = make_people()
    model = fitted(people)
    model.forget([3, 5])
    owners = people.without([3, 5]).ids
    expected = [sum(block_of(model, i) == block for i in owners) for block in range(5)]
    assert model.block_sizes_.tolist() == expected


def test_sizes_are_near_their_mean() -> None:
    n, n_blocks = 20_000, 50
    X, y = np.zeros((n, 1), np.float32), np.arange(n) % 2
    model = make(n_blocks=n_blocks, batch_size=1000, stop="paper").fit(X, y)
    spread = float(np.std(model.block_sizes_))
    assert 0.7 < spread / np.sqrt(n / n_blocks) < 1.3


def test_more_blocks_than_people_is_said_and_works() -> None:
    people = make_people(6)
    with pytest.warns(ShardingWarning, match=r"n_blocks=9 exceeds the number of people \(6\)"):
        model = fitted(people, n_blocks=9, epsilon=0.0)
    assert 0 in model.block_sizes_
    model.forget([2])
    expected = scratch_states(model, people, {2})
    assert torch.equal(torch.stack(states(model)), torch.stack(expected))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, HASTY], ids=str)
def test_a_block_may_become_empty(settings: dict[str, Any]) -> None:
    people = make_people()
    model = fitted(people, **settings)
    block = block_of(model, 0)
    leaving = people_in(model, people, {block})
    receipt = model.forget(leaving)
    assert model.block_sizes_[block] == 0
    assert torch.equal(states(model)[block], states(model)[block + 1])
    assert receipt.estimates["residual_first"] > 0
    assert np.isfinite(model.predict_proba(people.X)).all()


def test_receipt_counts_blocks_and_visits() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    person = people_in(model, people, {2})[0]
    receipt = model.forget([person])
    visited = model.block_sizes_[2:6].sum()
    assert receipt.rebuilt == {"blocks": 4}
    assert receipt.work == pytest.approx(visited / model.n_rows_)
    assert receipt.estimates["residual_tail"] == model.tail_ > 0


def test_no_residual_before_the_last_affected_block_counts() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    early, late = (people_in(model, people, {block})[0] for block in (0, 4))
    receipt = model.forget([early, late])
    assert receipt.rebuilt == {"blocks": 8}  # 0 to 7: four residuals from block 4 on


def test_blocks_without_rows_leave_no_residual() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    model.forget(people_in(model, people, {3}))
    receipt = model.forget(people_in(model, people, {1})[:1])
    assert receipt.rebuilt == {"blocks": 5}  # 1 to 5: residuals of 1, 2, 4 and 5


def test_published_rule_needs_eight_residuals() -> None:
    people = make_people(40)
    model = fitted(people, n_blocks=12, stop="paper", epsilon=1e9)
    receipt = model.forget(people_in(model, people, {1})[:1])
    assert receipt.rebuilt == {"blocks": 8}
    assert model.null_floor_ is None


def test_origin_of_the_published_rule_changes_the_slope() -> None:
    people, slopes = make_people(40), []
    for origin in ("block", "one"):
        model = fitted(people, n_blocks=12, stop="paper", epsilon=1e9, stop_origin=origin)
        slopes.append(model.forget(people_in(model, people, {3})[:1]).estimates["slope"])
    assert slopes[0] != pytest.approx(slopes[1], rel=1e-3)


def test_a_run_with_only_empty_blocks_ahead_goes_to_the_end() -> None:
    people = make_people(40)
    model = fitted(people, **HASTY)
    model.forget(people_in(model, people, {5, 6, 7, 8, 9}))
    exact = model.exact_blocks_
    model.forget(people_in(model, people, {1})[:1])
    assert (exact, model.exact_blocks_, model.tail_) == (10, 10, 0.0)


def test_null_floor_is_zero_for_deterministic_training() -> None:
    assert fitted(make_people(), module=noisy).null_floor_ == 0.0


def test_null_floor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    train, calls = Loop.train, list[int]()

    def shaken(self: Loop, *given: Any) -> Tensor:
        calls.append(len(calls))
        return train(self, *given) + 1e-3 * len(calls)

    monkeypatch.setattr(Loop, "train", shaken)
    model = fitted(make_people())
    apart = 1e-3 * 12  # 12 parameters, one call later
    assert model.null_floor_ == pytest.approx(apart / model.influences_[-1], rel=1e-2)


def test_progress_tells_block_and_epoch() -> None:
    people, seen = make_people(), list[Progress]()
    model = make(epochs=2).fit(people.X, people.y, ids=people.ids, callback=seen.append)
    assert [(each.part, each.epoch) for each in seen] == [(b, e) for b in range(5) for e in (0, 1)]
    seen.clear()
    model.forget(people_in(model, people, {3})[:1], callback=seen.append)
    assert {(each.part, each.n_parts) for each in seen} == {(0, 2), (1, 2)}


def test_a_callback_that_fails_changes_nothing() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    before, twin = same_people(model), fitted(people, **HASTY)

    def refuse(progress: Progress) -> None:
        if progress.part == 2:
            raise Sabotage

    person = people_in(model, people, {1})[0]
    with pytest.raises(Sabotage):
        model.forget([person], callback=refuse)
    require_unchanged(model, before, len(people.ids))
    model.forget([person])
    twin.forget([person])
    assert model.digest() == twin.digest()


def test_a_loss_that_is_no_number_names_the_block_and_changes_nothing() -> None:
    people = make_people()
    model = fitted(people, loss=loss_that_may_fail)
    before, person = same_people(model), people_in(model, people, {2})[0]
    Sabotaged.on = True
    try:
        with pytest.raises(
            TrainingError, match=r"in block 2, epoch 0 of network 0 \(counted from 0\)"
        ):
            model.forget([person])
    finally:
        Sabotaged.on = False
    require_unchanged(model, before, len(people.ids))


@pytest.mark.parametrize("n_written", [0, 2, 6])
def test_a_full_disk_changes_nothing(
    n_written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = make_people()
    model = fitted(people, **HASTY, checkpoint_dir=tmp_path)
    before, files = same_people(model), files_in(tmp_path)
    put, written = state.DirectoryStore.put, list[bytes]()

    def full(self: state.DirectoryStore, data: bytes) -> Any:
        if len(written) == n_written:
            raise CheckpointError("no space left on device")
        written.append(data)
        return put(self, data)

    monkeypatch.setattr(state.DirectoryStore, "put", full)
    with pytest.raises(CheckpointError, match="no space"):
        model.forget(people_in(model, people, {1})[:1])
    require_unchanged(model, before, len(people.ids))
    assert files_in(tmp_path) == files


def test_no_memory_left_on_the_gpu_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    people = make_people()
    model = fitted(people)
    before = same_people(model)

    def exhausted(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(Loop, "train", exhausted)
    with pytest.raises(MemoryError, match="the model was not changed"):
        model.forget([3])
    require_unchanged(model, before, len(people.ids))


def test_a_failed_fit_leaves_no_files(tmp_path: Path) -> None:
    people = make_people()

    def refuse(_: Progress) -> None:
        raise Sabotage

    model = make(checkpoint_dir=tmp_path)
    with pytest.raises(Sabotage):
        model.fit(people.X, people.y, ids=people.ids, callback=refuse)
    assert files_in(tmp_path) == set()
    assert not hasattr(model, "seed_")


def people_of_a_small_class() -> BlockPeople:
    people = make_people(24, n_classes=2)
    y = np.where(np.isin(people.ids, [3, 4]), 2, people.y)
    return BlockPeople(people.X, y, people.ids)


def test_a_class_that_vanishes_means_a_fresh_fit(tmp_path: Path) -> None:
    people = people_of_a_small_class()
    model = fitted(people, checkpoint_dir=tmp_path)
    receipt = model.forget([3, 4])
    assert receipt.rebuilt == {"retrains": 1}
    assert model.classes_.tolist() == [0, 1]
    fresh = fitted(people.without([3, 4]), random_state=model.seed_)
    assert model.digest() == fresh.digest()
    assert len(files_in(tmp_path)) == len(model.vault_.files)


def test_files_of_a_loaded_model_are_destroyed_when_a_class_vanishes(tmp_path: Path) -> None:
    model = fitted(people_of_a_small_class(), checkpoint_dir=tmp_path / "states")
    old = files_in(tmp_path)
    letheon.save(model, tmp_path / "model")
    loaded = letheon.load(tmp_path / "model", trusted=[linear, DeepObliviateClassifier])
    loaded.forget([3, 4])
    assert not old & files_in(tmp_path)


def test_the_last_but_one_class_cannot_leave() -> None:
    people = make_people(n_classes=2)
    y = np.where(people.ids == 3, 1, 0)
    model = make().fit(people.X, y, ids=people.ids)
    with pytest.raises(EmptyModelError, match="only one class"):
        model.forget([3])


PLACES: tuple[dict[str, Any], ...] = ({}, {"max_memory": 0}, {"checkpoint_dir": "here"})


def placed(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {"checkpoint_dir": folder} if "checkpoint_dir" in settings else settings


def test_digests_do_not_depend_on_where_states_lie(tmp_path: Path) -> None:
    people, digests = make_people(), []
    for settings in PLACES:
        model = fitted(people, **HASTY, **placed(settings, tmp_path))
        history = [model.digest()]
        for request in ([1], [7, 2], [9]):
            model.forget(request)
            history.append(model.digest())
        digests.append(history)
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == 4


@pytest.mark.parametrize("settings", PLACES, ids=str)
def test_save_load_then_forget(settings: dict[str, Any], tmp_path: Path) -> None:
    people = make_people()
    model = fitted(people, **HASTY, **placed(settings, tmp_path / "states"))
    model.forget([1])
    letheon.save(model, tmp_path / "model")
    loaded = letheon.load(tmp_path / "model", trusted=[linear, DeepObliviateClassifier])
    assert loaded.digest() == model.digest()
    loaded.forget([7, 2])
    twin = fitted(people, **HASTY)
    twin.forget([1])
    twin.forget([7, 2])
    assert loaded.digest() == twin.digest()


def test_files_of_old_states_are_destroyed(tmp_path: Path) -> None:
    people = make_people()
    model = fitted(people, **HASTY, checkpoint_dir=tmp_path)
    before, person = files_in(tmp_path), people_in(model, people, {1})[0]
    old = [each.numpy().tobytes() for each in states(model)]
    model.forget([person])
    left = b"".join((tmp_path / name).read_bytes() for name in files_in(tmp_path))
    assert len(files_in(tmp_path)) == len(before) == 11
    assert [each in left for each in old] == [True] * 2 + [False] * 9


def test_a_new_fit_destroys_the_files_of_the_last_one(tmp_path: Path) -> None:
    people = make_people()
    model = fitted(people, checkpoint_dir=tmp_path)
    old = files_in(tmp_path)
    model.fit(people.X, people.y, ids=people.ids)
    assert not old & files_in(tmp_path)
    assert sweep_checkpoints(tmp_path, keep=[model]) == 0


@pytest.mark.parametrize("damage", ["lost", "altered"])
def test_a_lost_state_means_a_fresh_fit(damage: str, tmp_path: Path) -> None:
    people = make_people()
    model = fitted(people, **HASTY, checkpoint_dir=tmp_path)
    home = model.checkpoint_home_
    for name in files_in(tmp_path):
        path = tmp_path / name
        path.unlink() if damage == "lost" else path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(CheckpointWarning) as warned:
        receipt = model.forget([3])
    texts = [str(each.message) for each in warned]
    assert sum("all blocks were trained again" in text for text in texts) == 1
    assert sum(f"were not found in {home}," in text for text in texts) == (damage == "lost")
    assert model.checkpoint_home_ != home
    assert receipt.rebuilt == {"retrains": 1}
    fresh = fitted(people.without([3]), **HASTY, random_state=model.seed_)
    assert model.digest() == fresh.digest()


def test_states_left_behind_in_another_directory_are_noticed(tmp_path: Path) -> None:
    model = fitted(make_people(), checkpoint_dir=tmp_path / "one")
    model.set_params(checkpoint_dir=tmp_path / "two")
    with pytest.raises(ChangedParametersError, match="checkpoint_dir was changed"):
        model.forget([3])


def test_states_moved_by_the_caller_are_followed(tmp_path: Path) -> None:
    model = fitted(make_people(), **HASTY, checkpoint_dir=tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    model.set_params(checkpoint_dir=tmp_path / "two").forget([3])
    assert Path(str(model.checkpoint_home_)).parent == tmp_path / "two"
    assert files_in(tmp_path / "two")
    model.fit(*make_people()[:2])
    assert len(files_in(tmp_path)) == len(model.vault_.files)


def test_a_directory_given_later_is_not_taken_for_the_home_of_states_in_memory(
    tmp_path: Path,
) -> None:
    model = fitted(make_people(), **HASTY).set_params(checkpoint_dir=tmp_path)
    model.forget([3])
    assert (model.checkpoint_home_, model.checkpoint_given_) == (None, None)
    assert list(tmp_path.iterdir()) == []
    assert model.forget([5]).n_ids == 1


def test_many_states_stream_to_a_file() -> None:
    n = 700
    X = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    model = make(n_blocks=500, max_memory=4096, epsilon=0.0, batch_size=8)
    in_memory = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "train", _watching(model, in_memory))
        model.fit(X, np.arange(n) % 3)
        model.forget([0, 1, 2])
    assert model.checkpoint_bytes_ == {"memory": 0, "disk": 501 * 12 * 4}
    assert len(in_memory) > 100
    assert max(in_memory) == 0


def _watching(model: DeepObliviateClassifier, in_memory: list[int]) -> Any:
    train = Loop.train

    def watched(*given: Any) -> Tensor:
        if hasattr(model, "vault_"):
            in_memory.append(model.vault_.bytes_in_memory)
        return train(*given)

    return watched


def test_states_in_memory_are_counted() -> None:
    model = fitted(make_people())
    assert model.checkpoint_bytes_ == {"memory": 6 * 12 * 4, "disk": 0}


def test_other_libraries_are_said() -> None:
    model = fitted(make_people())
    model.environment_ = model.environment_ | {"torch": "1.0"}
    with pytest.warns(EnvironmentWarning, match="other libraries"):
        receipt = model.forget([3])
    assert receipt.n_ids == 1


def test_equal_bits_are_claimed_for_equal_libraries_only() -> None:
    model = fitted(make_people(), epsilon=0.0)
    code = "same-libraries-and-cpu-kernel"
    assert code in model.guarantee_.assumptions
    [meaning] = [text for text in model.facts.definition.split("\n- ") if f"`{code}`" in text]
    assert '"From scratch" then means each block' in meaning


def test_kernels_that_add_in_any_order_are_not_called_equal() -> None:
    texts = [
        fitted(make_people(), deterministic=each).guarantee_.reference for each in (False, True)
    ]
    assert ["any order" in text for text in texts] == [True, False]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_forgets_alone(way: Any) -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    before, twin = same_people(model), way(model)
    twin.forget([3])
    require_unchanged(model, before, len(people.ids))
    model.forget([3])
    assert model.digest() == twin.digest()


def test_claim_after_a_fit() -> None:
    claim = fitted(make_people(), **HASTY).guarantee_
    assert claim.kind == "empirical"
    assert "retrained to the end" in claim.reference
    assert not any(
        text.startswith(("nets_", "influences_", "tail_")) for text in claim.residual_state
    )


def test_claim_after_a_stop_has_the_estimate() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    receipt = model.forget(people_in(model, people, {1})[:1])
    claim = receipt.guarantee
    assert f"{receipt.estimates['residual_tail']:.3g} in L1" in claim.reference
    for name in ("nets_, vault_", "influences_", "tail_"):
        assert sum(text.startswith(name) for text in claim.residual_state) == 1


def test_tails_add_up() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    tails = [
        model.forget([person]).estimates["residual_tail"]
        for person in people_in(model, people, {0, 1, 2})[:3]
    ]
    assert model.tail_ == pytest.approx(sum(tails))


def test_running_statistics_are_those_of_the_rows_that_stay() -> None:
    people = make_people()
    model = fitted(people, module=noisy, **HASTY)
    model.forget([3])
    [module] = model.to_modules()
    hidden = module[0](torch.from_numpy(people.without([3]).X)).detach().numpy()  # type: ignore[index]
    [statistics] = model.nets_.statistics
    assert statistics["1.running_mean"].numpy() == pytest.approx(hidden.mean(axis=0), abs=1e-5)


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"n_blocks": 0}, "n_blocks=0; expected a whole number"),
    ({"stop": "soon"}, "stop='soon'; expected one of"),
    ({"stop_origin": "zero"}, "stop_origin='zero'"),
    ({"patience": 0}, "patience=0"),
    ({"anneal": "cosine"}, "anneal='cosine'; expected one of"),
    ({"anneal": None}, "anneal=None; expected one of"),
    ({"anneal": "linear", "optimizer": torch.optim.SGD}, "anneal='linear' requires a named"),
    ({"epsilon": -0.1}, "epsilon=-0.1; expected the slope"),
    ({"epsilon": float("nan")}, "epsilon=nan"),
    ({"epsilon": "0.1"}, "epsilon='0.1'"),
    ({"max_memory": -1}, "max_memory=-1"),
)


@pytest.mark.parametrize(("settings", "text"), BAD, ids=str)
def test_bad_settings_are_named(settings: dict[str, Any], text: str) -> None:
    people = make_people()
    with pytest.raises(ValueError, match=text):
        fitted(people, **settings)


def test_changed_settings_are_noticed() -> None:
    model = fitted(make_people()).set_params(epsilon=0.5)
    with pytest.raises(ChangedParametersError):
        model.forget([3])


def test_images_of_bytes() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 1, 4, 4), np.uint8), np.arange(40) % 2
    model = make(module=None, learning_rate=1e-4).fit(X, y)
    receipt = model.forget([0, 1])
    assert receipt.n_rows == 2
    assert model.predict(X).shape == (40,)
