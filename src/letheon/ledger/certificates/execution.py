"""What a model was computed with: code, environment, machine, and how exactly it can be redone."""

import hashlib
import platform
import re
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import letheon
from letheon import state
from letheon.exceptions import SignerRefusedError
from letheon.guarantee import Replay
from letheon.ledger.certificates.decimals import is_code

__all__ = ["Replay", "describe", "refuse_closer_replay", "replay_of"]

_STRENGTH: tuple[Replay, ...] = ("bitwise", "bitwise-same-kernel", "tolerance")
_CODE_ENDINGS = frozenset({".py", ".pyi", ".so", ".pyd", ".md", ".mako", ".toml", ".json"})


def describe(image: str | None = None) -> dict[str, Any]:
    """Return the `execution` part of a certificate, without its `replay`.

    Parameters
    ----------
    image : str, optional
        SHA-256 of the container image, from the ledger's settings. Without one the platform's
        description is hashed.

    Returns
    -------
    dict
        `code` is the hash over the files of the installed package, `lockfile` over the sorted
        lines ``name==version`` of the environment. Every computation takes one thread.
    """
    return {
        "code": {"sha256": code_digest()},
        "lockfile": {"sha256": lockfile_digest()},
        "image": {"sha256": image if image else _platform_digest()},
        "python": platform.python_version(),
        "kernel": kernel_code(state.environment()["blas"]),
        "threads": 1,
    }


@cache
def code_digest() -> str:
    """Return the SHA-256 over names and contents of this package's files."""
    return folder_digest(*map(Path, letheon.__path__))


def folder_digest(*roots: Path) -> str:
    """Return the SHA-256 over names and contents of the code files below folders."""
    files = {
        path.relative_to(root).as_posix(): path
        for root in reversed(roots)
        for path in root.rglob("*")
        if path.suffix in _CODE_ENDINGS and path.is_file()
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        for part in (name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


@cache
def lockfile_digest() -> str:
    """Return the SHA-256 of the sorted lines ``name==version`` of all packages installed."""
    names = {(_normal(found.name), found.version) for found in distributions() if found.name}
    lines = sorted(f"{name}=={version}\n" for name, version in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _normal(name: str) -> str:
    """Return the one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _platform_digest() -> str:
    """Return a digest that machines of one kind share; it has no name of a machine in it."""
    python = (platform.python_implementation(), platform.python_version())
    parts = (platform.system(), platform.machine(), *platform.libc_ver(), *python)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def kernel_code(blas: str) -> str:
    """Return BLAS builds and kernels as one code, such as ``openblas:0.3.31:haswell``.

    NumPy and SciPy may bring a build each; both matter, so both are named.
    """
    code = "+".join(part.strip().replace(" ", ":") for part in blas.lower().split(","))
    return code if is_code(code) else f"sha256:{hashlib.sha256(blas.encode()).hexdigest()}"


def refuse_closer_replay(model: Any, said: str) -> None:
    """Refuse a statement that promises closer bytes than the model's method gives."""
    permitted = replay_of(model)
    if said not in _STRENGTH[_STRENGTH.index(permitted) :]:
        raise SignerRefusedError(f"replay={said!r} is closer than {permitted!r}")


def replay_of(model: Any) -> Replay:
    """Return how exactly a fresh fit on the same rows with the same seed gives this model again.

    *bitwise*: the forest's decisions need neither BLAS nor libm. *bitwise-same-kernel*: any other
    exact method with kernels that add in a fixed order. *tolerance*: noise that nobody keeps, an
    approximate removal, or kernels that add in any order.
    """
    steps = getattr(model, "steps_", None)
    if steps is not None:
        learned = [step for _, step in steps if hasattr(step, "forget")]
        # A step that learns nothing is still computed by libraries.
        least: Replay = "bitwise" if len(learned) == len(steps) else "bitwise-same-kernel"
        return max((least, *map(replay_of, learned)), key=_STRENGTH.index)
    claim = model.guarantee_
    if claim.kind != "exact" or "equal-but-for-rounding" in claim.assumptions:
        return "tolerance"
    replay: Replay = model.facts.replay
    return replay
