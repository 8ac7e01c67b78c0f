"""docs/api.md against the API: the table of routes, and every address in an example."""

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
EXAMPLES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("curl")
]


@cache
def made() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "make_api.py"))


def test_the_page_is_what_the_api_says() -> None:
    assert made()["page"]() == PAGE, "run python docs/make_api.py"


@cache
def paths() -> list[tuple[str, str]]:
    path_list = made()["document"]()["paths"]
    return [
        (method, re.sub(r"\{\w+\}", "[^/]+", path))
        for path, methods in path_list.items()
        for method in methods
    ]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_address_in_an_example_exists(line: str) -> None:
    address = re.search(r"\$DESK(/[^\s?\"]*)", line)
    assert address is not None
    method = "post" if re.search(r" -[dF] ", line) else "get"
    assert [path for path in paths() if path[0] == method and re.fullmatch(path[1], address[1])]


def test_a_route_without_a_place_on_the_page_is_noticed() -> None:
    values = {"paths": {"/x": {"get": {"tags": ["new"], "summary": "x", "x-public": True}}}}
    with pytest.raises(ValueError, match="unknown tags"):
        list(made()["make_tables"](values))
