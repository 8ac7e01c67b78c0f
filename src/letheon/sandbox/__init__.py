"""Run a function in a restricted child process, for untrusted models.

A model from an untrusted source is data, but fitting it runs a computation that its sender chose.
This computation runs in a child process without the keys, database and environment of the caller.
The process can read only the files of the Python installation. It cannot write files, open
connections, start processes or send signals, and it is killed when it exceeds its memory or time
limit.
"""

from letheon.sandbox._caller import (
    EndedError,
    SandboxError,
    StoppedError,
    TimeLimitError,
    call,
    modules_of,
    probe,
    protection,
)
from letheon.sandbox._child import error_code, is_inside
from letheon.sandbox._kernel import Limits, Protection

__all__ = [
    "EndedError",
    "Limits",
    "Protection",
    "SandboxError",
    "StoppedError",
    "TimeLimitError",
    "call",
    "error_code",
    "is_inside",
    "modules_of",
    "probe",
    "protection",
]
