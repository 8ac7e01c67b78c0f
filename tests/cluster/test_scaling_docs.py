"""Every block of code in docs/scaling.md runs, on the clusters of these tests."""

import re
from pathlib import Path
from typing import Any

import dask.distributed
import pytest
import ray

from tests.cluster.clusters import RayCluster

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def connect_as_the_page_says(
    monkeypatch: pytest.MonkeyPatch, dask_client: Any, called: list[str]
) -> None:
    """Replace both connections, which are there already, and note what was asked for."""

    def connected(address: str) -> Any:
        called.append(address)
        return dask_client

    monkeypatch.setattr(ray, "init", connected)
    monkeypatch.setattr(dask.distributed, "Client", connected)


@pytest.mark.soak
def test_the_page_runs(
    ray_cluster: RayCluster, dask_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    connect_as_the_page_says(monkeypatch, dask_client, called)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert called == ["auto", "tcp://scheduler:8786"]
    assert "openblas" in names["here"]["blas"]
    assert len(names["digest"]) == 64
