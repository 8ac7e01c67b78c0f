"""What sandboxed processes do in tests."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Report = Callable[[Any], None]


def give_back(argument: Any, _: Report) -> Any:
    return argument


def report_twice(argument: Any, tell: Report) -> str:
    tell(argument)
    tell({"n": 2})
    return "done"


def fail(_: Any, tell: Report) -> None:
    tell("once")
    raise ValueError("alice@example.org")


def call_it(argument: tuple[bytes, Callable[[int], int]], _: Report) -> int:
    return argument[1](20)


def show_surroundings(_: Any, __: Report) -> list[str]:
    return [os.environ.get("LETHEON_TEST", ""), os.getcwd()]


def core_limit(_: Any, __: Report) -> list[int]:
    import resource

    return list(resource.getrlimit(resource.RLIMIT_CORE))


def fit_forest(seed: int, _: Report) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    model = RandomForestClassifier(n_estimators=3, n_jobs=4, random_state=0).fit(X, y)
    return model.predict_proba(X)


def name_a_class(_: Any, __: Report) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def report_pid_and_sleep(_: Any, tell: Report) -> None:
    tell(os.getpid())
    time.sleep(600)


def die(_: Any, __: Report) -> None:
    os._exit(3)


def look_around(secret: str, _: Report) -> dict[str, Any]:
    return {
        "environment": sorted(os.environ),
        "links to the folder": os.stat(".").st_nlink,
        "descriptors": [number for number in range(64) if _is_open(number)],
        "threads": threading.active_count(),
        "secret": secret,
    }


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


# What a model that took its process over would try. Each says what it got.


def attempt(what: tuple[str, Any], _: Report) -> dict[str, Any]:
    """Try something forbidden; return what it gave, or the kind of its refusal."""
    name, argument = what
    try:
        return {"got": _plain(ATTEMPTS[name](argument))}
    except BaseException as error:
        return {"refused": type(error).__name__}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | bytes | float | bool) else repr(value)


def _native(name: str, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(getattr(libc, name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _system_call(number: int, *arguments: Any) -> int:
    return _native("syscall", number, *arguments)


def _connect(address: tuple[str, int]) -> str:
    with socket.create_connection(address, timeout=2) as connection:
        return repr(connection.getpeername())


def _send_datagram(address: tuple[str, int]) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        return connection.sendto(b"hello", tuple(address))


def _connect_local(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return "connected"


def _write(path: str) -> str:
    Path(path).write_text("taken over")
    return "written"


def _link(path: str) -> str:
    Path("here").symlink_to(path)
    return Path("here").read_text()


def _fork(_: Any) -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return child


def _spin_up_threads_until_fork(_: Any) -> int:
    """Threads are allowed; what they try is not."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(os.fork())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return int(results[0])


def _own_signals() -> int:
    """Have the kernel signal the parent when something comes in; see fcntl(2), F_SETOWN."""
    import fcntl

    for number in range(64):
        try:
            os.fstat(number)
        except OSError:
            continue
        fcntl.fcntl(number, fcntl.F_SETOWN, os.getppid())
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)
    return 1


def _set_limits(pid: int) -> int:
    return _system_call(302, pid, 7, ctypes.create_string_buffer(16), None)


def _raise_limit(_: Any) -> str:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "raised"


def _memory_file(_: Any) -> int:
    return os.memfd_create("x")


def _other_abi(_: Any) -> int:
    # getpid of the x32 table: the process is ended at once.
    return _system_call(0x40000000 + 39)


ATTEMPTS: dict[str, Callable[[Any], Any]] = {
    "read": lambda path: Path(path).read_text(),
    "read by descriptor": lambda path: os.open(path, os.O_RDONLY),
    "list": lambda path: repr(os.listdir(path)),
    "write": _write,
    "append": lambda path: os.open(path, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda path: os.truncate(path, 0),
    "remove": lambda path: os.remove(path),
    "rename": lambda path: os.rename(path, path + "x"),
    "make folder": lambda path: os.mkdir(path + "d"),
    "change mode": lambda path: os.chmod(path, 0o777),
    "change owner": lambda path: os.chown(path, 1, 1),
    "symbolic link": _link,
    "hard link": lambda path: os.link(path, "here"),
    "change folder": lambda path: os.chdir(Path(path).parent),
    "change root": lambda path: os.chroot(Path(path).parent),
    "environment of parent": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "memory of parent": lambda _: os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY),
    "own environment": lambda _: Path("/proc/self/environ").read_bytes(),
    "connect": _connect,
    "datagram": _send_datagram,
    "local socket": _connect_local,
    "socket pair": lambda _: repr(socket.socketpair()),
    "listen": lambda _: socket.socket().bind(("127.0.0.1", 0)),
    "raw socket": lambda _: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno(),
    "netlink": lambda _: socket.socket(16, socket.SOCK_RAW, 0).fileno(),
    "fork": _fork,
    "fork in a thread": _spin_up_threads_until_fork,
    "run a program": lambda _: subprocess.run(["/bin/true"], check=True).returncode,
    "replace itself": lambda _: os.execv("/bin/true", ["true"]),
    "signal parent": lambda _: os.kill(os.getppid(), signal.SIGTERM),
    "signal group": lambda _: os.killpg(os.getpgid(os.getppid()), 0),
    "signal init": lambda _: os.kill(1, 0),
    "signal thread of parent": lambda _: _system_call(234, os.getppid(), os.getppid(), 0),
    "signal by descriptor": lambda _: _own_signals(),
    "limits of parent": lambda _: _system_call(
        302, os.getppid(), 7, None, ctypes.create_string_buffer(16)
    ),
    "own limits": lambda _: _system_call(302, 0, 7, ctypes.create_string_buffer(16), None),
    "trace parent": lambda _: _native("ptrace", 16, os.getppid(), 0, 0),
    "read memory of parent": lambda _: _system_call(310, os.getppid(), 0, 0, 0, 0, 0),
    "new namespace": lambda _: _native("unshare", 0x10000000),
    "mount": lambda _: _native("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "keyring": lambda _: _system_call(250, 0, -3, 0),
    "load program": lambda _: _system_call(321, 0, 0, 0),
    "ring": lambda _: _system_call(425, 1, 0),
    "become root": lambda _: os.setuid(0),
    "raise limit": _raise_limit,
    "memory file": _memory_file,
    "shared memory": lambda _: _system_call(29, 0, 4096, 0o1600),
    "priority": lambda _: os.nice(-5),
    "clock": lambda _: time.clock_settime(time.CLOCK_REALTIME, 0),
    "host name": lambda _: socket.sethostname("mine"),
    "other table of calls": _other_abi,
}


def run_forever(_: Any, __: Report) -> None:
    while True:
        pass


def match_for_ever(_: Any, __: Report) -> None:
    re.match("b|(?:a|aa)+c", "a" * 64)


def fit_for_ever(_: Any, __: Report) -> None:
    from sklearn.linear_model import SGDClassifier

    X = np.random.default_rng(0).normal(size=(400, 5))
    SGDClassifier(max_iter=10**9, tol=None).fit(X, X[:, 0] > 0)


def take_memory(n_bytes: int, _: Report) -> int:
    return int(np.ones(n_bytes, np.uint8).sum())


def take_memory_in_pieces(_: Any, __: Report) -> int:
    pieces = []
    while True:
        pieces.append(bytearray(1 << 20))


def crash(_: Any, __: Report) -> None:
    ctypes.string_at(0)


def answer_with(n_bytes: int, _: Report) -> bytes:
    return bytes(n_bytes)


def talk_for_ever(_: Any, tell: Report) -> None:
    while True:
        tell("still here")


def recurse(_: Any, __: Report) -> Any:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    return deeper(0)


def stall_in_the_middle(number: int, _: Report) -> None:
    """Send half a message by hand, on every descriptor, and wait."""
    for place in range(3, 64):
        try:
            os.write(place, b"r" + (1 << 20).to_bytes(8, "little") + b"half")
        except OSError:
            continue
    time.sleep(600)


def claim_a_long_answer(_: Any, __: Report) -> None:
    for place in range(3, 64):
        try:
            os.write(place, b"r" + (1 << 62).to_bytes(8, "little"))
        except OSError:
            continue
    time.sleep(600)
