"""The documentation site: complete, without broken links, and with a search that works offline.

Tests marked `site` need the built site; ``make docs`` runs them.
"""

import json
import re
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import letheon
from tests.browser import chromium
from tools.notebooks import iter_blocks
from tools.site_links import find_broken

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
from mkdocs.utils.yaml import yaml_load

from tools import site_pages

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
QUESTIONS = (ROOT / "docs" / "questions.txt").read_text(encoding="utf-8").splitlines()
NAV = list(site_pages.iter_pages(yaml_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))
MODULES = site_pages.list_modules(NAV)
# Modules with public names that are for letheon itself.
INTERNAL = {"letheon.cli", "letheon.demo", "letheon.terminal"}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def find_public_modules() -> set[str]:
    modules = {f"letheon.{name}" for name in letheon._MODULES} | {*letheon._EXPORTS.values()}
    for path in (ROOT / "src" / "letheon").glob("[!_]*"):
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and "\n__all__ = " in file.read_text(encoding="utf-8"):
            modules.add(f"letheon.{path.stem}")
    return modules - INTERNAL


def test_every_public_module_has_a_page() -> None:
    assert find_public_modules() <= set(MODULES)


def test_every_page_is_in_the_navigation() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(NAV)


def test_the_reference_has_every_public_name() -> None:
    for module in find_public_modules():
        page = site_pages.write_module(module, homes={})
        shown = set(re.findall(rf"^::: {re.escape(module)}\.(\w+)$", page, re.MULTILINE))
        source = (ROOT / "src" / module.replace(".", "/")).with_suffix(".py")
        text = (source if source.exists() else source.with_suffix("") / "__init__.py").read_text()
        names = re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        pattern = r'"(\w+)"' if names else r"^(?:class|def) ([a-zA-Z]\w*)"
        assert shown == set(re.findall(pattern, names[1] if names else text, re.MULTILINE)), module


@needs_torch
@pytest.mark.site
def test_the_built_reference_has_every_public_name() -> None:
    inventory = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    # One that scikit-learn documents.
    entries.add("letheon.exceptions.NotFittedError")
    for name in find_public_modules():
        module = import_module(name)
        own = [key for key, value in vars(module).items() if is_defined_in(value, name)]
        names = getattr(module, "__all__", own)
        assert [each for each in names if f"{name}.{each}" not in entries] == []
    index = (SITE / "reference" / "index.html").read_text(encoding="utf-8")
    assert [name for name in site_pages.exported_names() if f">{name}</code>" not in index] == []


@needs_torch
@pytest.mark.site
@pytest.mark.parametrize("name", site_pages.TUTORIALS)
def test_the_notebook_of_a_tutorial_has_the_outputs_of_the_page(name: str) -> None:
    cells = json.loads((SITE / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    blocks = list(iter_blocks((ROOT / "docs" / f"{name}.md").read_text("utf-8")))
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["source"] for cell in code] == [block.code.rstrip("\n") for block in blocks]
    printed = ["".join(output["text"] for output in cell["outputs"]).split() for cell in code]
    assert printed == [block.expected.split() for block in blocks]
    assert f"notebooks/{name}.ipynb" in (SITE / f"{name}.html").read_text("utf-8")


def is_defined_in(value: Any, module: str) -> bool:
    is_public = not getattr(value, "__name__", "_").startswith("_")
    return is_public and getattr(value, "__module__", None) == module


def test_a_class_has_the_members_of_its_private_bases() -> None:
    homes = site_pages.find_homes(["letheon.base", "letheon.boosting"])
    own, inherited = site_pages.list_members(letheon.BoostingClassifier, homes)
    assert {"fit", "predict", "forget_cost", "classes_"} <= set(own)
    assert "forget" in inherited["letheon.base.ForgetMixin"]
    assert "get_params" not in own


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("sisa.md", "[x](forest.md#limits)", "[x](forest.md#limits)"),
        ("sisa.md", "[glossary.md](glossary.md)", "[Glossary](glossary.md)"),
        ("sisa.md", "[SECURITY.md](../SECURITY.md)", "[Security](repository/SECURITY.md)"),
        ("sisa.md", "[x](../SECURITY.md#a)", "[x](repository/SECURITY.md#a)"),
        ("sisa.md", "[x](../benchmarks/README.md)", "[x](repository/benchmarks/readme.md)"),
        ("sisa.md", "[x](../examples/churn.py)", "[x](repository/examples/churn.py.md)"),
        ("repository/SECURITY.md", "[x](docs/files.md)", "[x](../files.md)"),
        ("sisa.md", "`values[0](letheon)` [x](https://a.org)", None),
    ],
)
def test_links_to_the_repository_lead_to_copies(page: str, link: str, there: str | None) -> None:
    assert site_pages.rewrite_links(link, page) == (there or link)


def test_the_first_use_of_a_name_is_linked_to_the_reference() -> None:
    targets = {"letheon.forget": "letheon.compose.forget"}
    code = "<code>letheon.forget</code>"
    html = f'<h2>{code}</h2><a href="x">{code}</a><pre>{code}</pre><code>other</code>'
    linked = f'<autoref identifier="letheon.compose.forget" optional>{code}</autoref>'
    assert site_pages.link_names(html + code + code, targets) == html + linked + code


def test_copies_are_found_through_links() -> None:
    copies = site_pages.find_copies(["docs/deep.md"])
    assert "benchmarks/results/deep_gpu_residuals.png" in copies
    assert "CONTRIBUTING.md" in site_pages.find_copies(["docs/contract.md"])


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "image.png").touch()
    (tmp_path / "a.html").write_text(
        '<h1 id="top"><a href="b.html#deep"></a><a href="#top"></a><a href="https://a.org"></a>'
        '<img src="image.png"><a href="b.html#none"></a><a href="c.html"></a><a href="."></a>'
    )
    (tmp_path / "b.html").write_text('<p id="deep"><script src="https://a.org/x.js"></script>')
    assert list(find_broken(tmp_path)) == [
        "a.html: broken link b.html#none",
        "a.html: broken link c.html",
        "a.html: broken link .",
        "b.html: loads https://a.org/x.js from the network",
    ]


def test_each_question_names_pages_that_exist() -> None:
    assert len(QUESTIONS) >= 30
    pages = {name.removesuffix(".md") for name in NAV}
    for line in QUESTIONS:
        _, expected = line.split("\t")
        assert {page.removesuffix(".html") for page in expected.split()} <= pages


QUERY, META = "[data-md-component=search-query]", ".md-search-result__meta"
FIRST_LINKS = "all => all.slice(0, 3).map(item => item.querySelector('a').href)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as program:
        yield program


@pytest.fixture(scope="module")
def start_page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto((SITE / "index.html").as_uri())
    page.click(QUERY)
    yield page
    assert [each for each in addresses if not each.startswith("file:")] == []


def search_site(page: Any, words: str) -> list[str]:
    """Type words into the search of the site, opened as a file; return the first three pages."""
    for text, answer in (("", "Type"), (words, "match")):
        page.fill(QUERY, text)
        page.keyboard.press("End")
        page.wait_for_function(f"document.querySelector('{META}').textContent.includes('{answer}')")
    links: list[str] = page.eval_on_selector_all(".md-search-result__item", FIRST_LINKS)
    return [re.split("[?#]", link.removeprefix(SITE.as_uri() + "/"))[0] for link in links]


@pytest.mark.site
@pytest.mark.parametrize("line", QUESTIONS, ids=lambda line: line.partition("\t")[0])
def test_the_search_answers_the_question(start_page: Any, line: str) -> None:
    question, expected = line.split("\t")
    assert set(expected.split()) & set(search_site(start_page, question))


@pytest.mark.site
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "hospital", "reference/letheon.boosting"])
def test_pages_fit_a_phone(browser: Any, scheme: str, name: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto((SITE / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
