"""Hypothesis profiles: `test` is repeatable and quick, `soak` looks for new counterexamples.

Chosen by ``pytest --hypothesis-profile=soak`` or by ``HYPOTHESIS_PROFILE=soak``.
"""

import os

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
