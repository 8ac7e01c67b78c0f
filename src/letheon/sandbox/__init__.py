"""A function in a process of its own, which can reach nothing: for models from outside.

A model that came from elsewhere is data, but fitting it is a computation that its sender chose. It
runs in a child process that has no keys, no database and no environment of the caller; that can
read the Python installation and no other file, write nothing, open no connection, start no process
and signal none; and that is ended when it takes more memory or time than it was given.
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
from letheon.sandbox._child import error_code
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
    "modules_of",
    "probe",
    "protection",
]
