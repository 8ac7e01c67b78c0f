"""Versions that affect results."""

import sys
from functools import cache
from importlib.metadata import version

FORMAT = "letheon-v1"


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    return (
        ("python", f"{sys.version_info.major}.{sys.version_info.minor}"),
        ("numpy", version("numpy")),
        ("scipy", version("scipy")),
        ("scikit-learn", version("scikit-learn")),
        ("letheon", FORMAT),
    )


def environment() -> dict[str, str]:
    """Return the versions that affect results.

    Returns
    -------
    dict
        Python (major.minor), numpy, scipy, scikit-learn, and under ``"letheon"`` the format.

    Examples
    --------
    >>> from letheon.state import environment
    >>> environment()["letheon"]
    'letheon-v1'
    """
    return dict(_versions())
