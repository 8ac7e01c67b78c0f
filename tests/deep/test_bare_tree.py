"""The nets from a bare source tree: Python files on the path, no compiled core, no installation."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import letheon

STORY = """
import json
import numpy as np
import letheon
from letheon.deep import SISANetClassifier

def story():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    ids = [f"person {i // 2}" for i in range(40)]
    make = lambda: SISANetClassifier(
        n_shards=2, n_slices=2, epochs=2, batch_size=8, device="cpu", random_state=0
    )
    model = make().fit(X, y, ids=ids)
    fitted = model.digest()
    gone = ["person 3", "person 7"]
    receipt = model.forget(gone, digest=True)
    kept = [i for i, each in enumerate(ids) if each not in gone]
    fresh = make().fit(X[kept], y[kept], ids=[ids[i] for i in kept])
    return {
        "fitted": fitted,
        "before": receipt.digest_before,
        "after": receipt.digest_after,
        "fresh": fresh.digest(),
        "answers": model.predict(X).tolist(),
    }
"""
TELL = """
import sys
from importlib.util import find_spec
import letheon.checks, letheon.measures, letheon.persist
core = find_spec("letheon._core")
loaded = [name for name in sys.modules if name.startswith("letheon.")]
print(json.dumps({
    "file": letheon.__file__, "core": core and core.origin, "loaded": loaded, "story": story()
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a Python says that knows a copy of the source tree and nothing else of ours."""
    tree = tmp_path_factory.mktemp("bare") / "src"
    built = shutil.ignore_patterns("_core*", "*.so", "__pycache__")
    shutil.copytree(Path(letheon.__file__).parent, tree / "letheon", ignore=built)
    paths = sysconfig.get_paths()
    places = dict.fromkeys([str(tree), paths["purelib"], paths["platlib"]])
    # Without site (-S) no .pth file is read, so an editable installation does not exist.
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", STORY + TELL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def test_it_is_the_bare_tree(told: dict[str, Any]) -> None:
    assert told["core"] is None
    assert Path(told["file"]).parent != Path(letheon.__file__).parent
    assert Path(told["file"]).parts[-3:] == ("src", "letheon", "__init__.py")


def test_a_net_forgets_without_the_core(told: dict[str, Any]) -> None:
    digests = told["story"]
    assert digests["fitted"] == digests["before"]
    assert digests["after"] == digests["fresh"]
    assert digests["after"] != digests["before"]


def test_the_core_changes_no_digest(told: dict[str, Any]) -> None:
    here: dict[str, Any] = {}
    exec(STORY, here)
    assert here["story"]() == told["story"]


def test_only_forests_need_the_core(told: dict[str, Any]) -> None:
    loaded = set(told["loaded"])
    assert {"letheon.deep", "letheon.checks", "letheon.data", "letheon.seeds"} <= loaded
    assert "letheon.forest" not in loaded
