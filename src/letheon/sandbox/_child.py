"""What a child does: hear what is to be done, give up its rights, do it, and tell.

What it hears comes from its own caller. What it tells is plain data in canonical bytes, so that a
model that took the child over can send the caller nothing but values.
"""

import contextlib
import os
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import joblib

from letheon import state
from letheon.sandbox._kernel import Limits, restrict

__all__ = [
    "FAILURE",
    "HEADER",
    "MESSAGE",
    "PROTECTION",
    "RESULT",
    "Order",
    "Surroundings",
    "error_code",
    "serve_call",
]

Tell = Callable[[Any], None]
Work = Callable[[Any, Tell], Any]

MESSAGE, RESULT, FAILURE, PROTECTION = b"m", b"r", b"f", b"p"
# Kind and length of what follows: one value in canonical bytes.
HEADER = struct.Struct("<cQ")


@dataclass(frozen=True)
class Order:
    """One call: what to do, what it is given, what it may use."""

    work: Work
    argument: Any
    limits: Limits
    is_restricted: bool
    modules: tuple[str, ...]
    landlock: bool
    surroundings: "Surroundings | None" = None


@dataclass(frozen=True)
class Surroundings:
    """What an unrestricted call shares with its caller: environment and working directory."""

    environment: dict[str, str]
    folder: str

    def enter(self) -> None:
        """Work where the caller works."""
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


def error_code(error: BaseException) -> str:
    """Return the kind of an error as a code: its text may hold ids, or values of rows."""
    name = type(error).__name__
    spaced = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return re.sub("[^a-z0-9-]", "", spaced).strip("-")[:60] or "error"


def serve_call(connection: Connection) -> None:
    """Do what the caller at the other end asks for, and tell how it went."""

    def send(kind: bytes, value: Any) -> None:
        data = state.encode(value)
        _write_all(connection.fileno(), HEADER.pack(kind, len(data)))
        _write_all(connection.fileno(), data)

    try:
        sys.path[:] = connection.recv()
        order: Order = connection.recv()
        if order.surroundings is not None:
            order.surroundings.enter()
        for name in order.modules:
            # What is missing is told when the model is built.
            with contextlib.suppress(ImportError):
                import_module(name)
        result = _do(order, send)
    except MemoryError:
        send(FAILURE, "memory-limit")
    except Exception as error:  # noqa: BLE001  (whatever it is, the caller hears of its kind)
        send(FAILURE, error_code(error))
    else:
        send(RESULT, result)


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(number, rest) :]


def _do(order: Order, send: Callable[[bytes, Any], None]) -> Any:
    def tell(value: Any) -> None:
        send(MESSAGE, value)

    if not order.is_restricted:
        return order.work(order.argument, tell)
    protection = restrict(order.limits, landlock=order.landlock)
    send(PROTECTION, {"files": protection.files, "calls": protection.calls})
    # One process: whatever `n_jobs` says, joblib does the tasks one after the other.
    with joblib.parallel_config(backend="sequential"):
        return order.work(order.argument, tell)
