"""What the docstrings of public names say: their sections, gaps in them, and who makes what.

``tests/test_docstrings.py`` lists the gaps. The reference shows who raises an error and who returns
a record, because their example is there.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any

_SECTION = re.compile(
    r"^(Parameters|Attributes|Returns|Yields|Raises|Warns)\n-+\n(.*?)(?=^\w[\w ]*\n-{3,}|\Z)",
    re.MULTILINE | re.DOTALL,
)
_NO_VALUE = ("None", "Self", "NoReturn", "Iterator[None]", "ForwardRef('Self')")
Homes = dict[Any, str]


def read_sections(value: Any) -> dict[str, set[str]]:
    """Return the names in each section of a docstring."""
    sections = {}
    for match in _SECTION.finditer(inspect.getdoc(value) or ""):
        heads = [line for line in match[2].splitlines() if line and not line[0].isspace()]
        names = ",".join(head.partition(" : ")[0] for head in heads).split(",")
        sections[match[1]] = {name.strip().lstrip("*") for name in names}
    return sections


def has_example(value: Any) -> bool:
    """Return whether a docstring contains an example."""
    return ">>> " in (inspect.getdoc(value) or "")


def is_error(value: Any) -> bool:
    """Return whether a value is a class of errors or warnings."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def is_record(value: Any) -> bool:
    """Return whether a value is a class of plain records."""
    return inspect.isclass(value) and (is_dataclass(value) or issubclass(value, tuple))


def list_raised(function: Any) -> set[str]:
    """Return the errors that the body of a function raises by name."""
    raised = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            raised.add(ast.unparse(error).rpartition(".")[2])
    return {name for name in raised if name[0].isupper()}


def list_gaps(value: Any) -> list[str]:
    """Return what the docstring of a function or class does not explain, without examples.

    What many functions of a module share, its docstring explains once. A function that returns
    something says so in a section or in its first sentence.
    """
    sections = read_sections(value)
    shared = read_sections(sys.modules[value.__module__])
    signature = inspect.signature(value)
    parameters = {
        name for name, each in signature.parameters.items() if each.kind != each.VAR_KEYWORD
    }
    explained = shared.get("Parameters", set()).union(
        *(sections.get(name, ()) for name in ("Parameters", "Attributes"))
    )
    gaps = [f"parameter {name}" for name in sorted(parameters - explained - {"self", "cls"})]
    if inspect.isfunction(value):
        gives = inspect.formatannotation(signature.return_annotation)
        has_value = not gives.endswith(_NO_VALUE)
        is_said = (inspect.getdoc(value) or "").startswith(("Return ", "Yield "))
        is_said = is_said or not {"Returns", "Yields"}.isdisjoint(sections)
        gaps += ["returns"] * (has_value and not is_said)
        raised = list_raised(value) - sections.get("Raises", set()) - shared.get("Raises", set())
        gaps += [f"raises {name}" for name in sorted(raised)]
    return gaps


def iter_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class of letheon defines or inherits."""
    for name in sorted({name for base in cls.__mro__ for name in vars(base)} - {"_"}):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = member.fget
        elif isinstance(member, cached_property):
            member = member.func
        is_ours = getattr(member, "__module__", None) or ""
        if not name.startswith("_") and inspect.isfunction(member) and "letheon" in is_ours:
            yield name, member


def find_makers(homes: Homes) -> dict[str, list[str]]:
    """Return by class name who raises an error or returns a record, where there is an example."""
    makers: dict[str, list[str]] = {}
    for value, home in homes.items():
        if not is_error(value) and has_example(value):
            members = iter_members(value) if inspect.isclass(value) else ()
            for name, function in (("", value), *members):
                place = f"{home}.{name}".rstrip(".")
                for made in _list_made(function):
                    makers.setdefault(made, []).append(place)
    return makers


def _list_made(function: Any) -> Iterable[str]:
    gives = inspect.formatannotation(inspect.signature(function).return_annotation)
    sections = read_sections(function)
    raised = sections.get("Raises", set()) | sections.get("Warns", set())
    return raised | set(re.findall(r"\b[A-Z]\w+\b", gives))


def point_to_example(value: Any, makers: Mapping[str, list[str]]) -> str:
    """Return the line of the reference that says where an error or a record comes from."""
    places = makers.get(value.__name__, []) if is_error(value) or is_record(value) else []
    if has_example(value) or not places:
        return ""
    links = ", ".join(f"[`{'.'.join(place.split('.')[2:])}`][{place}]" for place in places[:4])
    if not is_error(value):
        return f"Returned by {links}."
    return f"{'Issued' if issubclass(value, Warning) else 'Raised'} by {links}."
