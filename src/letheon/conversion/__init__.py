"""Conversion of scikit-learn estimators to estimators that forget."""

from letheon.conversion._convert import convert
from letheon.conversion._report import ConversionReport, ConversionRow

__all__ = ["ConversionReport", "ConversionRow", "convert"]
