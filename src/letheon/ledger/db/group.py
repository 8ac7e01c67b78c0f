"""Group commit: what several threads want written at once shares one transaction.

A disk confirms a few hundred to a few thousand commits a second, whatever they hold. The first
thread writes for all that wait; those that come meanwhile wait for the next round.
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_groups: "weakref.WeakSet[GroupCommit[Any, Any]]" = weakref.WeakSet()


def _start_anew() -> None:
    """Forget the threads of the parent process: none of them goes on in a child."""
    for group in list(_groups):
        group._forget_threads()


os.register_at_fork(after_in_child=_start_anew)


class _Ticket(Generic[_Item, _Result]):
    """One thread's item, and what became of it."""

    __slots__ = ("_call", "is_gone", "is_leader", "item", "result")

    def __init__(self, item: _Item) -> None:
        self.item = item
        self.result: _Result | Exception | None = None
        self.is_leader = False
        self.is_gone = False
        self._call = threading.Lock()  # a tenth of the price of an Event
        self._call.acquire()

    def wait(self) -> None:
        """Wait for the one call."""
        self._call.acquire()

    def call(self) -> None:
        """Wake the thread that waits."""
        self._call.release()


class GroupCommit(Generic[_Item, _Result]):
    """Collects items of many threads and writes them together.

    Parameters
    ----------
    write : callable
        Takes a list of items, writes them in one transaction, and returns for each its result or
        the error that concerns it alone. An item may come again, after an error or when the
        thread that wrote it was interrupted; then it must have one effect only.
    largest : int, default=256
        Most items of one transaction.
    for_all : tuple of exception classes, default=(OSError,)
        What `write` raises for reasons that no item is the cause of, such as a full disk: every
        thread of the round gets it. After any other error each item is written alone, so that
        one which cannot be written harms no other.
    """

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Result | Exception]],
        *,
        largest: int = 256,
        for_all: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._write = write
        self._largest = largest
        self._for_all = for_all
        self._is_busy = False
        self._forget_threads()
        _groups.add(self)

    def submit(self, item: _Item) -> _Result:
        """Write one item, alone or with others; returns when it is durable."""
        ticket = _Ticket[_Item, _Result](item)
        with self._lock:
            self._waiting.append(ticket)
            ticket.is_leader = not self._is_busy
            self._is_busy = True
        if not ticket.is_leader:
            self._wait(ticket)
        if ticket.is_leader:
            self._lead(ticket)
        if isinstance(ticket.result, Exception):
            raise ticket.result
        return ticket.result  # type: ignore[return-value]  # set by the leader, None or not

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[_Item, _Result]] = []
        self._is_busy = False

    def _wait(self, ticket: _Ticket[_Item, _Result]) -> None:
        """Wait for a result or for the lead; a thread that is interrupted leaves neither behind."""
        try:
            ticket.wait()
        except BaseException:
            with self._lock:
                ticket.is_gone = True
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                is_leader = ticket.is_leader
            if is_leader:
                self._pass_on()
            raise

    def _lead(self, own: _Ticket[_Item, _Result]) -> None:
        """Write what waits, one round, and hand the lead to the next thread."""
        with self._lock:
            round_ = self._waiting[: self._largest]
            del self._waiting[: self._largest]
        try:
            self._settle(round_)
        except BaseException:  # it is this thread that is to end, and nobody else
            with self._lock:
                others = [one for one in round_ if one is not own and not one.is_gone]
                self._waiting[:0] = others
            round_ = []
            raise
        finally:
            self._pass_on()
            for ticket in round_:
                if ticket is not own:
                    ticket.call()

    def _pass_on(self) -> None:
        with self._lock:
            heir = self._waiting[0] if self._waiting else None
            self._is_busy = heir is not None
            if heir is not None:
                heir.is_leader = True
        if heir is not None:
            heir.call()

    def _settle(self, round_: list[_Ticket[_Item, _Result]]) -> None:
        results: Sequence[_Result | Exception]
        try:
            results = self._write([ticket.item for ticket in round_])
        except self._for_all as error:
            results = [error] * len(round_)
        except Exception as error:  # noqa: BLE001  (each thread raises it itself)
            if len(round_) > 1:  # one of them may be the cause: no other suffers for it
                for ticket in round_:
                    self._settle([ticket])
                return
            results = [error]
        for ticket, result in zip(round_, results, strict=True):
            ticket.result = result
