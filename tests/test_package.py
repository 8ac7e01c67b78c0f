"""The package as a newcomer meets it: light to import, complete, typed, and well laid out."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import letheon
from letheon.methods import class_paths
from letheon.state._nodes import Instance, Record
from tests.state.forge import blob_of

SOURCE = Path(letheon.__file__).parent
HEAVY = ("numpy", "scipy", "sklearn", "joblib", "pandas", "polars", "narwhals", "ray", "torch")
MODULES = sorted(m.name for m in pkgutil.iter_modules([str(SOURCE)]) if m.name != "_core")
NETS = sorted(name for name, module in letheon._EXPORTS.items() if module == "letheon.deep")
# Runs before anything else in a Python in which these packages are not installed.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )


def imported_after(code: str) -> set[str]:
    return set(run_python(f"{code}\nimport sys; print(*sys.modules)").stdout.split())


def hidden(*packages: str) -> str:
    return HIDE.format(hidden=set(packages))


def with_extras(names: Iterable[str]) -> list[Any]:
    """Return names as parameters; those of nets are skipped where torch is not installed."""
    needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
    nets = {*NETS, "deep"}
    return [pytest.param(name, marks=needs_torch if name in nets else ()) for name in names]


def test_import_is_light() -> None:
    assert not imported_after("import letheon") & set(HEAVY)


def test_only_what_is_used_is_imported() -> None:
    loaded = imported_after("import letheon; letheon.seeds")
    assert "letheon.seeds" in loaded
    assert not loaded & {"sklearn", "letheon.base"}


def test_import_loads_few_modules() -> None:
    """What makes an import slow is what it loads; 32 modules were new when this was written."""
    assert len(imported_after("import letheon") - imported_after("")) < 50


USE_WITHOUT_TORCH = """
import tempfile
from pathlib import Path
import letheon
from letheon import checks, cli, compose, forest, linear, measures, naive, persist, plot, sharded
from sklearn.naive_bayes import GaussianNB

assert set(dir(letheon)) >= {"deep", "SISANetClassifier"}
model = letheon.NaiveUnlearner(GaussianNB()).fit([[0.0], [1.0], [4.0], [5.0]], [0, 0, 1, 1])
with tempfile.TemporaryDirectory() as folder:
    letheon.save(model, Path(folder) / "model")
    model = letheon.load(Path(folder) / "model")
model.forget([0], digest=True)
assert list(checks.yield_checks(model))
"""


def test_only_nets_import_torch() -> None:
    loaded = imported_after(USE_WITHOUT_TORCH)
    assert "letheon.checks" in loaded
    assert not loaded & {"torch", "letheon.deep"}


def test_everything_but_nets_works_without_torch() -> None:
    assert "letheon.checks" in imported_after(hidden("torch") + USE_WITHOUT_TORCH)


def error_without(package: str, code: str) -> str:
    """Return the message of the ImportError that some code raises without a package."""
    caught = f"try:\n    {code}\nexcept ImportError as error:\n    print(error)"
    return run_python(hidden(package) + caught).stdout.strip()


@pytest.mark.parametrize("name", [*NETS, "deep"])
def test_nets_without_torch_say_what_to_install(name: str) -> None:
    output = error_without("torch", f"from letheon import {name}")
    assert (
        output == "letheon.deep needs torch, which is not installed: pip install 'letheon[torch]'"
    )


def test_a_saved_net_says_what_to_install() -> None:
    tree = Instance("letheon.deep._sisa.SISANetClassifier", Record(()))
    code = f"from letheon import state; state.decode({blob_of(tree)!r})"
    assert "needs torch, which is not installed" in error_without("torch", code)


def test_a_missing_dependency_is_named() -> None:
    output = error_without("narwhals", "from letheon import SISAClassifier")
    assert (
        output == "letheon.sharded needs narwhals, which is not installed: pip install 'narwhals'"
    )


def test_a_missing_module_of_our_own_is_no_missing_dependency() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'letheon\.nowhere'"):
        letheon._import_module("letheon.nowhere")


@pytest.mark.parametrize("name", with_extras(letheon.__all__))
def test_public_name_resolves(name: str) -> None:
    value = getattr(letheon, name)
    assert name in dir(letheon)
    assert inspect.getdoc(value)


@pytest.mark.parametrize("name", with_extras(sorted(letheon._EXPORTS)))
def test_public_name_is_what_its_module_says(name: str) -> None:
    module = importlib.import_module(letheon._EXPORTS[name])
    assert getattr(letheon, name) is getattr(module, name)


def test_the_three_lists_of_public_names_agree() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed.items() <= letheon._EXPORTS.items()
    # A method that is only registered is exported, too, but its type is not known by this name.
    assert letheon._EXPORTS.keys() - typed.keys() <= class_paths().keys()
    assert set(letheon.__all__) == {"__version__", *letheon._EXPORTS}


@pytest.mark.parametrize("name", with_extras(sorted(letheon._MODULES)))
def test_module_is_an_attribute(name: str) -> None:
    assert isinstance(getattr(letheon, name), ModuleType)
    assert name in dir(letheon)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'remember'"):
        letheon.remember  # noqa: B018


def test_version_is_that_of_the_distribution() -> None:
    assert letheon.__version__ == version("letheon")


def test_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize("name", with_extras(MODULES))
def test_module_exports_what_it_says(name: str) -> None:
    module = importlib.import_module(f"letheon.{name}")
    assert inspect.getdoc(module)
    missing = [each for each in getattr(module, "__all__", []) if not hasattr(module, each)]
    assert not missing


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {p.name: len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    # A verifier copies, and reads, one file without dependencies on letheon.
    del lengths["verifier.py"]
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


def declared_names(body: list[ast.stmt]) -> dict[str, object]:
    """Return what a stub declares: argument names of functions, the same of classes by member."""
    names_by_class: dict[str, object] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names_by_class[node.name] = declared_names(node.body)
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            is_property = any(isinstance(d, ast.Name) for d in node.decorator_list)
            names = [each.arg for each in arguments if each.arg != "self"]
            names_by_class[node.name] = "property" if is_property else names
    return names_by_class


def built_names(owner: object) -> dict[str, object]:
    """Return the same of what was compiled; nanobind writes signatures into the first line."""
    members: dict[str, object] = {}
    for name in [each for each in dir(owner) if each == "__init__" or not each.startswith("_")]:
        member = getattr(owner, name)
        if isinstance(member, type):
            members[name] = built_names(member)
        elif isinstance(member, property):
            members[name] = "property"
        elif ": " in (member.__doc__ or "") or name != "__init__":
            members[name] = re.findall(r"(\w+): ", member.__doc__.splitlines()[0])
    return members


def test_stub_and_compiled_core_are_in_step() -> None:
    assert find_spec("letheon._core") is not None, "the core is not built: make setup"
    core = importlib.import_module("letheon._core")
    stub = ast.parse((SOURCE / "_core.pyi").read_text())
    built = built_names(core)
    built.pop("__init__", None)
    assert built == declared_names(stub.body)
