"""Plain English, measured: names of functions and classes, words to avoid, long lines of prose.

``python -m tools.language`` prints every place that breaks a rule and exits with 1 if there is one;
``make lint`` runs it. The words are in ``pyproject.toml``, under ``[tool.letheon.words]``.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_LINE = 120
FOLDERS = ("src", "docs", "examples", "tools", "deploy", "cpp")
ENDINGS = frozenset({".py", ".md", ".html", ".js", ".css", ".toml", ".cpp", ".hpp", ".h", ".sh"})
# Certificates name the SHA-256 of the definition texts.
FROZEN = ("src/letheon/definitions/", "docs/methods.md")
VENDORED = "/vendor/"

_PARTICIPLE = re.compile(
    "(?!(?:seed|need|feed|speed|embed|shed|red)$)(?:[a-z]+ed|begun|bent|broken|brought|built|bought"
    "|caught|chosen|done|drawn|driven|felt|found|forgotten|given|gone|grown|heard|held|hidden|kept"
    "|known|laid|led|lent|lost|made|meant|met|paid|risen|said|seen|sent|shown|shut|sold|spent|stood"
    "|stuck|taken|taught|thrown|told|thought|torn|understood|won|worn|written)"
)
_FENCE = re.compile(r"\s*(```|~~~)")


def split_name(name: str) -> list[str]:
    """Return the words of an identifier in lower case with underscores."""
    return [word for word in name.split("_") if word]


def iter_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions and methods, special methods excepted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            node.name.startswith("__")
        ):
            yield node


def is_value(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is a property or returns a boolean."""
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    returns = ast.unparse(function.returns) if function.returns else ""
    return returns == "bool" or bool({"property", "cached_property"} & decorators)


def list_participles(trees: Iterable[ast.AST]) -> list[tuple[str, bool]]:
    """Return the functions whose name begins with a participle, and whether each is a value."""
    return [
        (function.name, is_value(function))
        for tree in trees
        for function in iter_functions(tree)
        if _PARTICIPLE.fullmatch(function.name.strip("_").partition("_")[0])
    ]


def share_of_one_word_names(trees: Iterable[ast.AST]) -> float:
    """Return the share of functions whose name is a single word."""
    names = [function.name for tree in trees for function in iter_functions(tree)]
    return sum(len(split_name(name)) == 1 for name in names) / len(names)


def count_variable(trees: Iterable[ast.AST], name: str) -> int:
    """Return how often a variable of this name is read or written."""
    return sum(
        isinstance(node, ast.Name) and node.id == name for tree in trees for node in ast.walk(tree)
    )


def list_repeated_classes(trees: dict[Path, ast.Module]) -> dict[str, list[Path]]:
    """Return the class names that are used more than once, with the files."""
    files = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path)
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def list_files(root: Path = ROOT, folders: tuple[str, ...] = FOLDERS) -> list[Path]:
    """Return the files that people read: sources, tests, pages and documentation."""
    files = [path for path in root.iterdir() if path.suffix == ".md"]
    for folder in folders:
        files += [path for path in (root / folder).rglob("*") if path.suffix in ENDINGS]
    names = {path: path.relative_to(root).as_posix() for path in files}
    return sorted(
        path for path, name in names.items() if not name.startswith(FROZEN) and VENDORED not in name
    )


def parse_files(*folders: str) -> dict[Path, ast.Module]:
    """Return the syntax trees of the Python files in folders of the project."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


def read_words() -> dict[str, str]:
    """Return the words to avoid, each with what to write instead."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    words: dict[str, str] = settings["tool"]["letheon"]["words"]
    return words


def find_words(text: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line and word for each use of a word to avoid, also inside identifiers.

    A word in quotation marks or with a hyphen is a value, such as a code of a certificate.
    """
    pattern = re.compile(rf"(?<![a-z\"'`-])({'|'.join(words)})(?![a-z\"'`-])", re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), 1):
        for match in pattern.finditer(line):
            yield number, match[1].lower()


def find_long_lines(text: str) -> Iterator[int]:
    """Yield the numbers of the lines of prose that are too long; no code blocks and tables."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            in_code = not in_code
        elif len(line) > LONGEST_LINE and not in_code and not line.lstrip().startswith("|"):
            yield number


def check_file(path: Path, words: dict[str, str]) -> Iterator[str]:
    """Yield a sentence for each place of a file that breaks a rule."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
    if path.name != "pyproject.toml":
        for number, word in find_words(text, words):
            yield f"{name}:{number}: write {words[word]} instead of {word!r}"
    if path.suffix == ".md":
        for number in find_long_lines(text):
            yield f"{name}:{number}: a line of prose has more than {LONGEST_LINE} characters"


def main() -> int:
    """Print every place that breaks a rule."""
    words = read_words()
    places = [place for path in list_files() for place in check_file(path, words)]
    sys.stdout.writelines(f"{place}\n" for place in places)
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
