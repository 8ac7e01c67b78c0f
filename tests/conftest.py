"""Hypothesis profiles: `test` is repeatable and quick, `soak` looks for new counterexamples.

Chosen by ``pytest --hypothesis-profile=soak`` or by ``HYPOTHESIS_PROFILE=soak``.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "test",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=1_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

# A ledger waits for the disk at every step; in memory that takes no time.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30


def pytest_configure() -> None:
    """Put the folders of tests into memory where there is room for them."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    if has_room:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


# Each of these starts something that takes its time: a cluster, a tracking server.
TOGETHER = ("tests/cluster/", "tests/test_mlflow.py")
# They leave servers running, in whose company everything that is timed takes longer: the clock of
# `evaluate` looks at all threads and processes below its own.
LAST = (*TOGETHER, "tests/ledger/", "tests/service/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((at for at, name in enumerate(LAST, 1) if item.nodeid.startswith(name)), 0)

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keep a file's tests in one process, so that what they share is made once.

    The order is that of the folders: a file with few tests may be a long one, so none is left to
    the end for having few. xdist's own `loadgroup` sets a private name of pytest's that pytest 9
    no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((group for group in TOGETHER if file.startswith(group)), file)

    config.option.loadscopereorder = False
    return ByFile(config, log)
