"""Measures of the source tree: code lines, import chains, small modules, similar records.

Run ``python -m tools.structure`` for a table; ``tests/test_structure.py`` checks the limits.
"""

import ast
import io
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
_BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceModule:
    """One module of the source tree."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """The part of the name after ``letheon.``, up to the next dot."""
        return self.name.removeprefix("letheon").removeprefix(".").partition(".")[0]

    @property
    def code_lines(self) -> int:
        """Lines without docstrings, comments and blank lines."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        lines = {
            line
            for token in tokens
            if token.type not in _BLANK
            for line in range(token.start[0], token.end[0] + 1)
        }
        for node in ast.walk(self.tree):
            if (
                isinstance(node, _WITH_DOCSTRING)
                and ast.get_docstring(node, clean=False) is not None
            ):
                first = node.body[0]
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return len(lines)

    @property
    def statements(self) -> int:
        """Number of statements."""
        return sum(isinstance(node, ast.stmt) for node in ast.walk(self.tree))

    def find_imports(self, names: set[str]) -> set[str]:
        """Return the modules among `names` that importing this module imports."""
        imported = set()
        todo: list[ast.AST] = [self.tree]
        while todo:
            for node in ast.iter_child_nodes(todo.pop()):
                if isinstance(node, ast.ImportFrom) and node.module:
                    full = {f"{node.module}.{alias.name}" for alias in node.names}
                    imported |= (full & names) or ({node.module} & names)
                elif isinstance(node, ast.Import):
                    imported |= {alias.name for alias in node.names} & names
                elif not isinstance(node, ast.FunctionDef | ast.If):
                    todo.append(node)
        return imported - {self.name}

    def list_bases(self, name: str) -> set[str]:
        """Return the names of the bases of a class."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]
        return {ast.unparse(base) for node in nodes if node.name == name for base in node.bases}

    def list_records(self) -> dict[str, set[str]]:
        """Return the fields of each dataclass or model of pydantic that has three or more."""
        classes = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ClassDef) and _is_record(node)
        ]
        fields = {
            record.name: {
                part.target.id
                for part in record.body
                if isinstance(part, ast.AnnAssign)
                and isinstance(part.target, ast.Name)
                and not ast.unparse(part.annotation).startswith("ClassVar")
            }
            for record in classes
        }
        return {name: names for name, names in fields.items() if len(names) >= 3}


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    kinds = {"dataclass", "BaseModel", "NamedTuple", "TypedDict", "In", "Out"}
    return any(mark.partition("(")[0] in kinds for mark in marks)


def read_modules(root: Path = SOURCES) -> dict[str, SourceModule]:
    """Return the modules below a folder by name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = SourceModule(name, path.read_text(encoding="utf-8"))
    return modules


def find_longest_chain(modules: dict[str, SourceModule], package: str) -> tuple[str, ...]:
    """Return the longest chain of imports inside a package.

    The ``__init__`` of the package never ends a chain, since it imports all that it exports.
    """
    inside = {name for name, module in modules.items() if module.package == package}
    inner = inside - {f"letheon.{package}"}
    imports = {name: modules[name].find_imports(inner) for name in inside}
    known: dict[str, tuple[str, ...]] = {}

    def find_chain(name: str, above: frozenset[str]) -> tuple[str, ...]:
        if name not in known:
            below = (find_chain(each, above | {name}) for each in imports[name] - above)
            known[name] = (name, *max(below, key=len, default=()))
        return known[name]

    return max((find_chain(name, frozenset()) for name in inside), key=len)


def list_small_modules(modules: dict[str, SourceModule], below: int = 60) -> list[str]:
    """Return modules with fewer than `below` code lines that only one other module imports.

    Packages themselves do not count: they list exports.
    """
    packages = {name.rpartition(".")[0] for name in modules}
    importers = Counter(
        imported
        for name, module in modules.items()
        if name not in packages
        for imported in module.find_imports(set(modules) - packages)
    )
    return [
        name
        for name, number in importers.items()
        if number == 1 and name.count(".") > 1 and modules[name].code_lines < below
    ]


def find_similar_records(
    modules: dict[str, SourceModule], share: float = 0.6
) -> list[tuple[str, str]]:
    """Return pairs of classes that have this share of their fields in common.

    A class and its base do not count as a pair.
    """
    records = [
        (f"{module.name}.{name}", fields, module.list_bases(name))
        for module in modules.values()
        for name, fields in module.list_records().items()
    ]
    return [
        (first, second)
        for (first, some, above), (second, others, below) in combinations(records, 2)
        if len(some & others) >= share * max(len(some), len(others))
        and first.rpartition(".")[2] not in below
        and second.rpartition(".")[2] not in above
    ]


def _print_table() -> None:
    modules = read_modules()
    packages = sorted({module.package for module in modules.values()})
    print(f"{'package':14} {'code':>6} {'files':>5} {'statements':>10} {'find_chain':>5}")  # noqa: T201
    totals = Counter[str]()
    for package in packages:
        inside = [module for module in modules.values() if module.package == package]
        code = sum(module.code_lines for module in inside)
        statements = sum(module.statements for module in inside)
        length = len(find_longest_chain(modules, package))
        print(f"{package:14} {code:6} {len(inside):5} {statements:10} {length:5}")  # noqa: T201
        totals.update(code=code, files=len(inside), statements=statements)
    print(dict(totals))  # noqa: T201


if __name__ == "__main__":
    _print_table()
