"""A Ray cluster of two nodes and a Dask cluster of two workers, both real, on this machine."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.clusters import RayCluster


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray announces a change of its defaults otherwise.
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    cluster = RayCluster()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    register_ray()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def dask_client() -> Iterator[Any]:
    distributed = pytest.importorskip("dask.distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs="ERROR"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
