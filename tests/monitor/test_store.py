"""A monitor on a disk: what comes back, what a kill leaves, what is swept."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from letheon.exceptions import (
    CheckpointError,
    CorruptFileError,
    NewerFormatError,
    UntrustedClassError,
)
from letheon.monitor import Monitor, MonitorTolerances
from letheon.monitor._store import MANIFEST, Folder, make_record
from tests.monitor.drifters import QUICK, Keeper, keeper, make_people
from tests.monitor.kills import PERSON

PEOPLE = make_people(n_people=30, n_test=20)
LOOSE = MonitorTolerances(effectiveness=10.0, certifiability=1000.0)
STRICT = MonitorTolerances(effectiveness=1e-9, certifiability=1e-9)


def kept(folder: Path | None, tolerances: MonitorTolerances = LOOSE, **settings: Any) -> Monitor:
    return Monitor(
        keeper(PEOPLE),
        PEOPLE.X_test,
        PEOPLE.y_test,
        test_ids=np.arange(20),
        tolerances=tolerances,
        retrain_with=PEOPLE.training,
        calibration=QUICK,
        folder=folder,
        random_state=0,
        **settings,
    )


def loaded(folder: Path, **settings: Any) -> Monitor:
    return Monitor.load(folder, trusted=[Keeper], **settings)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def valid_names(folder: Path) -> set[str]:
    parts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["parts"]
    return {MANIFEST, *(f"{name}.letheon-state" for name in parts.values())}


def test_everything_comes_back(tmp_path: Path) -> None:
    monitor = kept(tmp_path)
    monitor.forget([3, 4])
    again = loaded(tmp_path)
    assert again.model.digest() == monitor.model.digest()
    assert make_record(again) == make_record(monitor)
    assert again.history == monitor.history


def test_a_loaded_monitor_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    monitor, stopped = kept(None, STRICT), kept(tmp_path, STRICT)
    monitor.forget([1])
    stopped.forget([1])
    stopped = loaded(tmp_path)
    assert monitor.forget([2]).proxies["certifiability"] == pytest.approx(
        stopped.forget([2]).proxies["certifiability"]
    )
    assert monitor.model.digest() == stopped.model.digest()
    assert monitor.limits == stopped.limits


def test_only_valid_parts_stay_in_the_folder(tmp_path: Path) -> None:
    monitor = kept(tmp_path)
    before = names(tmp_path)
    monitor.forget([3])
    assert names(tmp_path) == valid_names(tmp_path)
    assert len(names(tmp_path) & before) == 1


def test_no_other_user_can_read_the_files(tmp_path: Path) -> None:
    kept(tmp_path)
    assert {file.stat().st_mode & 0o077 for file in tmp_path.iterdir()} == {0}


def test_another_monitor_is_not_overwritten(tmp_path: Path) -> None:
    kept(tmp_path)
    with pytest.raises(FileExistsError, match=r"Monitor\.load"):
        kept(tmp_path)


def test_a_monitor_can_be_given_a_folder_later(tmp_path: Path) -> None:
    monitor = kept(None)
    with pytest.raises(ValueError, match="no folder"):
        monitor.save()
    monitor.save(tmp_path / "new" / "place")
    monitor.forget([3])
    assert loaded(tmp_path / "new" / "place").history == monitor.history


def test_a_moved_monitor_leaves_no_rows_behind(tmp_path: Path) -> None:
    monitor = kept(tmp_path / "old")
    monitor.save(tmp_path / "new")
    assert not (tmp_path / "old").exists()
    monitor.forget([4])
    assert 4 not in loaded(tmp_path / "new").model.ids_


def test_saving_where_it_lives_is_a_plain_save(tmp_path: Path) -> None:
    monitor = kept(tmp_path)
    monitor.save(tmp_path)
    assert loaded(tmp_path).model.digest() == monitor.model.digest()


def test_two_processes_cannot_bring_a_forgotten_person_back(tmp_path: Path) -> None:
    kept(tmp_path)
    first, second = loaded(tmp_path), loaded(tmp_path)
    first.forget([10])
    with pytest.raises(CheckpointError, match="another process has changed"):
        second.forget([11])
    assert 10 not in loaded(tmp_path).model.ids_
    first.forget([11])
    assert len(loaded(tmp_path).history) == 2


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    monitor = kept(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    thread = threading.Thread(target=monitor.forget, args=([3],))
    thread.start()
    thread.join(0.3)
    was_waiting = thread.is_alive()
    os.close(descriptor)
    thread.join()
    assert was_waiting
    assert 3 not in loaded(tmp_path).model.ids_


def test_a_metric_that_fails_leaves_memory_and_disk_alike(tmp_path: Path) -> None:
    fails = [False]

    def fragile(y_true: Any, y_pred: Any) -> float:
        if fails[0]:
            raise ZeroDivisionError
        return float(accuracy_score(y_true, y_pred))

    monitor = kept(tmp_path, metric=fragile)
    fails[0] = True
    with pytest.raises(ZeroDivisionError):
        monitor.forget([3])
    again = loaded(tmp_path, metric=fragile)
    assert 3 not in again.model.ids_
    assert again.is_due
    assert "could not be judged" in again.history[0].reasons[0]


def test_a_metric_must_be_given_again(tmp_path: Path) -> None:
    kept(tmp_path, metric=accuracy_score)
    with pytest.raises(ValueError, match="metric=accuracy_score"):
        loaded(tmp_path)
    again = loaded(tmp_path, metric=accuracy_score)
    assert again.forget([25]).metric <= 1


def test_foreign_classes_must_be_trusted(tmp_path: Path) -> None:
    kept(tmp_path)
    with pytest.raises(UntrustedClassError):
        Monitor.load(tmp_path)


def test_an_empty_folder_holds_no_monitor(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no monitor"):
        Monitor.load(tmp_path)


def test_an_altered_part_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    part = next(file for file in tmp_path.iterdir() if file.name != MANIFEST)
    raw = bytearray(part.read_bytes())
    raw[-1] ^= 1
    part.write_bytes(raw)
    with pytest.raises(CorruptFileError):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "generation": 1, "parts": {"model": "../x"}, "record": {}}',
        '{"format": 1, "generation": "1", "parts": {}, "record": {}}',
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(CorruptFileError):
        Folder(tmp_path).read()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    text = '{"format": 2, "parts": {}, "record": {}}'
    (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(NewerFormatError, match="format 2"):
        Folder(tmp_path).read()


def test_a_full_disk_is_said_and_can_be_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = kept(tmp_path)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        monitor.forget([3])
    monkeypatch.undo()
    assert 3 in loaded(tmp_path).model.ids_
    monitor.save()
    assert 3 not in loaded(tmp_path).model.ids_


@pytest.mark.parametrize(
    ("tolerances", "steps"),
    [(LOOSE, range(1, 33, 2)), (STRICT, range(2, 38, 5))],
    ids=["kept", "retrained"],
)
def test_a_kill_at_any_step_leaves_the_state_before_or_after(
    tmp_path: Path, tolerances: MonitorTolerances, steps: range
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    before = kept(source, tolerances).model.digest()
    script = Path(__file__).with_name("kills.py")
    out.mkdir()
    subprocess.run(
        [sys.executable, script, source, out, *map(str, steps)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )
    ends = [int(end) for end in (out / "ends.txt").read_text(encoding="utf-8").split()]
    assert set(ends) == {0, -signal.SIGKILL}
    done = []
    for step, end in zip(steps, ends, strict=True):
        again = loaded(out / f"{step:03d}")
        assert names(out / f"{step:03d}") == valid_names(out / f"{step:03d}")
        done.append(PERSON not in again.model.ids_)
        assert len(again.history) == len(again._panel) - 20 + 2 * done[-1] == done[-1]
        assert (again.model.digest() == before) is not done[-1]
        assert PERSON not in again._panel.rows.ids.to_list() or not done[-1]
        assert end != 0 or done[-1]
    # Once after, always after; and both were seen.
    assert done == sorted(done)
    assert set(done[: ends.count(-signal.SIGKILL)]) == {False, True}
