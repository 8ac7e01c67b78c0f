"""Hooks of MkDocs: the pages of the Python reference, and files of the repository as pages.

``mkdocs.yml`` names this file. The navigation there lists one page per public module; the names on
it come from the module. A link from a page to a file outside ``docs`` becomes a link to a copy of
this file on the site, below ``repository/``.
"""

import ast
import inspect
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import letheon
from tools.docstrings import Homes, find_makers, point_to_example
from tools.notebooks import execute_page

ROOT = Path(__file__).resolve().parents[1]
REFERENCE, COPIES = "reference/", "repository/"
FAVICON = "src/letheon/service/static/favicon.svg"
# Pages that are also executed notebooks to download.
TUTORIALS = ("hospital", "text", "photos")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s#]+)(?=[)#])")
# Names in links, blocks and headings are left alone.
_NAME = re.compile(r"<(a|pre|h\d)\b.*?</\1>|<code>(\w[\w.]*)</code>", re.DOTALL)
_SOURCE = '<details class="mkdocstrings-source"'

# Packages whose names letheon exports as its own.
_OTHERS = ("sklearn",)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the anchors of headings those of code hosts, and show the version.

    A site that `mike` builds has a menu of versions, which needs a server.
    """
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.copyright = f"letheon {letheon.__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, the notebooks, and the files of the repository that pages link to."""
    nav = list(iter_pages(config.nav))
    pages = write_reference(list_modules(nav))
    named = [find_path(name) for name in nav if name.startswith(COPIES)]
    linked = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in find_copies([*linked, *named]):
        name = name_page(path)
        if not name.endswith(".md"):
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
        else:
            pages[name] = _read_as_page(path)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    for name in TUTORIALS:
        notebook = execute_page(ROOT / "docs" / f"{name}.md")
        files.append(File.generated(config, f"notebooks/{name}.ipynb", content=notebook))
    files.append(File.generated(config, "assets/favicon.svg", abs_src_path=str(ROOT / FAVICON)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files of the repository at their copies, and link the notebook of a page."""
    name = page.file.src_uri.removesuffix(".md")
    if name in TUTORIALS:
        title, rest = markdown.split("\n", 1)
        markdown = f"{title}\n\n[Download as notebook](notebooks/{name}.ipynb)\n{rest}"
    return rewrite_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Link names to the reference; keep code and tables of results out of the search."""
    if page.file.src_uri.startswith((f"{COPIES}benchmarks/results", f"{COPIES}examples")):
        page.meta["search"] = {"exclude": True}
    elif page.file.src_uri.startswith((REFERENCE, COPIES)):
        page.meta["search"] = {"boost": 0.5}
    html = link_names(html, find_targets(tuple(list_modules(iter_pages(config.nav)))))
    # Docstrings mark a block of code by "::", which Markdown shows.
    html = html.replace("<p>::</p>", "").replace("::</p>", ":</p>")
    return html.replace(_SOURCE, f"{_SOURCE} data-search-exclude")


def iter_pages(nav: Any) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    elif nav:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from iter_pages(item)


def list_modules(pages: Iterable[str]) -> list[str]:
    """Return the modules whose pages a navigation names."""
    names = [page.removeprefix(REFERENCE).removesuffix(".md") for page in pages]
    return [name for name in names if name.startswith("letheon.")]


# The reference


def list_names(module: str) -> list[str]:
    """Return the public names of a module: `__all__`, or without one what it defines.

    They are read from its source; nothing is imported.
    """
    path = ROOT / "src" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    defined = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            defined.append(node.name)
    return defined


def find_homes(modules: Iterable[str]) -> Homes:
    """Return the public name of each class and function: in the module that defines it, if any."""
    homes: Homes = {}
    for module in map(import_module, modules):
        for name in list_names(module.__name__):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                is_own = value.__module__.startswith(module.__name__)
                if is_own or value not in homes:
                    homes[value] = f"{module.__name__}.{name}"
    return homes


def list_members(cls: type, homes: Homes) -> tuple[list[str], dict[str, list[str]]]:
    """Return the members to document with a class, and by base class those of public bases.

    Members of private bases belong to the class.
    """
    own: list[str] = []
    inherited: dict[str, list[str]] = {}
    for name in sorted({name for base in cls.__mro__ for name in vars(base)}):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        is_ours = owner.__module__.partition(".")[0] == "letheon"
        if name.startswith("_") or not is_ours or not _is_action(vars(owner)[name]):
            continue
        if owner is cls or owner not in homes:
            own.append(name)
        else:
            inherited.setdefault(homes[owner], []).append(name)
    return own, inherited


def _is_action(member: Any) -> bool:
    kinds = (property, cached_property, classmethod, staticmethod)
    return isinstance(member, kinds) or inspect.isfunction(member)


def write_reference(modules: list[str]) -> dict[str, str]:
    """Return the pages of the reference by name."""
    homes = find_homes(modules)
    makers = find_makers(homes)
    pages = {f"{REFERENCE}index.md": _write_index(modules, homes)}
    for name in modules:
        pages[f"{REFERENCE}{name}.md"] = write_module(name, homes, makers)
    return pages


def _write_index(modules: list[str], homes: Homes) -> str:
    lines = ["# Python reference", "", "## letheon", "", "| name | |", "|---|---|"]
    for name in exported_names():
        value = getattr(letheon, name)
        lines.append(f"| [`{name}`][{homes[value]}] | {_summarize(value)} |")
    lines += ["", f"`letheon.__version__` is the version: {letheon.__version__}.", ""]
    lines += ["## Modules", "", "| module | |", "|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {_summarize(import_module(name))} |" for name in modules]
    return "\n".join(lines) + "\n"


def _summarize(value: Any) -> str:
    first = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", r"\|")


def write_module(name: str, homes: Homes, makers: Mapping[str, list[str]] = {}) -> str:
    """Return the page of a module. Without `homes`, nothing is imported and members are missing."""
    hidden = ("show_root_heading: false", "show_root_toc_entry: false")
    lines = [f"# {name}", "", *_write_directive(name, [], *hidden)]
    for each in list_names(name):
        value = getattr(import_module(name), each) if homes else None
        own, inherited = list_members(value, homes) if inspect.isclass(value) else ([], {})
        origin = getattr(value, "__module__", None) or name
        if origin.partition(".")[0] in _OTHERS:
            lines += ["", f"## {each} {{#{name}.{each}}}", "", f"`{origin}.{each}`"]
            continue
        lines += ["", *_write_directive(f"{name}.{each}", own)]
        lines += ["", point_to_example(value, makers)] if homes else []
        for base, members in inherited.items():
            links = ", ".join(f"[`{member}`][{base}.{member}]" for member in members)
            lines += ["", f"Inherited from [`{base}`][{base}]: {links}."]
    return "\n".join(lines) + "\n"


def _write_directive(name: str, members: list[str], *options: str) -> list[str]:
    listed = ["members:", *(f"  - {member}" for member in members)] if members else []
    lines = [*options, *(listed or ["members: false"])]
    return [f"::: {name}", "    options:", *(f"      {line}" for line in lines)]


@cache
def find_targets(modules: tuple[str, ...]) -> dict[str, str]:
    """Return the entry of the reference for each name that a page may use."""
    homes = find_homes(modules)
    targets = {home: home for home in homes.values()} | {name: name for name in modules}
    for name in exported_names():
        home = homes[getattr(letheon, name)]
        targets[f"letheon.{name}"] = home
        if name[0].isupper():  # `forget` alone is the method
            targets[name] = home
    return targets


def exported_names() -> list[str]:
    """Return the names of `letheon` that have an entry in the reference."""
    return sorted(set(letheon.__all__) - {"__version__"})


def link_names(html: str, targets: dict[str, str]) -> str:
    """Link the first use of each name on a page to its entry in the reference."""
    seen: set[str] = set()

    def link_name(match: re.Match[str]) -> str:
        target = targets.get(match[2] or "")
        if target is None or target in seen:
            return match[0]
        seen.add(target)
        return f'<autoref identifier="{target}" optional>{match[0]}</autoref>'

    return _NAME.sub(link_name, html)


# Files of the repository


def name_page(path: str) -> str:
    """Return the name on the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    # MkDocs would make README.md the index page of its folder.
    path = path.replace("README.md", "readme.md")
    return f"{COPIES}{path}.md" if Path(path).suffix in LANGUAGES else f"{COPIES}{path}"


def find_path(page: str) -> str:
    """Return the file of the repository that a page of the site comes from."""
    if not page.startswith(COPIES):
        return f"docs/{page}"
    path = page.removeprefix(COPIES).replace("readme.md", "README.md")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def iter_links(text: str, path: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each link of a text to a file of the repository, with the path of this file."""
    for link in _LINK.finditer(text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if "://" not in link[2] and (ROOT / target).is_file():
            yield link, target


def find_copies(paths: Iterable[str]) -> list[str]:
    """Return the files outside ``docs`` among some paths and the pages that these link to."""
    todo, seen = list(paths), set(paths)
    while todo:
        path = todo.pop()
        if path.endswith(".md") and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            targets = {target for _, target in iter_links(text, path)} - seen
            seen |= targets
            todo += targets
    return sorted(path for path in seen if not path.startswith("docs/"))


def rewrite_links(text: str, page: str) -> str:
    """Return the text of a page with links that work on the site, and titles for file names."""
    parts, end = [], 0
    for link, target in iter_links(text, find_path(page)):
        there = posixpath.relpath(name_page(target), posixpath.dirname(page) or ".")
        is_name = link[1].endswith(posixpath.basename(target)) and target.endswith(".md")
        words = _read_title(target) if is_name else link[1]
        parts += [text[end : link.start()], f"[{words}]({there}"]
        end = link.end()
    return "".join([*parts, text[end:]])


def _read_title(path: str) -> str:
    with (ROOT / path).open(encoding="utf-8") as file:
        first = file.readline()
    return first.removeprefix("# ").rstrip()


def _read_as_page(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix)
    if language is None:
        return text
    return f"# {Path(path).name}\n\n```{language}\n{text.rstrip()}\n```\n"
