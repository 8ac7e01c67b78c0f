"""Tasks on a Ray cluster: same results, rows travel once and leave nothing, nodes may die."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    RayTaskError,
    RuntimeEnvSetupError,
    WorkerCrashedError,
)

from letheon.parallel import run_tasks, tasks
from tests.cluster.clusters import SEAT, RayCluster, eventually
from tests.cluster.travel import (
    BreaksOnce,
    TravelError,
    arrivals,
    break_pipe,
    look_at,
    never_finish_on,
    payloads,
    refuse,
    train,
)


@pytest.fixture
def on_ray(ray_cluster: RayCluster) -> Iterator[RayCluster]:
    with joblib.parallel_config(backend="ray", n_jobs=-1):
        yield ray_cluster


def test_results_are_those_of_this_process_and_nothing_stays(
    on_ray: RayCluster, tmp_path: Path
) -> None:
    results = run_tasks(train, payloads(5, tmp_path), n_jobs=None)
    assert arrivals(tmp_path) == [0, 1, 2, 3, 4]
    for payload, result in zip(payloads(5, tmp_path), results, strict=True):
        assert np.array_equal(result["model"], train(*payload)["model"])
        assert result["model"].flags.writeable
        assert result["threads"] == {1}
        assert result["process"] != os.getpid()
    # The results are alive, yet none of them is a window into the store.
    assert eventually(lambda: on_ray.stored_bytes() == 0)


def test_one_payload_goes_to_the_cluster(on_ray: RayCluster, tmp_path: Path) -> None:
    (result,) = run_tasks(train, payloads(1, tmp_path), n_jobs=None)
    assert result["process"] != os.getpid()


def test_what_is_shared_is_stored_once_and_copied_nowhere(
    on_ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    put, sizes = ray.put, []

    def watched(parcel: Any) -> Any:
        sizes.append(sum(memoryview(part).nbytes for part in parcel._buffers))
        return put(parcel)

    monkeypatch.setattr(ray, "put", watched)
    rows = payloads(1, tmp_path)[0][0]
    results = run_tasks(look_at, [(k,) for k in range(6)], n_jobs=None, shared=(rows,))
    assert [each["sum"] for each in results] == [rows.values.sum() + k for k in range(6)]
    assert all(each["is_window"] for each in results)
    assert [size for size in sizes if size] == [rows.values.nbytes]
    assert eventually(lambda: on_ray.stored_bytes() == 0)


def test_an_error_keeps_its_type_and_leaves_nothing(on_ray: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(TravelError, match="1"):
        run_tasks(refuse, payloads(6, tmp_path), n_jobs=None)
    assert eventually(lambda: on_ray.stored_bytes() == 0)


def run_and_lose_the_node(cluster: RayCluster, folder: Path) -> list[Any]:
    """Run four tasks on the node that is not the head; replace it when one has started."""
    doomed = cluster.node_id
    slow_train = partial(never_finish_on, doomed, folder, train)

    def run() -> list[Any]:
        arguments = {"resources": {SEAT: 1}}
        with joblib.parallel_config(backend="ray", n_jobs=2, ray_remote_args=arguments):
            return run_tasks(slow_train, payloads(4, folder), n_jobs=None)

    with ThreadPoolExecutor(1) as thread:  # Ray starts nodes from the main thread only
        results = thread.submit(run)
        assert eventually(lambda: any(folder.glob(f"started-{doomed}-*")))
        cluster.replace_node()
        return results.result(timeout=60)


@pytest.mark.soak
def test_a_lost_node_loses_nothing(ray_cluster: RayCluster, tmp_path: Path) -> None:
    results = run_and_lose_the_node(ray_cluster, tmp_path)
    expected = [train(*payload)["model"] for payload in payloads(4, tmp_path)]
    assert all(map(np.array_equal, (result["model"] for result in results), expected))
    assert len(arrivals(tmp_path)) == len(list(tmp_path.glob("started-*"))) > 4
    assert eventually(lambda: ray_cluster.stored_bytes() == 0)


@pytest.mark.soak
def test_letheon_itself_runs_again_what_a_dying_node_lost(
    on_ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process outlives its node for a moment; to Ray and joblib this is an error of the task.
    monkeypatch.setattr(tasks, "_Stored", partial(BreaksOnce, tmp_path))
    results = run_tasks(train, payloads(4, tmp_path), n_jobs=None)
    assert (tmp_path / "broken").exists()
    expected = [train(*payload)["model"] for payload in payloads(4, tmp_path)]
    assert all(map(np.array_equal, (result["model"] for result in results), expected))
    assert arrivals(tmp_path) == [0, 1, 2, 3]  # what had run did not run again
    assert eventually(lambda: on_ray.stored_bytes() == 0)


def test_letheon_itself_runs_again_what_ray_gave_up(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_RAY_ARGUMENTS", {})
    results = run_and_lose_the_node(ray_cluster, tmp_path)
    expected = [train(*payload)["model"] for payload in payloads(4, tmp_path)]
    assert all(map(np.array_equal, (result["model"] for result in results), expected))


def test_without_retries_the_run_is_lost(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_RAY_ARGUMENTS", {})
    monkeypatch.setattr(tasks, "_TRIES", 1)
    with pytest.raises(
        ConnectionError, match="tasks were lost with their Ray node in 1 consecutive"
    ):
        run_and_lose_the_node(ray_cluster, tmp_path)


def test_an_error_of_the_function_is_never_run_again(on_ray: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError):
        run_tasks(break_pipe, payloads(3, tmp_path), n_jobs=None)
    assert len(list(tmp_path.glob("called-1-*"))) == 1


@pytest.mark.parametrize(
    ("error", "is_loss"),
    [
        (BrokenPipeError(32, "Broken pipe"), True),
        (ConnectionResetError(), True),
        (EOFError(), True),
        (ActorDiedError(), True),
        (WorkerCrashedError(), True),
        (NodeDiedError("gone"), True),
        (RayTaskError("f", "", BrokenPipeError()), True),
        (RayTaskError("f", "", ValueError()), False),
        (RuntimeEnvSetupError(), False),
        (ValueError(), False),
        (MemoryError(), False),
        (TravelError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_counts_as_a_loss(error: Exception, is_loss: bool) -> None:
    assert tasks._is_loss(error) is is_loss
