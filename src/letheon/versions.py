"""Versions of letheon, its dependencies and the machine, for reports of errors."""

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from threadpoolctl import threadpool_info

from letheon.state import environment

__all__ = ["show_versions"]

_FOR_DEVELOPERS = frozenset({"lint", "test", "docs"})


def show_versions() -> None:
    """Print the versions of Python, letheon, its dependencies and BLAS.

    The text contains no paths, host names or user names.

    Examples
    --------
    >>> import letheon
    >>> letheon.show_versions()
    System:
      python: ...
    """
    sys.stdout.write("\n".join(_describe_versions()) + "\n")


def _describe_versions() -> list[str]:
    system = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": platform.platform(),
        "processors": str(os.cpu_count()),
    }
    libraries = {"letheon": version("letheon")} | _find_dependencies()
    threads = {
        f"{pool['internal_api']} {pool['version'] or ''}".strip(): f"{pool['num_threads']} threads"
        for pool in threadpool_info()
    }
    sections = {
        "System": system,
        "Packages": libraries,
        "Numerics": {"kernels": environment()["blas"]} | threads,
    }
    lines = []
    for title, facts in sections.items():
        lines += [f"{title}:", *(f"  {name}: {value}" for name, value in facts.items())]
    return lines


def _find_dependencies() -> dict[str, str]:
    """Return the versions of all dependencies, and of the packages that extras installed."""
    versions: dict[str, str] = {}
    for requirement in requires("letheon") or ():
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        extra = requirement.partition("extra ==")[2].strip(" '\"")
        try:
            versions |= {} if extra in _FOR_DEVELOPERS else {name: version(name)}
        except PackageNotFoundError:
            versions |= {} if extra else {name: "not installed"}
    return versions
