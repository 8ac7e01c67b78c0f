"""The registry of methods: complete, true, and closed to certified methods without a bound."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

import letheon
from letheon.audit import BOUNDS
from letheon.base import ForgetMixin
from letheon.guarantee import DECLARED, MethodFacts
from letheon.methods import METHODS, Method, class_paths, find_method

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
CASES = [
    pytest.param(method, name, marks=needs_torch if method.module == "letheon.deep" else ())
    for method in METHODS
    for name in method.class_names
]


@pytest.mark.parametrize(("method", "name"), CASES)
def test_the_line_says_what_the_class_declares(method: Method, name: str) -> None:
    cls = getattr(import_module(method.module), name)
    facts: MethodFacts = cls.facts
    assert (facts.method, facts.certificate) == (method.name, method.certificate)
    assert facts.definition
    assert (getattr(letheon, name, None) is cls) == method.is_exported


@needs_torch
def test_every_forgetting_estimator_of_the_package_is_registered() -> None:
    def subclasses(cls: type) -> set[type]:
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    for module in {method.module for method in METHODS}:
        import_module(module)
    ours = [cls for cls in subclasses(ForgetMixin) if cls.__module__.startswith("letheon.")]
    declared = {cls.__name__ for cls in ours if has_own_definition(cls)}
    assert {name for name in declared if is_exported(name)} == set(class_paths())


def has_own_definition(cls: Any) -> bool:
    return bool(getattr(getattr(cls, "facts", None), "definition_name", ""))


def is_exported(name: str) -> bool:
    modules = {import_module(method.module) for method in METHODS}
    return any(hasattr(module, name) for module in modules) and not name.endswith("Base")


def test_names_are_unique() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert len(class_paths()) == sum(len(method.class_names) for method in METHODS)


def test_audit_has_the_bound_of_every_certified_method() -> None:
    named = {method.bound for method in METHODS} - {None, "inner"}
    assert named == set(BOUNDS)


@pytest.mark.parametrize("bound", [None, ""])
def test_a_certified_method_without_a_bound_cannot_be_registered(bound: str | None) -> None:
    with pytest.raises(ValueError, match="has no bound"):
        Method("new", "letheon.new", "New", "certified", bound)


def facts_of(method: str, certificate: Any) -> MethodFacts:
    return MethodFacts(
        method=method,
        applicability="nothing",
        exact=certificate == "exact",
        strength="not stated",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_name="naive",
        certificate=certificate,
    )


@pytest.mark.parametrize("declared", [("new", "certified"), ("deltagrad", "certified")])
def test_a_class_cannot_declare_what_is_not_registered(declared: tuple[str, str]) -> None:
    """A planted bug: a certified method whose author forgot the registry, and with it the bound."""
    with pytest.raises(TypeError, match="registered"):
        type("New", (ForgetMixin,), {"facts": facts_of(*declared), "__module__": "letheon.new"})


def test_classes_from_outside_need_no_line() -> None:
    class Outside(ForgetMixin):
        facts: ClassVar[MethodFacts] = facts_of("theirs", "certified")

    assert Outside.facts.accounting_code(Outside()) == DECLARED
    assert find_method("theirs") is None


@pytest.mark.parametrize(("method", "name"), CASES)
def test_no_certified_method_counts_by_its_own_word(method: Method, name: str) -> None:
    cls: Any = getattr(import_module(method.module), name)
    if method.bound not in (None, "inner"):
        assert cls.facts.accounting != DECLARED
        assert cls.facts.noise != DECLARED
