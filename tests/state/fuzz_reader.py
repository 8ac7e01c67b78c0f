"""Fuzz the reader: mutated files, blobs, manifests and bundles, each in a watched child process.

``python -m tests.state.fuzz_reader 100000 --seed 1 --workers 2`` tries that many inputs. An input
is a function of seed and number. What is detected:

- a crash: the child dies. Half of the inputs run with guard pages behind the memory of every NumPy
  array (`guard_pages.c`), so that reading or writing behind one is a crash; all run with the debug
  hooks of Python's allocator, and with glibc's where it is installed;
- a hang: more than 5 seconds of CPU for one input, a minute of CPU or five minutes on the clock
  without an answer;
- memory: in the other half the high-water mark of the process is compared with the limit; nowhere
  may the reader run into a `MemoryError`, since everything is counted first;
- any exception that is no `StateError`.

Inputs that fail are saved. `--plant` puts a known bug in, to show that it would be found.
"""

import argparse
import collections
import contextlib
import functools
import importlib.util
import inspect
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
TARGETS = ("blob", "blob", "blob", "file", "file", "manifest", "manifest", "bundle")
SLOW_SECONDS = 5.0
SILENT_CPU_SECONDS = 60.0
SILENT_SECONDS = 300.0
_BATCH = 2000
_DEBUG_MALLOC = "libc_malloc_debug.so.0"


def make_input(mutator: Any, number: int) -> tuple[str, bytes]:
    """Return the target and the bytes of an input."""
    target = TARGETS[number % len(TARGETS)]
    if target == "blob":
        return target, mutator.blob(number)
    if target == "bundle":
        return target, mutator.blob(number, mutator.models)
    return target, mutator.file(number, is_model=target == "file")


def saved_inputs(folder: Path | str | None) -> list[tuple[str, bytes]]:
    """Return target and bytes of every saved input: ``NAME.TARGET.z``, compressed."""
    paths = sorted(Path(folder).glob("*.z")) if folder else []
    return [(path.stem.rpartition(".")[2], zlib.decompress(path.read_bytes())) for path in paths]


class InputReader:
    """Gives inputs to their target and notes how far each one comes."""

    def __init__(self, folder: Path) -> None:
        from letheon.state import _decode, _file

        self.folder = folder
        self.stage = "refused"
        for module in (_decode, _file):
            module.audit = self._noting(module.audit)  # type: ignore[attr-defined]

    def _noting(self, audit: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            self.stage = "parsed"
            audit(*arguments)

        return noted

    def read(self, target: str, data: bytes) -> Any:
        """Decode an input; raises what the reader raises."""
        self.stage = "refused"
        if target == "blob":
            from letheon import state

            return state.decode(data)
        return getattr(self, f"_{target}")(data)

    def _write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def _file(self, data: bytes) -> Any:
        import letheon

        return letheon.load(self._write("input.letheon", data))

    def _manifest(self, data: bytes) -> Any:
        from letheon import state
        from letheon.persist import inspect

        path = self._write("input.letheon", data)
        if len(data) % 4 == 0:
            inspect(path)
        return state.read_file(path)

    def _bundle(self, data: bytes) -> Any:
        from letheon.audit._bundle import AuditedModel

        part = ("model", "rows", "vault")[len(data) % 3]
        self._write(f"{part}.blob", bytes(32) + data)
        model = AuditedModel("m", self.folder, ())
        return model.build_model() if part == "model" else getattr(model, part)


def use(value: Any) -> None:
    """Use what was read: it may complain, it may not crash."""
    import numpy as np

    from letheon import state
    from letheon.data import Rows

    table = np.linspace(-1, 1, 15).reshape(5, 3)
    rows = ["a b"] if "Vectorizer" in type(value).__name__ else table
    if hasattr(type(value), "similar_items"):
        rows = np.abs(table)
    calls: list[Callable[[], Any]] = [lambda: state.digest(value)]
    calls += [
        functools.partial(_call, value, method, rows)
        for method in ("predict", "transform", "query", "recommend")
        if hasattr(type(value), method)
    ]
    if hasattr(type(value), "forget"):
        calls.append(lambda: value.forget(value.ids_[:1]))
    if isinstance(value, Rows):
        calls += [lambda: value.take(np.array([0])), lambda: value.find(value.ids)]
    for call in calls:
        with contextlib.suppress(Exception):
            call()


def _call(value: Any, method: str, rows: Any) -> None:
    getattr(value, method)(rows)


def plant(bug: str) -> None:
    """Put a known bug into the reader of this process."""
    import numpy as np

    from letheon.state import _arrays
    from letheon.state._nodes import Array

    if bug == "offsets":  # as it was: NumPy is asked whether the offsets make sense
        _arrays._check_layout = lambda *_: None
        _arrays._is_size = lambda *_: True
    else:
        plain = _arrays._plain_from

        def writing_behind(*arguments: Any) -> Any:
            array = plain(*arguments)
            if array.dtype == np.float64 and array.ndim == 1:
                longer = np.lib.stride_tricks.as_strided(array, (len(array) + 2,))
                longer[-1] = 0.0
            return array

        _arrays._ARRAY_READERS[Array] = writing_behind


def high_water() -> int:
    """Return the most memory that this process has held since the mark was reset."""
    status = Path("/proc/self/status").read_bytes()
    return 1024 * int(status.split(b"VmHWM:")[1].split()[0])


def reset_high_water() -> int:
    """Reset the mark; return what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5")
    return high_water()


def _install_guard(library: str) -> None:
    spec = importlib.util.spec_from_file_location("guard_pages", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def build_guard(folder: Path) -> Path | None:
    """Compile the guard pages; None where there is no C compiler."""
    import numpy as np

    library = folder / "guard_pages.so"
    include = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    source = str(Path(__file__).with_name("guard_pages.c"))
    command = ["cc", "-O1", "-shared", "-fPIC", *include, source, "-o", str(library)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


class InputRangeWorker:
    """Tries the inputs of one range and counts what happens."""

    def __init__(self, options: dict[str, Any]) -> None:
        from tests.state.mutate import Mutator
        from tests.state.reader_seeds import load_seeds

        self.options = options
        self.mutator = Mutator(load_seeds(deep=options["deep"], prefix=options["seeds"]))
        self.saved = saved_inputs(options["replay"])
        self.reading = InputReader(Path(options["folder"]))
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[dict[str, Any]] = []
        self.most_memory = 0.0
        if options["guard"]:
            _install_guard(options["guard"])
        with Path(options["status"]).open("r+b") as file:
            self.status = mmap.mmap(file.fileno(), 8)

    @classmethod
    def alone(cls, folder: Path) -> Self:
        """Return a worker of this process, without a guard."""
        (folder / "status").write_bytes(bytes(8))
        common: dict[str, Any] = {
            "seed": 0,
            "deep": False,
            "plant": None,
            "guard": None,
            "native": False,
        }
        common |= {"replay": None, "warm": True, "seeds": ""}
        places = {name: str(folder / name) for name in ("status", "report")}
        return cls({**common, **places, "folder": str(folder)})

    def run(self) -> None:
        """Try all inputs; write what was counted."""
        first, last = self.options["first"], self.options["last"]
        if self.options["warm"]:
            self._warm_up()
        if self.options["plant"]:
            plant(self.options["plant"])
        for number in range(first, last):
            self.status[:8] = number.to_bytes(8, "little")
            if number < len(self.saved):
                self.try_input(number, *self.saved[number])
                continue
            try:
                target, data = make_input(self.mutator, number + self.options["seed"] * 10**12)
            except Exception:  # noqa: BLE001 (a tree that has no bytes at all)
                self.counts["unwritable"] += 1
                continue
            self.try_input(number, target, data)
        report = {"counts": self.counts, "findings": self.findings, "memory": self.most_memory}
        Path(self.options["report"]).write_text(json.dumps(report))

    def _warm_up(self) -> None:
        """Import what honest inputs import, so that no input is measured by it."""
        import letheon.audit  # noqa: F401
        from letheon import state
        from tests.state.reader_seeds import load_seeds

        for data in load_seeds(deep=self.options["deep"], prefix=self.options["seeds"]).values():
            use(state.decode(data))

    def try_input(self, number: int, target: str, data: bytes) -> None:
        """Read one input and use what comes out."""
        self.counts["inputs"] += 1
        self.counts[target] += 1
        before = 0 if self.options["guard"] else reset_high_water()
        begin = time.process_time()
        value, stage = None, ""
        try:
            value = self.reading.read(target, data)
            stage = "built"
        except Exception as error:  # noqa: BLE001 (each is looked at)
            stage = self._refused(number, error)
        self._measure(number, len(data), time.process_time() - begin, before)
        self.counts[stage] += 1
        if stage == "built":
            self._use(number, value)

    def _use(self, number: int, value: Any) -> None:
        begin = time.process_time()
        try:
            signal.setitimer(signal.ITIMER_PROF, 20)  # of CPU time: the machine may be busy
            use(value)
        except TimeoutError:
            pass
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() - begin > SLOW_SECONDS:
            self.counts["slow use"] += 1
            self.findings.append({"number": number, "what": "slow use"})

    def _refused(self, number: int, error: Exception) -> str:
        from letheon.exceptions import MemoryLimitError, StateError
        from letheon.verifier import VerificationError

        if isinstance(error, MemoryLimitError):
            self.counts["over the limit"] += 1
        elif "MemoryError" in repr(error) or "Unable to allocate" in str(error):
            self.findings.append({"number": number, "what": "memory", "error": repr(error)[:300]})
            self.counts["memory"] += 1
        if not isinstance(error, StateError | VerificationError):
            self.findings.append(
                {"number": number, "what": "unexpected", "error": repr(error)[:300]}
            )
            self.counts["unexpected"] += 1
        return self.reading.stage

    def _measure(self, number: int, size: int, seconds: float, before: int) -> None:
        from letheon.state._nodes import BASE, NATIVE_PER_BYTE, PER_BYTE

        if seconds > SLOW_SECONDS:
            self.findings.append({"number": number, "what": "slow", "seconds": seconds})
            self.counts["slow"] += 1
        if self.options["guard"] or not self.options["warm"]:
            return
        grown = high_water() - before
        share = grown / (BASE + (NATIVE_PER_BYTE if self.options["native"] else PER_BYTE) * size)
        self.most_memory = max(self.most_memory, share)
        if share > 1:
            self.findings.append({"number": number, "what": "memory", "bytes": grown, "size": size})
            self.counts["memory"] += 1


def _environment(debug: bool) -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    env = {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    if debug:
        env |= {"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"}
        if Path("/lib/x86_64-linux-gnu", _DEBUG_MALLOC).exists():
            env |= {"LD_PRELOAD": _DEBUG_MALLOC, "MALLOC_CHECK_": "3"}
    return env


# What only writes: the rest of these modules reads, and is to be reached.
DECODER = "_arrays _bytes _decode _file _nodes _sklearn _types"
WRITERS = re.compile(
    r".*(_plain|_node|_json|_column|_generator_state)$|_write.*|to_(bytes|parts)|chunks|text_bytes"
    r"|(array|scalar|dtype)_node|plain_descr|_no_objects|_refusal|_temporal_name|_object_array"
    r"|write_file|_serialised|_about_the_target|layout_of|values|_is_long_run|to_json|Tensors.*|_numbers_of"
    r"|trusted_names|_name_of|_about_main|_ways_to_trust|_listed|_all_json|add|arrays|_to_.*|_what_else"
)


class LineCoverage:
    """Notes which lines of the decoder run."""

    def __init__(self) -> None:
        names = DECODER.split()
        modules = [importlib.import_module(f"letheon.state.{name}") for name in names]
        self.wanted: dict[str, set[int]] = {}
        for module in modules:
            source = str(module.__file__)
            code = compile(Path(source).read_text(), source, "exec")
            self.wanted[source] = set(_lines(code))
        self.reached: dict[str, set[int]] = {name: set() for name in self.wanted}

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        """Follow frames of the decoder only."""
        reached = self.reached.get(frame.f_code.co_filename)
        if reached is None:
            return None
        if event == "line":
            reached.add(frame.f_lineno)
        return self.trace

    def report(self) -> Iterator[str]:
        """Yield the share of each module, and the lines that were not reached."""
        n_wanted = n_reached = 0
        for source, requested in self.wanted.items():
            missed = sorted(requested - self.reached[source])
            n_wanted += len(requested)
            n_reached += len(requested) - len(missed)
            yield f"{Path(source).name}: {1 - len(missed) / len(requested):.1%}, not {missed}"
        yield f"all: {n_reached / n_wanted:.1%} of {n_wanted} lines"


def _lines(code: Any) -> Iterator[int]:
    """Yield the lines inside functions that read."""
    for inner in code.co_consts:
        if not hasattr(inner, "co_lines"):
            continue
        if WRITERS.fullmatch(inner.co_name):
            continue
        if inner.co_flags & inspect.CO_OPTIMIZED:
            yield from (
                line for _, _, line in inner.co_lines() if line and line > inner.co_firstlineno
            )
        yield from _lines(inner)


def measure_coverage(n_inputs: int, folder: Path) -> None:
    """Say how much of the decoder the first inputs reach."""
    worker = InputRangeWorker.alone(folder)
    coverage = LineCoverage()
    sys.settrace(coverage.trace)
    for number in range(n_inputs):
        with contextlib.suppress(Exception):
            worker.reading.read(*make_input(worker.mutator, number))
    sys.settrace(None)
    for line in coverage.report():
        _say(line + "\n")


class Supervisor:
    """Runs workers, restarts them behind what kills them, and saves that."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.guard = None if options.no_guard else build_guard(folder)
        self.counts: collections.Counter[str] = collections.Counter()
        self.findings: list[dict[str, Any]] = []
        self.most_memory = 0.0

    def run(self) -> int:
        """Try all inputs; return how many failed."""
        chunk = self.options.chunk
        total = self.options.first + self.options.inputs
        firsts = list(range(self.options.first, total, chunk))
        waiting = [(first, min(first + chunk, total), i % 2 == 0) for i, first in enumerate(firsts)]
        running: list[_Child] = []
        while waiting or running:
            while waiting and len(running) < self.options.workers:
                first, last, guarded = waiting.pop(0)
                running.append(_Child(self, first, last, guarded and self.guard is not None))
            time.sleep(0.2)
            for child in list(running):
                rest = child.rest()
                if rest is not None:
                    running.remove(child)
                    if rest[0] < rest[1]:
                        waiting.insert(0, rest)
                    self._show()
        self._show(end="\n")
        return self._save()

    def _show(self, end: str = "\r") -> None:
        if not self.options.quiet:
            _say(self.summary() + end)

    def summary(self) -> str:
        """Return the counts as one line."""
        inputs = max(1, self.counts["inputs"])
        passed = self.counts["parsed"] + self.counts["built"]
        hangs = self.counts["hang"] + self.counts["slow"]
        return (
            f"{self.counts['inputs']:,} inputs, {passed / inputs:.0%} past the header, "
            f"{self.counts['built'] / inputs:.0%} built, {self.counts['over the limit']:,} over "
            f"the limit; {self.counts['crash']} crashes, {hangs} "
            f"hangs, {self.counts['memory']} beyond the memory, {self.counts['unexpected']} other "
            f"errors; most memory {self.most_memory:.0%} of the limit"
        )

    def _save(self) -> int:
        from tests.state.mutate import Mutator
        from tests.state.reader_seeds import load_seeds

        mutator = Mutator(load_seeds(deep=self.options.deep, prefix=self.options.seeds))
        for finding in self.findings:
            _say(json.dumps(finding) + "\n")
            if self.options.save and not self.options.replay and len(self.findings) < 1000:
                number = finding["number"] + self.options.seed * 10**12
                target, data = make_input(mutator, number)
                self.options.save.mkdir(parents=True, exist_ok=True)
                (
                    self.options.save / f"{finding['what']}-{number}.{target}".replace(" ", "-")
                ).write_bytes(data)
        failures = ("crash", "hang", "slow", "memory", "unexpected")
        return sum(self.counts[name] for name in failures)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; a machine that stands still spends none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Child:
    """One worker process."""

    def __init__(self, parent: Supervisor, first: int, last: int, guarded: bool) -> None:
        self.parent, self.first, self.last, self.guarded = parent, first, last, guarded
        self.home = Path(tempfile.mkdtemp(dir=parent.folder))
        self.status, self.report = self.home / "status", self.home / "report.json"
        self.status.write_bytes(first.to_bytes(8, "little"))
        options = {
            "first": first,
            "last": last,
            "seed": parent.options.seed,
            "deep": parent.options.deep,
            "seeds": parent.options.seeds,
            "replay": parent.options.replay and str(parent.options.replay),
            "warm": not parent.options.cold,
            "plant": parent.options.plant,
            "guard": str(parent.guard) if guarded else None,
            "native": False,
            "folder": str(self.home),
            "status": str(self.status),
            "report": str(self.report),
        }
        command = [sys.executable, "-m", "tests.state.fuzz_reader", "--worker", json.dumps(options)]
        self.log = (self.home / "log").open("wb")
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(guarded), stdout=self.log, stderr=self.log
        )
        self.at, self.since, self.spent = first - 1, time.monotonic(), 0.0
        self.looked = self.since

    def rest(self) -> tuple[int, int, bool] | None:
        """Return what is left to do once the process has ended, None while it runs."""
        now = int.from_bytes(self.status.read_bytes(), "little")
        code = self.process.poll()
        if code is None:
            spent = _cpu_seconds(self.process.pid)
            # All of these processes may have been stopped for a while.
            was_stopped = time.monotonic() - self.looked > 30
            self.looked = time.monotonic()
            if now != self.at or was_stopped:
                self.at, self.since, self.spent = now, time.monotonic(), spent
            silent = time.monotonic() - self.since
            if silent < SILENT_SECONDS and spent - self.spent < SILENT_CPU_SECONDS:
                return None
            self.process.kill()
            self.process.wait()
            return self._failed("hang", now)
        self.log.close()
        if code == 0 and self.report.exists():
            self._add(json.loads(self.report.read_text()))
            return self.last, self.last, self.guarded
        return self._failed("crash", now)

    def _failed(self, what: str, number: int) -> tuple[int, int, bool]:
        text = (self.home / "log").read_text("utf-8", "replace")
        self.parent.counts[what] += 1
        self.parent.counts["inputs"] += number - self.first + 1
        self.parent.findings.append({"number": number, "what": what, "log": text[-1500:]})
        return number + 1, self.last, self.guarded

    def _add(self, report: dict[str, Any]) -> None:
        self.parent.counts.update(report["counts"])
        self.parent.findings.extend(report["findings"])
        self.parent.most_memory = max(self.parent.most_memory, report["memory"])


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _too_long(*_: Any) -> None:
    raise TimeoutError


def main(arguments: list[str] | None = None) -> int:
    """Run the fuzzer; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("inputs", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=10_000, help="inputs of one process")
    parser.add_argument("--save", type=Path, help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, help="folder of inputs to try first")
    parser.add_argument("--cold", action="store_true", help="begin at once; memory is not measured")
    parser.add_argument("--plant", choices=("offsets", "behind"), help="a bug to find")
    parser.add_argument("--deep", action="store_true", help="also nets; imports torch")
    parser.add_argument("--seeds", default="", help="start of the names of seeds to mutate")
    parser.add_argument("--coverage", action="store_true", help="lines that inputs reach")
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGPROF, _too_long)
        InputRangeWorker(json.loads(options.worker)).run()
        return 0
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        if options.coverage:
            warnings.simplefilter("ignore")
            measure_coverage(options.inputs, Path(folder))
            return 0
        supervisor = Supervisor(options, Path(folder))
        failed = supervisor.run()
        if options.quiet:
            _say(supervisor.summary() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
