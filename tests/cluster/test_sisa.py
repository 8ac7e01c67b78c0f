"""SISA on clusters: the digest of one process, even when a node is lost in the middle."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from letheon import SISAClassifier
from letheon.sharded import _stages, _trainer
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


def test_ray_loses_a_node_during_fit(
    ray_cluster: RayCluster, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = ray_cluster.node_id
    slow = partial(never_finish_on, doomed, tmp_path, _stages.train_shard)
    monkeypatch.setattr(_trainer, "train_shard", slow)
    arguments = {"resources": {SEAT: 1}}
    run = partial(fit_and_forget, backend="ray", n_jobs=2, ray_remote_args=arguments)
    with ThreadPoolExecutor(1) as thread:  # Ray starts nodes from the main thread only
        found = thread.submit(run)
        assert eventually(lambda: any(tmp_path.glob(f"started-{doomed}-*")))
        ray_cluster.replace_node()
        assert found.result(timeout=60) == digest
    assert len(list(tmp_path.glob("started-*"))) > 4
    assert eventually(lambda: ray_cluster.stored_bytes() == 0)
