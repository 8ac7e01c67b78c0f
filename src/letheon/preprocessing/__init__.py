"""Transformers that forget, with the names and parameters of scikit-learn.

Statistics are exact sums and counts of the remaining rows, rounded with a key (`letheon.sums`), so
that they rarely change when a few rows are removed. In a `letheon.ForgetPipeline` a removal then
costs only the rows that are removed.

Examples
--------
>>> import pandas as pd
>>> from letheon.preprocessing import OneHotEncoder
>>> people = pd.DataFrame({"city": ["Rome", "Oslo", "Rome"], "sex": ["f", "m", None]})
>>> encoder = OneHotEncoder().fit(people, ids=["p1", "p2", "p3"])
>>> encoder.get_feature_names_out().tolist()
['city_Oslo', 'city_Rome', 'sex_f', 'sex_m', 'sex_nan']
>>> encoder.forget(["p2"]).work
0.0
>>> encoder.get_feature_names_out().tolist()
['city_Rome', 'sex_f', 'sex_nan']
"""

from letheon.preprocessing._bins import QuantileBinner
from letheon.preprocessing._columns import ForgetColumnTransformer
from letheon.preprocessing._encode import OneHotEncoder, OrdinalEncoder
from letheon.preprocessing._impute import SimpleImputer
from letheon.preprocessing._keyed_sample import KeyedSample
from letheon.preprocessing._scale import RobustScaler, StandardScaler
from letheon.preprocessing._target import TargetEncoder
from letheon.preprocessing._text import CountVectorizer, TfidfVectorizer

__all__ = [
    "CountVectorizer",
    "ForgetColumnTransformer",
    "KeyedSample",
    "OneHotEncoder",
    "OrdinalEncoder",
    "QuantileBinner",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "TargetEncoder",
    "TfidfVectorizer",
]
