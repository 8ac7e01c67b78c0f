"""Tasks that run in other processes, and the transport of their arguments."""

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
    """A pickled value whose large arrays are stored outside the pickle.

    Packing does not copy arrays. Opening copies only arrays that arrived read-only. Arrays from Ray
    are read-only views into its object store: without a copy, estimators that write to them would
    fail, and personal data would stay in the store as long as the model exists.

    Parameters
    ----------
    head : bytes
        The pickle (protocol 5) without its large buffers.
    buffers : list of buffer
        The contents of the arrays, in the order of the pickle.
    """

    # No __weakref__: joblib's Dask backend scatters objects with weak references, and scattered
    # data is lost with its worker and may be sent twice.
    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: list[Any]) -> None:
        self._head = head
        self._buffers = buffers

    @classmethod
    def pack(cls, value: Any) -> "Parcel":
        """Pickle `value` and return it as a parcel, without copying its large arrays."""
        # Plain pickle cannot send an estimator defined in a notebook.
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        # raw(): flat bytes in memory order, for a buffer of any shape.
        return cls(head, [pickle.PickleBuffer(buffer.raw()) for buffer in buffers])

    def open(self) -> Any:
        """Return the value; its arrays are writable."""
        views = [memoryview(buffer) for buffer in self._buffers]
        buffers = [bytearray(view) if view.readonly else view for view in views]
        # The pickle comes from a process of this run, as in every joblib backend, not from a file.
        return pickle.loads(self._head, buffers=buffers)  # noqa: S301

    def open_without_copy(self) -> Any:
        """Return the value without a copy; its arrays may be read-only and must not be kept."""
        return pickle.loads(self._head, buffers=self._buffers)  # noqa: S301

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type["Parcel"], tuple[Any, ...]]:
        """Return how to pickle the parcel; from protocol 5 on, arrays are sent out of band."""
        kind = pickle.PickleBuffer if operator.index(protocol) >= 5 else bytes
        return Parcel, (self._head, [kind(buffer) for buffer in self._buffers])


# After a loss of Ray nodes, the lost tasks are retried.
_TRIES = 5
_PAUSE = 0.5  # seconds before the first retry; doubled for each
_PATIENCE = 60  # seconds to wait for a new node if fewer than two CPUs remain

# Without these arguments an actor of Ray's pool dies with its node, and its tasks never run.
_RAY_ARGUMENTS = {"max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}


class _Task:
    """A function to call with one thread for BLAS and OpenMP."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def run(self, *payload: Any) -> Any:
        with one_thread():
            return self.function(*payload)

    def __call__(self, *payload: Any) -> Any:
        return self.run(*payload)


class _Stored:
    """A reference to an object in Ray's store that the caller can release.

    After a failed run joblib keeps the calls that it did not send, so the caller must release their
    rows.
    """

    __slots__ = ("__weakref__", "reference")

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def __reduce__(self) -> tuple[type["_Stored"], tuple[Any]]:
        return _Stored, (self.reference,)

    def get(self) -> Any:
        # Ray resolves references only in arguments of its own remote calls; this reference is
        # inside a pickled batch of joblib.
        import ray

        return ray.get(self.reference)


_Payload = Parcel | _Stored


def _resolve_parcel(sent: _Payload) -> Parcel:
    parcel: Parcel = sent.get() if isinstance(sent, _Stored) else sent
    return parcel


class _RemoteTask(_Task):
    """A function to call on another machine, with shared and own arguments from two parcels."""

    def __call__(self, shared: _Payload, sent: _Payload) -> Parcel:
        common, own = _resolve_parcel(shared).open_without_copy(), _resolve_parcel(sent).open()
        # Parallel loops inside the task stay on this machine, so rows are sent once.
        with joblib.parallel_config(backend="threading", n_jobs=1):
            return Parcel.pack(self.run(*common, *own))


class _TaskLost(Exception):  # noqa: N818 - a missing result, not an error of the task
    """Result of a task that did not run because its node was lost."""


class _RayTask(_RemoteTask):
    """A remote task that returns `_TaskLost` if the object store of its node cannot be read.

    When a node is lost, its processes may run for a moment longer. Ray and joblib treat their
    errors (such as a broken pipe) as errors of the task and do not retry it.
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
    """Return whether an error means that a Ray node, its store or the connection was lost."""
    from ray import exceptions

    # Ray wraps errors of a call in a type that derives from the cause's type.
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
    """A remote task that returns ``(result, error)`` and never raises."""

    def run(self, *payload: Any) -> tuple[Any, Exception | None]:
        try:
            return super().run(*payload), None
        except Exception as error:  # noqa: BLE001 - raised again where the run was started
            error.add_note(traceback.format_exc())
            return None, error


def _comes_from(backend: object, package: str) -> bool:
    """Return whether the joblib backend is defined in `package`, or derives from such a backend."""
    modules = (kind.__module__ + "." for kind in type(backend).__mro__)
    return any(module.startswith(package + ".") for module in modules)


def _run_remote(
    task: _RemoteTask, shared: _Payload, sent: Iterable[_Payload], n_jobs: int, **options: Any
) -> Iterator[Any]:
    """Yield the result of the task for each item of `sent`, in order."""
    # pre_dispatch: the cluster stores only the payloads of running tasks.
    parallel = joblib.Parallel(
        n_jobs=n_jobs, batch_size=1, pre_dispatch="n_jobs", max_nbytes=None, **options
    )
    for parcel in parallel(joblib.delayed(task)(shared, item) for item in sent):
        yield parcel.open()


class _TaskRun(NamedTuple):
    """A function and the arguments of its tasks; each `run` method uses another backend."""

    function: Callable[..., Any]
    payloads: Sequence[tuple[Any, ...]]
    shared: tuple[Any, ...]
    n_jobs: int
    ray_arguments: dict[str, Any] | None = None
    note: Callable[[], None] | None = None

    def run_inline(self) -> list[Any]:
        task = _Task(self.function)
        return self._collect(task(*self.shared, *payload) for payload in self.payloads)

    def run_locally(self) -> list[Any]:
        task = joblib.delayed(_Task(self.function))
        order = "list" if self.note is None else "generator"
        # max_nbytes=None: personal data are not written to memory-mapped files.
        parallel = joblib.Parallel(
            n_jobs=self.n_jobs, batch_size=1, max_nbytes=None, return_as=order
        )
        return self._collect(parallel(task(*self.shared, *payload) for payload in self.payloads))

    def _collect(self, results: Iterable[Any]) -> list[Any]:
        """Return the results, and call the note after each."""
        collected = []
        for result in results:
            collected.append(result)
            if self.note is not None:
                self.note()
        return collected

    def run_on_ray(self) -> list[Any]:
        """Run the tasks and return their results; retry tasks that were lost with a node."""
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
            f"tasks were lost with their Ray node in {_TRIES} consecutive attempts (last error: "
            f"{loss}); check that the nodes of the cluster stay up, then retry"
        )

    def _try_ray(self) -> list[Any]:
        """Run the tasks once; the result of a lost task is `_TaskLost`.

        If the whole run is lost, all results are `_TaskLost`.
        """
        import ray

        if self.n_jobs < 2:  # joblib would run them in this process anyway
            return self.run_inline()
        try:
            return self._run_ray_once()
        except (ray.exceptions.RayError, ValueError) as error:
            # Ray rejects a pool with more workers than CPUs, as after a loss.
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
        # In the store, shared arguments are sent to each node once, and its tasks share memory.
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
        # Send no more payloads after a task has failed.
        sent = (Parcel.pack(values) for values in takewhile(lambda _: not errors, self.payloads))
        # Payloads are part of their tasks, so the scheduler can send them to another worker if one
        # dies; scattered data, as Dask recommends, would be lost. After a failed run joblib's
        # backend keeps its tasks, and so rows, on the scheduler; therefore tasks never raise.
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
    """Wait until the cluster has two CPUs, at most `_PATIENCE` seconds; return their number."""
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
    note: Callable[[], None] | None = None,
) -> list[Any]:
    """Return ``[function(*shared, *payload) for payload in payloads]``, computed in parallel.

    The active joblib backend decides where the tasks run: processes, threads, a Ray or a Dask
    cluster. Every task runs with one thread for BLAS and OpenMP, even in this process, so the
    results do not depend on the backend. With one worker, or one payload and no cluster, this is a
    plain loop.

    Parameters
    ----------
    function : callable
        A pure function: a task that was lost with its machine is run again. It must not change its
        arguments: processes receive copies of them, but threads do not.
    payloads : sequence of tuple
        The arguments of each task. Each payload is sent once, to its task.
    n_jobs : int or None
        As in joblib: None means 1 unless `joblib.parallel_config` sets another number, -1 means
        all.
    shared : tuple, optional
        Arguments of every task, passed before its own. On Ray they are sent once to each node.
        Other backends send them with each payload, so use as many payloads as there are workers. A
        task may receive read-only arrays and must not return them.
    note : callable, optional
        Called without arguments after each task, for a progress bar; not on Ray and Dask.

    Returns
    -------
    list
        The results, in the order of the payloads.

    Raises
    ------
    Exception
        The exception of a task, with its own type.

    Examples
    --------
    >>> from letheon.parallel import run_tasks
    >>> run_tasks(pow, [(2, 3), (3, 2)], n_jobs=1)
    [8, 9]
    """
    backend, _ = get_active_backend()
    on_ray, on_dask = _comes_from(backend, "ray"), _comes_from(backend, "joblib._dask")
    workers = joblib.effective_n_jobs(n_jobs)
    # At least two: joblib runs the tasks of a single worker here, but a cluster was requested.
    n_workers = min(workers, max(2, len(payloads)))
    ray_arguments = getattr(backend, "ray_remote_args", None)
    run = _TaskRun(function, payloads, shared, n_workers, ray_arguments, note)
    if workers == 1 or len(payloads) < (1 if on_ray or on_dask else 2):
        return run.run_inline()
    if on_ray:
        return run.run_on_ray()
    return run.run_on_dask() if on_dask else run.run_locally()
