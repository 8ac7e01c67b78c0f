"""Models made of exact sums."""

from letheon.sums._bayes import BernoulliNB, CategoricalNB, ComplementNB, MultinomialNB

__all__ = ["BernoulliNB", "CategoricalNB", "ComplementNB", "MultinomialNB"]
