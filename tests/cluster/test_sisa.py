"""SISA on clusters: the digest of one process, even when a node is lost in the middle."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from letheon import SISAClassifier
from letheon.sharded import _base, _shards
from tests.cluster.clusters import SEAT, RayCluster, eventually
from tests.cluster.travel import never_finish_on

X = np.random.default_rng(0).normal(size=(240, 6))
Y = (X[:, 0] > 0).astype(int)
IDS = [f"p{i % 80}" for i in range(len(X))]


def fit_and_forget(**config: Any) -> str:
    """Return the digest after a fit and a forget under that joblib configuration."""
    with joblib.parallel_config(**config):
        model = SISAClassifier(SGDClassifier(), n_shards=4, random_state=1)
        model.fit(X, Y, ids=IDS).forget(["p3", "p17", "p40"])
        return str(model.digest())


@pytest.fixture(scope="module")
def digest() -> str:
    return fit_and_forget(n_jobs=1)


def test_processes(digest: str) -> None:
    assert fit_and_forget(backend="loky", n_jobs=2) == digest


def test_dask(dask_client: Any, digest: str) -> None:
    assert fit_and_forget(backend="dask") == digest


def fit_while_the_node_is_lost(cluster: RayCluster, folder: Path) -> str:
    """Return the digest of a fit and a forget during which a node is killed and replaced."""
    doomed = cluster.node_id
    run = partial(fit_and_forget, backend="ray", n_jobs=2, ray_remote_args={"resources": {SEAT: 1}})
    slow = partial(never_finish_on, doomed, folder, _shards.train_shard)
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(1) as thread,  # Ray starts nodes from the main thread only
    ):
        patch.setattr(_base, "train_shard", slow)
        future = thread.submit(run)
        assert eventually(lambda: any(folder.glob(f"started-{doomed}-*")), 120)
        cluster.replace_node()
        return future.result(timeout=300)


@pytest.mark.soak
def test_ray_loses_a_node_during_fit(ray_cluster: RayCluster, digest: str, tmp_path: Path) -> None:
    assert fit_while_the_node_is_lost(ray_cluster, tmp_path) == digest
    assert len(list(tmp_path.glob("started-*"))) > 4
    assert eventually(lambda: ray_cluster.stored_bytes() == 0)


@pytest.mark.soak
def test_twenty_losses_under_load(ray_cluster: RayCluster, digest: str, tmp_path: Path) -> None:
    burn = "import os; os.nice(5)\nwhile True: pass"
    load = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(os.cpu_count() or 2)]
    digests = []
    try:
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            digests.append(fit_while_the_node_is_lost(ray_cluster, folder))
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert digests == [digest] * 20
