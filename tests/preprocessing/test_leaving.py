"""One row that leaves: the short plan is that of the general code, or there is none."""

import copy
from typing import Any

import numpy as np
import pytest
import sklearn.preprocessing

from letheon import ForgetPipeline
from letheon.delta import take_block
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)
from letheon.preprocessing._categories import CategoryCounts
from letheon.state import encode
from tests.preprocessing.plans import prepare_removal
from tests.preprocessing.tables import frame, numbers

MOST = SimpleImputer(strategy="most_frequent")
FILLED = ForgetPipeline([("fill", MOST), ("encode", OneHotEncoder(handle_unknown="ignore"))])
CASES: dict[str, tuple[Any, Any]] = {
    "means": (SimpleImputer(), numbers),
    "modes": (MOST, frame),
    "scaler": (StandardScaler(), numbers),
    "one-hot": (OneHotEncoder(), frame),
    "infrequent": (OneHotEncoder(min_frequency=4), frame),
    "ordinal": (OrdinalEncoder(), frame),
    "columns": (ForgetColumnTransformer([("all", FILLED, slice(None))]), frame),
}


def fit(estimator: Any, X: Any) -> Any:
    model = copy.deepcopy(estimator)
    if "random_state" in model.get_params(deep=False):
        model.set_params(random_state=7)
    return model.fit(X, None)


def check_rows(model: Any) -> int:
    """Compare both plans for every row; return how many rows have a short plan."""
    n_short = 0
    for slot in range(len(model.rows_)):
        short = model._prepare_leaving(take_block(model.rows_, np.array([slot])))
        if short is None:
            continue
        n_short += 1
        general = prepare_removal(model, [slot])
        assert (general.columns, general.layout, general.rows) == ((), None, None)
        ends = []
        for prepare in ("short", "general"):
            after = copy.deepcopy(model)
            block = take_block(after.rows_, np.array([slot]))
            plan = after._prepare_leaving(block) if prepare == "short" else None
            after._apply_plan(plan or prepare_removal(after, [slot]))
            ends.append(encode(after))
        assert ends[0] == ends[1]
    return n_short


@pytest.mark.parametrize("case", CASES)
def test_both_plans_are_equal(case: str) -> None:
    estimator, make = CASES[case]
    counts = [check_rows(fit(estimator, make(seed, 40))) for seed in range(3)]
    assert 0 < sum(counts) < 120  # a published value changes, or a category vanishes


@pytest.mark.parametrize("case", CASES)
def test_most_rows_of_a_large_table_have_a_short_plan(case: str) -> None:
    estimator, make = CASES[case]
    X = make(0, 20)
    X = X.iloc[np.repeat(range(20), 30)] if hasattr(X, "iloc") else np.repeat(X, 30, axis=0)
    model = fit(estimator, X)
    blocks = [take_block(model.rows_, np.array([slot])) for slot in range(0, 600, 30)]
    assert sum(model._prepare_leaving(block) is not None for block in blocks) >= 15


@pytest.mark.parametrize("estimator", [RobustScaler(), SimpleImputer(add_indicator=True)])
def test_others_take_the_general_plan(estimator: Any) -> None:
    model = fit(estimator, numbers(0, 40))
    assert check_rows(model) == 0


def test_filling_does_not_write_into_the_rows() -> None:
    model = fit(MOST, frame(0, 40))
    before = encode(model)
    model._transform_training(model.published_, take_block(model.rows_, slice(0, 40)))
    assert encode(model) == before


def test_a_count_that_stays_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CategoryCounts, "subtract_row", lambda *_: None)
    with pytest.raises(AssertionError):
        check_rows(fit(OneHotEncoder(), frame(0, 40)))


@pytest.mark.parametrize(
    ("min_frequency", "n_rare", "n_usual", "slot"),
    [
        (3, 3, 7, 0),  # the category becomes infrequent
        (0.3, 3, 7, 0),
        (0.3, 3, 8, 5),  # 0.3 of 10 rows are fewer than 0.3 of 11: it becomes frequent
    ],
)
def test_a_category_at_the_border_has_no_short_plan(
    min_frequency: float, n_rare: int, n_usual: int, slot: int
) -> None:
    X = np.array([["a"]] * n_rare + [["b"]] * n_usual, object)
    model = OneHotEncoder(min_frequency=min_frequency).fit(X)
    theirs = sklearn.preprocessing.OneHotEncoder(min_frequency=min_frequency).fit(X)
    assert str(model.infrequent_categories_) == str(theirs.infrequent_categories_)
    assert model._prepare_leaving(take_block(model.rows_, np.array([slot]))) is None
    before = len(model.get_feature_names_out())
    model.forget([slot])
    rest = sklearn.preprocessing.OneHotEncoder(min_frequency=min_frequency)
    rest.fit(np.delete(X, slot, axis=0))
    assert str(model.infrequent_categories_) == str(rest.infrequent_categories_)
    assert before == 2
