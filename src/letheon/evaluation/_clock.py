"""Timing of requests until the model can predict, has a digest, and runs no background work."""

import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# A repeated prediction and digest may be slower than after the fit by this factor.
_SLOWDOWN = 1.5
# The additional time of the first prediction and digest is deferred work if it exceeds this share
# of their processor time, or (a wait) this multiple of their time. Less is noise.
_NOISE_SHARE = 0.25
_LONG_WAIT = 3.0
# Earlier threads are ignored if they use less than this share of the time of requests.
_NOISE_OF_KNOWN = 0.05
_STEP_SECONDS = 0.01
_QUIET_SECONDS = 0.05
# The same for threads that a request started, for models that left background work before, and for
# the first waits.
_LONG_QUIET_SECONDS, _LONG_WAITS = 0.5, 3
# Predictions after the fit that are slower than later ones by this factor are not typical.
_SLOW_AFTER_FIT = 2.0
# Smallest share of a step that a busy thread or process uses.
_BUSY_SHARE = 0.2
_LEAST_WORK_SECONDS = 1e-3
_LEAST_WAIT_SECONDS = 10.0
# Smallest background or deferred work, and smallest deferred wait, that is not noise.
LEAST_LATE_SECONDS, _LEAST_LATE_WAIT_SECONDS = 0.005, 0.1
_PROC = Path("/proc")
_sleep = time.sleep
# Prediction methods; `score` is called separately.
_ANSWERS = ("predict", "predict_proba", "decision_function")


def now() -> float:
    """Return the reading of a monotonic clock in seconds."""
    return time.perf_counter()


class _Clocks(NamedTuple):
    """Clock functions that were read at the start, in case a model replaces those of `time`."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    process: Callable[[], float]
    thread: Callable[[], float]

    @classmethod
    def read(cls) -> "_Clocks":
        """Return the clock functions that `time` has now."""
        return cls(time.perf_counter, time.monotonic, time.process_time, time.thread_time)


class RequestTiming(NamedTuple):
    """Seconds until a call returned, seconds until its work was complete, and processor time."""

    returned: float
    complete: float
    processor: float


class _ModelUse(NamedTuple):
    """Times and predictions of one use of a model: all prediction methods and one digest.

    All times are in seconds. `seconds` excludes waits for a processor, and `elapsed` includes them.
    `others` is the processor time of other threads and of child processes.
    """

    seconds: float
    processor: float
    elapsed: float = 0.0
    others: float = 0.0
    answers: Any = None

    def at_least(self, other: "_ModelUse", factor: float) -> "_ModelUse":
        """Return the larger of the times of this use and `factor` times those of another use."""
        return _ModelUse(*map(max, self[:2], (factor * part for part in other[:2])))

    def find_deferred(self, usual: "_ModelUse") -> float:
        """Return the seconds in excess of the usual time, or 0 if the excess may be noise."""
        excess = max(self.seconds - usual.seconds, 0.0)
        is_work = excess > 0 and self.processor > (1 + _NOISE_SHARE) * usual.processor
        is_late = is_work or excess > _LONG_WAIT * usual.seconds
        # Retrain times include waits for a processor, too.
        return self.elapsed - usual.seconds if is_late else 0.0


def finish_requests(model: Any) -> None:
    """Complete the deferred work of a model's requests; see `ForgetMixin._finish_pending`."""
    finish = getattr(model, "_finish_pending", None)
    if finish is not None:
        finish()


class _Load(NamedTuple):
    """State of a thread (R: running or waiting for a processor), and its processor time."""

    state: str
    seconds: float


class _Background:
    """Threads and child processes that were started after this object was created."""

    def __init__(self, clocks: _Clocks) -> None:
        self._clocks = clocks
        self._threads = frozenset(threading.enumerate())
        self._known = frozenset(_list_threads())
        self._children = frozenset(_list_children())
        self._of_known: dict[Path, float] = {}
        # Processor time that this object has used itself, to be excluded.
        self._looking_seconds = 0.0
        self._has_been_busy = False
        self._n_waits = 0

    def count_alive(self) -> int:
        """Return the number of new Python threads and child processes."""
        threads = set(threading.enumerate()) - self._threads - {threading.current_thread()}
        return len(threads) + len(set(_list_children()) - self._children)

    def read_loads(self) -> dict[Path, _Load]:
        """Return the load of each new thread, including the threads of child processes."""
        if not _PROC.exists():  # Only the sum over the other threads is known.
            return {_PROC: _Load("S", self._clocks.process() - self._clocks.thread())}
        return {place: load for place, load in self._all_loads().items() if load.state not in "XZ"}

    def _all_loads(self) -> dict[Path, _Load]:
        """Return the loads including those of processes that have ended but were not waited for."""
        return {place: _read_load(place) for place in _list_threads() if place not in self._known}

    def wait_until_idle(
        self, before: dict[Path, _Load], most_seconds: float, used: float | None = None
    ) -> tuple[float, bool]:
        """Wait until the new threads and processes have ended or are idle.

        Parameters
        ----------
        before : dict
            Result of `read_loads` before the call that may have started work.
        most_seconds : float
            Longest time to wait.
        used : float, optional
            Value of `other_time` from which on work counts; by default the current value.

        Returns
        -------
        float
            Seconds until work was last observed; 0 if there was no work.
        bool
            Whether there was still work after `most_seconds`.
        """
        with self._exclude_own_time():
            start = since = instant = self._clocks.monotonic()
            loads, seconds = self.read_loads(), 0.0
            started = loads.keys() - before.keys()
            processor = self.other_time() if used is None else used
            if (
                not (started or self.count_alive())
                and _work_between(before, loads) < _LEAST_WORK_SECONDS
            ):
                return 0.0, False
            self._n_waits += 1
            while loads and instant - since < self._idle_limit(started & loads.keys()):
                if instant - start > most_seconds:
                    return instant - start, True
                _sleep(_STEP_SECONDS)
                earlier, loads = loads, self.read_loads()
                step = self._clocks.monotonic() - instant
                instant += step
                is_running = any(load.state == "R" for load in loads.values())
                is_busy = is_running or earlier.keys() - loads
                if is_busy or _work_between(earlier, loads) > _BUSY_SHARE * step:
                    self._has_been_busy, since, seconds = True, instant, instant - start
            # The last steps of a joined thread do not count as work.
            is_work = self.other_time() - processor >= LEAST_LATE_SECONDS
            return seconds if is_work else 0.0, False

    def other_time(self) -> float:
        """Return the processor time of all other threads and of child processes, in seconds."""
        return self.processor_time() - self.own_time()

    def _idle_limit(self, started: Any) -> float:
        """Return how many seconds threads must be idle before waiting ends."""
        is_suspect = started or self._has_been_busy or self._n_waits <= _LONG_WAITS
        return _LONG_QUIET_SECONDS if is_suspect else _QUIET_SECONDS

    def processor_time(self) -> float:
        """Return the processor time of this process and its children, in seconds.

        Includes children that have ended. Excludes threads that are older than this object, and the
        time for these measurements.
        """
        # Read first: other threads work while this one reads the loads.
        own = self._clocks.process() - self._looking_seconds
        with self._exclude_own_time():
            ended, pid = os.times(), str(os.getpid())
            alive = [load for place, load in self._all_loads().items() if pid not in place.parts]
            children = ended.children_user + ended.children_system
            return own + children + sum(load.seconds for load in alive) - self.earlier_time()

    def own_time(self) -> float:
        """Return the processor time of this thread in seconds, without that for reading loads."""
        return self._clocks.thread() - self._looking_seconds

    @contextmanager
    def _exclude_own_time(self) -> Iterator[None]:
        begin, before = self._clocks.thread(), self._looking_seconds
        try:
            yield
        finally:
            self._looking_seconds = before + self._clocks.thread() - begin

    def earlier_time(self) -> float:
        """Return the processor time of the threads that are older than this object, in seconds."""
        pid = str(os.getpid())
        loads = {place: _read_load(place) for place in self._known if pid in place.parts}
        # The time of a thread that has ended stays part of the sum.
        alive = {place: load.seconds for place, load in loads.items() if load.state != "X"}
        self._of_known |= alive
        return sum(self._of_known.values())


def _work_between(before: dict[Path, _Load], after: dict[Path, _Load]) -> float:
    """Return the processor time in seconds that threads used between two readings."""
    idle = _Load("S", 0.0)
    return sum(load.seconds - before.get(place, idle).seconds for place, load in after.items())


def _read_load(task: Path) -> _Load:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        return _Load(state, int((task / "schedstat").read_text().split()[0]) / 1e9)
    except (OSError, IndexError, ValueError):  # The task has ended.
        return _Load("X", 0.0)


def _read_delay() -> float:
    """Return the seconds for which this thread has waited for a processor; 0 if unknown."""
    try:
        return int((_PROC / "thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _list_threads() -> list[Path]:
    """Return the /proc folders of the other threads of this process and of its child processes."""
    own_id = threading.get_native_id()
    tasks = [
        *_list_tasks(str(os.getpid())),
        *(task for pid in _list_children() for task in _list_tasks(pid)),
    ]
    return [task for task in tasks if task.name != str(own_id)]


def _list_tasks(pid: str) -> list[Path]:
    try:
        return [*(_PROC / pid / "task").iterdir()]
    except OSError:  # The process has ended, or this is not Linux.
        return []


def _list_children(parent: str = "") -> list[str]:
    """Return the process ids of all descendants of a process, by default of this process."""
    below: list[str] = []
    for task in _list_tasks(parent or str(os.getpid())):
        try:
            direct = (task / "children").read_text().split()
        except OSError:
            continue
        for child in direct:
            below += [child, *_list_children(child)]
    return below


@dataclass
class Totals:
    """Wall-clock time and processor time of this process and its children, in seconds."""

    seconds: float = 0.0
    processor: float = 0.0

    def add(self, seconds: float, processor: float) -> None:
        """Add the times of one call."""
        self.seconds += seconds
        self.processor += processor

    @property
    def n_processors(self) -> float:
        """Average number of busy processors."""
        return self.processor / self.seconds if self.seconds else 0.0


@dataclass
class RequestClock:
    """Clock that times requests until all work is done, and records background work.

    A request ends when the model has predicted `rows` and computed its digest, and no thread or
    process that it started is working. The time of a prediction and a digest of an idle model is
    measured directly afterwards and subtracted.

    Attributes
    ----------
    n_requests, n_busy : int
        Number of timed requests, and of requests after which threads or processes still worked.
    n_idle : int
        Largest number of threads and processes that a request left alive but idle.
    has_given_up : bool
        Whether background work exceeded the time limit; the clock then stops waiting for it.
    has_digest, is_repeatable : bool
        Whether every model had a digest, and whether every model repeated its predictions.
    usual_seconds : float
        Longest time of a prediction and a digest after a fit. Deferred work that is much shorter
        cannot be distinguished from noise.
    late_seconds : float
        Seconds of work that was deferred beyond the timed calls and detected at the end of trials.
    slowest_fit, fastest_retrain : float
        Seconds of the slowest fit and of the fastest retrain of the same algorithm, without waits
        for a processor.
    known_seconds : float
        Processor time that older threads used during requests.
    requests, retrains : Totals
        Times of all requests, including predictions and digests, and of all retrains.
    """

    rows: Any
    n_requests: int = 0
    n_busy: int = 0
    n_idle: int = 0
    has_given_up: bool = False
    has_digest: bool = True
    is_repeatable: bool = True
    usual_seconds: float = 0.0
    late_seconds: float = 0.0
    slowest_fit: float = 0.0
    fastest_retrain: float = np.inf
    known_seconds: float = 0.0
    requests: Totals = field(default_factory=Totals)
    retrains: Totals = field(default_factory=Totals)
    _clocks: _Clocks = field(default_factory=_Clocks.read, repr=False)
    _usual: _ModelUse = field(default_factory=lambda: _ModelUse(0.0, 0.0), repr=False)
    _most_seconds: float = field(default_factory=lambda: _LEAST_WAIT_SECONDS, repr=False)

    def __post_init__(self) -> None:
        """Record the threads and processes that are already running."""
        self._background = _Background(self._clocks)

    @property
    def work_resolution(self) -> float:
        """Seconds of deferred work per request that may remain undetected."""
        return _SLOWDOWN * (1 + _NOISE_SHARE) * self.usual_seconds

    @property
    def wait_resolution(self) -> float:
        """Seconds of deferred waiting per request that may remain undetected."""
        return _SLOWDOWN * (1 + _LONG_WAIT) * self.usual_seconds

    @property
    def sees_processes(self) -> bool:
        """Whether child processes can be observed on this system."""
        return _PROC.exists()

    def time_fit(self, model: Any, fit: Callable[[], Any]) -> RequestTiming:
        """Fit a model, then time a prediction and a digest; return the times of the fit."""
        loads, processor = self._background.read_loads(), self._background.processor_time()
        begin, delay = self._clocks.now(), _read_delay()
        fit()
        returned = seconds = self._clocks.now() - begin
        delay = _read_delay() - delay
        first = self._time_use(model)
        seconds += self._wait_for_background(loads)
        processor = self._background.processor_time() - processor
        self._usual = _median_use([self._time_use(model) for _ in range(3)])
        seconds += first.find_deferred(self._usual)
        self.slowest_fit = max(self.slowest_fit, seconds - delay)
        self.usual_seconds = max(self.usual_seconds, self._usual.seconds)
        self._most_seconds = max(_LEAST_WAIT_SECONDS, 3 * seconds)
        return RequestTiming(returned, seconds, max(processor - self._usual.processor, 0.0))

    def time_request(self, model: Any, request: Callable[[], Any]) -> tuple[Any, RequestTiming]:
        """Run a request and time it; return its receipt and its times."""
        now, loads = self._clocks.now, self._background.read_loads()
        known = self._background.earlier_time()
        processor, begin = self._background.processor_time(), now()
        receipt = request()
        returned = now() - begin
        finish_requests(model)
        settled, others = now() - begin, self._background.other_time()
        meanwhile = self._background.other_time() - others
        first = self._time_use(model)
        elapsed = now() - begin
        waited = self._wait_for_background(loads, others + self._usual.others)
        processor = self._background.processor_time() - processor
        self.requests.add(now() - begin, processor)
        self.known_seconds += self._background.earlier_time() - known
        again = self._time_use(model)
        # The time of earlier threads cannot be subtracted exactly.
        is_clear = self.known_seconds < _NOISE_OF_KNOWN * self.requests.processor
        is_helped = meanwhile >= LEAST_LATE_SECONDS or _is_helped(first, again)
        is_busy = waited > 0 or (is_clear and is_helped)
        self.n_requests += 1
        self.n_busy += is_busy
        self.n_idle = max(self.n_idle, self._background.count_alive())
        self.is_repeatable &= all(map(np.array_equal, first.answers, again.answers))
        # Background work also runs during the first prediction, which then counts.
        complete = (
            elapsed + waited
            if is_busy
            else settled + first.find_deferred(self._idle_use(model, again))
        )
        complete += again.find_deferred(first.at_least(self._usual, _SLOWDOWN))
        return receipt, RequestTiming(returned, complete, max(processor - again.processor, 0.0))

    def find_late_work(self, model: Any, fresh: Any, *rows: tuple[Any, Any]) -> float:
        """Call the other methods of a model twice; return the seconds deferred to the first call.

        Parameters
        ----------
        model : estimator
            The model after the last request.
        fresh : estimator
            A fresh fit. It is called first, so that first-call overhead of the process is excluded.
        *rows : (X, y)
            Rows that the model has not predicted yet.
        """
        _ask_otherwise(fresh, rows)
        first, again = (self._time_call(lambda: _ask_otherwise(model, rows)) for _ in range(2))
        excess, work = first.seconds - again.seconds, first.processor - again.processor
        is_work = work > max(_LONG_WAIT * again.processor, LEAST_LATE_SECONDS)
        is_wait = excess > max(_LONG_WAIT * again.seconds, _LEAST_LATE_WAIT_SECONDS)
        late = first.elapsed - again.seconds if is_work or is_wait else 0.0
        self.late_seconds += late
        return late

    def wait_until_idle(self) -> None:
        """Wait until all background work has ended."""
        self._wait_for_background({})

    def time_retrain(self, train: Callable[[], Any], is_same: bool) -> tuple[Any, float]:
        """Train a baseline; return the model and the seconds of training.

        Waits for background work to end, but does not count it. `is_same` says whether the baseline
        is the same algorithm as the unlearner.
        """
        loads, processor = self._background.read_loads(), self._background.processor_time()
        begin, delay = self._clocks.now(), _read_delay()
        model = train()
        seconds = self._clocks.now() - begin
        if is_same:
            self.fastest_retrain = min(self.fastest_retrain, seconds - (_read_delay() - delay))
        self.retrains.add(seconds, self._background.processor_time() - processor)
        self._wait_for_background(loads)
        return model, seconds

    def _time_use(self, model: Any) -> _ModelUse:
        digest = getattr(model, "digest", None)
        self.has_digest &= digest is not None

        def ask_all() -> list[Any]:
            answers = [getattr(model, name)(self.rows) for name in _ANSWERS if hasattr(model, name)]
            if digest is not None:
                digest()
            return answers

        return self._time_call(ask_all)

    def _time_call(self, call: Callable[[], Any]) -> _ModelUse:
        """Return the times and the result of a call."""
        processor, own = self._background.processor_time(), self._background.own_time()
        delay, begin = _read_delay(), self._clocks.now()
        answers = call()
        elapsed, delay = self._clocks.now() - begin, _read_delay() - delay
        own = self._background.own_time() - own
        processor = self._background.processor_time() - processor
        return _ModelUse(max(elapsed - delay, 0.0), processor, elapsed, processor - own, answers)

    def _idle_use(self, model: Any, again: _ModelUse) -> _ModelUse:
        """Return the times of a prediction and a digest of an idle model."""
        early = self._usual
        if again.seconds * _SLOW_AFTER_FIT < early.seconds:
            return _median_use([again, self._time_use(model), self._time_use(model)])
        # A model that is deliberately slow the second time would hide its deferred work.
        pairs = zip(again[:2], early[:2], strict=True)
        return _ModelUse(*(min(max(late, first), _SLOWDOWN * first) for late, first in pairs))

    def _wait_for_background(self, loads: dict[Path, _Load], used: float | None = None) -> float:
        """Wait until background work has ended; return the seconds until work was last observed."""
        if self.has_given_up:
            return 0.0
        seconds, self.has_given_up = self._background.wait_until_idle(
            loads, self._most_seconds, used
        )
        return seconds


def _median_use(uses: Sequence[_ModelUse]) -> _ModelUse:
    return _ModelUse(*(float(np.median([use[part] for use in uses])) for part in range(4)))


def _is_helped(first: _ModelUse, again: _ModelUse) -> bool:
    """Return whether other threads or processes worked during the first use only."""
    least = (_BUSY_SHARE * first.seconds, _NOISE_SHARE * again.others, LEAST_LATE_SECONDS)
    return first.others - again.others > max(least)


def _ask_otherwise(model: Any, rows: Sequence[tuple[Any, Any]]) -> None:
    """Call all prediction methods and `score`, and pickle the model, ignoring errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for X, y in rows:
            for name in (*_ANSWERS, "predict_log_proba"):
                with suppress(Exception):
                    getattr(model, name)(X)
            with suppress(Exception):
                model.score(X, y)
        with suppress(Exception):
            pickle.dumps(model)
