"""Forests on clusters: trees are grown elsewhere, the digest is that of one process."""

from typing import Any

import joblib
import numpy as np
import pytest

from letheon import DaREForestClassifier, DaREForestRegressor
from tests.cluster.clusters import RayCluster, eventually

X = np.random.default_rng(0).normal(size=(4000, 20))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
IDS = [f"p{i % 900}" for i in range(len(X))]


def fit_and_forget(kind: Any = DaREForestClassifier, **config: Any) -> str:
    """Return the digest after a fit and a forget under that joblib configuration."""
    with joblib.parallel_config(**config):
        model = kind(n_estimators=7, max_depth=6, subsample=0.9, random_state=1)
        model.fit(X, Y, sample_weight=1 + np.arange(len(X)) % 3, ids=IDS).forget(
            ["p3", "p17", "p40"]
        )
        return str(model.digest())


@pytest.fixture(scope="module")
def digest() -> str:
    return fit_and_forget(n_jobs=1)


def test_dask(dask_client: Any, digest: str) -> None:
    assert fit_and_forget(backend="dask") == digest


def test_ray(ray_cluster: RayCluster, digest: str) -> None:
    assert fit_and_forget(backend="ray", n_jobs=-1) == digest
    assert eventually(lambda: ray_cluster.stored_bytes() == 0)


@pytest.mark.soak
def test_ray_grows_regressors(ray_cluster: RayCluster) -> None:
    alone = fit_and_forget(DaREForestRegressor, n_jobs=1)
    assert fit_and_forget(DaREForestRegressor, backend="ray", n_jobs=-1) == alone


@pytest.mark.soak
def test_rows_go_into_the_store_once(
    ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    put, sizes = ray.put, []

    def watched(parcel: Any) -> Any:
        sizes.append(sum(memoryview(part).nbytes for part in parcel._buffers))
        return put(parcel)

    monkeypatch.setattr(ray, "put", watched)
    fit_and_forget(backend="ray", n_jobs=2)
    large = [size for size in sizes if size > 1000]
    assert len(large) == 1
    assert X.size * 4 <= large[0] < X.size * 8  # once, and as float32
