"""Recommenders that forget exactly: co-counts of items, and models computed from them.

A row is one history: the items that a person used, bought or read. The model keeps, for every pair
of items, the number of histories that contain both. To forget a person, it subtracts that person's
pairs. Similarities and weights are computed from these integers when they are needed.

Examples
--------
>>> import numpy as np
>>> from letheon.recommend import ItemKNN
>>> histories = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
>>> model = ItemKNN(random_state=0).fit(histories, ids=["anna", "ben", "carla"])
>>> model.recommend([[1, 0, 0, 0]], k=2)[0].tolist()
[[1, 2]]
>>> _ = model.forget(["ben"])
>>> model.recommend([[1, 0, 0, 0]], k=2)[0].tolist()
[[1, -1]]
"""

from letheon.recommend._co_counts import CoCounts
from letheon.recommend._models import EASE, ItemKNN, Recommendations

__all__ = ["EASE", "CoCounts", "ItemKNN", "Recommendations"]
