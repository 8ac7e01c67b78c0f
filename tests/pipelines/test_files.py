"""Files of transformers, models made of sums and searches: read back, and refused if hostile."""

import inspect
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from letheon import DaREForestClassifier, state
from letheon.exceptions import UntrustedClassError
from letheon.methods import class_paths
from letheon.search import ForgetSearchCV
from letheon.state._settings_table import OUR_RULES
from tests.state.reader_seeds import X, Y, _sums


def test_every_parameter_of_every_registered_class_has_a_rule() -> None:
    names = set()
    for name, module in class_paths().items():
        if module != "letheon.deep":
            cls = getattr(import_module(module), name)
            names |= {f"{name}.{key}" for key in inspect.signature(cls).parameters}
    assert {name for name in names if name.partition(".")[2] not in OUR_RULES} == set()


def test_everything_made_of_sums_is_read_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = list(_sums())
    assert len(models) > 20
    for model in models:
        blob = state.encode(model)
        assert state.encode(state.decode(blob)) == blob, model


def searched(grid: Any) -> Any:
    forest = DaREForestClassifier(n_estimators=2, max_depth=2, random_state=0)
    return ForgetSearchCV(forest, grid, n_people=20, cv=2, random_state=0).fit(X, Y)


@pytest.mark.parametrize(
    "grid",
    [
        {"n_estimators": [1, 2], "criterion": ["gini", "entropy"]},
        [{"max_depth": [1]}, {"max_features": ["sqrt", None]}],
    ],
)
def test_a_search_is_read_back(grid: Any) -> None:
    model = searched(grid)
    again = state.decode(state.encode(model))
    assert again.digest() == model.digest()
    assert again.forget([3]).n_rows == 1


@pytest.mark.parametrize(
    "grid",
    [
        {"text__input": ["filename"]},
        {"n_estimators": [10**12]},
        [{"n_jobs": [2, 10**6]}],
        {"n_estimators": 10**12},
        {"n_estimators": [np.int64(10**12)]},
        {"memory": ["/tmp/elsewhere"]},
        {"unknown": ["any text"]},
    ],
)
def test_a_grid_cannot_set_what_a_parameter_cannot_have(grid: Any) -> None:
    """A search sets the values of its grid when it runs again."""
    model = searched({"n_estimators": [1, 2]})
    model.param_grid = grid
    with pytest.raises(UntrustedClassError, match="param_grid"):
        state.decode(state.encode(model))
