"""The clock of a request: until the model answers, has a digest, and nothing works on."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["RequestClock", "Timing", "finish", "now"]

# A repeated prediction and digest may take so many times what they took after the fit.
_SLOWDOWN = 1.5
# What the first prediction and digest take beyond the repeated ones is work put off if it is more
# than this share of their processor time, or (a wait) than so many times their time. Less is noise.
_NOISE_SHARE = 0.25
_LONG_WAIT = 3.0
_STEP_SECONDS = 0.01
_QUIET_SECONDS = 0.05
# Share of a step that a thread or process which is called busy uses at least.
_BUSY_SHARE = 0.2
_LEAST_WORK_SECONDS = 1e-3
_LEAST_WAIT_SECONDS = 10.0
_PROC = Path("/proc")


def now() -> float:
    """Return the time of the clock that everything is timed by."""
    return time.perf_counter()


class Timing(NamedTuple):
    """Seconds until a call returned, until it was complete, and of the processor."""

    returned: float
    complete: float
    processor: float


class _Use(NamedTuple):
    """One prediction (labels and probabilities) and one digest: their times, and the answers.

    `seconds` are without those in which other processes had the processor.
    """

    seconds: float
    processor: float
    answers: Any = None

    def put_off(self, usual: "_Use") -> float:
        """Return the seconds beyond the usual ones, if they are more than noise."""
        excess = max(self.seconds - usual.seconds, 0.0)
        is_work = self.processor > (1 + _NOISE_SHARE) * usual.processor
        return excess if is_work or excess > _LONG_WAIT * usual.seconds else 0.0


def finish(model: Any) -> None:
    """Let a model do what its requests left for later; see `ForgetMixin._finish`."""
    later = getattr(model, "_finish", None)
    if later is not None:
        later()


class _Load(NamedTuple):
    """State (R: it runs or waits for a processor) and processor time of a thread."""

    state: str
    seconds: float


class _Background:
    """Threads and child processes that were started after this object was made."""

    def __init__(self) -> None:
        self._threads = frozenset(threading.enumerate())
        self._known = frozenset(_places())
        self._children = frozenset(_children())

    def alive(self) -> int:
        """Return how many new Python threads and child processes there are."""
        threads = set(threading.enumerate()) - self._threads - {threading.current_thread()}
        return len(threads) + len(set(_children()) - self._children)

    def loads(self) -> dict[Path, _Load]:
        """Return what each new thread is doing, those of child processes included."""
        if not _PROC.exists():  # other threads can be told from this one, but not from each other
            return {_PROC: _Load("S", time.process_time() - time.thread_time())}
        return {place: _load(place) for place in _places() if place not in self._known}

    def wait(self, before: dict[Path, _Load], most_seconds: float) -> tuple[float, bool]:
        """Wait until what is new has ended or is idle.

        Parameters
        ----------
        before : dict
            `loads` at the begin of what may have left work behind.
        most_seconds : float
            How long to wait at most.

        Returns
        -------
        float
            Seconds until something was seen working last; 0 if nothing was.
        bool
            Whether it still worked after `most_seconds`.
        """
        start = since = time.monotonic()
        loads, seconds = self.loads(), 0.0
        if not self.alive() and _work(before, loads) < _LEAST_WORK_SECONDS:
            return 0.0, False
        while time.monotonic() - since < _QUIET_SECONDS:
            if time.monotonic() - start > most_seconds:
                return time.monotonic() - start, True
            begin = time.monotonic()
            time.sleep(_STEP_SECONDS)
            earlier, loads = loads, self.loads()
            is_busy = any(load.state == "R" for load in loads.values()) or earlier.keys() - loads
            if is_busy or _work(earlier, loads) > _BUSY_SHARE * (time.monotonic() - begin):
                since = time.monotonic()
                seconds = since - start
            if not loads:
                break
        return seconds, False

    def processor(self) -> float:
        """Return the processor time of this process and its children, ended ones included."""
        ended, mine = os.times(), str(os.getpid())
        alive = [load for place, load in self.loads().items() if mine not in place.parts]
        children = ended.children_user + ended.children_system
        return time.process_time() + children + sum(load.seconds for load in alive)


def _work(before: dict[Path, _Load], after: dict[Path, _Load]) -> float:
    """Return the processor time between two looks."""
    idle = _Load("S", 0.0)
    return sum(load.seconds - before.get(place, idle).seconds for place, load in after.items())


def _load(task: Path) -> _Load:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        return _Load(state, int((task / "schedstat").read_text().split()[0]) / 1e9)
    except (OSError, IndexError, ValueError):  # it has ended
        return _Load("X", 0.0)


def _delay() -> float:
    """Return the seconds that this thread has waited for a processor; 0 where that is unknown."""
    try:
        return int((_PROC / "thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _places() -> list[Path]:
    """Return the threads of this process but this one, and those of its child processes."""
    here = threading.get_native_id()
    tasks = [*_tasks(str(os.getpid())), *(task for pid in _children() for task in _tasks(pid))]
    return [task for task in tasks if task.name != str(here)]


def _tasks(pid: str) -> list[Path]:
    try:
        return [*(_PROC / pid / "task").iterdir()]
    except OSError:  # the process has ended, or this is not Linux
        return []


def _children(parent: str = "") -> list[str]:
    """Return the ids of the processes below one; without a number, below this one."""
    found: list[str] = []
    for task in _tasks(parent or str(os.getpid())):
        try:
            direct = (task / "children").read_text().split()
        except OSError:
            continue
        for child in direct:
            found += [child, *_children(child)]
    return found


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
    resolution : float
        Seconds put off that cannot be told from noise.
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
    resolution: float = 0.0
    requests: Totals = field(default_factory=Totals)
    retrains: Totals = field(default_factory=Totals)
    _background: _Background = field(default_factory=_Background, repr=False)
    _usual: _Use = field(default_factory=lambda: _Use(0.0, 0.0), repr=False)
    _most_seconds: float = field(default_factory=lambda: _LEAST_WAIT_SECONDS, repr=False)

    @property
    def sees_processes(self) -> bool:
        """Whether this system tells about child processes."""
        return _PROC.exists()

    def time_fit(self, model: Any, fit: Callable[[], Any]) -> Timing:
        """Fit a model, and measure what an answer and a digest take now; return its times."""
        loads, processor = self._background.loads(), self._background.processor()
        begin = now()
        fit()
        returned = seconds = now() - begin
        first = self._use(model)
        seconds += self._wait(loads)
        processor = self._background.processor() - processor
        uses = [self._use(model) for _ in range(3)]
        self._usual = _Use(*(float(np.median(part)) for part in list(zip(*uses, strict=True))[:2]))
        seconds += first.put_off(self._usual)
        self.resolution = max(self.resolution, _NOISE_SHARE * self._usual.seconds)
        self._most_seconds = max(_LEAST_WAIT_SECONDS, 3 * seconds)
        return Timing(returned, seconds, max(processor - self._usual.processor, 0.0))

    def time_request(self, model: Any, request: Callable[[], Any]) -> tuple[Any, Timing]:
        """Serve a request; return its receipt and its times."""
        loads, processor = self._background.loads(), self._background.processor()
        own, begin = time.thread_time(), now()
        receipt = request()
        returned = now() - begin
        finish(model)
        settled = now() - begin
        first = self._use(model)
        elapsed, others = now() - begin, self._background.processor() - processor
        others -= time.thread_time() - own
        waited = self._wait(loads)
        is_busy = waited > 0 or others > max(_BUSY_SHARE * elapsed, _LEAST_WORK_SECONDS)
        processor = self._background.processor() - processor
        self.requests.add(now() - begin, processor)
        again = self._use(model)
        self.n_requests += 1
        self.n_busy += is_busy
        self.n_idle = max(self.n_idle, self._background.alive())
        self.is_repeatable &= all(map(np.array_equal, first.answers, again.answers))
        # A model that is slow on purpose when it is asked again would hide what it put off.
        usual = _Use(
            *(
                min(max(late, early), _SLOWDOWN * early)
                for late, early in zip(again[:2], self._usual[:2], strict=True)
            )
        )
        # What works on in the background does so during the first answer, too, which then counts.
        complete = elapsed + waited if is_busy else settled + first.put_off(usual)
        return receipt, Timing(returned, complete, max(processor - again.processor, 0.0))

    def wait(self) -> None:
        """Wait until nothing that was started so far works on."""
        self._wait({})

    def time_retrain(self, train: Callable[[], Any]) -> tuple[Any, float]:
        """Train a baseline; what it leaves working is waited for off the clock."""
        loads, processor = self._background.loads(), self._background.processor()
        begin = now()
        model = train()
        seconds = now() - begin
        self.retrains.add(seconds, self._background.processor() - processor)
        self._wait(loads)
        return model, seconds

    def _use(self, model: Any) -> _Use:
        processor, delay, begin = self._background.processor(), _delay(), now()
        answers = [model.predict(self.rows)]
        if hasattr(model, "predict_proba"):
            answers.append(model.predict_proba(self.rows))
        digest = getattr(model, "digest", None)
        if digest is not None:
            digest()
        self.has_digest &= digest is not None
        seconds = max(now() - begin - (_delay() - delay), 0.0)
        return _Use(seconds, self._background.processor() - processor, answers)

    def _wait(self, loads: dict[Path, _Load]) -> float:
        """Wait until nothing works on; return the seconds until it was seen working last."""
        if self.has_given_up:
            return 0.0
        seconds, self.has_given_up = self._background.wait(loads, self._most_seconds)
        return seconds
