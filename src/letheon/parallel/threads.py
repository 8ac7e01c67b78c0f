"""A context manager that limits BLAS and OpenMP to one thread.

The last bits of a matrix product depend on the number of BLAS threads, so a model can only be
compared bit by bit with a retrained model if both were trained with the same number: one.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

__all__ = ["ROWS_TOGETHER", "one_thread"]

# Rows that are multiplied together; a multiple of the widths of common matrix kernels, so that all
# rows pass through the same instructions.
ROWS_TOGETHER = 336


class _Thread(threading.local):
    """State of `one_thread` for the current thread."""

    def __init__(self) -> None:
        self.depth = 0
        # Limits that changed for this thread only: library and previous value, by file.
        self.before: dict[str, tuple[LibController, int]] = {}


class _Process:
    """State of `one_thread` for this process; guarded by `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads_inside = 0
        # Limits that changed for every thread: library and previous value, by file.
        self.before: dict[str, tuple[LibController, int]] = {}
        self.libraries: list[LibController] = []
        self.modules_seen = -1
        self.is_shared: dict[str, bool] = {}


_thread = _Thread()
_process = _Process()


def _find_libraries() -> list[LibController]:
    """Return the loaded BLAS and OpenMP libraries.

    The search takes about a millisecond. Libraries are loaded by imports, so the result is cached
    until a module is imported.
    """
    modules = len(sys.modules)
    if modules != _process.modules_seen:
        _process.libraries = ThreadpoolController().lib_controllers
        _process.modules_seen = modules
    return _process.libraries


def _set_limit(library: LibController, n: int) -> None:
    """Set the number of threads of a library to n, even if another thread set it last.

    For an OpenBLAS without OpenMP, threadpoolctl lets only one thread at a time set the limit and
    silently ignores the others. Here the last thread to leave must restore the limit that the first
    thread changed.
    """
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(n)
    if release is not None:
        release(force=True)


def _get_limit(library: LibController) -> int:
    """Return the number of threads that a library uses in this thread; 1 if unknown."""
    return library.num_threads or 1


def _is_shared(library: LibController) -> bool:
    """Return whether the limit of 1 that was just set holds for all threads.

    Usually OpenMP and MKL have a limit per thread, and OpenBLAS and BLIS have one per process, but
    some builds differ. So a new thread reads the limit: the library's name is not reliable.
    """
    path = library.filepath
    if path not in _process.is_shared:
        seen: list[int] = []
        probe = threading.Thread(target=lambda: seen.append(_get_limit(library)), daemon=True)
        probe.start()
        probe.join()
        _process.is_shared[path] = seen == [1]
    return _process.is_shared[path]


def _restore_limits(before: dict[str, tuple[LibController, int]]) -> None:
    for library, n in before.values():
        _set_limit(library, n)
    before.clear()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread inside the block.

    Blocks may nest and may overlap in different threads. A limit that is shared by all threads
    (OpenBLAS) is set by the first block and lifted by the last; a limit of a single thread (OpenMP,
    MKL) is set and lifted by that thread.

    Notes
    -----
    There are two gaps: a library that is loaded inside the block is limited only from the next
    block on, and threads started by the block have their own OpenMP limits.

    Examples
    --------
    >>> from letheon.parallel import one_thread
    >>> with one_thread():
    ...     pass
    """
    with _process.lock:
        for library in _find_libraries():
            n = _get_limit(library)
            if n != 1:
                _set_limit(library, 1)
                before = _process.before if _is_shared(library) else _thread.before
                before.setdefault(library.filepath, (library, n))
        _process.threads_inside += _thread.depth == 0
        _thread.depth += 1
    try:
        yield
    finally:
        with _process.lock:
            _thread.depth -= 1
            if _thread.depth == 0:
                _process.threads_inside -= 1
                _restore_limits(_thread.before)
                if not _process.threads_inside:
                    _restore_limits(_process.before)


def _after_fork() -> None:
    """Correct the state in a forked child, which has one thread and maybe a locked lock."""
    _process.lock = threading.Lock()
    _process.threads_inside = int(_thread.depth > 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
