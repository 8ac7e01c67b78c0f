"""Transformers that forget exactly, with the names and parameters of scikit-learn."""

from letheon.preprocessing._columns import ForgetColumnTransformer

__all__ = ["ForgetColumnTransformer"]
