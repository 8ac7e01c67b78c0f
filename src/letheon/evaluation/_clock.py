"""The clock of a request: until the model answers, has a digest, and nothing works on."""

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

# A repeated prediction and digest may take so many times what they took after the fit.
_SLOWDOWN = 1.5
# What the first prediction and digest take beyond the repeated ones is work put off if it is more
# than this share of their processor time, or (a wait) than so many times their time. Less is noise.
_NOISE_SHARE = 0.25
_LONG_WAIT = 3.0
# Threads from before do not disturb if they use less than this share of what requests use.
_NOISE_OF_KNOWN = 0.05
_STEP_SECONDS = 0.01
_QUIET_SECONDS = 0.05
# The same for what a request has started, for models that left work behind before, and the first
# times that anything is alive.
_LONG_QUIET_SECONDS, _LONG_WAITS = 0.5, 3
# Answers after the fit that are slower than later ones by this factor are not the usual ones.
_SLOW_AFTER_FIT = 2.0
# Share of a step that a thread or process which is called busy uses at least.
_BUSY_SHARE = 0.2
_LEAST_WORK_SECONDS = 1e-3
_LEAST_WAIT_SECONDS = 10.0
# Work in the background or beyond answers and digests, or a wait there, that is no noise.
LEAST_LATE_SECONDS, _LEAST_LATE_WAIT_SECONDS = 0.005, 0.1
_PROC = Path("/proc")
_sleep = time.sleep
# Ways to ask a model; `score` is asked apart.
_ANSWERS = ("predict", "predict_proba", "decision_function")


def now() -> float:
    """Return the time of the clock that everything is timed by."""
    return time.perf_counter()


class _Clocks(NamedTuple):
    """The clocks as they were at the begin; a model that replaces those of `time` gains nothing."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    process: Callable[[], float]
    thread: Callable[[], float]

    @classmethod
    def read(cls) -> "_Clocks":
        """Return the clocks of now."""
        return cls(time.perf_counter, time.monotonic, time.process_time, time.thread_time)


class RequestTiming(NamedTuple):
    """Seconds until a call returned, until it was complete, and of the processor."""

    returned: float
    complete: float
    processor: float


class _ModelUse(NamedTuple):
    """One prediction (in every form) and one digest: their times, and the answers.

    `seconds` are without those in which other processes had the processor, `elapsed` are with
    them; `others` is the processor time of other threads and of child processes.
    """

    seconds: float
    processor: float
    elapsed: float = 0.0
    others: float = 0.0
    answers: Any = None

    def at_least(self, other: "_ModelUse", factor: float) -> "_ModelUse":
        """Return the longer times of this one and of so many times another one."""
        return _ModelUse(*map(max, self[:2], (factor * part for part in other[:2])))

    def deferred_seconds(self, usual: "_ModelUse") -> float:
        """Return the seconds beyond the usual ones, if they are more than noise."""
        excess = max(self.seconds - usual.seconds, 0.0)
        is_work = excess > 0 and self.processor > (1 + _NOISE_SHARE) * usual.processor
        is_late = is_work or excess > _LONG_WAIT * usual.seconds
        # Retrains share the processor with other processes, too.
        return self.elapsed - usual.seconds if is_late else 0.0


def finish_requests(model: Any) -> None:
    """Let a model do what its requests left for later; see `ForgetMixin._finish_pending`."""
    later = getattr(model, "_finish_pending", None)
    if later is not None:
        later()


class _Load(NamedTuple):
    """State (R: it runs or waits for a processor) and processor time of a thread."""

    state: str
    seconds: float


class _Background:
    """Threads and child processes that were started after this object was made."""

    def __init__(self, clocks: _Clocks) -> None:
        self._clocks = clocks
        self._threads = frozenset(threading.enumerate())
        self._known = frozenset(_list_threads())
        self._children = frozenset(_list_children())
        self._of_known: dict[Path, float] = {}
        # Processor time that this object has used itself: not part of what it tells.
        self._looking_seconds = 0.0
        self._has_been_busy = False
        self._n_waits = 0

    def count_alive(self) -> int:
        """Return how many new Python threads and child processes there are."""
        threads = set(threading.enumerate()) - self._threads - {threading.current_thread()}
        return len(threads) + len(set(_list_children()) - self._children)

    def read_loads(self) -> dict[Path, _Load]:
        """Return what each new thread is doing, those of child processes included."""
        if not _PROC.exists():  # other threads can be told from this one, but not from each other
            return {_PROC: _Load("S", self._clocks.process() - self._clocks.thread())}
        return {
            place: load for place, load in self._read_all_loads().items() if load.state not in "XZ"
        }

    def _read_all_loads(self) -> dict[Path, _Load]:
        """Return the same with processes that have ended and whose parent has not asked yet."""
        return {place: _read_load(place) for place in _list_threads() if place not in self._known}

    def wait_until_idle(
        self, before: dict[Path, _Load], most_seconds: float, used: float | None = None
    ) -> tuple[float, bool]:
        """Wait until what is new has ended or is idle.

        Parameters
        ----------
        before : dict
            `loads` at the begin of what may have left work behind.
        most_seconds : float
            How long to wait at most.
        used : float, optional
            `of_others` when work began to count; by default now.

        Returns
        -------
        float
            Seconds until something was seen working last; 0 if nothing was.
        bool
            Whether it still worked after `most_seconds`.
        """
        with self._exclude_own_time():
            start = since = instant = self._clocks.monotonic()
            loads, seconds = self.read_loads(), 0.0
            started = loads.keys() - before.keys()
            processor = self.other_processor_time() if used is None else used
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
            # The last steps of a thread that was joined are no work.
            is_work = self.other_processor_time() - processor >= LEAST_LATE_SECONDS
            return seconds if is_work else 0.0, False

    def other_processor_time(self) -> float:
        """Return the processor time without that of this thread."""
        return self.processor_time() - self.own_processor_time()

    def _idle_limit(self, started: Any) -> float:
        """Return for how long what is idle may begin to work again."""
        is_suspect = started or self._has_been_busy or self._n_waits <= _LONG_WAITS
        return _LONG_QUIET_SECONDS if is_suspect else _QUIET_SECONDS

    def processor_time(self) -> float:
        """Return the processor time of this process and its children, ended ones included.

        Without that of threads that ran before, and of looking at all of them.
        """
        # First of all: while this thread looks, which takes long beside a busy one, others work.
        own = self._clocks.process() - self._looking_seconds
        with self._exclude_own_time():
            ended, mine = os.times(), str(os.getpid())
            alive = [
                load for place, load in self._read_all_loads().items() if mine not in place.parts
            ]
            children = ended.children_user + ended.children_system
            return (
                own + children + sum(load.seconds for load in alive) - self.known_processor_time()
            )

    def own_processor_time(self) -> float:
        """Return the processor time of this thread, without that of looking at others."""
        return self._clocks.thread() - self._looking_seconds

    @contextmanager
    def _exclude_own_time(self) -> Iterator[None]:
        begin, before = self._clocks.thread(), self._looking_seconds
        try:
            yield
        finally:
            self._looking_seconds = before + self._clocks.thread() - begin

    def known_processor_time(self) -> float:
        """Return the processor time of threads of this process that ran before."""
        mine = str(os.getpid())
        loads = {place: _read_load(place) for place in self._known if mine in place.parts}
        # What a thread had used stays part of the sum when it ends.
        alive = {place: load.seconds for place, load in loads.items() if load.state != "X"}
        self._of_known |= alive
        return sum(self._of_known.values())


def _work_between(before: dict[Path, _Load], after: dict[Path, _Load]) -> float:
    """Return the processor time between two looks."""
    idle = _Load("S", 0.0)
    return sum(load.seconds - before.get(place, idle).seconds for place, load in after.items())


def _read_load(task: Path) -> _Load:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        return _Load(state, int((task / "schedstat").read_text().split()[0]) / 1e9)
    except (OSError, IndexError, ValueError):  # it has ended
        return _Load("X", 0.0)


def _read_delay() -> float:
    """Return the seconds that this thread has waited for a processor; 0 where that is unknown."""
    try:
        return int((_PROC / "thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _list_threads() -> list[Path]:
    """Return the threads of this process but this one, and those of its child processes."""
    here = threading.get_native_id()
    tasks = [
        *_list_tasks(str(os.getpid())),
        *(task for pid in _list_children() for task in _list_tasks(pid)),
    ]
    return [task for task in tasks if task.name != str(here)]


def _list_tasks(pid: str) -> list[Path]:
    try:
        return [*(_PROC / pid / "task").iterdir()]
    except OSError:  # the process has ended, or this is not Linux
        return []


def _list_children(parent: str = "") -> list[str]:
    """Return the ids of the processes below one; without a number, below this one."""
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
    """Seconds by the clock, and of the processor, of this process and its children."""

    seconds: float = 0.0
    processor: float = 0.0

    def add(self, seconds: float, processor: float) -> None:
        """Add one call."""
        self.seconds += seconds
        self.processor += processor

    @property
    def n_processors(self) -> float:
        """Processors that were busy on average."""
        return self.processor / self.seconds if self.seconds else 0.0


@dataclass
class RequestClock:
    """Times requests to their end, and takes note of what a model leaves behind.

    A request ends when the model has answered `rows`, has computed its digest, and when no thread
    or process that was started since works any more. What an answer and a digest take on a model
    with nothing left to do is measured right afterwards, and is not part of the request.

    Attributes
    ----------
    n_requests, n_busy : int
        Requests that were timed, and those that left threads or processes working.
    n_idle : int
        Most threads and processes that a request left alive but idle.
    has_given_up : bool
        Something worked on for longer than the limit; it was then not waited for again.
    has_digest, is_repeatable : bool
        Every model had a digest; every model gave the same answers when asked twice.
    usual_seconds : float
        Most that an answer and a digest took after a fit. Work put off that is short beside them
        cannot be told from noise.
    late_seconds : float
        What models had put off beyond their answers and digests, found at the end of trials.
    slowest_fit, fastest_retrain : float
        Seconds on the processor, waits included, of fits and of retrains of the same algorithm.
    known_seconds : float
        Processor time, during requests, of threads that ran before.
    requests, retrains : Totals
        Time and processor time of all requests, answers and digests included, and of all retrains.
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
        """Take note of what runs already."""
        self._background = _Background(self._clocks)

    @property
    def work_resolution(self) -> float:
        """Seconds of work put off, for each request, that may not be seen."""
        return _SLOWDOWN * (1 + _NOISE_SHARE) * self.usual_seconds

    @property
    def wait_resolution(self) -> float:
        """Seconds of waiting, without work, for each request that may not be seen."""
        return _SLOWDOWN * (1 + _LONG_WAIT) * self.usual_seconds

    @property
    def sees_processes(self) -> bool:
        """Whether this system tells about child processes."""
        return _PROC.exists()

    def time_fit(self, model: Any, fit: Callable[[], Any]) -> RequestTiming:
        """Fit a model, and measure what an answer and a digest take now; return its times."""
        loads, processor = self._background.read_loads(), self._background.processor_time()
        begin, delay = self._clocks.now(), _read_delay()
        fit()
        returned = seconds = self._clocks.now() - begin
        delay = _read_delay() - delay
        first = self._time_use(model)
        seconds += self._wait_for_background(loads)
        processor = self._background.processor_time() - processor
        self._usual = _median_use([self._time_use(model) for _ in range(3)])
        seconds += first.deferred_seconds(self._usual)
        self.slowest_fit = max(self.slowest_fit, seconds - delay)
        self.usual_seconds = max(self.usual_seconds, self._usual.seconds)
        self._most_seconds = max(_LEAST_WAIT_SECONDS, 3 * seconds)
        return RequestTiming(returned, seconds, max(processor - self._usual.processor, 0.0))

    def time_request(self, model: Any, request: Callable[[], Any]) -> tuple[Any, RequestTiming]:
        """Serve a request; return its receipt and its times."""
        now, loads = self._clocks.now, self._background.read_loads()
        known = self._background.known_processor_time()
        processor, begin = self._background.processor_time(), now()
        receipt = request()
        returned = now() - begin
        finish_requests(model)
        settled, others = now() - begin, self._background.other_processor_time()
        meanwhile = self._background.other_processor_time() - others
        first = self._time_use(model)
        elapsed = now() - begin
        waited = self._wait_for_background(loads, others + self._usual.others)
        processor = self._background.processor_time() - processor
        self.requests.add(now() - begin, processor)
        self.known_seconds += self._background.known_processor_time() - known
        again = self._time_use(model)
        # What threads from before use cannot be taken off exactly.
        is_clear = self.known_seconds < _NOISE_OF_KNOWN * self.requests.processor
        is_helped = meanwhile >= LEAST_LATE_SECONDS or _is_helped(first, again)
        is_busy = waited > 0 or (is_clear and is_helped)
        self.n_requests += 1
        self.n_busy += is_busy
        self.n_idle = max(self.n_idle, self._background.count_alive())
        self.is_repeatable &= all(map(np.array_equal, first.answers, again.answers))
        # What works on in the background does so during the first answer, too, which then counts.
        complete = (
            elapsed + waited
            if is_busy
            else settled + first.deferred_seconds(self._idle_use(model, again))
        )
        complete += again.deferred_seconds(first.at_least(self._usual, _SLOWDOWN))
        return receipt, RequestTiming(returned, complete, max(processor - again.processor, 0.0))

    def find_late_work(self, model: Any, fresh: Any, *rows: tuple[Any, Any]) -> float:
        """Ask a model in all other ways, twice; return what it had put off until the first time.

        Parameters
        ----------
        model : estimator
            As it is after the last request.
        fresh : estimator
            A fresh fit, asked before: what is slow the first time in a process does not count.
        *rows : (X, y)
            Other rows than those it has answered.
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
        """Wait until nothing that was started so far works on."""
        self._wait_for_background({})

    def time_retrain(self, train: Callable[[], Any], is_same: bool) -> tuple[Any, float]:
        """Train a baseline; what it leaves working is waited for off the clock.

        `is_same`: it is the same algorithm as that of the fits.
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
            answers = [getattr(model, way)(self.rows) for way in _ANSWERS if hasattr(model, way)]
            if digest is not None:
                digest()
            return answers

        return self._time_call(ask_all)

    def _time_call(self, ask_all: Callable[[], Any]) -> _ModelUse:
        """Ask a model something; return the times and the answers."""
        processor, own = self._background.processor_time(), self._background.own_processor_time()
        delay, begin = _read_delay(), self._clocks.now()
        answers = ask_all()
        elapsed, delay = self._clocks.now() - begin, _read_delay() - delay
        own = self._background.own_processor_time() - own
        processor = self._background.processor_time() - processor
        return _ModelUse(max(elapsed - delay, 0.0), processor, elapsed, processor - own, answers)

    def _idle_use(self, model: Any, again: _ModelUse) -> _ModelUse:
        """Return what an answer and a digest take on a model with nothing left to do."""
        early = self._usual
        if again.seconds * _SLOW_AFTER_FIT < early.seconds:
            return _median_use([again, self._time_use(model), self._time_use(model)])
        # A model that is slow on purpose when it is asked again would hide what it put off.
        pairs = zip(again[:2], early[:2], strict=True)
        return _ModelUse(*(min(max(late, first), _SLOWDOWN * first) for late, first in pairs))

    def _wait_for_background(self, loads: dict[Path, _Load], used: float | None = None) -> float:
        """Wait until nothing works on; return the seconds until it was seen working last."""
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
    """Ask a model in all ways, and pickle it; what it cannot do is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for X, y in rows:
            for way in (*_ANSWERS, "predict_log_proba"):
                with suppress(Exception):
                    getattr(model, way)(X)
            with suppress(Exception):
                model.score(X, y)
        with suppress(Exception):
            pickle.dumps(model)
