"""Forests that forget exactly (DaRE), and the choice of their efficiency parameter."""

from letheon.forest._balance import are_classes, read_balance, read_categories, weigh_classes
from letheon.forest._core_base import CoreModelBase, StoredModelBase
from letheon.forest._estimators import DaREForestClassifier, DaREForestRegressor
from letheon.forest._inputs import (
    REBUILD,
    ForestBatch,
    LabelTable,
    resolve_max_features,
    y_exponent_of,
)
from letheon.forest._model import (
    ForgetCost,
    StoredRows,
    core_arguments,
    id_arguments,
    ids_of,
)
from letheon.forest._threads import threads_for, threads_for_few
from letheon.forest._tree import ForestTree
from letheon.forest._tune import RandomDepthSearch, tune_random_depth
from letheon.forest._weights import ClassBalance, ClassWeightRule, WeightSettings, as_weights

__all__ = [
    "REBUILD",
    "ClassBalance",
    "ClassWeightRule",
    "CoreModelBase",
    "DaREForestClassifier",
    "DaREForestRegressor",
    "ForestBatch",
    "ForestTree",
    "ForgetCost",
    "LabelTable",
    "RandomDepthSearch",
    "StoredModelBase",
    "StoredRows",
    "WeightSettings",
    "are_classes",
    "as_weights",
    "core_arguments",
    "id_arguments",
    "ids_of",
    "read_balance",
    "read_categories",
    "resolve_max_features",
    "threads_for",
    "threads_for_few",
    "tune_random_depth",
    "weigh_classes",
    "y_exponent_of",
]
