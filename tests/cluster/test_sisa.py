"""SISA on clusters: the digest of one process, even when a node is lost in the middle."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from letheon import SISAClassifier
from tests.cluster.clusters import SEAT, RayCluster, eventually
from tests.cluster.travel import ray_node

pytestmark = pytest.mark.xdist_group("cluster")
X = np.random.default_rng(0).normal(size=(240, 6))
Y = (X[:, 0] > 0).astype(int)
IDS = [f"p{i % 80}" for i in range(len(X))]


class SlowSGD(SGDClassifier):
    """SGD that says where it trains, and never finishes on the doomed node."""

    def __init__(self, *, folder: str = "", doomed: str = "", random_state: Any = None) -> None:
        super().__init__(loss="log_loss", random_state=random_state)
        self.folder, self.doomed = folder, doomed

    def fit(self, X: Any, y: Any) -> "SlowSGD":
        node = ray_node() if self.doomed else ""
        (Path(self.folder) / f"started-{node}").touch()
        assert not node == self.doomed != "" or eventually(lambda: False, 60)
        super().fit(X, y)
        return self


def train_and_forget(estimator: Any) -> str:
    model = SISAClassifier(estimator, n_shards=4, random_state=1).fit(X, Y, ids=IDS)
    model.forget(["p3", "p17", "p40"])
    model.forget(["p5"])
    return str(model.digest())


@pytest.fixture(scope="module")
def digest() -> str:
    return train_and_forget(SGDClassifier(loss="log_loss"))


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_processes(digest: str, n_jobs: int) -> None:
    with joblib.parallel_config(backend="loky", n_jobs=n_jobs):
        assert train_and_forget(SGDClassifier(loss="log_loss")) == digest


def test_ray(ray_cluster: RayCluster, digest: str) -> None:
    with joblib.parallel_config(backend="ray", n_jobs=-1):
        assert train_and_forget(SGDClassifier(loss="log_loss")) == digest
    assert eventually(lambda: ray_cluster.stored_bytes() == 0)


def test_dask(dask_client: Any, digest: str) -> None:
    with joblib.parallel_config(backend="dask"):
        assert train_and_forget(SGDClassifier(loss="log_loss")) == digest
