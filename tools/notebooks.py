"""Executed notebooks of the tutorials; ``make docs`` makes them from the pages.

The page is the source. Its Python blocks are run in order, in an empty folder, and the notebook
contains what they print. A block that prints something else than the page shows is an error.
"""

import contextlib
import doctest
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\s*^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Of links to pages and pictures, only those to other sites work in a downloaded notebook.
_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?://)[^)]*\)")


class DocBlock(NamedTuple):
    """Python code in a page, where it stands, and the output that the page shows after it."""

    line: int
    code: str
    expected: str
    start: int
    end: int


def iter_blocks(text: str) -> Iterator[DocBlock]:
    """Yield the Python blocks; a `text` block right after one is what it prints."""
    for fence in FENCE.finditer(text):
        if fence[1] == "python":
            shown = OUTPUT.match(text, fence.end())
            line = text.count("\n", 0, fence.start()) + 1
            end = shown.end() if shown else fence.end()
            yield DocBlock(line, fence[2], shown[1] if shown else "", fence.start(), end)


def run_block(block: DocBlock, module: ModuleType) -> str:
    """Run a block in a module and return what it prints; raise if the page shows something else."""
    code = compile("\n" * block.line + block.code, f"<{module.__doc__}>", "exec")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, vars(module))
    fine = doctest.OutputChecker().check_output(block.expected, output.getvalue(), FLAGS)
    assert fine, f"line {block.line} prints {output.getvalue()!r}, not {block.expected!r}"
    return output.getvalue()


def make_notebook(text: str, run: Callable[[DocBlock], str]) -> dict[str, Any]:
    """Return the notebook of a page (nbformat 4.5); `run` returns what a block prints."""
    cells, at = [], 0
    for number, block in enumerate(iter_blocks(text), 1):
        cells.append(_make_text(text[at : block.start]))
        printed = run(block)
        stream = {"output_type": "stream", "name": "stdout", "text": printed}
        outputs = [stream] if printed else []
        code = {"execution_count": number, "outputs": outputs, "source": block.code.rstrip("\n")}
        cells.append({"cell_type": "code", "metadata": {}, **code})
        at = block.end
    cells.append(_make_text(text[at:]))
    cells = [cell | {"id": f"cell-{place}"} for place, cell in enumerate(cells) if cell["source"]]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    language = {"name": "python", "version": ".".join(map(str, sys.version_info[:3]))}
    about = {"kernelspec": kernel, "language_info": language}
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def _make_text(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _LINK.sub(r"\1", text).strip()}


def execute_page(path: Path) -> str:
    """Run the blocks of a page and return its notebook as JSON."""
    text = path.read_text(encoding="utf-8")
    module = sys.modules["page"] = ModuleType("page", path.name)  # for classes that it defines
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        notebook = make_notebook(text, lambda block: run_block(block, module))
    del sys.modules["page"]
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
