"""Statistics and models made of exact sums.

All sums are integers, so that adding and removing rows is exact, in any order and on every CPU.
`ColumnSums` has the sums of columns. `round_location_scale` and the other rounding functions turn
sums into published values that almost never change when a few rows are removed.

Examples
--------
>>> import numpy as np
>>> from letheon.sums import ColumnSums, round_location_scale
>>> sums = ColumnSums(1)
>>> sums.add(np.array([[0.0], [2.0], [10.0]]))
>>> sums.subtract(np.array([[10.0]]))
>>> sums.means
array([1.])
"""

from letheon.sums._bayes import BernoulliNB, CategoricalNB, ComplementNB, MultinomialNB
from letheon.sums._columns import ColumnSums
from letheon.sums._discriminant import (
    GaussianNB,
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from letheon.sums._features import FourierWeights, RandomFeatures
from letheon.sums._gram import Gram
from letheon.sums._pca import PCA
from letheon.sums._ridge import Ridge, RidgeClassifier
from letheon.sums._rounding import (
    LocationScale,
    floor_log2,
    keyed_dither,
    round_count,
    round_exponents,
    round_location_scale,
    round_logs,
    round_ratios,
    round_values,
)
from letheon.sums._sample import FOLDS, SAMPLE_SIZE, draw_sample, sample_border

__all__ = [
    "FOLDS",
    "PCA",
    "SAMPLE_SIZE",
    "BernoulliNB",
    "CategoricalNB",
    "ColumnSums",
    "ComplementNB",
    "FourierWeights",
    "GaussianNB",
    "Gram",
    "LinearDiscriminantAnalysis",
    "LocationScale",
    "MultinomialNB",
    "QuadraticDiscriminantAnalysis",
    "RandomFeatures",
    "Ridge",
    "RidgeClassifier",
    "draw_sample",
    "floor_log2",
    "keyed_dither",
    "round_count",
    "round_exponents",
    "round_location_scale",
    "round_logs",
    "round_ratios",
    "round_values",
    "sample_border",
]
