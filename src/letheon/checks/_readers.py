"""The check that a concurrent reader never sees a mixture of two models."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from letheon.checks._people import answers, fit, make_people

_PATIENCE_S = 0.5
_MOST_READINGS = 500
_DEPTH = 3


def check_predict_while_forgetting(estimator: Any) -> None:
    """A concurrent reader sees the model before or after a request, never a mixture.

    One reader asks as often as it can; another asks after every line that a method of the model
    runs, and whenever an attribute of the model was replaced.
    """
    people = make_people(estimator)
    for watch in (_often, _after_every_line):
        model = fit(estimator, people)
        before = answers(model, people.X)
        with watch(partial(answers, model, people.X), model) as seen:
            model.forget(people.names[:1])
        allowed = [before, answers(model, people.X)]
        failed = [said for said in seen if isinstance(said, Exception)]
        assert not failed, f"a concurrent reader failed {len(failed)} time(s): {failed[0]!r}"
        mixed = [said for said in seen if not any(np.array_equal(said, fine) for fine in allowed)]
        assert not mixed, f"{len(mixed)} of {len(seen)} answers were of neither model"


Ask = Callable[[], Any]


def _try(ask: Ask) -> Any:
    """Return the answer, or the error instead of it."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  (whatever it is, the check reports it)
        return error


@contextmanager
def _often(ask: Ask, _: Any) -> Iterator[list[Any]]:
    """Ask again and again in another thread, with threads that change places often."""
    seen: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set() and len(seen) < _MOST_READINGS:
            seen.append(_try(ask))

    reader, interval = threading.Thread(target=read), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)


@contextmanager
def _after_every_line(ask: Ask, model: Any) -> Iterator[list[Any]]:
    """Stop the forgetting thread after every line of the model's own and let another one ask."""
    previous = sys.gettrace()
    with ThreadPoolExecutor(1) as pool:
        stops = _Stops(model, lambda: pool.submit(_try, ask))
        sys.settrace(stops.on_call)
        try:
            yield stops.seen
        finally:
            sys.settrace(previous)
    stops.collect()


class _Stops:
    """A trace function; it runs in the forgetting thread, between two of its lines."""

    def __init__(self, model: Any, ask: Callable[[], "Future[Any]"]) -> None:
        self.seen: list[Any] = []
        self._model = model
        self._ask = ask
        self._waiting: Future[Any] | None = None
        self._readings = {True: 0, False: 0}
        self._parts = self._identity()

    def on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """Follow methods of the model, and what a commit calls."""
        if not (self._is_method(frame) or self._in_commit(frame)):
            return None
        frame.f_trace_opcodes = True  # `self.a, self.b = a, b` is one line and two steps
        return self._on_step

    def collect(self) -> None:
        """Take the answer of a reader that waited for the forgetting to end."""
        if self._waiting is not None:
            self.seen.append(self._waiting.result())

    def _on_step(self, frame: FrameType, event: str, _arg: Any) -> Any:
        parts = self._identity()
        if event != "opcode" or parts != self._parts:
            self._parts = parts
            self._read(self._in_commit(frame))
        return self._on_step

    def _read(self, in_commit: bool) -> None:
        # Counted apart, so that a long preparation leaves enough for the commit.
        if self._waiting is not None or self._readings[in_commit] >= _MOST_READINGS:
            return
        self._readings[in_commit] += 1
        asked = self._ask()
        try:
            self.seen.append(asked.result(timeout=_PATIENCE_S))
        except StillWaiting:  # the reader waits for the model's lock, as it may
            self._waiting = asked

    def _identity(self) -> list[int]:
        """Which objects are the attributes of the model, and theirs."""
        own = list(vars(self._model).values())
        theirs = [part for value in own for part in getattr(value, "__dict__", {}).values()]
        return [id(part) for part in (*own, *theirs)]

    def _is_method(self, frame: FrameType) -> bool:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        return bool(names) and frame.f_locals.get(names[0]) is self._model

    @staticmethod
    def _in_commit(frame: FrameType) -> bool:
        caller: FrameType | None = frame
        for _ in range(_DEPTH + 1):
            if caller is None:
                return False
            if caller.f_code.co_name == "_commit":
                return True
            caller = caller.f_back
        return False
