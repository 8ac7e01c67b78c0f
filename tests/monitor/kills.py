"""Kill a process at every step of a commit: run as a script, with the folder of a monitor.

``kills.py FOLDER OUT STEP...``: for each step one copy of FOLDER, in OUT, and one forked child that
forgets in it and dies of SIGKILL at that system call. The parent has a single thread.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from letheon.monitor import Monitor
from letheon.monitor._store import Folder
from tests.monitor.drifters import Keeper

PERSON = 7
CALLS = ("open", "write", "fsync", "replace", "unlink", "rename")


def die_at(step: int) -> None:
    """Make the process kill itself at the given call that changes something on the disk."""
    count = [0]

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return wrapped

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))


def main(source: Path, out: Path, steps: list[int]) -> None:
    """Kill one child at each step; write how each of them ended."""
    warm_up = Monitor.load(source, trusted=[Keeper])
    # Imports that a first request needs, once instead of in every child.
    warm_up._folder = None
    warm_up.forget([PERSON])
    monitor, ends = Monitor.load(source, trusted=[Keeper]), []
    for step in steps:
        folder = out / f"{step:03d}"
        shutil.copytree(source, folder)
        child = os.fork()
        if child == 0:
            place = Folder(folder)
            place.read()
            monitor._folder = place
            die_at(step)
            monitor.forget([PERSON])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ends.append(os.waitstatus_to_exitcode(status))
    (out / "ends.txt").write_text(" ".join(map(str, ends)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(step) for step in sys.argv[3:]])
