"""Limits of the language: names, words and lines, and that the check finds what breaks a rule."""

import ast
from pathlib import Path

import pytest

from tools import language

SOURCES = language.parse_files("src")
PROJECT = language.parse_files("src", "tests", "docs", "benchmarks", "examples", "tools")
MOST_PARTICIPLES = 40
MOST_ONE_WORD_NAMES = 0.35
MOST_FOUND = 50
# Terms of the literature that begin with a participle.
TERMS = ("staged_predict", "keyed_hash", "keyed_dither", "balanced_accuracy", "_associated_data")


def test_functions_are_verb_and_noun() -> None:
    participles = language.list_participles(SOURCES.values())
    assert len(participles) <= MOST_PARTICIPLES
    actions = [name for name, is_value in participles if not is_value]
    assert [name for name in actions if not name.startswith(TERMS)] == []
    assert language.share_of_one_word_names(SOURCES.values()) <= MOST_ONE_WORD_NAMES


def test_values_are_nouns() -> None:
    assert language.count_variable(SOURCES.values(), "found") <= MOST_FOUND


def test_class_names_are_unique() -> None:
    assert language.list_repeated_classes(PROJECT) == {}


def test_texts_follow_the_word_list() -> None:
    words = language.read_words()
    assert [
        place for path in language.list_files() for place in language.check_file(path, words)
    ] == []


@pytest.mark.parametrize(
    ("name", "is_participle"),
    [("found", True), ("_joined_rows", True), ("join_rows", False), ("seed_rows", False)],
)
def test_participles(name: str, *, is_participle: bool) -> None:
    tree = ast.parse(f"def {name}(): ...")
    assert bool(language.list_participles([tree])) == is_participle


def test_properties_and_booleans_may_be_participles() -> None:
    text = "@property\ndef spent(self): ...\ndef covered() -> bool: ...\ndef told() -> str: ..."
    participles = language.list_participles([ast.parse(text)])
    assert participles == [("spent", True), ("covered", True), ("told", False)]


def test_one_word_names() -> None:
    text = "class A:\n    def __len__(self): ...\n    def _of(self): ...\ndef load_rows(): ..."
    assert language.share_of_one_word_names([ast.parse(text)]) == 0.5


def test_repeated_classes() -> None:
    one, two = ast.parse("class A: ..."), ast.parse("def f():\n    class A: ...\nclass B: ...")
    files = {Path("one"): one, Path("two"): two}
    assert language.list_repeated_classes(files) == {"A": [Path("one"), Path("two")]}


def test_words_are_found_in_texts_and_names() -> None:
    words = {"zounds": "oh", "the manor": "your organisation"}
    text = "x = 1\n# Zounds.\n_zounds_rows = 1\nzoundser = 2\nout of the manor"
    places = [(2, "zounds"), (3, "zounds"), (5, "the manor")]
    assert list(language.find_words(text, words)) == places


def test_long_lines_of_prose_are_found() -> None:
    long = "x" * (language.LONGEST_LINE + 1)
    text = f"{long}\n```\n{long}\n```\n| {long} |\n{long[1:]}\n- {long}"
    assert list(language.find_long_lines(text)) == [1, 7]
