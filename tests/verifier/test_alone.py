"""The verifier as a stranger runs it: one copied file, `cryptography`, nothing of letheon."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import files as files_of
from importlib.util import find_spec
from pathlib import Path

import pytest

from letheon import verifier
from tests.verifier import maker

RUN = """
import runpy, sys
sys.path.append({libraries!r})
try:
    import letheon
except ImportError:
    pass
else:
    sys.exit("letheon can be imported here")
sys.argv = ["verifier.py", *{arguments!r}]
try:
    runpy.run_path("verifier.py", run_name="__main__")
finally:
    print(sorted(sys.modules.keys() & {{"letheon", "numpy", "rfc8785"}}), file=sys.stderr)
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """An empty folder with the copied file, and a folder with links to cryptography only."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for package in ("cryptography", "cffi", "_cffi_backend"):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            origin = origin.parent if origin.name == "__init__.py" else origin
            (libraries / origin.name).symlink_to(origin)
    shutil.copy(verifier.__file__, tmp_path / "verifier.py")
    return tmp_path


def run(folder: Path, *arguments: str, libraries: str = "libraries") -> tuple[int, str, str]:
    code = RUN.format(libraries=str(folder / libraries), arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_bundle_is_checked_without_letheon(alone: Path) -> None:
    bundle = maker.write(maker.honest_bundle(), alone / "bundle")
    arguments = (str(bundle), "--key", maker.ROOT.public.hex(), "--json")
    code, out, err = run(alone, *arguments)
    assert (code, err) == (0, "[]\n")
    assert [level["passed"] for level in json.loads(out)["levels"]] == [True] * 5


def test_changed_byte_is_found_without_letheon(alone: Path) -> None:
    files = maker.honest_bundle()
    files["certificates/000002.json"] = files["certificates/000002.json"].replace(b"A", b"B", 1)
    bundle = maker.write(files, alone / "bundle")
    code, out, _ = run(alone, str(bundle), "--key", maker.ROOT.public.hex())
    assert code == 1
    assert "V0  FAIL    certificate 2: the signature" in out


def test_missing_cryptography_is_said(alone: Path) -> None:
    bundle = maker.write(maker.honest_bundle(), alone / "bundle")
    arguments = (str(bundle), "--key", maker.ROOT.public.hex())
    code, _, err = run(alone, *arguments, libraries="nothing")
    assert code == 2
    assert "cannot check: No module named 'cryptography'" in err


def test_only_cryptography_and_the_standard_library_are_imported() -> None:
    text = Path(verifier.__file__).read_text()
    names = {line.split()[1] for line in map(str.strip, text.splitlines()) if _imports(line)}
    others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert others == {"cryptography"}
    assert files_of("cryptography") is not None


def _imports(line: str) -> bool:
    return line.startswith("import ") or (line.startswith("from ") and " import " in line)
