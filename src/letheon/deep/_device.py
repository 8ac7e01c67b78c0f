"""Devices, and rows on their way to them."""

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

_turn = threading.RLock()


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is the GPU where there is one.

    Raises
    ------
    ValueError
        For a name that is unknown, and for "cuda" on a machine without a GPU.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(name, str) or name.partition(":")[0] not in DEVICES[1:]:
        raise ValueError(f"device={name!r}; expected one of {DEVICES}, or 'cuda:1' and the like")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, but torch finds no GPU here; use 'auto' or 'cpu'")
    return torch.device(name)


def describe_device(device: torch.device) -> dict[str, str]:
    """Return what of torch and of the machine affects the last bits of a net."""
    if device.type == "cuda":
        unit = torch.cuda.get_device_name(device)
    else:
        unit = f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": str(torch.__version__), "device": unit}


def mapped_zeros(
    shape: tuple[int, ...],
    what: str = "checkpoints",
    advice: str = "set checkpoint_dir, or raise max_memory",
) -> torch.Tensor:
    """Return zeros in a file without a name, which only this user reads and ends with the process.

    Raises `CheckpointError` where there is no room for `what`, with some `advice`.
    """
    n_bytes = 4 * prod(shape)
    try:
        room = allocate_file(n_bytes)
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {n_bytes} bytes of {what} in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; {advice}"
        ) from error
    return torch.from_numpy(np.frombuffer(room, np.float32).reshape(shape))


class _Switch(NamedTuple):
    """One of torch's settings: how to read and to write it, and the value that it should have."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    value: Any

    @classmethod
    def of(cls, place: Any, name: str, value: Any) -> "_Switch":
        """Return the switch that is an attribute."""
        return cls(partial(getattr, place, name), partial(setattr, place, name), value)


@contextmanager
def _set(switches: list[_Switch]) -> Iterator[None]:
    """Set switches, and put back what the caller has set."""
    before = [switch.read() for switch in switches]
    try:
        for switch in switches:
            switch.write(switch.value)
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.write(value)


def _precision(device: torch.device, *, coarse: bool) -> list[_Switch]:
    """Return whether a GPU may round factors of products to 10 bits (TF32); a CPU never may."""
    backends: Any = torch.backends  # modules with properties, which stubs do not know
    is_coarse = coarse and device.type == "cuda"
    if hasattr(backends.cudnn, "conv"):
        # Since torch 2.9; reading the older switches is an error for whoever has used these.
        cuda = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        cpu = [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
        places = cuda if device.type == "cuda" else cpu
        value = "tf32" if is_coarse else "ieee"
        return [_Switch.of(place, "fp32_precision", value) for place in places]
    get, put = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return [
        _Switch(get, put, "high" if is_coarse else "highest"),
        _Switch.of(backends.cudnn, "allow_tf32", is_coarse),
    ]


def products(device: torch.device, *, coarse: bool) -> AbstractContextManager[None]:
    """Return the context in which a GPU may round factors of products, or may not."""
    return _set(_precision(device, coarse=coarse))


def _plain_modes() -> list[_Switch]:
    mkldnn: Any = torch.backends.mkldnn  # a module with a property, which stubs do not know
    return [
        _Switch(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        _Switch.of(mkldnn, "enabled", True),
    ]


def _fixed_kernels() -> list[_Switch]:
    # cuBLAS reads it when it is first used; without it torch refuses matrix products on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    enabled = torch.are_deterministic_algorithms_enabled
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled
    return [
        _Switch(
            lambda: (enabled(), warn_only()),
            lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
            (True, False),
        ),
        # No result reads memory that was not written.
        _Switch.of(torch.utils.deterministic, "fill_uninitialized_memory", False),
        _Switch.of(torch.backends.cudnn, "benchmark", False),
        _Switch(torch.get_num_threads, torch.set_num_threads, 1),
    ]


@dataclass(eq=False)
class _Run:
    """What a run fixes outside its nets; it can be let go for a while and taken up again."""

    device: torch.device
    deterministic: bool

    def begin(self) -> None:
        device = self.device
        switches = [*_plain_modes(), *_precision(device, coarse=False)]
        with ExitStack() as fixed:
            fixed.enter_context(_turn)
            fixed.enter_context(
                torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
            )
            fixed.enter_context(
                _set([*switches, *_fixed_kernels()] if self.deterministic else switches)
            )
            fixed.enter_context(torch.inference_mode(mode=False))
            fixed.enter_context(torch.autocast(device.type, enabled=False))
            self.end = fixed.pop_all().close


class _Runs(threading.local):
    """The runs of this thread, one inside the other."""

    def __init__(self) -> None:
        self.stack: list[_Run] = []


_mine = _Runs()


@contextmanager
def repeatable(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Fix everything outside a net that could change what it learns, and put it back.

    Generators, kernels and threads belong to the whole process, so nets that are trained in
    threads of one process take turns. Deterministic: kernels with a fixed order of additions, and
    one thread on a CPU. The caller's autocast, inference mode, default dtype and precision of
    products do not reach in; they and the generators are the caller's again afterwards.
    """
    run = _Run(device, deterministic)
    run.begin()
    _mine.stack.append(run)
    try:
        yield
    finally:
        _mine.stack.remove(run)
        run.end()


@contextmanager
def paused() -> Iterator[None]:
    """Let the runs of this thread go while a callback runs, and take them up again.

    Other threads may have their turn meanwhile, so a callback can wait for them. The generators
    start anew afterwards: whoever pauses seeds them again.
    """
    runs, _mine.stack = _mine.stack, []
    for run in reversed(runs):
        run.end()
    try:
        yield
    finally:
        for run in runs:
            run.begin()
        _mine.stack = runs


# Words of other people's errors that quote somebody's row, and what is said instead.
_QUOTING = {
    "could not convert": "X holds texts, and a net needs numbers; encode these columns first",
    "could not be promoted": "X holds dates, and a net needs numbers; encode these columns first",
    "Expected 2D array": (
        "Expected 2D array, or one with more axes, for X: one row per person. Reshape your data "
        "with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is one row"
    ),
    "Complex data": "Complex data not supported: X holds complex numbers",
}


def hold_rows(model: Any, X: Any) -> NDArray[Any]:
    """Return rows in memory of their own: uint8 as they are, everything else as float32."""
    return _rows(model, X, copy=True)


def _rows(model: Any, X: Any, *, copy: bool) -> NDArray[Any]:
    given = _as_array(X, model)
    kind = np.uint8 if getattr(given, "dtype", None) == np.uint8 else np.float32
    options = {"order": "C", "copy": copy, "allow_nd": True, "input_name": "X"}
    try:
        rows: NDArray[Any] = check_array(given, dtype=kind, estimator=model, **options)
    except (ValueError, TypeError) as error:
        words = [said for word, said in _QUOTING.items() if word in str(error)]
        if not words:
            raise
    else:
        return rows
    # Outside the handler: the text of the other error quotes somebody's row.
    raise ValueError(words[0])


def ask_rows(model: Any, X: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return rows to answer, or raise unless they have the shape of those of the fit.

    They are only read, and may be the caller's own memory.
    """
    if len(shape) == 1:
        require_features(model, X)
    rows = _rows(model, X, copy=False)
    if rows.shape[1:] != shape:
        raise ValueError(f"X has rows of shape {rows.shape[1:]}; this net was fitted with {shape}")
    # torch takes no memory that is read-only.
    return rows if rows.flags.writeable else rows.copy()


def shape_attributes(X: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return `n_features_in_`, and `feature_names_in_` for a table with names."""
    if len(shape) > 1:
        return {"n_features_in_": int(np.prod(shape))}
    # On somebody else: a fit that fails later must not have renamed the columns of the model.
    stand_in = BaseEstimator()
    remember_features(stand_in, X)
    return vars(stand_in)


def _as_array(X: Any, model: Any) -> Any:
    if isinstance(X, torch.Tensor):
        # NumPy knows no bfloat16.
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if sp.issparse(X):
        raise TypeError(
            f"Sparse data was passed for X, but {type(model).__name__} takes dense rows only; "
            "use X.toarray(), or a method of letheon.linear"
        )
    return X
