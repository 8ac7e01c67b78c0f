"""Documents that can be wrong: blocks are run, lists and links are compared with the code."""

import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.image import imread
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import letheon
from letheon import exceptions, linear, measures
from letheon.checks import yield_checks
from letheon.cli import app
from letheon.demo import STEPS
from letheon.measures import attacks
from tools.notebooks import FENCE, iter_blocks, make_notebook, run_block

mpl.use("Agg")

ROOT = Path(__file__).resolve().parents[1]
FRONT = [
    ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "RELEASING", "SECURITY")
]
PAGES = [*FRONT, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Blocks that need a running Ray or Dask cluster, or a desk; tests/cluster and tests/service start
# one and do the same.
CLUSTER = re.compile(r"\b(ray|dask|client|desk)\b")
HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
# Classes of nets by how their names begin, and the modules they come from.
NETS = re.compile(r"\btorch\b|letheon\.deep|\w+NetClassifier|DeepObliviate|CertifiedHead")
# Pages that are about nets from the first block on.
NET_PAGES = {"deep.md", "photos.md"}


def run_blocks(text: str, module: ModuleType) -> None:
    """Run the blocks of a page one after the other, as a reader would."""
    for block in iter_blocks(text):
        if not (CLUSTER.search(block.code) or (NETS.search(block.code) and not HAS_TORCH)):
            run_block(block, module)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return an empty module in an empty working directory."""
    page = ModuleType("page", "page")
    monkeypatch.setitem(sys.modules, "page", page)
    monkeypatch.chdir(tmp_path)
    return page


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def with_marks(paths: list[Path]) -> list[Any]:
    """Return paths as parameters; pages and scripts about nets are skipped without torch."""
    return [
        pytest.param(path, id=path.name, marks=needs_torch if is_about_nets(path) else ())
        for path in paths
    ]


def is_about_nets(path: Path) -> bool:
    is_script = path.suffix == ".py" and NETS.search(path.read_text(encoding="utf-8"))
    return path.name in NET_PAGES or bool(is_script)


@pytest.mark.parametrize("page", with_marks(PAGES))
def test_every_python_block_runs_and_prints_what_is_shown(page: Path, module: ModuleType) -> None:
    run_blocks(page.read_text(encoding="utf-8"), module)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nassert 1 > 2\n```\n",
    ],
    ids=["wrong output", "output not shown", "false claim"],
)
def test_a_wrong_page_is_noticed(text: str, module: ModuleType) -> None:
    with pytest.raises(AssertionError):
        run_blocks(text, module)


def test_a_notebook_has_the_text_the_code_and_what_it_prints(module: ModuleType) -> None:
    page = "# A [page](x.md)\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nThe end.\n"
    notebook = make_notebook(page, lambda block: run_block(block, module))
    assert [cell["source"] for cell in notebook["cells"]] == ["# A page", "print(1)", "The end."]
    assert notebook["cells"][1]["outputs"][0]["text"] == "1\n"
    assert len({cell["id"] for cell in notebook["cells"]}) == 3


def commands() -> Iterator[Any]:
    """Yield every command in a `console` block with the output shown for it."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                if language == "console":
                    line, _, shown = part.partition("\n")
                    yield pytest.param(line.split(), shown, id=f"{page.name}: {line}")


@pytest.mark.parametrize(("words", "shown"), list(commands()))
def test_every_command_exists_and_prints_what_is_shown(words: list[str], shown: str) -> None:
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", read("Makefile"), flags=re.MULTILINE)
    elif words[0] == "letheon":
        words = ["--help"] if words == ["letheon", "demo"] else words[1:]
        result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
        assert result.exit_code == 0
        assert not shown or result.output.split() == shown.split()
    else:
        assert words[0] in ("pip", "python")


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_reachable_from_the_index() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(read("docs/index.md"))}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.name)
def test_no_page_names_a_path_of_some_machine(page: Path) -> None:
    assert not re.search(r"/(home|tmp|work|root|usr)/", page.read_text(encoding="utf-8"))


def test_first_screen_of_the_readme() -> None:
    screen = "\n".join(read("README.md").splitlines()[:50])
    example = next(iter_blocks(screen))
    assert len([line for line in example.code.splitlines() if line.strip()]) <= 12
    assert "pip install letheon" in screen
    assert "make demo" in read("README.md")


def test_the_readme_is_short() -> None:
    assert len(read("README.md").split()) <= 900


def test_speeds_in_the_readme_are_those_of_the_benchmarks() -> None:
    """Each ratio is in the file of results that it links to, perhaps with more digits."""
    speeds = re.findall(r"\[([\d.,]+)x faster\]\((.+?)\)", read("README.md"))
    [large] = re.findall(r"\(Adult; ([\d,]+)x with a million", read("README.md"))
    assert len(speeds) == 6
    for speed, results in [*speeds, (large, "benchmarks/results/boosting.md")]:
        assert re.search(rf"(F/{speed}\b|\b{re.escape(speed)}[\d.]*x)", read(results)), speed


@needs_torch
def test_tables_of_methods_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_methods.py"))
    assert read("docs/methods.md") == made["page"](), "run python docs/make_methods.py"
    assert read("docs/index.md") == made["index"](read("docs/index.md"))
    assert made["summary"]() in read("docs/index.md")


def test_the_short_table_is_that_of_the_benchmark() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_bench.py"))
    page = read("docs/benchmarks.md")
    assert made["make_section"]() in page, "run python docs/make_bench.py"
    assert page == made["make_page"](page)


def test_figures_are_those_of_the_benchmark() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_figures.py"))
    for name, page in made["PAGES"]:
        text = read(f"docs/{name}")
        assert text == page(text), "run make_figures.py"


def test_figures_of_single_removals_have_a_column_per_table() -> None:
    note = "by L-BFGS and Newton-Cholesky (ours or scikit-learn's), here L-BFGS with 149.5 ms, over"
    rows = {
        "mnist38": [("Influence", "154", 2.7), ("DeltaGrad", "LOSS (0.5)", 1300.0)],
        "higgs": [("Influence", "4,900", 0.07)],
    }
    tables = [
        {
            "title": f"One person leaves: {name}: 11,982 x 784, 48.8% positive",
            "note": note,
            "rows": [dict(zip(("method", "x named", "cpu ms"), row, strict=True)) for row in table],
        }
        for name, table in rows.items()
    ]
    made = runpy.run_path(str(ROOT / "docs" / "make_figures.py"))
    lines = made["convex_table"]({"tables": [*tables, {"title": "Other", "rows": []}]})
    assert lines.splitlines()[0] == "|  | mnist38 | higgs |"
    assert "| rows x columns | 11,982 x 784 | 11,982 x 784 |" in lines
    assert "| F | L-BFGS, 150 ms | L-BFGS, 150 ms |" in lines
    assert "| Influence | 154x, 2.7 ms | 4,900x, 0.07 ms |" in lines
    assert "| DeltaGrad | LOSS (0.5), 1.3 s | - |" in lines


def test_pictures_of_the_architecture_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_architecture.py"))
    for name, draw in made["PICTURES"].items():
        assert read(f"docs/images/{name}") == draw(), "run python docs/make_architecture.py"


FIGURES = runpy.run_path(str(ROOT / "docs" / "make_figures.py"))


@pytest.mark.parametrize("name", FIGURES["PICTURES"])
def test_the_picture_is_what_its_block_draws(name: str, module: ModuleType) -> None:
    picture = ROOT / "docs" / name
    exec(FIGURES["code"](name), vars(module))
    shown, drawn = imread(picture), imread(name)
    assert picture.stat().st_size < 80_000
    # Bars of another height alone change 0.0013; letters of another font version less.
    assert shown.shape == drawn.shape
    assert abs(shown - drawn).mean() < 0.001, "run python docs/make_figures.py"


def test_the_command_can_be_found_after_make() -> None:
    _, _, after = read("README.md").partition("$ make test")
    assert ". .venv/bin/activate" in after.partition("##")[0]


@pytest.mark.parametrize(
    ("package", "sign", "command"),
    [
        ("pandas", "import pandas", "pip install pandas"),
        ("torch", "letheon.deep", "pip install 'letheon[torch]'"),
    ],
)
def test_the_examples_say_what_they_need(package: str, sign: str, command: str) -> None:
    needy = [example for example in EXAMPLES if sign in example.read_text("utf-8")]
    assert needy
    for example in needy:
        assert command in example.read_text("utf-8")
        assert re.search(rf"\[{example.name}\]\(\S+\),\s+needs\s+{package}", read("docs/index.md"))


def public_names(module: ModuleType) -> list[str]:
    names: list[str] = module.__all__
    return names


def parameters(estimator: type) -> list[str]:
    return list(inspect.signature(estimator).parameters)


def estimators(module: ModuleType) -> list[type[letheon.ForgetMixin]]:
    members = [getattr(module, name) for name in public_names(module)]
    classes = [each for each in members if inspect.isclass(each)]
    # Base classes have no facts.
    forgetting = [each for each in classes if issubclass(each, letheon.ForgetMixin)]
    return [each for each in forgetting if hasattr(each, "facts")]


NAMED = {
    "docs/linear.md": public_names(linear)
    + [name for estimator in estimators(linear) for name in parameters(estimator)],
    "docs/contract.md": public_names(exceptions),
    "docs/measures.md": public_names(measures),
    "docs/attacks.md": public_names(attacks) + list(attacks.ALL),
    "docs/forest.md": [
        *parameters(letheon.DaREForestRegressor),
        *("DaREForestClassifier", "DaREForestRegressor", "ForestTree", "ForgetCost"),
        *("RandomDepthSearch", "tune_random_depth"),
    ],
    "docs/boosting.md": [
        *parameters(letheon.BoostingRegressor),
        *("class_weight", "suggest_skeleton", "SkeletonDisplay", "BoostingCost"),
    ],
    "docs/sisa.md": [*parameters(letheon.SISAClassifier), "risk"],
    "docs/checks.md": [
        check.__name__ for check in yield_checks(letheon.SISAClassifier(DecisionTreeClassifier()))
    ]
    + ["check_forget_law_close_to_retrain"],
    "CHANGELOG.md": [name for name in public_names(letheon) if name != "__version__"],
    "docs/cli.md": [
        command.callback.__name__ for command in app.registered_commands if command.callback
    ],
}


if HAS_TORCH:
    NAMED["docs/deep.md"] = public_names(letheon.deep) + [
        name for estimator in estimators(letheon.deep) for name in parameters(estimator)
    ]


@pytest.mark.parametrize("name", ["linear", pytest.param("deep", marks=needs_torch)])
def test_every_assumption_is_explained(name: str) -> None:
    text = read(f"docs/{name}.md")
    for estimator in estimators(getattr(letheon, name)):
        definition = estimator.facts.definition
        listed = definition.partition("**Assumptions.**")[2].partition("\n**")[0]
        codes = re.findall(r"`([a-z]+(?:-[a-z]+)+)`", listed)
        assert codes
        assert [code for code in codes if f"`{code}`" not in text] == []


@pytest.mark.parametrize("page", NAMED)
def test_lists_are_complete(page: str) -> None:
    text = read(page)
    missing = [
        name
        for name in NAMED[page]
        if not re.search(rf"`[^`\n]*\b{name}\b|^## letheon {name}$", text, re.MULTILINE)
    ]
    assert missing == []


def test_the_page_of_the_demo_lists_its_steps() -> None:
    assert [step.title for step in STEPS if step.title not in read("docs/cli.md")] == []


# Examples of methods that are not exact, and what they find out instead.
CERTIFIED = {"erasure_stream.py": "within the budget: True"}


@pytest.mark.parametrize("example", with_marks(EXAMPLES))
def test_examples_run_and_keep_their_promise(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(example), run_name="__main__")
    output = capsys.readouterr().out
    assert CERTIFIED.get(example.name, "equal to a fresh fit: True") in output
    assert "False" not in output


def test_risk_tiers_make_risky_people_cheap(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "risk_tiers.py"), run_name="__main__")
    plain, tiered = map(float, re.findall(r"([\d.]+)% of a retrain", capsys.readouterr().out))
    assert tiered < plain


@pytest.mark.parametrize("page", ["docs/glossary.md", "docs/desk.md"])
def test_pages_list_the_states_of_a_request_as_people_see_them(page: str) -> None:
    states = pytest.importorskip("letheon.ledger").REQUEST_STATES
    labels = {code: state.label for code, state in states.items()}
    for cells in re.findall(r"^\| (.+?) \| (.+?) \| .+\|$", read(page), flags=re.MULTILINE):
        code, label = cells if cells[0].startswith("`") else cells[::-1]
        if code.strip("`") in labels:
            assert labels.pop(code.strip("`")) == label
    assert labels == {}
