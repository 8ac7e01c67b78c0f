"""The table of rules for settings is complete: every parameter of every listed class is in it."""

import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils._param_validation import (  # type: ignore[import-untyped]
    Hidden,
    StrOptions,
    make_constraint,
)

import letheon
from letheon import neighbors, recommend, state
from letheon.state._allowed import CLASSES
from letheon.state._nodes import Instance, Record, Scalar
from letheon.state._settings_rules import find_violations, rule_of
from letheon.state._settings_table import OUR_RULES, RULES
from tests.state.test_estimators import REFUSED, Y, estimators, fitted, made, outputs


def listed_classes() -> dict[str, Any]:
    """Return the listed classes of the installed scikit-learn by qualified name."""
    classes = {}
    for qualified in sorted(CLASSES):
        module, _, name = qualified.rpartition(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cls = getattr(importlib.import_module(module), name, None)
        if cls is not None:
            classes[qualified] = cls
    return classes


def parameters_of(cls: Any) -> list[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [each.name for each in parameters if each.kind not in variable]


def unknown_parameters(rules: dict[str, str]) -> set[str]:
    """Return the parameters of listed classes that have no rule."""
    return {
        f"{cls.__name__}.{name}"
        for cls in listed_classes().values()
        for name in parameters_of(cls)
        if rules.keys().isdisjoint({name, f"{cls.__name__}.{name}"})
    }


def choices_of(cls: Any) -> dict[str, set[str]]:
    """Return the texts that scikit-learn documents for each parameter of a class."""
    constraints = getattr(cls, "_parameter_constraints", {})
    options: dict[str, set[str]] = {}
    for name, rules in constraints.items() if isinstance(constraints, dict) else ():
        for rule in () if isinstance(rules, str) else rules:
            known = make_constraint(rule)
            known = make_constraint(known.constraint) if isinstance(known, Hidden) else known
            if isinstance(known, StrOptions):
                options.setdefault(name, set()).update(known.options)
    return options


def test_every_parameter_has_a_rule() -> None:
    assert unknown_parameters(RULES) == set(), (
        "scikit-learn has parameters that letheon does not know. Find out what each does with its "
        "value and add its name to _SKLEARN in letheon/state/_settings_table.py, under its rule."
    )


def test_a_rule_that_is_removed_is_missed() -> None:
    for name in ("input", "memory", "n_jobs", "token_pattern", "max_iter"):
        rest = {key: rule for key, rule in RULES.items() if key != name}
        assert any(place.endswith(f".{name}") for place in unknown_parameters(rest))


def test_every_parameter_of_ours_has_a_rule() -> None:
    places = (letheon, neighbors, recommend)
    ours = [getattr(place, name) for place in places for name in place.__all__]
    ours = [cls for cls in ours if isinstance(cls, type) and hasattr(cls, "get_params")]
    assert len(ours) > 10
    names = {name for cls in ours for name in parameters_of(cls)}
    assert names - OUR_RULES.keys() == set()


def test_every_word_of_every_class_is_allowed_but_those_that_read_files() -> None:
    wrong = {
        f"{cls.__name__}.{name}={word}"
        for qualified, cls in listed_classes().items()
        for name, words in choices_of(cls).items()
        for word in words
        if not (rule := rule_of(qualified, name)) or not rule.allows_text(word)
    }
    assert {place.partition(".")[2] for place in wrong} == {"input=file", "input=filename"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(estimators()) - {"Birch"}))
def test_every_estimator_with_every_word_is_read_back(name: str) -> None:
    cls = estimators()[name]
    if "SearchCV" in name:
        pytest.skip("cannot be inside a model")
    for key, word in [(None, None), *words_of(cls)]:
        value = made(name, cls)
        if key is not None:
            setattr(value, key, word)
        if word not in {"file", "filename"}:
            blob = state.encode(value)
            assert state.encode(state.decode(blob)) == blob


FREE_TEXT = {
    *("classes", "constant", "estimators", "fill_value", "missing_values", "outlier_label"),
    *("owner", "pos_label", "requests", "separator", "steps", "transformer_list", "transformers"),
}
PLACES = sorted(
    {
        (qualified, name)
        for qualified, cls in listed_classes().items()
        for name in parameters_of(cls)
        if name not in FREE_TEXT
    }
)


@settings(max_examples=5)
@given(text=st.text(min_size=1))
def test_no_other_text_is_allowed_anywhere(text: str) -> None:
    for class_name, name in PLACES:
        rule = rule_of(class_name, name)
        assert rule is not None
        is_allowed = text in rule.words or (bool(rule.pattern) and rule.allows_text(text))
        for node in (text, Scalar(text)):
            refusals = find_violations(Instance(class_name, Record(((name, node),))), {})
            assert bool(refusals) != is_allowed, (class_name, name, text)


def test_free_text_is_what_the_table_calls_text() -> None:
    parameters = {
        (RULES.get(f"{cls.__name__}.{name}", RULES.get(name, "")), name)
        for cls in listed_classes().values()
        for name in parameters_of(cls)
    }
    assert {name for rule, name in parameters if "TEXT" in rule.split()} == FREE_TEXT


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_no_estimator_with_allowed_settings_reaches_out(tmp_path: Path) -> None:
    """Fit every estimator with every allowed word to rows that are names of files."""
    secret = tmp_path / "secret"
    secret.write_text("red blue")
    names = [str(secret)] * 48
    joblib.cpu_count(only_physical_cores=True)  # asks `lscpu`, once per process
    fits = 0
    with recorded_events() as events:
        for name in sorted(set(estimators()) - REFUSED):
            for key, word in [(None, None), *words_of(estimators()[name])]:
                value = made(name, estimators()[name])
                if key is not None:
                    setattr(value, key, word)
                if find_violations(state.to_tree(value), {}):
                    continue
                with suppress(Exception, AssertionError):
                    model, rows = fitted(value)
                    outputs(model, rows)
                    fits += 1
                for rows in (names, np.array(names, object)[:, None]):
                    with suppress(Exception):
                        outputs(clone(value).fit(rows, Y), rows)
    assert fits > 500
    assert events == set(), f"{fits} fits"


def words_of(cls: Any) -> list[tuple[str, str]]:
    return [(key, word) for key, words in choices_of(cls).items() for word in sorted(words)]


@contextmanager
def recorded_events() -> Iterator[set[str]]:
    """Yield the files opened outside the Python installation, and calls that start or connect."""
    events: set[str] = set()
    is_open = [True]
    inside = tuple(
        {sys.prefix, sys.base_prefix, str(Path(letheon.__file__).parent), "/proc/", "/sys/"}
    )

    def note(event: str, arguments: Any) -> None:
        if not is_open[0]:
            return
        if event == "open" and not str(arguments[0]).startswith(inside):
            events.add(f"open {arguments[0]}")
        elif event.startswith(("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn")):
            events.add(f"{event} {arguments[:2]}")

    sys.addaudithook(note)
    try:
        yield events
    finally:
        is_open[0] = False
