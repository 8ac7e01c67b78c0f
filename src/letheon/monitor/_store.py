"""A monitor on disk: parts named by their SHA-256, and one manifest that lists the valid parts.

Parts are written first. Then the manifest is replaced in one step, and files that it does not name
are deleted. A process killed at any moment leaves either the old manifest with the old parts or the
new manifest with the new parts; other files are deleted when the folder is opened again. Manifests
are numbered: a process that has not read the latest manifest must not replace it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from letheon.data import Rows
from letheon.exceptions import (
    CheckpointError,
    CheckpointWarning,
    CorruptFileError,
    NewerFormatError,
    warn_caller,
)
from letheon.measures import from_plain
from letheon.monitor._calibrate import Calibration
from letheon.monitor._limits import Limit, RetrainInterval
from letheon.monitor._panel import Panel, choose_judge
from letheon.monitor._reading import History, MonitorTolerances, Reading
from letheon.state import CheckpointName, DirectoryStore, write_atomically

FORMAT = 1
MANIFEST = "monitor.json"


class Folder:
    """The directory of one monitor.

    Parameters
    ----------
    path : str or path-like
        The directory; created on the first write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._store = DirectoryStore(self.path)
        # Number of the manifest that was read or written last; 0 if there was none.
        self._generation = 0

    @property
    def manifest(self) -> Path:
        """Path of the manifest, which lists the valid parts."""
        return self.path / MANIFEST

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether `path` is this folder."""
        return self.path.resolve() == Path(path).resolve()

    def commit(self, parts: Mapping[str, bytes], record: Mapping[str, Any]) -> tuple[str, ...]:
        """Write parts and record in one step; return the old files that could not be deleted.

        A part that already exists is not written again.

        Raises
        ------
        CheckpointError
            Another process has written to the folder. Data that it deleted must not be restored.
        OSError
            The folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock_folder():
            written = self._read_manifest()["generation"] if self.manifest.exists() else 0
            if written != self._generation:
                raise CheckpointError(
                    f"another process has changed {self.path}; nothing was written. Load the "
                    "monitor again with Monitor.load"
                )
            existing = self._store.names()
            names = {part: hashlib.sha256(blob).hexdigest() for part, blob in parts.items()}
            for part, blob in parts.items():
                if names[part] not in existing:
                    self._store.put(blob)
            generation = self._generation + 1
            content = {"format": FORMAT, "generation": generation, "parts": names, "record": record}
            write_atomically(self.manifest, [json.dumps(content, indent=1).encode()])
            self._generation = generation
            return self._store.keep_only(frozenset(names.values()))

    @contextlib.contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Lock the folder against other processes; the lock also ends if this process does."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def destroy(self) -> tuple[str, ...]:
        """Delete all files of the monitor; return the files that could not be deleted."""
        with self._lock_folder():
            self.manifest.unlink(missing_ok=True)
            return self._store.keep_only(frozenset())

    def read(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the valid parts and the record, and delete leftovers of a killed process.

        Raises
        ------
        FileNotFoundError
            No monitor was saved here.
        CorruptFileError
            The manifest or a part is truncated, altered or missing.
        NewerFormatError
            The folder was written by a later version of letheon.
        """
        if not self.manifest.exists():
            raise FileNotFoundError(f"no monitor was saved in {self.path}: {MANIFEST} is missing")
        with self._lock_folder():
            content = self._read_manifest()
            names = content["parts"]
            parts = {part: self._store.get(CheckpointName(name)) for part, name in names.items()}
            self._store.keep_only(frozenset(names.values()))
            for leftover in self.path.glob(f".{MANIFEST}.*.partial"):
                with contextlib.suppress(OSError):
                    leftover.unlink()
        self._generation = content["generation"]
        return parts, content["record"]

    def _read_manifest(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.manifest.read_bytes())
            version = int(content["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{self.manifest} is not a valid manifest: {error!r}") from error
        if version != FORMAT:
            raise NewerFormatError(
                f"{self.manifest} has format {version}, but this version of letheon reads only "
                f"format {FORMAT}; use the version that wrote it"
            )
        try:
            # Names of parts are used in paths, so they must be checked.
            for name in content["parts"].values():
                CheckpointName(name)
            is_whole = type(content["generation"]) is int and isinstance(content["record"], dict)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_whole = False
        if not is_whole:
            raise CorruptFileError(f"{self.manifest} is not a valid manifest: invalid keys")
        return content


def new_folder(folder: str | os.PathLike[str] | None) -> Folder | None:
    """Return the folder, or None; raise `FileExistsError` if it already contains a monitor."""
    if folder is None:
        return None
    place = Folder(folder)
    if place.manifest.exists():
        raise FileExistsError(
            f"{place.manifest} already exists; continue with Monitor.load({str(folder)!r}), or "
            "choose another folder"
        )
    return place


def warn_about_files(resisting: Iterable[str]) -> None:
    """Warn about files that could not be deleted."""
    for file in resisting:
        warn_caller(
            f"{file} could not be deleted; it may contain data of forgotten people",
            CheckpointWarning,
        )


def destroy_model_files(model: Any) -> list[str]:
    """Delete the files of a replaced model; return a warning for each file that remains."""
    destroy = getattr(model, "_destroy_files", None)
    return [] if destroy is None else list(destroy())


def make_record(monitor: Any) -> dict[str, Any]:
    """Return settings, limits and history of a monitor as plain values, ready for JSON.

    Parameters
    ----------
    monitor : Monitor
        The monitor to save.

    Returns
    -------
    dict

    Examples
    --------
    >>> from letheon import Monitor, NearestCentroid
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> make_record(Monitor(NearestCentroid().fit(X, y), X, y))["tolerances"]["effectiveness"]
    0.02
    """
    return {
        "tolerances": asdict(monitor.tolerances),
        "on_breach": monitor.on_breach,
        "calibration": None if monitor.calibration is None else monitor.calibration.to_dict(),
        "hold_forgotten_until_retrain": monitor.hold_forgotten_until_retrain,
        "knows_people": monitor._panel.knows_people,
        "metric": None if monitor._panel.judge.metric is None else monitor._panel.judge.name,
        "uses_probability": monitor._panel.judge.uses_probability,
        "seed": str(monitor._seed),
        "n_retrains": monitor.n_retrains,
        "stretch": asdict(monitor._interval),
        "limits": {name: limit.to_dict() for name, limit in monitor.limits.items()},
        "history": monitor.history.to_list(),
    }


def restore(
    monitor: Any,
    place: Folder | None,
    model: Any,
    rows: dict[str, Rows | None],
    record: dict[str, Any],
    metric: Callable[[Any, Any], Any] | None,
) -> None:
    """Set all attributes of an empty monitor from a saved record, without rehearsals.

    `Monitor.load` and the ledger call it.

    Parameters
    ----------
    monitor : Monitor
        The monitor whose attributes are set.
    place : Folder or None
        Where the monitor is saved.
    model : fitted model
        The saved model.
    rows : dict of str to Rows or None
        Rows with the keys "test", "training" and "forgotten".
    record : dict
        Result of `make_record`.
    metric : callable or None
        The metric that the monitor was created with.

    Raises
    ------
    ValueError
        The monitor was saved with another metric.

    Examples
    --------
    >>> from letheon.monitor import Monitor
    >>> monitor = Monitor.load("watched")  # doctest: +SKIP
    """
    judge, saved = choose_judge(model, metric), record["metric"]
    name = None if judge.metric is None else judge.name
    if saved != name:
        raise ValueError(
            f"metric={name} was passed, but this monitor was saved with metric={saved}; "
            "pass the same metric"
        )
    test = rows["test"]
    assert test is not None
    vars(monitor).update(
        model=model,
        tolerances=MonitorTolerances(**record["tolerances"]),
        on_breach=record["on_breach"],
        calibration=read_calibration(record["calibration"]),
        hold_forgotten_until_retrain=record["hold_forgotten_until_retrain"],
        history=History([Reading.from_dict(values) for values in record["history"]]),
        limits={name: Limit.from_dict(values) for name, values in record["limits"].items()},
        n_retrains=record["n_retrains"],
        _folder=place,
        _seed=int(record["seed"]),
        _rows=rows["training"],
        _panel=Panel(test, judge, record["knows_people"]),
        _forgotten=rows["forgotten"],
        _interval=from_plain(RetrainInterval, record["stretch"]),
    )


def read_calibration(saved: dict[str, Any] | None) -> Calibration | None:
    """Return the saved calibration, or None.

    If it was saved by a version that required no assumption, the missing assumption is added.

    Parameters
    ----------
    saved : dict or None
        Result of `Calibration.to_dict`; None without rehearsals.

    Returns
    -------
    Calibration or None

    Examples
    --------
    >>> settings = Calibration(kinds=("uniform",), assume="requests come uniformly")
    >>> read_calibration(settings.to_dict()) == settings
    True
    """
    if saved is None:
        return None
    settings: dict[str, Any] = {**saved, "kinds": tuple(saved["kinds"])}
    try:
        return Calibration(**settings)
    except ValueError:
        if saved.get("assume"):
            raise
        only = ", ".join(settings["kinds"])
        assume = f"only requests of these kinds come: {only} (saved before a reason was required)"
        return Calibration(**settings, assume=assume)
