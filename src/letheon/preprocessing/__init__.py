"""Transformers that forget: exact counts and sums, rounded by keyed grids."""

from letheon.preprocessing._text import CountVectorizer, TfidfVectorizer

__all__ = ["CountVectorizer", "TfidfVectorizer"]
