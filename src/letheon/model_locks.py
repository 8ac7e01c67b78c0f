"""State of models outside the objects: locks, and which parameters were compared with the fit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from inspect import signature
from itertools import chain
from operator import attrgetter, call, is_
from typing import Any
from weakref import WeakKeyDictionary

from letheon import state

# Parameters that never change what a model learns, at any level of nesting.
NEUTRAL_PARAMETERS = state.NEUTRAL_PARAMETERS | {"random_state"}

# Values of these types are immutable.
_CONSTANTS = frozenset({type(None), bool, int, float, str})
NEVER = object()


@cache
def get_parameter_names(kind: type) -> frozenset[str] | None:
    """Return the parameters of an estimator that affect its result; None for any other class."""
    if not hasattr(kind, "get_params"):
        return None
    names = signature(kind).parameters.keys()
    neutral = NEUTRAL_PARAMETERS | getattr(kind, "_neutral_parameters", frozenset())
    return frozenset(names) - neutral


class ParameterReads:
    """Parameters of a model and of every estimator and list in them, and how to read them again.

    All of them are compared in one pass, because every request does it. The model itself is not
    stored: a reference would keep it alive.
    """

    def __init__(self, model: object) -> None:
        self._readers: list[Callable[[Any], tuple[Any, ...]]] = []
        self._owners: list[Any] = []
        self._values: list[Any] = []
        self._lists: list[list[Any]] = []
        self.is_complete = self._add(model)
        self._sizes = list(map(len, self._lists))
        if self.is_complete:
            self._read_model = self._readers.pop(0)
            del self._owners[0]

    def _add(self, value: Any) -> bool:
        """Record a value and its parts; return whether none of them can change unnoticed."""
        kind = type(value)
        if kind in _CONSTANTS:
            return True
        if kind is list or kind is tuple:
            parts = tuple(value)
            if kind is list:
                self._lists.append(value)
                self._record(tuple, value, parts)
        else:
            names = get_parameter_names(kind)  # type: ignore[arg-type]
            if names is None or not names <= getattr(value, "__dict__", {}).keys():
                return False
            read = attrgetter("__class__", "__module__", *names)  # two or more give a tuple
            values = read(value)
            self._record(read, value, values)
            parts = values[2:]
        return all(map(self._add, parts))

    def _record(self, read: Any, owner: Any, values: tuple[Any, ...]) -> None:
        self._readers.append(read)
        self._owners.append(owner)
        self._values += values

    def are_same(self, model: object) -> bool:
        """Return whether all values are still the same objects."""
        now = chain.from_iterable(map(call, self._readers, self._owners))
        return list(map(len, self._lists)) == self._sizes and all(
            map(is_, chain(self._read_model(model), now), self._values)
        )


class _RuntimeState:
    """State of a model outside the object, so that it is never copied, pickled or saved."""

    __slots__ = ("is_changing", "lock", "reads", "recorded")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_changing = False
        # Parameters at the last successful comparison with those of the fit. While they are
        # the same objects, they need not be hashed again.
        self.recorded: Any = NEVER
        self.reads: ParameterReads | None = None


_runtime_states: WeakKeyDictionary[object, _RuntimeState] = WeakKeyDictionary()
_runtime_states_lock = threading.Lock()


def get_runtime_state(model: object) -> _RuntimeState:
    """Return the state of a model outside the object."""
    runtime = _runtime_states.get(model)
    if runtime is None:
        with _runtime_states_lock:
            runtime = _runtime_states.setdefault(model, _RuntimeState())
    return runtime


def lock_model(model: object) -> AbstractContextManager[Any]:
    """Return the lock of a model, for a ``with`` statement; only one change runs at a time.

    Parameters
    ----------
    model : estimator
        The model to lock.

    Returns
    -------
    context manager
        A reentrant lock; the same one for each call.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.base import lock_model
    >>> model = NearestCentroid()
    >>> with lock_model(model):
    ...     _ = model.fit([[0.0], [1.0]], ["a", "b"])
    """
    return get_runtime_state(model).lock


@contextmanager
def lock_for_change(model: object) -> Iterator[None]:
    """Hold the lock of a model for a change; raise if a change is under way in this thread.

    The lock is reentrant, so that a callback may predict. Nested changes are rejected, because the
    commit of the outer change would undo the inner one.

    Parameters
    ----------
    model : estimator
        The model to change.

    Raises
    ------
    RuntimeError
        Another change to this model is in progress in this thread.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.base import lock_for_change
    >>> model = NearestCentroid()
    >>> with lock_for_change(model), lock_for_change(model):
    ...     pass
    Traceback (most recent call last):
    ...
    RuntimeError: ...
    """
    runtime = get_runtime_state(model)
    with runtime.lock:
        if runtime.is_changing:
            raise RuntimeError(
                f"fit, forget or learn of this {type(model).__name__} was called while another "
                "change was in progress, perhaps in a callback; nothing was changed. Call it after "
                "that change."
            )
        runtime.is_changing = True
        try:
            yield
        finally:
            runtime.is_changing = False


def note_verified(model: object, recorded: Any) -> None:
    """Cache that the current parameters match those of the fit, if all are immutable.

    Later requests then compare the values instead of hashing them.
    """
    reads = ParameterReads(model)
    if reads.is_complete:
        runtime = get_runtime_state(model)
        runtime.reads, runtime.recorded = reads, recorded
