"""The machine a benchmark ran on, described without naming it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import scipy.special  # noqa: F401 - loads the BLAS that scipy brings, so that it is listed
import threadpoolctl

__all__ = ["describe_machine"]

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "narwhals")


def describe_machine(device: str | None = None) -> dict[str, Any]:
    """Describe the machine: processor, memory, versions, BLAS kernels, load.

    Parameters
    ----------
    device : str, optional
        Where nets were trained. It adds torch's version and, for "cuda", the name of the GPU.

    Returns
    -------
    dict
        Texts and numbers that can be written as JSON.
    """
    kernels = {
        f"{info['internal_api']} {info['version']} ({info.get('architecture')})"
        for info in threadpoolctl.threadpool_info()
        if info["user_api"] == "blas"
    }
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "blas": sorted(kernels),
        "load_at_start": (
            f"{os.getloadavg()[0]:.2f} (1-minute average; other work on the machine adds noise)"
        ),
        **({} if device is None else _accelerator(device)),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _accelerator(device: str) -> dict[str, str]:
    """Return torch's version and the GPU in use, as far as there are any."""
    try:
        found = {"torch": version("torch")}
    except PackageNotFoundError:
        return {}
    if device.startswith("cuda"):
        import torch

        found["gpu"] = torch.cuda.get_device_name(device)
    return found
