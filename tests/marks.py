"""Marks that several test files use."""

from typing import Any

import pytest

__all__ = ["soak"]


def soak(*values: Any) -> Any:
    """Return a case of a parametrised test that only ``make soak`` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)
