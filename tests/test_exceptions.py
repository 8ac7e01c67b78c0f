"""The tree of errors that the module draws is the tree that exists."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import sklearn.exceptions

from letheon import exceptions


def drawn_tree() -> dict[str, str]:
    """Return name -> parent of every class drawn at the top of the module."""
    parents: dict[str, str] = {}
    stack: list[str] = []
    for line in (exceptions.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+(?:Error|Warning))\b", line)
        if match:
            depth = len(match[1]) // 4
            stack = [*stack[:depth], match[2]]
            parents[match[2]] = stack[depth - 1] if depth else ""
    return parents


def test_every_class_is_drawn_and_public() -> None:
    own = [member for member in vars(exceptions).values() if inspect.isclass(member)]
    classes = {member.__name__ for member in own if member.__module__ == exceptions.__name__}
    assert classes == set(drawn_tree())
    assert set(exceptions.__all__) == classes | {"NotFittedError"}


@pytest.mark.parametrize(("name", "parent"), [pair for pair in drawn_tree().items() if pair[1]])
def test_parent_is_as_drawn(name: str, parent: str) -> None:
    assert getattr(exceptions, name).__bases__[0].__name__ == parent


@pytest.mark.parametrize("name", [name for name, parent in drawn_tree().items() if parent])
def test_other_parents_are_the_built_ins_that_are_drawn(name: str) -> None:
    drawn = re.search(rf"\b{name} +\(([\w, ]+)\)", exceptions.__doc__ or "")
    bases = [base.__name__ for base in getattr(exceptions, name).__bases__[1:]]
    assert bases == (drawn[1].split(", ") if drawn else [])


def test_not_fitted_is_the_one_sklearn_users_catch() -> None:
    assert exceptions.NotFittedError is sklearn.exceptions.NotFittedError


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match=r"'letheon.exceptions' has no attribute 'Nope'"):
        exceptions.Nope  # noqa: B018


def test_own_lines_are_told_by_the_module_not_by_the_folder(tmp_path: Path) -> None:
    """A checkout may be called `letheon`, so that the path of every test has that part."""
    script = tmp_path / "letheon" / "script.py"
    script.parent.mkdir()
    script.write_text("def work():\n    raise KeyError('person-0003')\n", encoding="utf-8")
    scope: dict[str, Any] = {"__name__": "script"}
    exec(compile(script.read_text("utf-8"), str(script), "exec"), scope)
    with pytest.raises(KeyError) as caught:
        scope["work"]()
    assert exceptions.find_own_line(caught.value) is None
    scope["__name__"] = "letheon.ledger.planted"
    with pytest.raises(KeyError) as caught:
        scope["work"]()
    assert exceptions.find_own_line(caught.value) == ("script.py", 2)
