"""Saved states: destroyed when they saw a forgotten row, never trusted, never reused by a fit."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB

import letheon
from letheon import SISAClassifier
from letheon.data import as_ids
from letheon.exceptions import (
    CannotForgetError,
    ChangedParametersError,
    CheckpointError,
    CheckpointWarning,
    CorruptFileError,
)
from letheon.sharded import sweep_checkpoints
from letheon.sharded._shards import SavedState
from letheon.state import DirectoryStore
from tests.sharded.people import make_people

PEOPLE = make_people(40)


def sliced(directory: Any = None, **settings: Any) -> SISAClassifier:
    model = SISAClassifier(
        GaussianNB(),
        n_shards=2,
        n_slices=4,
        stage_data="new",
        checkpoint_dir=directory,
        random_state=0,
    )
    return model.set_params(**settings)


def fitted(directory: Any = None, gone: Any = (), **settings: Any) -> SISAClassifier:
    rest = PEOPLE.without(gone)
    return sliced(directory, **settings).fit(*rest[:2], ids=rest.ids)


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def home_of(person: int, model: SISAClassifier) -> tuple[int, int]:
    """Return shard and slice of a person."""
    [(number, rows)] = model._locate_rows(as_ids([person])).where.items()
    return number, int(model.ensemble_.shards[number].rows.extra["slice"][rows[0]])


def states_of(model: SISAClassifier, number: int) -> list[SavedState]:
    return [state for state in model.ensemble_.shards[number].states if state is not None]


def in_slice(model: SISAClassifier, wanted: int) -> int:
    return next(p for p in range(40) if home_of(p, model)[1] == wanted)


def test_disk_and_memory_give_the_same_model(tmp_path: Path) -> None:
    on_disk, in_memory = fitted(tmp_path), fitted()
    assert on_disk.digest() == in_memory.digest()
    assert len(files(tmp_path)) == 2 * 3
    on_disk.forget([3, 4])
    assert on_disk.digest() == fitted(gone=[3, 4]).digest()


def test_states_from_the_first_touched_slice_on_are_destroyed(tmp_path: Path) -> None:
    model = fitted(tmp_path)
    person = in_slice(model, 2)
    number, first = home_of(person, model)
    doomed = {state.sha256 for state in states_of(model, number)[first:]}
    kept = model.ensemble_.files - doomed
    model.forget([person])
    names = {name.partition(".")[0] for name in files(tmp_path)}
    assert not names & doomed
    assert kept <= names
    assert names == model.ensemble_.files


def test_states_in_memory_are_dropped_too() -> None:
    model = fitted()
    person = in_slice(model, 1)
    number, first = home_of(person, model)
    old = [state.data for state in states_of(model, number)]
    model.forget([person])
    new = [state.data for state in states_of(model, number)]
    assert old[:first] == new[:first]
    assert not set(old[first:]) & set(new)


def test_a_second_request_never_brings_the_first_person_back(tmp_path: Path) -> None:
    model = fitted(tmp_path)
    number = home_of(0, model)[0]
    together = [p for p in range(40) if home_of(p, model)[0] == number][:4]
    for done, person in enumerate(together, start=1):
        model.forget([person])
        assert model.digest() == fitted(gone=together[:done]).digest()


def test_every_row_is_trained_though_shards_do_not_divide_the_rows() -> None:
    counts = sum(shard.model.class_count_.sum() for shard in fitted(n_shards=3).ensemble_.shards)
    assert counts == len(PEOPLE.ids)
    assert len(PEOPLE.ids) % 3 != 0


def test_a_refit_destroys_the_states_of_the_fit_before(tmp_path: Path) -> None:
    model = fitted(tmp_path)
    old = model.ensemble_.files
    model.set_params(estimator=GaussianNB(var_smoothing=0.1)).fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert not {name.partition(".")[0] for name in files(tmp_path)} & old
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("change", [{"estimator__var_smoothing": 0.5}, {"n_slices": 5}])
def test_changed_settings_never_reuse_old_states(tmp_path: Path, change: dict[str, Any]) -> None:
    model = fitted(tmp_path)
    model.set_params(**change)
    with pytest.raises(ChangedParametersError, match="changed after fit"):
        model.forget([3])
    fresh = fitted(tmp_path, **change)
    assert fresh.digest() == fitted(None, **change).digest()


@pytest.mark.parametrize("damage", ["missing", "altered", "truncated"])
def test_a_damaged_state_is_noticed_and_trained_again(tmp_path: Path, damage: str) -> None:
    model = fitted(tmp_path)
    person = in_slice(model, 3)
    for file in list(tmp_path.rglob("*.letheon-state"))[:]:
        data = file.read_bytes()
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(data[:-9] if damage == "truncated" else data[:-1] + b"!")
    with pytest.warns(CheckpointWarning, match="trained again"):
        model.forget([person])
    assert model.digest() == fitted(gone=[person]).digest()


def test_a_state_of_another_model_is_never_taken_for_ours(tmp_path: Path) -> None:
    model, other = fitted(tmp_path), fitted(tmp_path / "other", random_state=1)
    person = in_slice(model, 3)
    stranger = next((tmp_path / "other").rglob("*.letheon-state")).read_bytes()
    for file in Path(str(model.checkpoint_home_)).iterdir():
        file.write_bytes(stranger)
    with pytest.warns(CheckpointWarning):
        model.forget([person])
    assert model.digest() == fitted(gone=[person]).digest()
    assert other.digest() == fitted(random_state=1).digest()


def test_a_directory_that_cannot_be_used_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    model = sliced(tmp_path / "file")
    with pytest.raises(CheckpointError, match="choose a writable directory"):
        model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert not hasattr(model, "ensemble_")


def test_a_failed_fit_leaves_no_directory_behind(tmp_path: Path) -> None:
    people = make_people(10)
    people.X[0, 0] = float("inf")
    with pytest.raises(ValueError, match="infinity"):
        sliced(tmp_path).fit(*people[:2], ids=people.ids)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_during_forget_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(tmp_path)
    digest, before, real = model.digest(), files(tmp_path), DirectoryStore.put
    person = in_slice(model, 0)
    written: list[Any] = []

    def full(self: DirectoryStore, blob: Any) -> Any:
        if written:
            raise CheckpointError("No space left on device")
        written.append(real(self, blob))
        return written[0]

    monkeypatch.setattr(DirectoryStore, "put", full)
    with pytest.raises(CheckpointError, match="No space"):
        model.forget([person])
    assert model.digest() == digest
    assert files(tmp_path) == before
    monkeypatch.undo()
    model.forget([person])
    assert model.digest() == fitted(gone=[person]).digest()


def test_a_moved_directory_is_followed_and_a_copied_one_refused(tmp_path: Path) -> None:
    model = fitted(tmp_path / "old")
    model.set_params(checkpoint_dir=tmp_path / "new")
    with pytest.raises(ChangedParametersError, match="states of the model are still in"):
        model.forget([3])
    (tmp_path / "old").rename(tmp_path / "new")
    model.forget([3])
    assert model.digest() == fitted(gone=[3]).digest()
    assert {n.partition(".")[0] for n in files(tmp_path)} == model.ensemble_.files


def test_a_forged_key_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    model = fitted(tmp_path / "states")
    victim = tmp_path / "elsewhere" / ("0" * 64 + ".letheon-state")
    victim.parent.mkdir()
    victim.write_text("another person's")
    model.checkpoint_home_ = str(victim.parent)
    digest = model.digest()
    with pytest.raises(CorruptFileError, match="is not a checkpoint home"):
        model.forget([3])
    assert model.digest() == digest
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert victim.read_text() == "another person's"


def test_a_relative_directory_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = fitted("states")
    letheon.save(model, "model.letheon")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    loaded = letheon.load(tmp_path / "model.letheon", trusted=[SISAClassifier])
    loaded.forget([in_slice(loaded, 2)])
    assert loaded.digest() == fitted(gone=[in_slice(model, 2)]).digest()
    assert {n.partition(".")[0] for n in files(tmp_path / "states")} == loaded.ensemble_.files
    assert list((tmp_path / "other").iterdir()) == []


def test_states_that_were_moved_away_are_declared_and_not_taken_for_destroyed(
    tmp_path: Path,
) -> None:
    model = fitted(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "hidden")
    person = in_slice(model, 0)
    with pytest.warns(CheckpointWarning, match="destroy them there"):
        receipt = model.forget([person])
    assert "was not found" in receipt.guarantee.residual_state[0]
    assert model.digest() == fitted(gone=[person]).digest()
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    assert model.residual_state_ == ()


def test_a_warning_that_is_an_error_comes_when_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(tmp_path)
    person = in_slice(model, 0)
    monkeypatch.setattr(DirectoryStore, "keep_only", lambda self, names: ("stubborn",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CheckpointWarning):
            model.forget([person])
    assert model.digest() == fitted(gone=[person]).digest()
    assert model.residual_state_ == ("stubborn could not be destroyed",)


def test_the_warning_names_the_callers_line(tmp_path: Path) -> None:
    model = fitted(tmp_path)
    for file in tmp_path.rglob("*.letheon-state"):
        file.write_bytes(b"altered")
    with pytest.warns(CheckpointWarning) as caught:
        model.forget([in_slice(model, 3)])
    assert [warning.filename for warning in caught] == [__file__]


def test_states_of_models_that_are_gone_can_be_swept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    search = GridSearchCV(sliced(tmp_path), {"n_shards": [1, 2]}, cv=2)
    search.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    best = search.best_estimator_
    assert len(list(tmp_path.iterdir())) == 1 + 5
    assert sweep_checkpoints(tmp_path, keep=[best]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "notes.txt",
        Path(best.checkpoint_home_).name,
    }
    best.forget([3])
    assert {n.partition(".")[0] for n in files(tmp_path)} - {"notes"} == best.ensemble_.files


def test_a_killed_fit_can_be_swept(tmp_path: Path) -> None:
    orphan = tmp_path / ("a" * 32)
    DirectoryStore(orphan).put(b"half a fit")
    assert sweep_checkpoints(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_nested_model_may_not_keep_files(tmp_path: Path) -> None:
    with pytest.raises(CannotForgetError, match="checkpoint_dir=None"):
        letheon.NaiveUnlearner(sliced(tmp_path)).fit(*PEOPLE[:2], ids=PEOPLE.ids)


def test_a_file_that_cannot_be_destroyed_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(tmp_path)
    person = in_slice(model, 0)

    def resist(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("letheon.state._stores._destroy_file", resist)
    with pytest.warns(CheckpointWarning, match="remove them"):
        receipt = model.forget([person])
    assert "could not be destroyed" in receipt.guarantee.residual_state[0]
    monkeypatch.undo()
    model.forget([in_slice(model, 1)])
    assert model.residual_state_ == ()
    assert {n.partition(".")[0] for n in files(tmp_path)} == model.ensemble_.files


def test_states_of_other_library_versions_are_never_continued() -> None:
    model = fitted()
    tampered = model.ensemble_.shards[0].model
    tampered.theta_[:] = 0.0  # what an older version might have computed
    model.environment_ = {**model.environment_, "scikit-learn": "0.1"}
    receipt = model.forget([in_slice(model, 3)])
    assert receipt.rebuilt["stages"] == 2 * 4
    assert receipt.work == 1.0


KILLED = """
    import os, sys, signal
    import letheon
    from letheon.state import DirectoryStore
    model = letheon.load(sys.argv[1], trusted=[letheon.SISAClassifier])
    put, count = DirectoryStore.put, [0]
    def dying(self, blob):
        checkpoint = put(self, blob)
        count[0] += 1
        if count[0] == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return checkpoint
    DirectoryStore.put = dying
    model.forget([int(name) for name in sys.argv[3:]])
"""


def test_a_killed_process_leaves_nothing_that_a_later_forget_does_not_sweep(tmp_path: Path) -> None:
    model = fitted(tmp_path / "states")
    letheon.save(model, tmp_path / "model.letheon")
    leaving = [str(in_slice(model, 0)), str(in_slice(model, 1))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), tmp_path / "model.letheon", "2", *leaving],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    assert len(files(tmp_path / "states")) > len(model.ensemble_.files)
    again = letheon.load(tmp_path / "model.letheon", trusted=[SISAClassifier])
    again.forget([int(name) for name in leaving])
    assert again.digest() == fitted(gone=[int(name) for name in leaving]).digest()
    assert {n.partition(".")[0] for n in files(tmp_path / "states")} == again.ensemble_.files


def test_resumed_training_follows_the_uninterrupted_one() -> None:
    """Optimiser, counters and learning rate are in the state: SGD's step size depends on them."""
    model = SISAClassifier(SGDClassifier(), n_shards=1, n_slices=5, epochs=10, random_state=0)
    model.fit(*PEOPLE[:2], ids=PEOPLE.ids)
    person = in_slice(model, 4)
    model.forget([person])
    rest = PEOPLE.without([person])
    fresh = SISAClassifier(SGDClassifier(), n_shards=1, n_slices=5, epochs=10, random_state=0)
    fresh.fit(*rest[:2], ids=rest.ids)
    assert fresh.estimators_[0].t_ == model.estimators_[0].t_
    assert fresh.digest() == model.digest()
