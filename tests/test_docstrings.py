"""Every public name has parameters, returns, raises and an example in its docstring."""

import enum
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
pytest.importorskip("torch")
from mkdocs.utils.yaml import yaml_load

from tools import docstrings, site_pages

NAV = yaml_load((site_pages.ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
MODULES = site_pages.list_modules(site_pages.iter_pages(NAV))
HOMES = {
    value: home
    for value, home in site_pages.find_homes(MODULES).items()
    if value.__module__.startswith("letheon")
}
MAKERS = docstrings.find_makers(HOMES)
# What has no example of a few lines, and why.
NO_EXAMPLE = {
    "letheon.exceptions.CertificateError": "needs damaged files",
    "letheon.exceptions.CheckpointWarning": "needs a damaged checkpoint",
    "letheon.exceptions.LedgerBusyError": "needs a second process",
    "letheon.exceptions.LedgerUnwritableError": "needs a full disk",
    "letheon.exceptions.OldDatabaseError": "needs a database restored from a backup",
    "letheon.exceptions.ResidueError": "needs data of an erased person in a store",
    "letheon.exceptions.SignerRefusedError": "needs a claim that letheon never makes",
    "letheon.exceptions.StaleWorkerError": "needs a second worker",
    "letheon.select.CandidateResult": "is in the result of `letheon.select.choose`",
}


@pytest.mark.parametrize("value", HOMES, ids=HOMES.values())
def test_the_docstring_of_a_public_name_is_complete(value: Any) -> None:
    is_plain = docstrings.is_error(value) or issubclass(type(value), enum.EnumMeta)
    assert is_plain or docstrings.list_gaps(value) == []
    pointer = docstrings.point_to_example(value, MAKERS)
    has_example = bool(docstrings.has_example(value) or pointer)
    assert has_example != (HOMES[value] in NO_EXAMPLE), "no example, and no place that has one"


class RowPlace(NamedTuple):
    """A place."""

    x: int


def complete(x: int) -> int:
    """Return the next number.

    Parameters
    ----------
    x : int
        A number.

    Raises
    ------
    ValueError
        It is too large.

    Examples
    --------
    >>> complete(1)
    2
    """
    if x > 9:
        raise ValueError("too large")
    return x + 1


def without_parameter(x: int, y: int) -> None:
    """Do nothing.

    Parameters
    ----------
    x : int
        A number.
    """


def without_returns(x: int) -> int:
    """Count.

    Parameters
    ----------
    x : int
        A number.
    """
    return x


def without_raises() -> None:
    """Raise."""
    raise ValueError("always")


def make_place() -> RowPlace:
    """Return a place.

    Examples
    --------
    >>> make_place()
    RowPlace(x=1)
    """
    return RowPlace(1)


@pytest.mark.parametrize(
    ("function", "gaps"),
    [
        (complete, []),
        (without_parameter, ["parameter y"]),
        (without_returns, ["returns"]),
        (without_raises, ["raises ValueError"]),
        (RowPlace, ["parameter x"]),
    ],
)
def test_gaps_are_found(function: Callable[..., Any], gaps: list[str]) -> None:
    assert docstrings.list_gaps(function) == gaps


def test_a_record_points_to_the_example_of_its_maker() -> None:
    makers = docstrings.find_makers({make_place: "letheon.shapes.make_place"})
    line = "Returned by [`make_place`][letheon.shapes.make_place]."
    assert docstrings.point_to_example(RowPlace, makers) == line
    assert docstrings.point_to_example(RowPlace, {}) == ""
    assert not docstrings.has_example(RowPlace)
    assert docstrings.has_example(complete)


def test_parameters_that_a_module_shares_are_explained_once() -> None:
    from letheon import verifier

    assert "trust" not in (inspect.getdoc(verifier.check_chain) or "")
    assert docstrings.list_gaps(verifier.check_chain) == []
