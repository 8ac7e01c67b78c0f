"""How many threads the core may use, and whether trees are grown somewhere else."""

from functools import cache

import joblib
from joblib.parallel import get_active_backend


def threads_for(n_jobs: int | None) -> int:
    """Return how many threads of this machine `n_jobs` stands for, as joblib counts."""
    if isinstance(n_jobs, int) and n_jobs > 0:
        return n_jobs
    if n_jobs is None:
        workers = joblib.effective_n_jobs(None)
        # A cluster that was asked for may have more than this machine.
        return workers if workers == 1 else min(workers, _cores())
    backend, _ = get_active_backend()
    kind, level = type(backend).__qualname__, getattr(backend, "nesting_level", 0)
    return min(_workers(n_jobs, kind, level), _cores())


def threads_for_few(n_jobs: int | None) -> int:
    """Return the same for small work: one thread, unless `n_jobs` itself asks for more."""
    return 1 if n_jobs is None else threads_for(n_jobs)


def grows_elsewhere() -> bool:
    """Whether the caller chose a joblib backend of processes or of a cluster.

    Threads are what the core likes best, so joblib's own default is not a choice.
    """
    backend, _ = get_active_backend(prefer="threads")
    return not getattr(backend, "uses_threads", False)


# joblib reads the limits of the container every time, which takes longer than a small request.
@cache
def _cores() -> int:
    return joblib.cpu_count()


@cache
def _workers(n_jobs: int, _backend: str, _nesting_level: int) -> int:
    return joblib.effective_n_jobs(n_jobs)
