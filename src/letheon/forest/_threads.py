"""Numbers of threads for the core."""

from functools import cache

import joblib
from joblib.parallel import get_active_backend


def threads_for(n_jobs: int | None) -> int:
    """Return the number of threads on this machine for `n_jobs`, as in joblib.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib.

    Examples
    --------
    >>> threads_for(3)
    3
    """
    if isinstance(n_jobs, int) and n_jobs > 0:
        return n_jobs
    if n_jobs is None:
        workers = joblib.effective_n_jobs(None)
        # A requested cluster may have more workers than this machine has cores.
        return workers if workers == 1 else min(workers, _count_cores())
    backend, _ = get_active_backend()
    kind, level = type(backend).__qualname__, getattr(backend, "nesting_level", 0)
    return min(_count_workers(n_jobs, kind, level), _count_cores())


def threads_for_few(n_jobs: int | None) -> int:
    """Return the number of threads for small tasks: 1 unless `n_jobs` is set.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib.

    Examples
    --------
    >>> threads_for_few(None), threads_for_few(3)
    (1, 3)
    """
    return 1 if n_jobs is None else threads_for(n_jobs)


# Cached: joblib reads the container limits every time, which takes longer than a small request.
@cache
def _count_cores() -> int:
    return joblib.cpu_count()


@cache
def _count_workers(n_jobs: int, _backend: str, _nesting_level: int) -> int:
    return joblib.effective_n_jobs(n_jobs)
