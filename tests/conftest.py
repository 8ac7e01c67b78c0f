"""Hypothesis profiles: `test` is repeatable and quick, `soak` looks for new counterexamples.

Chosen by ``pytest --hypothesis-profile=soak`` or by ``HYPOTHESIS_PROFILE=soak``.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "test",
    max_examples=100,
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

# Each of these starts something that takes its time: a cluster, a tracking server.
TOGETHER = ("tests/cluster/", "tests/test_mlflow.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keep some tests in one process, so that what they share is started once.

    xdist's own `loadgroup` sets a private name of pytest's that pytest 9 no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for group in TOGETHER if nodeid.startswith(group)), nodeid)

    return ByGroup(config, log)
