"""Tasks in this process, in processes and in threads; clusters are in `tests/cluster`."""

import importlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from letheon.parallel import one_thread, run_tasks
from letheon.parallel.tasks import Parcel
from tests.counting import count_calls

BACKENDS = ["loky", "threading"]
# Loads OpenMP and SciPy's BLAS, so that every kind of limit is tested.
LIBRARIES = "sklearn.utils"
importlib.import_module(LIBRARIES)
several_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: nothing to limit")


def limits() -> list[int]:
    """The limits of all libraries, as the calling thread sees them."""
    return [int(library["num_threads"]) for library in threadpool_info()]


def power(base: int, exponent: int) -> int:
    return int(base**exponent)


def write_to(array: NDArray[Any]) -> tuple[str, float]:
    array += 1
    return type(array).__name__, float(array.sum())


def process_id() -> int:
    return os.getpid()


class TaskError(Exception):
    """An error that only this test knows."""


def refuse(number: int) -> int:
    if number == 2:
        raise TaskError(number)
    return number


class Traveller:
    """Leaves a file wherever it is unpickled."""

    def __init__(self, folder: Path, name: str, arrived: bool = False) -> None:
        self.folder, self.name = folder, name
        if arrived:
            (folder / f"{name}-{time.monotonic_ns()}").touch()

    def __reduce__(self) -> tuple[type["Traveller"], tuple[Path, str, bool]]:
        return Traveller, (self.folder, self.name, True)


def name_of(traveller: Traveller) -> str:
    return traveller.name


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 5))))
def test_results_are_those_of_a_loop(payloads: list[tuple[int, int]]) -> None:
    expected = [base**exponent for base, exponent in payloads]
    with joblib.parallel_config(backend="threading"):
        assert run_tasks(power, payloads, n_jobs=3) == expected
    assert run_tasks(power, payloads, n_jobs=None) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_keep_their_order(backend: str) -> None:
    def sleepy(i: int) -> int:
        time.sleep(0.02 * (3 - i % 4))
        return i

    with joblib.parallel_config(backend=backend):
        assert run_tasks(sleepy, [(i,) for i in range(7)], n_jobs=2) == list(range(7))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_task_raises_its_own_error(backend: str, n_jobs: int) -> None:
    with joblib.parallel_config(backend=backend), pytest.raises(TaskError, match="2"):
        run_tasks(refuse, [(i,) for i in range(4)], n_jobs=n_jobs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_every_task_has_one_thread(backend: str, n_jobs: int) -> None:
    before = limits()
    with joblib.parallel_config(backend=backend):
        limits_seen = run_tasks(limits, [()] * 4, n_jobs=n_jobs)
    assert len(limits_seen) == 4
    # A worker has loaded what its task needs, this process perhaps more (torch brings OpenMP).
    assert all(set(each) == {1} for each in limits_seen)
    assert limits() == before


def test_large_arrays_arrive_writable_and_in_no_file() -> None:
    big = np.zeros(300_000)  # joblib maps files from 1 MB on
    assert run_tasks(write_to, [(big,)] * 3, n_jobs=2) == [("ndarray", 300_000.0)] * 3
    assert not big.any()


def test_a_payload_travels_once(tmp_path: Path) -> None:
    payloads = [(Traveller(tmp_path, f"p{i}"),) for i in range(5)]
    assert run_tasks(name_of, payloads, n_jobs=2) == [f"p{i}" for i in range(5)]
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == [f"p{i}" for i in range(5)]


def scaled(factor: NDArray[Any], offset: int, number: int) -> tuple[float, int]:
    return float(factor.sum()) * number + offset, os.getpid()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_what_is_shared_comes_before_each_payload(backend: str, n_jobs: int) -> None:
    with joblib.parallel_config(backend=backend):
        pairs = run_tasks(scaled, [(k,) for k in range(4)], n_jobs=n_jobs, shared=(np.ones(3), 7))
    assert [value for value, _ in pairs] == [7, 10, 13, 16]


def test_one_worker_pickles_nothing() -> None:
    lock = threading.Lock()
    assert run_tasks(lambda x: x, [(lock,), (lock,)], n_jobs=1) == [lock, lock]


def test_one_payload_stays_in_this_process() -> None:
    assert run_tasks(process_id, [()], n_jobs=2) == [os.getpid()]
    assert os.getpid() not in run_tasks(process_id, [()] * 2, n_jobs=2)


def test_no_payloads_no_results() -> None:
    assert run_tasks(power, [], n_jobs=2) == []


def test_blocks_nest_and_survive_errors() -> None:
    def nest() -> None:
        with one_thread():
            with one_thread():
                pass
            assert set(limits()) == {1}
            raise TaskError

    before = limits()
    with pytest.raises(TaskError):
        nest()
    assert limits() == before


def interleaved(block: Callable[[], AbstractContextManager[Any]]) -> tuple[list[int], list[int]]:
    """First in, second in, first out: what the second then sees, and what is left at the end."""
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first_limits, second_limits = block_in(first, block), block_in(second, block)
        next(first_limits), next(second_limits), next(first_limits)
        seen = second.submit(limits).result()
        next(second_limits)
        return seen, limits()


def block_in(
    thread: ThreadPoolExecutor, block: Callable[[], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Enter the block in that thread, then leave it there."""
    entered = ExitStack()
    thread.submit(lambda: entered.enter_context(block())).result()
    yield
    thread.submit(entered.close).result()
    yield


def test_a_thread_does_not_lift_the_limit_of_another() -> None:
    before = limits()
    seen, after = interleaved(one_thread)
    assert seen == [1] * len(before)
    assert after == before


@several_cores
def test_plain_threadpool_limits_do_lift_it() -> None:
    with threadpool_limits(None):  # puts right at the end what the others leave wrong
        seen, _ = interleaved(lambda: threadpool_limits(1))
    assert set(seen) != {1}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=25))
def test_any_interleaving_keeps_the_limit(moves: list[tuple[int, bool]]) -> None:
    before = limits()
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        blocks: list[list[AbstractContextManager[None]]] = [[], [], []]
        for index, enters in moves + [(index, False) for index in range(3) for _ in range(25)]:
            if enters:
                blocks[index].append(one_thread())
                threads[index].submit(blocks[index][-1].__enter__).result()
            elif blocks[index]:
                threads[index].submit(blocks[index].pop().__exit__, None, None, None).result()
            if blocks[index]:
                assert set(threads[index].submit(limits).result()) == {1}
        assert [threads[index].submit(limits).result() for index in range(3)] == [before] * 3


def run_script(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


PREAMBLE = """
import os, signal, threading
import numpy
from letheon.parallel import one_thread
from letheon.parallel import threads
from threadpoolctl import threadpool_info
def limits(): return [library["num_threads"] for library in threadpool_info()]
"""


def test_libraries_loaded_later_are_limited() -> None:
    run_script(
        PREAMBLE
        + """
with one_thread():
    n = len(limits())
    import sklearn.utils
    assert len(limits()) > n
    with one_thread():
        assert set(limits()) == {1}
after = limits()
with one_thread():
    assert set(limits()) == {1}
assert limits() == after
assert len(set(after)) == 1
"""
    )


def test_a_forked_process_can_enter_and_leave() -> None:
    run_script(
        PREAMBLE
        + """
import warnings; warnings.simplefilter("ignore")  # a fork with threads is the point
before = limits()
inside, done = threading.Event(), threading.Event()
def hold():
    with one_thread(), threads._process.lock:
        inside.set()
        done.wait()
threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    with one_thread():
        good = set(limits()) == {1}
    os._exit(0 if good and limits() == before else 1)
status = os.waitpid(child, 0)[1]
done.set()
assert status == 0, status
"""
    )


def test_import_needs_no_cluster() -> None:
    run_script(
        "import sys, letheon.parallel\n"
        "letheon.parallel.run_tasks(pow, [(2, 3)] * 3, n_jobs=2)\n"
        "assert not {'ray', 'dask', 'distributed', 'sklearn'} & set(sys.modules)\n"
    )


def test_a_block_costs_little() -> None:
    def enter() -> None:
        with one_thread():
            pass

    enter()
    # It took 66 when this was written; more thread pools take more.
    assert count_calls(enter) < 200


class ReadOnlyBuffers(list[Any]):
    """Takes buffers out of band, as Ray does, and gives them back read-only."""

    def restore(self, head: bytes) -> Any:
        return pickle.loads(head, buffers=[memoryview(b.raw()).toreadonly() for b in self])


def sent_by_ray(parcel: Parcel) -> Parcel:
    buffers = ReadOnlyBuffers()
    head = pickle.dumps(parcel, protocol=5, buffer_callback=buffers.append)
    arrived = buffers.restore(head)
    assert isinstance(arrived, Parcel)
    return arrived


def sent_by_old_pickle(parcel: Parcel) -> Parcel:
    arrived = pickle.loads(pickle.dumps(parcel, protocol=4))
    assert isinstance(arrived, Parcel)
    return arrived


def matrices() -> dict[str, NDArray[Any]]:
    rows = np.arange(12.0).reshape(3, 4)
    return {
        "C order": rows,
        "Fortran order": np.asfortranarray(rows),
        "strided": rows[::2, ::-1],
        "read-only": np.frombuffer(rows.tobytes()),
        "empty": rows[:0],
        "scalar": np.array(3.5),
        "objects": np.array(["a", None, 3], dtype=object),
        "text": np.array(["a", "bcd"]),
    }


@pytest.mark.parametrize("send", [lambda parcel: parcel, sent_by_ray, sent_by_old_pickle])
@pytest.mark.parametrize("kind", matrices())
def test_a_parcel_brings_the_array(kind: str, send: Callable[[Parcel], Parcel]) -> None:
    array = matrices()[kind]
    (opened,) = send(Parcel.pack((array,))).open()
    assert opened.dtype == array.dtype
    assert opened.shape == array.shape
    assert opened.tolist() == array.tolist()
    assert opened.flags.f_contiguous == array.flags.f_contiguous or kind == "strided"
    assert opened.flags.writeable == array.flags.writeable


def test_a_parcel_copies_no_array_when_packed() -> None:
    array = np.zeros(1000)
    (opened,) = Parcel.pack((array,)).open()
    assert np.shares_memory(opened, array)


@pytest.mark.parametrize("send", [lambda parcel: parcel, sent_by_ray, sent_by_old_pickle])
def test_one_can_look_into_a_parcel(send: Callable[[Parcel], Parcel]) -> None:
    parcel = send(Parcel.pack((np.arange(1000.0), "text")))
    (first, text), (second, _) = parcel.open_without_copy(), parcel.open_without_copy()
    assert (first.tolist(), text) == (list(range(1000)), "text")
    assert np.shares_memory(first, second)


def test_a_parcel_brings_frames_and_sparse_rows() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    sparse = pytest.importorskip("scipy.sparse").random(20, 5, density=0.3, format="csr", rng=0)
    columns = {"n": [1, 2], "name": ["a", "b"]}
    frame, other = pandas.DataFrame(columns), polars.DataFrame(columns)
    opened = sent_by_ray(Parcel.pack((sparse, frame, other))).open()
    assert (opened[0] != sparse).nnz == 0
    assert opened[1].equals(frame)
    assert opened[2].equals(other)


def test_a_parcel_brings_what_plain_pickle_cannot() -> None:
    (opened,) = sent_by_ray(Parcel.pack((lambda x: x + 1,))).open()
    assert opened(1) == 2
