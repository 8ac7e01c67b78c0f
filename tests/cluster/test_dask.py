"""Tasks on a Dask cluster: same results, rows travel once and leave nothing, workers may die."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from letheon.parallel import run_tasks
from tests.cluster.clusters import eventually
from tests.cluster.travel import TravelError, arrivals, die_once, payloads, refuse, train


@pytest.fixture
def on_dask(dask_client: Any) -> Iterator[Any]:
    with joblib.parallel_config(backend="dask"):
        yield dask_client


def is_empty(client: Any) -> bool:
    """Return whether neither the workers nor the scheduler hold anything."""
    counts = client.run(lambda dask_worker: len(dask_worker.data))
    known = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    return not any(counts.values()) and known == 0


def test_results_are_those_of_this_process_and_nothing_stays(on_dask: Any, tmp_path: Path) -> None:
    results = run_tasks(train, payloads(7, tmp_path), n_jobs=None)
    assert arrivals(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    for payload, result in zip(payloads(7, tmp_path), results, strict=True):
        assert np.array_equal(result["model"], train(*payload)["model"])
        assert result["model"].flags.writeable
        assert result["threads"] == {1}
        assert result["process"] != os.getpid()
    assert eventually(lambda: is_empty(on_dask))


def test_large_payloads_bring_no_warning(on_dask: Any) -> None:
    rows = np.zeros(2_000_000)  # Dask warns from 10 MB on
    assert run_tasks(np.sum, [(rows,), (rows,)], n_jobs=None) == [0.0, 0.0]


def test_an_error_keeps_its_type_and_leaves_nothing(on_dask: Any, tmp_path: Path) -> None:
    with pytest.raises(TravelError, match="1") as raised:
        run_tasks(refuse, payloads(30, tmp_path), n_jobs=None)
    assert "in refuse" in raised.value.__notes__[0]
    assert len(arrivals(tmp_path)) < 30
    assert eventually(lambda: is_empty(on_dask))


def test_a_lost_worker_loses_nothing(on_dask: Any, tmp_path: Path) -> None:
    results = run_tasks(die_once, payloads(4, tmp_path), n_jobs=None)
    expected = [train(*payload)["model"] for payload in payloads(4, tmp_path)]
    assert all(map(np.array_equal, (result["model"] for result in results), expected))
    assert (tmp_path / "died").exists()
