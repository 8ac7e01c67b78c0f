"""Devices, reproducible runs, and validation of rows."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array

from letheon.exceptions import CheckpointError
from letheon.inner_estimator import remember_features, require_features
from letheon.removal import allocate_file

CPU = torch.device("cpu")
DEVICES = ("auto", "cpu", "cuda")

_training_lock = threading.RLock()


def resolve_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" is a GPU if there is one, else the CPU.

    Raises
    ------
    ValueError
        For an unknown name, and for "cuda" on a machine without a GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(name, str) or name.partition(":")[0] not in DEVICES[1:]:
        raise ValueError(
            f"device={name!r} is unknown; expected one of {DEVICES}, or a numbered "
            f"GPU such as 'cuda:1'"
        )
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device={name!r} is not available: torch finds no GPU; use 'auto' or 'cpu'"
        )
    return torch.device(name)


def describe_device(device: torch.device) -> dict[str, str]:
    """Return the versions and hardware that affect the last bits of trained parameters."""
    if device.type == "cuda":
        unit = torch.cuda.get_device_name(device)
    else:
        unit = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": str(torch.__version__), "device": unit}


def allocate_on_disk(
    shape: tuple[int, ...],
    what: str = "checkpoints",
    advice: str = "set checkpoint_dir, or raise max_memory",
) -> torch.Tensor:
    """Return a tensor of zeros in an unnamed temporary file.

    The file is released when the process ends.

    Raise `CheckpointError` if there is no space; `what` and `advice` are used in its message.
    """
    n_bytes = 4 * prod(shape)
    try:
        room = allocate_file(n_bytes)
    except OSError as error:
        raise CheckpointError(
            f"cannot store {n_bytes} bytes of {what} in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; {advice}"
        ) from error
    return torch.from_numpy(np.frombuffer(room, np.float32).reshape(shape))


class _TorchSetting(NamedTuple):
    """One of torch's settings: functions to read and write it, and the required value."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    value: Any

    @classmethod
    def from_attribute(cls, place: Any, name: str, value: Any) -> "_TorchSetting":
        """Return a setting that is the attribute `name` of the object `place`."""
        return cls(partial(getattr, place, name), partial(setattr, place, name), value)


@contextmanager
def _apply_settings(switches: list[_TorchSetting]) -> Iterator[None]:
    """Apply settings, and restore the caller's values afterwards."""
    before = [switch.read() for switch in switches]
    try:
        for switch in switches:
            switch.write(switch.value)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.write(value)


def _precision_settings(device: torch.device, *, coarse: bool) -> list[_TorchSetting]:
    """Return settings for the precision of matrix products on a GPU.

    If `coarse`, the GPU may round factors to 10 bits (TF32); otherwise it must not.
    """
    backends: Any = torch.backends  # modules with properties, which stubs do not know
    is_coarse = coarse and device.type == "cuda"
    if hasattr(backends.cudnn, "conv"):
        # Since torch 2.9; reading the older settings fails after these were used.
        cuda = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        cpu = [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
        places = cuda if device.type == "cuda" else cpu
        value = "tf32" if is_coarse else "ieee"
        return [_TorchSetting.from_attribute(place, "fp32_precision", value) for place in places]
    get, put = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return [
        _TorchSetting(get, put, "high" if is_coarse else "highest"),
        _TorchSetting.from_attribute(backends.cudnn, "allow_tf32", is_coarse),
    ]


def matmul_precision(device: torch.device, *, coarse: bool) -> AbstractContextManager[None]:
    """Return a context manager for the precision of matrix products on a GPU.

    If `coarse`, the GPU may round factors to 10 bits (TF32); otherwise it must not.
    """
    return _apply_settings(_precision_settings(device, coarse=coarse))


def _default_modes() -> list[_TorchSetting]:
    mkldnn: Any = torch.backends.mkldnn  # a module with a property, which stubs do not know
    return [
        _TorchSetting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _TorchSetting.from_attribute(mkldnn, "enabled", True),
    ]


def _deterministic_kernels() -> list[_TorchSetting]:
    # cuBLAS reads it when it is first used; without it torch refuses matrix products on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    enabled = torch.are_deterministic_algorithms_enabled
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled
    return [
        _TorchSetting(
            lambda: (enabled(), warn_only()),
            lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
            (True, False),
        ),
        # No result depends on uninitialised memory.
        _TorchSetting.from_attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
        _TorchSetting.from_attribute(torch.backends.cudnn, "benchmark", False),
        _TorchSetting(torch.get_num_threads, torch.set_num_threads, 1),
    ]


@dataclass(eq=False)
class _ReproducibleRun:
    """A run that fixes settings for the whole process; it can be paused and continued."""

    device: torch.device
    deterministic: bool

    def begin(self) -> None:
        device = self.device
        switches = [*_default_modes(), *_precision_settings(device, coarse=False)]
        with ExitStack() as fixed:
            fixed.enter_context(_training_lock)
            fixed.enter_context(
                torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
            )
            fixed.enter_context(
                _apply_settings(
                    [*switches, *_deterministic_kernels()] if self.deterministic else switches
                )
            )
            fixed.enter_context(torch.inference_mode(mode=False))
            fixed.enter_context(torch.autocast(device.type, enabled=False))
            self.end = fixed.pop_all().close


class _RunStack(threading.local):
    """The nested runs of this thread."""

    def __init__(self) -> None:
        self.stack: list[_ReproducibleRun] = []


_thread_runs = _RunStack()


@contextmanager
def reproducible_run(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Fix everything outside a network that affects training, and restore it afterwards.

    Generators, kernels and threads are shared by the whole process, so only one thread trains at a
    time. If `deterministic`, kernels add in a fixed order, and a CPU uses one thread. Inside,
    autocast, inference mode, default dtype and matrix precision of the caller have no effect. All
    settings and the generators are restored afterwards.
    """
    run = _ReproducibleRun(device, deterministic)
    run.begin()
    _thread_runs.stack.append(run)
    try:
        yield
    finally:
        _thread_runs.stack.remove(run)
        run.end()


@contextmanager
def pause_runs() -> Iterator[None]:
    """Pause the runs of this thread while a callback runs, and continue them afterwards.

    Other threads may train in the meantime, so a callback can wait for another thread. The caller
    must seed the generators again afterwards.
    """
    runs, _thread_runs.stack = _thread_runs.stack, []
    for run in reversed(runs):
        run.end()
    try:
        yield
    finally:
        for run in runs:
            run.begin()
        _thread_runs.stack = runs


# Errors of other libraries that quote values of a row, and the messages that replace them.
_SAFE_MESSAGES = {
    "could not convert": "X contains strings; expected numbers: encode these columns first",
    "could not be promoted": "X contains dates; expected numbers: encode these columns first",
    "Expected 2D array": (
        "Expected 2D array, or one with more axes, for X: one row per person. Reshape your data "
        "with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is one row"
    ),
    "Complex data": "Complex data not supported: X contains complex numbers",
}


def row_dtype(model: Any) -> str:
    """Return how a model stores rows other than bytes: "float32", or "int64" for tokens."""
    name: str = getattr(model, "row_dtype", "float32")
    return name


def to_batch(rows: torch.Tensor) -> torch.Tensor:
    """Return stored rows as a module gets them: float32, or int64 for tokens."""
    return rows if rows.dtype == torch.int64 else rows.to(torch.float32)


def copy_rows(model: Any, X: Any) -> NDArray[Any]:
    """Return a copy of the rows: uint8 stays uint8, everything else becomes float32."""
    return _check_rows(model, X, copy=True)


def _check_rows(model: Any, X: Any, *, copy: bool) -> NDArray[Any]:
    array = _as_array(X, model)
    wanted = np.dtype(row_dtype(model))
    if wanted == np.int64:
        _require_tokens(array)
    kind = np.uint8 if wanted != np.int64 and getattr(array, "dtype", None) == np.uint8 else wanted
    options = {"order": "C", "copy": copy, "allow_nd": True, "input_name": "X"}
    try:
        rows: NDArray[Any] = check_array(array, dtype=kind, estimator=model, **options)
    except (ValueError, TypeError) as error:
        messages = [text for words, text in _SAFE_MESSAGES.items() if words in str(error)]
        if not messages:
            raise
    else:
        return rows
    # Outside the handler: the original error quotes values of a row.
    raise ValueError(messages[0])


def _require_tokens(array: Any) -> None:
    """Raise `ValueError` unless all values are whole numbers."""
    values = np.asarray(array)
    if values.dtype.kind not in "iu":
        raise ValueError(
            f"X has the dtype {values.dtype}, but row_dtype='int64' takes whole numbers, such as "
            "token numbers; convert X to int64, or set row_dtype='float32'"
        )


def check_query_rows(model: Any, X: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return rows for prediction; raise `ValueError` if their shape is not that of the fit.

    The result must not be written to, because it may share memory with X.
    """
    if len(shape) == 1:
        require_features(model, X)
    rows = _check_rows(model, X, copy=False)
    if rows.shape[1:] != shape:
        raise ValueError(
            f"X has rows of shape {rows.shape[1:]}; this model was fitted with rows of shape "
            f"{shape}"
        )
    # torch does not accept read-only memory.
    return rows if rows.flags.writeable else rows.copy()


def shape_attributes(X: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the attributes `n_features_in_` and, for a table with names, `feature_names_in_`."""
    if len(shape) > 1:
        return {"n_features_in_": int(np.prod(shape))}
    # On a separate object: a fit that fails later must not change the column names of the model.
    stand_in = BaseEstimator()
    remember_features(stand_in, X)
    return vars(stand_in)


def _as_array(X: Any, model: Any) -> Any:
    if isinstance(X, torch.Tensor):
        # NumPy has no bfloat16.
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if sp.issparse(X):
        raise TypeError(
            f"Sparse data was passed for X, but {type(model).__name__} takes dense rows only; "
            "use X.toarray(), or a method of letheon.linear"
        )
    return X
