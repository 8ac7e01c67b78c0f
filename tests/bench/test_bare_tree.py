"""The benchmarks of nets run from the bare source tree, without the compiled core."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import letheon

ROOT = Path(__file__).resolve().parents[2]
# Another finder, such as that of an editable installation, must not bring the core back.
IMPORT = """
import sys
sys.modules["letheon._core"] = None
import benchmarks.deep
import letheon
print(letheon.__file__)
print(sorted(name for name in sys.modules if name.startswith("letheon.forest")))
"""


def test_the_benchmark_of_nets_needs_no_core(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tree = tmp_path / "src"
    is_built = shutil.ignore_patterns("_core*", "*.so", "__pycache__", "static")
    shutil.copytree(Path(letheon.__file__).parent, tree / "letheon", ignore=is_built)
    paths = sysconfig.get_paths()
    places = dict.fromkeys([str(tree), str(ROOT), paths["purelib"], paths["platlib"]])
    # Without site (-S) no .pth file is read, so an editable installation does not exist.
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", IMPORT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, forests = done.stdout.splitlines()
    assert Path(file).is_relative_to(tree)
    assert forests == "[]"
