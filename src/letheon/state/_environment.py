"""Versions, and the kernel of the linear algebra, that affect results."""

import sys
from functools import cache
from importlib.metadata import version

from threadpoolctl import threadpool_info

FORMAT = "letheon-v1"


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("python", f"{sys.version_info.major}.{sys.version_info.minor}"),
        ("numpy", version("numpy")),
        ("scipy", version("scipy")),
        ("scikit-learn", version("scikit-learn")),
        ("letheon", FORMAT),
        ("blas", _blas()),
    )


def _blas() -> str:
    """Name the BLAS builds of NumPy and SciPy and the kernel each chose for this processor.

    Three kernels of one OpenBLAS give three digests of one ridge regression.
    """
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS)

    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    # Another package may bring a BLAS of its own into the process; it does not train our models.
    own = [lib for lib in found if "numpy" in lib["filepath"] or "scipy" in lib["filepath"]]
    names = {
        f"{lib['internal_api']} {lib['version']} {lib.get('architecture', '')}".strip()
        for lib in own or found
    }
    return ", ".join(sorted(names)) or "none found"


def environment() -> dict[str, str]:
    """Return what affects results besides data, settings and seed.

    Returns
    -------
    dict
        Python (major.minor), numpy, scipy, scikit-learn, under ``"letheon"`` the format, and under
        ``"blas"`` the builds of BLAS with the kernel each runs on this processor.

    Examples
    --------
    >>> from letheon.state import environment
    >>> environment()["letheon"]
    'letheon-v1'
    """
    return dict(_versions())
