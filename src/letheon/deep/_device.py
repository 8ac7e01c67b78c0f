"""Where nets are trained, and what makes a run there repeatable."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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


@contextmanager
def repeatable(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """Fix everything outside a net that could change what it learns, and put it back.

    Generators, kernels and threads belong to the whole process, so nets that are trained in
    threads of one process take turns. Deterministic: kernels with a fixed order of additions, and
    one thread on a CPU. The caller's autocast, inference mode and default dtype do not reach in;
    they and the generators are the caller's again afterwards.
    """
    devices = [device] if device.type == "cuda" else []
    with _turn, torch.random.fork_rng(devices=devices), _plain_modes(device):
        if not deterministic:
            yield
            return
        with _fixed_kernels(), _one_torch_thread():
            yield


@contextmanager
def _plain_modes(device: torch.device) -> Iterator[None]:
    mkldnn: Any = torch.backends.mkldnn  # a module with a property, which stubs do not know
    before = torch.get_default_dtype(), mkldnn.enabled
    torch.set_default_dtype(torch.float32)
    mkldnn.enabled = True
    try:
        with (
            torch.inference_mode(mode=False),
            torch.autocast(device.type, enabled=False),
            products(device, coarse=False),
        ):
            yield
    finally:
        torch.set_default_dtype(before[0])
        mkldnn.enabled = before[1]


@contextmanager
def products(device: torch.device, *, coarse: bool) -> Iterator[None]:
    """Say whether a GPU may round factors of products to 10 bits (TF32); torch lets convolutions.

    Whatever the caller has set is put back.
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = coarse
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def _fixed_kernels() -> Iterator[None]:
    # cuBLAS reads it when it is first used; without it torch refuses matrix products on a GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic  # a module with a property, which stubs do not know
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    torch.use_deterministic_algorithms(True)
    # No result reads memory that was not written.
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = before[2]
        torch.backends.cudnn.benchmark = before[3]


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
