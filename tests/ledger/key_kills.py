"""Kill a process at every step of the operations on keys: ``key_kills.py SOURCES OUT``.

SOURCES holds one folder per action. For each of its steps there is one copy of that folder, in
OUT, and one forked child that acts in it and dies of SIGKILL at that system call, until one child
lives to the end. The parent has a single thread.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from letheon.ledger.keys import keyring
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.keys.signing import Signer

CALLS = ("open", "write", "fsync", "replace", "unlink", "rename", "mkdir")
LEDGER = "prod-eu-1"


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


def create(home: Path) -> None:
    KeyRing.create(home)


def new_key(home: Path) -> None:
    KeyRing(home).new_key("epoch")


def destroy(home: Path) -> None:
    ring = KeyRing(home)
    ring.destroy(ring.list_ids("epoch")[0])


def rotate(home: Path) -> None:
    KeyRing(home).rotate(LEDGER, 3)


def revoke(home: Path) -> None:
    ring = KeyRing(home)
    ring.revoke(LEDGER, next(iter(ring.trust().keys)), 2)


def rotate_carelessly(home: Path) -> None:
    """Publish the new key before its private part is on the disk: a planted bug."""
    ring, seed = KeyRing(home), bytes(range(32))
    keyring._make_signer = lambda files: Signer.from_seed(seed)
    ring.rotate(LEDGER, 3)
    ring._files.write(f"sign-{Signer.from_seed(seed).keyid}", seed)


def rotate_in_place(home: Path) -> None:
    """Write the file that names the current key before the statement: a planted bug."""
    ring = KeyRing(home)
    new = keyring._make_signer(ring._files)
    keyring._write_line(ring._current_file, new.keyid)
    keyring._make_signer = lambda files: new
    keyring.destroy_file = lambda path: None  # type: ignore[attr-defined]
    ring.rotate(LEDGER, 3)


ACTIONS = {
    action.__name__: action
    for action in (create, new_key, destroy, rotate, revoke, rotate_carelessly, rotate_in_place)
}


def act(action: str, folder: Path, step: int) -> int:
    """Fork a child that acts and dies at the step; return how it ended."""
    child = os.fork()
    if child == 0:
        die_at(step)
        ACTIONS[action](folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def kill_at_every_step(action: str, source: Path, out: Path) -> None:
    """Kill one child at each step, until one is through."""
    for step in range(1, 200):
        folder = out / f"{step:03d}"
        shutil.copytree(source, folder)
        end = act(action, folder, step)
        if end != -signal.SIGKILL:
            break
    if end != 0:
        sys.exit(f"{action} failed at step {step}: {end}")


if __name__ == "__main__":
    for place in sorted(Path(sys.argv[1]).iterdir()):
        kill_at_every_step(place.name, place, Path(sys.argv[2]) / place.name)
