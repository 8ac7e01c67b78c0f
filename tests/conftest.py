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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Keep the cluster tests in one process, so that each cluster is started once.

    xdist's own `loadgroup` sets a private name of pytest's that pytest 9 no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "cluster" if nodeid.startswith("tests/cluster/") else nodeid

    return ByGroup(config, log)
