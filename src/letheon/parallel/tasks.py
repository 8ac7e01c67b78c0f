"""Tasks that run in other processes, and how their arguments travel."""

import operator
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, SupportsIndex
from weakref import WeakSet

import joblib
from joblib.parallel import get_active_backend

from letheon.parallel.threads import one_thread


class Parcel:
    """A pickled value whose large arrays lie beside the pickle, not in it.

    Packing copies no array. Opening copies only those that arrived read-only, as Ray's do: they
    are windows into the object store, estimators that write to them fail, and rows
    of people would stay in the store for as long as the model lives.

    Parameters
    ----------
    head : bytes
        The pickle (protocol 5) without its large buffers.
    buffers : list of buffer
        The contents of the arrays, in the order in which the pickle asks for them.
    """

    # No __weakref__: joblib's Dask backend scatters what it can refer to weakly, and
    # scattered data is lost with its worker and may travel a second time.
    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: list[Any]) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def pack(cls, value: Any) -> "Parcel":
        """Return `value` as a parcel."""
        # Plain pickle cannot send an estimator that was defined in a notebook.
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        # raw(): flat bytes in memory order, whatever shape the buffer has.
        return cls(head, [pickle.PickleBuffer(buffer.raw()) for buffer in buffers])

    def open(self) -> Any:
        """Return the value; its arrays can be written to."""
        views = [memoryview(buffer) for buffer in self._buffers]
        buffers = [bytearray(view) if view.readonly else view for view in views]
        # Between processes of one run, like every joblib backend; never from a file.
        return pickle.loads(self._head, buffers=buffers)  # noqa: S301

    def open_without_copy(self) -> Any:
        """Return the value without a copy; its arrays may be read-only and are not to be kept."""
        return pickle.loads(self._head, buffers=self._buffers)  # noqa: S301

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type["Parcel"], tuple[Any, ...]]:
        """Pickle with the arrays out of band where the pickler can."""
        kind = pickle.PickleBuffer if operator.index(protocol) >= 5 else bytes
        return Parcel, (self._head, [kind(buffer) for buffer in self._buffers])


# A run on Ray that loses a part of its cluster is repeated, for the tasks that were lost.
_TRIES = 5
_PAUSE = 0.5  # seconds before the first repetition; doubled for each
_PATIENCE = 60  # seconds for a new node to join where fewer than two CPUs are left

# Without these an actor of Ray's pool dies with its node, and its tasks are never run.
_RAY_ARGUMENTS = {"max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}


class _Task:
    """The function, called with one thread for BLAS and OpenMP."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def run(self, *payload: Any) -> Any:
        with one_thread():
            return self.function(*payload)

    def __call__(self, *payload: Any) -> Any:
        return self.run(*payload)


class _Stored:
    """A reference into Ray's object store that can be given up from outside.

    After a failed run joblib still holds the calls it did not send; their rows must go.
    """

    __slots__ = ("__weakref__", "reference")

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def __reduce__(self) -> tuple[type["_Stored"], tuple[Any]]:
        return _Stored, (self.reference,)

    def get(self) -> Any:
        # Ray resolves a reference only where it is an argument of Ray's own remote call; this
        # one lies inside a pickled batch of joblib's.
        import ray

        return ray.get(self.reference)


_Payload = Parcel | _Stored


def _resolve_parcel(sent: _Payload) -> Parcel:
    parcel: Parcel = sent.get() if isinstance(sent, _Stored) else sent
    return parcel


class _RemoteTask(_Task):
    """The function, called on another machine with what is shared and the content of a parcel."""

    def __call__(self, shared: _Payload, sent: _Payload) -> Parcel:
        common, own = _resolve_parcel(shared).open_without_copy(), _resolve_parcel(sent).open()
        # Parallel loops inside the task stay on this machine: rows travel once.
        with joblib.parallel_config(backend="threading", n_jobs=1):
            return Parcel.pack(self.run(*common, *own))


class _TaskLost(Exception):  # noqa: N818 - a result that never came, not an error of the task
    """A task did not run, because the node that it was on is being lost."""


class _RayTask(_RemoteTask):
    """The same, returning `_TaskLost` where the store of its node cannot be read.

    When a node dies, its processes may live on for a moment. What they meet then (a broken pipe)
    looks like an error of the task to Ray and to joblib, which repeat no such task.
    """

    def __call__(self, shared: _Payload, sent: _Payload) -> Parcel:
        try:
            parcels = _resolve_parcel(shared), _resolve_parcel(sent)
        except Exception as error:
            if not _is_loss(error):
                raise
            return Parcel.pack(_TaskLost(f"{type(error).__name__}: {error}"))
        return super().__call__(*parcels)


def _is_loss(error: Exception) -> bool:
    """Whether Ray failed, and not the function: a node, its store or the way to it is gone."""
    from ray import exceptions

    # What Ray reports of a call is the cause's type as well; errors of the function come without.
    cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
    return isinstance(
        cause,
        OSError
        | EOFError
        | exceptions.RayActorError
        | exceptions.WorkerCrashedError
        | exceptions.NodeDiedError
        | exceptions.LocalRayletDiedError
        | exceptions.ObjectLostError
        | exceptions.RaySystemError
        | exceptions.RpcError,
    )


class _CaughtTask(_RemoteTask):
    """The same, returning ``(result, error)``: it never fails in the eyes of joblib."""

    def run(self, *payload: Any) -> tuple[Any, Exception | None]:
        try:
            return super().run(*payload), None
        except Exception as error:  # noqa: BLE001 - raised again where the run was started
            error.add_note(traceback.format_exc())
            return None, error


def _comes_from(backend: object, package: str) -> bool:
    """Return whether the joblib backend is, or derives from, one defined in `package`."""
    modules = (kind.__module__ + "." for kind in type(backend).__mro__)
    return any(module.startswith(package + ".") for module in modules)


def _run_remote(
    task: _RemoteTask, shared: _Payload, sent: Iterable[_Payload], n_jobs: int, **options: Any
) -> Iterator[Any]:
    """Yield what the task returns for each item, in order."""
    # pre_dispatch: the cluster holds the payloads of running tasks, not all of them.
    parallel = joblib.Parallel(
        n_jobs=n_jobs, batch_size=1, pre_dispatch="n_jobs", max_nbytes=None, **options
    )
    for parcel in parallel(joblib.delayed(task)(shared, item) for item in sent):
        yield parcel.open()


class _TaskRun(NamedTuple):
    """A function and the arguments of each of its tasks, and how to run them somewhere."""

    function: Callable[..., Any]
    payloads: Sequence[tuple[Any, ...]]
    shared: tuple[Any, ...]
    n_jobs: int
    ray_arguments: dict[str, Any] | None = None

    def run_inline(self) -> list[Any]:
        task = _Task(self.function)
        return [task(*self.shared, *payload) for payload in self.payloads]

    def run_locally(self) -> list[Any]:
        task = joblib.delayed(_Task(self.function))
        # max_nbytes=None: rows of people are not written to files that workers map.
        parallel = joblib.Parallel(n_jobs=self.n_jobs, batch_size=1, max_nbytes=None)
        return list(parallel(task(*self.shared, *payload) for payload in self.payloads))

    def run_on_ray(self) -> list[Any]:
        """Run the tasks, and those that were lost with a node again, a few times."""
        results: list[Any] = [_TaskLost("not run")] * len(self.payloads)
        n_jobs = self.n_jobs
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
                n_jobs = min(n_jobs, _wait_for_cpus())
            missing = [
                number for number, result in enumerate(results) if isinstance(result, _TaskLost)
            ]
            wanted = [self.payloads[number] for number in missing]
            answers = self._replace(payloads=wanted, n_jobs=n_jobs)._try_ray()
            for number, answer in zip(missing, answers, strict=True):
                results[number] = answer
            if not any(isinstance(answer, _TaskLost) for answer in answers):
                return results
        loss = next(result for result in results if isinstance(result, _TaskLost))
        raise ConnectionError(
            f"{_TRIES} times in a row tasks were lost with their node, the last time by {loss}; "
            "see whether the nodes of the Ray cluster stay up, and run it again"
        )

    def _try_ray(self) -> list[Any]:
        """Run the tasks once; those that were lost are `_TaskLost`, all if the run was lost."""
        import ray

        if self.n_jobs < 2:  # joblib runs one worker's share here
            return self.run_inline()
        try:
            return self._run_ray_once()
        except (ray.exceptions.RayError, ValueError) as error:
            # Ray refuses a pool of more workers than there are CPUs, as after a loss.
            is_smaller = isinstance(error, ValueError) and _count_cpus() < self.n_jobs
            if not (is_smaller or _is_loss(error)):
                raise
            return [_TaskLost(f"{type(error).__name__}: {error}")] * len(self.payloads)

    def _run_ray_once(self) -> list[Any]:
        import ray

        # Weak: the store frees each payload as soon as its task has run.
        stored: WeakSet[_Stored] = WeakSet()

        def store(values: tuple[Any, ...]) -> _Stored:
            item = _Stored(ray.put(Parcel.pack(values)))
            stored.add(item)
            return item

        task = _RayTask(self.function)
        arguments = {**_RAY_ARGUMENTS, **(self.ray_arguments or {})}
        # In the store, what is shared goes to each node once, and its tasks look at one memory.
        common = store(self.shared)
        sent = (store(payload) for payload in self.payloads)
        try:
            return list(_run_remote(task, common, sent, self.n_jobs, ray_remote_args=arguments))
        finally:
            for item in stored:
                item.reference = None

    def run_on_dask(self) -> list[Any]:
        import dask

        errors: list[Exception] = []
        results = []
        # No more payloads once a task has failed.
        sent = (Parcel.pack(values) for values in takewhile(lambda _: not errors, self.payloads))
        # Payloads are part of their tasks, so that the scheduler can send them to another worker
        # when one dies; Dask's advice to scatter large data would lose them with it. After a
        # failed run joblib's backend keeps its tasks, and with them rows, on the scheduler: no run
        # fails.
        task, shared = _CaughtTask(self.function), Parcel.pack(self.shared)
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": sys.maxsize}):
            for result, error in _run_remote(
                task, shared, sent, self.n_jobs, return_as="generator"
            ):
                results.append(result)
                errors.extend([error] if error else [])
        if errors:
            raise errors[0]
        return results


def _wait_for_cpus() -> int:
    """CPUs of the cluster, once there are two of them or patience has ended."""
    deadline = time.monotonic() + _PATIENCE
    while _count_cpus() < 2 and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return _count_cpus()


def _count_cpus() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def run_tasks(
    function: Callable[..., Any],
    payloads: Sequence[tuple[Any, ...]],
    *,
    n_jobs: int | None,
    shared: tuple[Any, ...] = (),
) -> list[Any]:
    """Return ``[function(*shared, *payload) for payload in payloads]``, computed in parallel.

    The active joblib backend decides where: processes, threads, a Ray or a Dask cluster. Every
    task runs with one thread for BLAS and OpenMP, in this process too, so the results do not
    depend on where that is. With one worker, or one payload and no cluster, this is a
    plain loop.

    Parameters
    ----------
    function : callable
        A pure function: a task that was lost with its machine is run again. It must not
        change its arguments, which other processes receive as copies and threads do not.
    payloads : sequence of tuple
        The arguments of each task. Each payload travels once, to the task that needs it.
    n_jobs : int or None
        As in joblib: None is 1 unless `joblib.parallel_config` says otherwise, -1 is all.
    shared : tuple, optional
        Arguments of every task, before its own. On Ray they travel to each node once; elsewhere
        they go with each payload, so make as many payloads as there are workers. A task may
        receive read-only arrays and must not return them.

    Returns
    -------
    list
        The results, in the order of the payloads.

    Raises
    ------
    Exception
        What a task raised, with its own type. Nothing else is returned then.

    Examples
    --------
    >>> from letheon.parallel import run_tasks
    >>> run_tasks(pow, [(2, 3), (3, 2)], n_jobs=1)
    [8, 9]
    """
    backend, _ = get_active_backend()
    on_ray, on_dask = _comes_from(backend, "ray"), _comes_from(backend, "joblib._dask")
    workers = joblib.effective_n_jobs(n_jobs)
    # At least two: joblib runs one worker's share here, and a cluster was asked for.
    n_workers = min(workers, max(2, len(payloads)))
    ray_arguments = getattr(backend, "ray_remote_args", None)
    run = _TaskRun(function, payloads, shared, n_workers, ray_arguments)
    if workers == 1 or len(payloads) < (1 if on_ray or on_dask else 2):
        return run.run_inline()
    if on_ray:
        return run.run_on_ray()
    return run.run_on_dask() if on_dask else run.run_locally()
