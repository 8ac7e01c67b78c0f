"""Group commit: what several threads want written at once shares one transaction.

A disk confirms a few hundred to a few thousand commits a second, whatever they hold. The first
thread writes for all that wait; those that come meanwhile wait for the next round.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["GroupCommit"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Ticket(Generic[_Item, _Result]):
    """One thread's item, and what became of it."""

    def __init__(self, item: _Item) -> None:
        self.item = item
        self.result: _Result | BaseException | None = None
        self.is_leader = False
        self.called = threading.Event()


class GroupCommit(Generic[_Item, _Result]):
    """Collects items of many threads and writes them together.

    Parameters
    ----------
    write : callable
        Takes a list of items, writes them in one transaction, and returns for each its result or
        the error that concerns it alone. What it raises concerns all of them.
    largest : int, default=256
        Most items of one transaction.
    """

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Result | Exception]],
        *,
        largest: int = 256,
    ) -> None:
        self._write = write
        self._largest = largest
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[_Item, _Result]] = []
        self._is_busy = False

    def submit(self, item: _Item) -> _Result:
        """Write one item, alone or with others; returns when it is durable."""
        ticket = _Ticket[_Item, _Result](item)
        with self._lock:
            self._waiting.append(ticket)
            ticket.is_leader = not self._is_busy
            self._is_busy = True
        if not ticket.is_leader:
            ticket.called.wait()
        if ticket.is_leader:
            self._lead()
        if isinstance(ticket.result, BaseException):
            raise ticket.result
        return ticket.result  # type: ignore[return-value]  # set by the leader, None or not

    def _lead(self) -> None:
        """Write what waits, one round, and hand the lead to the next thread."""
        with self._lock:
            round_, self._waiting = (
                self._waiting[: self._largest],
                self._waiting[self._largest :],
            )
        try:
            self._settle(round_)
        finally:
            with self._lock:
                heir = self._waiting[0] if self._waiting else None
                self._is_busy = heir is not None
            if heir is not None:
                heir.is_leader = True
                heir.called.set()
            for ticket in round_:
                ticket.called.set()

    def _settle(self, round_: list[_Ticket[_Item, _Result]]) -> None:
        try:
            results = self._write([ticket.item for ticket in round_])
        except Exception as error:  # noqa: BLE001  (each thread raises it itself)
            if len(round_) > 1:  # one of them may be the cause: no other suffers for it
                for ticket in round_:
                    self._settle([ticket])
                return
            results = [error]
        except BaseException as error:
            for ticket in round_:
                ticket.result = error
            raise
        for ticket, result in zip(round_, results, strict=True):
            ticket.result = result
