"""Limits of the source tree: what a newcomer has to read stays small."""

import pytest

from tools.structure import (
    SourceModule,
    find_longest_chain,
    find_similar_records,
    list_small_modules,
    read_modules,
)

MODULES = read_modules()
PACKAGES = sorted({module.package for module in MODULES.values()})
LONGEST_CHAIN = 8
# `letheon.verifier` and `letheon.audit` repeat what they check, on purpose.
INDEPENDENT = ("letheon.verifier.", "letheon.audit.")


def of(**texts: str) -> dict[str, SourceModule]:
    names = {f"letheon.{name.replace('__', '.')}": text for name, text in texts.items()}
    return {name: SourceModule(name, text) for name, text in names.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_inside_a_package_form_short_chains(package: str) -> None:
    find_chain = find_longest_chain(MODULES, package)
    assert len(find_chain) <= LONGEST_CHAIN, " -> ".join(find_chain)


def test_small_modules_stand_inside_their_only_importer() -> None:
    assert list_small_modules(MODULES) == []


def test_one_record_per_thing() -> None:
    twins = find_similar_records(MODULES)
    assert [pair for pair in twins if not any(name.startswith(INDEPENDENT) for name in pair)] == []


def test_modules_are_short() -> None:
    lengths = {name: len(module.text.splitlines()) for name, module in MODULES.items()}
    too_long = {name for name, length in lengths.items() if length > 600}
    assert too_long <= {"letheon.verifier"}  # one file, by rule


def test_code_lines_leave_out_docstrings_comments_and_blanks() -> None:
    head = '"""Doc."""\n\n# why\nx = 1\n'
    text = head + 'def f():\n    """Doc.\n\n    More.\n    """\n    return (\n        x)\n'
    assert SourceModule("letheon.x", text).code_lines == 4


def test_a_chain_follows_imports_inside_the_package_only() -> None:
    modules = of(
        a="from letheon.a._one import x",
        a___one="import letheon.a._two\nimport letheon.b",
        a___two="",
        b="from letheon.a import x",
    )
    assert find_longest_chain(modules, "a") == ("letheon.a", "letheon.a._one", "letheon.a._two")


def test_twins_are_found_unless_one_is_the_base_of_the_other() -> None:
    record = "@dataclass(frozen=True)\nclass {}:\n    a: int\n    b: int\n    c: int\n"
    modules = of(a___one=record.format("A"), a___two=record.format("B"), a=record.format("C(A)"))
    pairs = [("a", "a._two"), ("a._one", "a._two")]
    names = {"a": "letheon.a.C", "a._one": "letheon.a._one.A", "a._two": "letheon.a._two.B"}
    assert sorted(map(sorted, find_similar_records(modules))) == sorted(
        sorted(names[name] for name in pair) for pair in pairs
    )


def test_small_modules_with_one_importer_are_found() -> None:
    modules = of(
        a="from letheon.a._one import x",
        a___one="from letheon.a._two import x\nfrom letheon.a._three import y",
        a___two="",
        a___three="",
        a___four="from letheon.a._three import y",
    )
    assert list_small_modules(modules) == ["letheon.a._two"]
