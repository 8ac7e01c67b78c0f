"""Values in memory: digest, encode, decode.

Layout of an encoded value: ``letheon-state-v1`` and a NUL byte, the SHA-256 of what follows, and
the canonical bytes of the tree in the file view.
"""

import hashlib
import re
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

from threadpoolctl import threadpool_info

from letheon.exceptions import CorruptFileError, NewerFormatError
from letheon.state._budget import MemoryBudget
from letheon.state._canonical import chunks, to_bytes
from letheon.state._decode import Trusted, audit, construct, trusted_names
from letheon.state._encode import to_tree
from letheon.state._nodes import Buffer, Node, names_of
from letheon.state._parse import from_bytes

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


DIGEST_PREFIX = b"letheon-v1\0"
MAGIC = b"letheon-state-v1\0"
_HEAD = len(MAGIC) + 32


def digest(value: Any) -> str:
    r"""Return the SHA-256 of a value's canonical bytes, as a hexadecimal string.

    The digest is ``SHA-256(b"letheon-v1\0" + canonical bytes of the digest tree)``. Settings that
    do not affect the result are left out (`n_jobs`, `verbose`, `rebuild`, `checkpoint_dir`, and
    `random_state` of a model whose `seed_` stands for it).

    Parameters
    ----------
    value : object
        A model, fitted or not, or any value that has canonical bytes.

    Guarantee
    ---------
    Values with equal digests have equal canonical bytes, unless SHA-256 is broken.

    Examples
    --------
    >>> from letheon.state import digest
    >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest((1, 2))
    (True, False)
    """
    return tree_digest(to_tree(value, view="digest"))


def tree_digest(tree: Node) -> str:
    """Return the digest of a tree."""
    hasher = hashlib.sha256(DIGEST_PREFIX)
    for chunk in chunks(tree):
        hasher.update(chunk)
    return hasher.hexdigest()


def encode(value: Any) -> bytes:
    """Return a value as bytes that `decode` reads: a checkpoint in memory.

    Raises
    ------
    UnsupportedStateError
        If something in the value has no canonical bytes.
    """
    body = to_bytes(to_tree(value))
    return b"".join((MAGIC, hashlib.sha256(body).digest(), body))


def decode(data: Buffer, *, trusted: Trusted = (), max_memory: int | None = None) -> Any:
    """Return the value that `encode` wrote.

    Parameters
    ----------
    data : bytes or memoryview
        What `encode` returned.
    trusted : iterable of class, function or str
        Classes and functions, or their qualified names, that may be used besides letheon's own
        and scikit-learn's.
    max_memory : int, optional
        Bytes that decoding may take. By default 64 MiB and 4 times the size of `data`, and
        64 MiB and 16 times the size for the compiled forest.

    Raises
    ------
    CorruptFileError
        If a byte was changed or is missing.
    MemoryLimitError
        If decoding would take more memory than that; it was not allocated.
    NewerFormatError
        If a later letheon wrote the bytes.
    UntrustedClassError
        If the bytes name a class that nobody allowed; nothing was imported then.

    Examples
    --------
    >>> from letheon.state import decode, encode
    >>> decode(encode({"weights": [0.5, -0.0]}))
    {'weights': [0.5, -0.0]}
    """
    names = trusted_names(trusted)
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, max_memory)
    tree = from_bytes(_verified_body(view), budget)
    audit(tree, names)
    return construct(tree, names, budget)


def decode_plain(data: Buffer) -> Any:
    """Return the value that `encode` wrote if it is plain: no class and no function is named.

    Raises
    ------
    CorruptFileError
        If the bytes are damaged, or hold more than numbers, texts, bytes, arrays and containers.
    """
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, None)
    tree = from_bytes(_verified_body(view), budget)
    if names_of(tree):
        raise CorruptFileError("expected plain values, and the bytes name classes or functions")
    return construct(tree, {}, budget)


def _verified_body(data: memoryview) -> memoryview:
    head = re.match(rb"letheon-state-v(\d{1,9})\0", data[:32])
    if head is None:
        raise CorruptFileError("these bytes are no letheon state")
    if head[0] != MAGIC:
        raise NewerFormatError(
            f"the state has the format v{int(head[1])}, this letheon reads v1; "
            "install a newer letheon"
        )
    body = data[_HEAD:]
    if hashlib.sha256(body).digest() != bytes(data[len(MAGIC) : _HEAD]):
        raise CorruptFileError("the state is truncated or altered: its SHA-256 differs")
    return body
