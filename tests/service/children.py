"""What processes of their own do in tests; it imports little, so that they start quickly."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

Tell = Callable[[Any], None]


def dies(tell: Tell, _: Any) -> None:
    tell("once")
    os.kill(os.getpid(), signal.SIGKILL)


def raises(tell: Tell, _: Any) -> None:
    tell("once")
    raise ValueError("alice@example.org")


def sleeps(tell: Tell, _: Any) -> None:
    tell(os.getpid())
    time.sleep(60)
