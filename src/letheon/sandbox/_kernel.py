"""Permanent restrictions of a process by the kernel: files, network, other processes, memory.

Landlock limits which files can be opened, a seccomp filter lists the allowed system calls, and
resource limits bound memory and processor time. All three are set by system calls and cannot be
undone by the process. On a kernel without Landlock, a process that runs as root changes to
another user instead.
"""

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Limits", "Protection", "restrict"]

_GIB = 1 << 30
_libc = ctypes.CDLL(None, use_errno=True)

# From <linux/prctl.h> and <linux/capability.h>.
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 4, 38, 24
_CAPABILITY_VERSION, _LAST_CAPABILITY = 0x20080522, 63
_UNPRIVILEGED_ID = 65534
_LOW_PRIORITY = 10


@dataclass(frozen=True)
class Limits:
    """Resource limits of one call.

    Parameters
    ----------
    memory : int
        Bytes of address space that the process may use in addition to those before the call.
    seconds : float
        Seconds of wall-clock time; the same number limits processor time.
    result : int
        Largest size of one message from the process in bytes.

    Examples
    --------
    >>> from letheon.sandbox import Limits
    >>> Limits(seconds=60).memory == 4 << 30
    True
    """

    memory: int = 4 * _GIB
    seconds: float = 3600.0
    result: int = 4 * _GIB

    @classmethod
    def for_input(cls, n_bytes: int, *, seconds: float) -> "Limits":
        """Return limits for an input of `n_bytes`: memory of 2 GiB plus sixteen times the input."""
        memory = 2 * _GIB + 16 * n_bytes
        return cls(memory=memory, seconds=seconds, result=memory)


@dataclass(frozen=True)
class Protection:
    """What is blocked in a sandboxed process.

    Parameters
    ----------
    files : {"landlock", "user", "none"}
        How the files of this machine are protected. "landlock": only the Python installation can be
        read. "user": the process runs as a separate user. "none": not protected.
    calls : {"seccomp", "none"}
        Whether sockets, new processes, signals to others and writing to files are blocked.

    Examples
    --------
    >>> from letheon.sandbox import Protection
    >>> Protection(files="landlock", calls="seccomp").files
    'landlock'
    """

    files: Literal["landlock", "user", "none"]
    calls: Literal["seccomp", "none"]

    @property
    def is_full(self) -> bool:
        """Whether files, network and other processes are all blocked."""
        return self.files == "landlock" and self.calls == "seccomp"

    def __str__(self) -> str:
        files = {
            "landlock": "files by Landlock",
            "user": "files by a separate user",
            "none": "files NOT protected",
        }[self.files]
        calls = {
            "seccomp": "network, processes and signals by seccomp",
            "none": "network, processes and signals NOT protected",
        }[self.calls]
        return f"{files}; {calls}; memory and time by resource limits"


def restrict(limits: Limits, *, landlock: bool = True) -> Protection:
    """Restrict files, network, processes and resources of this process permanently.

    Parameters
    ----------
    limits : Limits
        Memory and processor time.
    landlock : bool, default=True
        Set to False to simulate a kernel without Landlock.

    Returns
    -------
    Protection
        The restrictions that are active.
    """
    # Lower priority than the responses of the server.
    os.nice(_LOW_PRIORITY)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _check_result(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _limit_resources(limits)
    files: Literal["landlock", "user", "none"] = "none"
    if landlock and _restrict_files(_installation_paths()):
        files = "landlock"
    elif os.geteuid() == 0:
        _drop_root()
        files = "user"
    _drop_capabilities()
    return Protection(files, "seccomp" if _filter_calls() else "none")


def _check_result(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _limit_resources(limits: Limits) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if _is_linux() else 0
    space = pages * resource.getpagesize() + limits.memory
    seconds = max(1, int(limits.seconds) + 1)
    settings = {
        resource.RLIMIT_AS: (space, space),
        # Compiled code may ignore the signal of the soft limit; the hard limit kills it.
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, pair in settings.items():
        hard = resource.getrlimit(kind)[1]
        fits = hard == resource.RLIM_INFINITY
        resource.setrlimit(kind, pair if fits else (min(pair[0], hard), min(pair[1], hard)))


def _is_linux() -> bool:
    return sys.platform == "linux"


def _drop_root() -> None:
    os.setgroups([])
    os.setresgid(_UNPRIVILEGED_ID, _UNPRIVILEGED_ID, _UNPRIVILEGED_ID)
    os.setresuid(_UNPRIVILEGED_ID, _UNPRIVILEGED_ID, _UNPRIVILEGED_ID)


def _drop_capabilities() -> None:
    for number in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _check_result(_libc.capset(header, bytes(24)))


# Landlock: numbers of the system calls are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# Number of file rights in each version of Landlock.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_ALL_TCP, _ALL_SCOPES = 0b11, 0b11


def _restrict_files(readable: Iterable[Path]) -> bool:
    """Allow only reading, and only below these paths; return False if Landlock is not available."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, 1) if _is_linux() else -1
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS[min(version, 5)]) - 1
    attributes = struct.pack("QQQ", rights, _ALL_TCP, _ALL_SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _check_result(_libc.syscall(_CREATE_RULESET, attributes[:size], size, 0))
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        _check_result(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _allow_reading(ruleset: int, path: Path) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE
        _check_result(_libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _installation_paths() -> Iterator[Path]:
    """Yield the paths of Python, its packages and the system libraries."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    yield from {Path(sysconfig.get_path(name)) for name in names}
    # An editable installation is elsewhere.
    yield Path(__file__).parents[1]
    yield from map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"))
    yield from map(Path, ("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"))
    # The loaded libraries: threadpoolctl finds BLAS there to limit its threads.
    yield Path("/proc/self/maps")


# Seccomp: the system calls that a fit needs, on x86-64. All others return EPERM.
_X86_64 = 0xC000003E
_ALLOWED = (
    "read:0 write:1 close:3 stat:4 fstat:5 lstat:6 poll:7 lseek:8 mmap:9 mprotect:10 munmap:11 "
    "brk:12 rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15 pread64:17 readv:19 writev:20 "
    "access:21 select:23 sched_yield:24 mremap:25 mincore:27 madvise:28 dup:32 dup2:33 "
    "nanosleep:35 getpid:39 exit:60 uname:63 getcwd:79 readlink:89 gettimeofday:96 "
    "getrlimit:97 getrusage:98 sysinfo:99 times:100 getuid:102 getgid:104 geteuid:107 getegid:108 "
    "getppid:110 getpgrp:111 getresuid:118 getresgid:120 getpgid:121 getsid:124 rt_sigpending:127 "
    "rt_sigtimedwait:128 sigaltstack:131 statfs:137 fstatfs:138 sched_getparam:143 "
    "sched_getscheduler:145 sched_get_priority_max:146 sched_get_priority_min:147 arch_prctl:158 "
    "gettid:186 time:201 futex:202 sched_getaffinity:204 getdents64:217 set_tid_address:218 "
    "restart_syscall:219 clock_gettime:228 clock_getres:229 clock_nanosleep:230 exit_group:231 "
    "epoll_wait:232 epoll_ctl:233 get_mempolicy:239 newfstatat:262 readlinkat:267 faccessat:269 "
    "pselect6:270 ppoll:271 set_robust_list:273 eventfd2:290 epoll_create1:291 dup3:292 getcpu:309 "
    "getrandom:318 membarrier:324 statx:332 rseq:334 "
    "close_range:436 faccessat2:439 futex_waitv:449"
)
_OPEN, _CLONE, _FCNTL, _TGKILL, _OPENAT, _PRLIMIT, _CLONE3 = 2, 56, 72, 234, 257, 302, 435
# Copy a descriptor and read its flags. Other fcntl commands could signal another process.
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)
_CLONE_THREAD = 0x00010000
_O_WRITES = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
# Instructions of the classic packet filter: load a word, AND with a mask, compare, return.
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _load_arg(number: int, *, high: bool = False) -> bytes:
    """Return the instruction that loads the low or high 32 bits of a system call's argument."""
    return _instruction(_LOAD, 16 + 8 * number + 4 * high)


def _deny(number: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


_ALLOWING = _instruction(_RETURN, _ALLOW)


def _apply_rule(call: int, *rule: bytes) -> bytes:
    """Return the instructions of a rule for one system call; other calls skip them.

    The rule must end with a return instruction.
    """
    body = b"".join(rule)
    return _instruction(_EQUAL, call, 0, len(body) // 8) + body


def _if_clear(argument: int, mask: int) -> tuple[bytes, ...]:
    """Return a rule that allows a call only if the bits in `mask` of an argument are clear."""
    is_clear = _instruction(_EQUAL, 0, 0, 1)
    return (
        _load_arg(argument),
        _instruction(_AND, mask),
        is_clear,
        _ALLOWING,
        _deny(),
    )


def _if_one_of(values: tuple[int, ...]) -> tuple[bytes, ...]:
    """Return a rule that allows a call only if the loaded half of an argument is in `values`."""
    last = len(values)
    jumps = [_instruction(_EQUAL, value, last - place, 0) for place, value in enumerate(values)]
    return (*jumps, _deny(), _ALLOWING)


def _if_equal(pairs: dict[tuple[int, bool], int]) -> tuple[bytes, ...]:
    """Return a rule that allows a call only if halves of arguments have certain values.

    `pairs` contains the values by (number of the argument, whether it is the high half).
    """
    n_left = len(pairs)
    rule: list[bytes] = []
    for (number, high), value in pairs.items():
        n_left -= 1
        rule += [_load_arg(number, high=high), _instruction(_EQUAL, value, 0, 2 * n_left + 1)]
    return (*rule, _ALLOWING, _deny())


def _build_filter() -> bytes:
    """Return the seccomp filter: a list of allowed calls, and rules on the arguments of six."""
    numbers = [int(word.partition(":")[2]) for word in _ALLOWED.split()]
    # A thread is allowed, a process is not; glibc tries clone3 first and falls back.
    is_thread = _instruction(_EQUAL, _CLONE_THREAD, 0, 1)
    threads = (
        _load_arg(0),
        _instruction(_AND, _CLONE_THREAD),
        is_thread,
        _ALLOWING,
        _deny(),
    )
    pid = os.getpid()
    parts = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, _X86_64, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
        # The x32 system calls of this architecture are blocked.
        _instruction(_AT_LEAST, 0x40000000, 0, 1),
        _instruction(_RETURN, _KILL),
        *(_apply_rule(number, _ALLOWING) for number in numbers),
        _apply_rule(_OPEN, *_if_clear(1, _O_WRITES)),
        _apply_rule(_OPENAT, *_if_clear(2, _O_WRITES)),
        _apply_rule(_CLONE, *threads),
        _apply_rule(_FCNTL, _load_arg(1), *_if_one_of(_FCNTL_COMMANDS)),
        _apply_rule(_CLONE3, _deny(errno.ENOSYS)),
        _apply_rule(_TGKILL, *_if_equal({(0, False): pid})),
        _apply_rule(_PRLIMIT, *_if_equal({(0, False): 0, (2, False): 0, (2, True): 0})),
        _deny(),
    ]
    return b"".join(parts)


def _filter_calls() -> bool:
    """Allow only the listed system calls; return False if seccomp is not available."""
    if not _is_linux() or platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return False
    code = _build_filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: number of instructions, padding, address.
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    seccomp, mode_filter, all_threads = 317, 1, 1
    return int(_libc.syscall(seccomp, mode_filter, all_threads, program)) == 0
