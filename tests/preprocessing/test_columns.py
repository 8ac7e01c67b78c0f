"""`ForgetColumnTransformer`: the columns of scikit-learn's, and every part forgets."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.preprocessing import OneHotEncoder as PlainEncoder

import letheon
from letheon import BoostingClassifier, DataIndependent, ForgetPipeline
from letheon.exceptions import CannotForgetError, ChangedParametersError, LetheonError
from letheon.preprocessing import (
    CountVectorizer,
    ForgetColumnTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

FRAME = pd.DataFrame(
    {
        "age": [20.0, 40.0, 60.0, 80.0],
        "size": [1.0, 2.0, 3.0, 5.0],
        "city": ["Oslo", "Rome", "Oslo", "Lima"],
        "note": ["good day", "good", "bad day", "none at all"],
    }
)
IDS = list("abcd")


def select_city(table: Any) -> list[str]:
    """Select by types and names only: the table has no rows."""
    return ["city"] if len(table) == 0 else []


def encoder() -> OneHotEncoder:
    return OneHotEncoder(sparse_output=False, handle_unknown="ignore")


def transformer(parts: Any, **options: Any) -> ForgetColumnTransformer:
    return ForgetColumnTransformer(parts, **options).fit(FRAME, ids=IDS)


@pytest.mark.parametrize(
    "columns",
    [
        ["city"],
        [2],
        slice("city", "city"),
        slice(2, 3),
        [False, False, True, False],
        select_city,
    ],
)
def test_columns_are_selected_as_in_scikit_learn(columns: Any) -> None:
    ours = transformer([("one", encoder(), columns)], remainder="passthrough")
    rest = ours.transform(FRAME.assign(note=FRAME["note"]))
    assert np.asarray(rest)[:, :3].astype(float).tolist() == (
        PlainEncoder(sparse_output=False).fit_transform(FRAME[["city"]]).tolist()
    )


def test_the_output_is_that_of_scikit_learn() -> None:
    numbers = make_column_selector(dtype_include="number")
    ours = transformer([("same", "passthrough", numbers), ("city", encoder(), ["city"])])
    plain = ColumnTransformer(
        [("same", "passthrough", numbers), ("city", PlainEncoder(sparse_output=False), ["city"])]
    )
    assert np.array_equal(ours.transform(FRAME), plain.fit_transform(FRAME))
    assert ours.get_feature_names_out().tolist() == plain.get_feature_names_out().tolist()
    ours.forget(["d"])
    assert np.array_equal(ours.transform(FRAME[:3]), plain.fit_transform(FRAME[:3]))
    assert ours.get_feature_names_out().tolist() == plain.get_feature_names_out().tolist()


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_sequences_end_in_a_fresh_fit(make: Any) -> None:
    def fit(rows: list[int]) -> ForgetColumnTransformer:
        frame = make({name: [FRAME[name][k] for k in rows] for name in FRAME})
        numbers = ForgetPipeline([("scale", StandardScaler(random_state=1)), ("same", None)])
        parts = [
            ("numbers", numbers, ["age", "size"]),
            ("city", OrdinalEncoder(), ["city"]),
            ("note", CountVectorizer(), "note"),
        ]
        return ForgetColumnTransformer(parts).fit(frame, ids=[IDS[k] for k in rows])

    model = fit([0, 1, 2, 3])
    model.forget(["b"])
    assert model.digest() == fit([0, 2, 3]).digest()
    more = make({name: [FRAME[name][1]] for name in FRAME})
    model.learn(more, ids=["b"])
    assert model.digest() == fit([0, 2, 3, 1]).digest()
    assert sp.issparse(model.transform(more))


def test_parts_that_learn_nothing_stay() -> None:
    model = transformer(
        [
            ("norm", Normalizer(), ["age", "size"]),
            ("log", DataIndependent(FunctionTransformer(np.log1p)), ["age"]),
            ("drop", "drop", ["note"]),
        ]
    )
    before = model.transform(FRAME)
    model.forget(["a"])
    assert np.array_equal(model.transform(FRAME), before)


def test_texts_pass_through() -> None:
    model = transformer([("city", "passthrough", ["city"]), ("age", "passthrough", ["age"])])
    assert model.transform(FRAME)["city"].tolist() == FRAME["city"].tolist()


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = transformer([("city", encoder(), ["city"]), ("age", "passthrough", ["age"])])
    letheon.save(model, tmp_path / "columns.letheon")
    loaded = letheon.load(tmp_path / "columns.letheon")
    loaded.forget(["a"])
    model.forget(["a"])
    assert loaded.digest() == model.digest()


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([("a", encoder())], ValueError, "a list of"),
        ([], ValueError, "at least one name"),
        ([("a", encoder(), ["city"])] * 2, ValueError, "all distinct"),
        ([("a", encoder(), ["town"])], ValueError, "selects the column 'town'"),
        ([("a", encoder(), [9])], ValueError, "the table has 4 columns"),
        ([("a", PlainEncoder(), ["city"])], CannotForgetError, "letheon.preprocessing"),
        ([("a", "keep", ["city"])], CannotForgetError, "'drop' or 'passthrough'"),
        ([("a", "drop", ["city"])], ValueError, "no columns"),
        ([("a", CountVectorizer(), "age")], ValueError, "expected texts"),
    ],
)
def test_wrong_parts(parts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ForgetColumnTransformer(parts).fit(FRAME)


def test_a_step_of_a_pipeline_does_not_forget_alone() -> None:
    model = transformer([("city", encoder(), ["city"])])
    with pytest.raises(LetheonError, match="forget or learn of the pipeline"):
        model.named_transformers_["city"].forget(["a"])


def test_equal_names_need_the_names_of_the_transformers() -> None:
    parts = [("one", "passthrough", ["age"]), ("two", "passthrough", ["age"])]
    assert transformer(parts).get_feature_names_out().tolist() == ["one__age", "two__age"]
    with pytest.raises(ValueError, match="verbose_feature_names_out=True"):
        transformer(parts, verbose_feature_names_out=False).get_feature_names_out()


@pytest.mark.parametrize("place", ["scaler", "encoder"])
def test_a_changed_parameter_of_a_fitted_part_is_refused(place: str) -> None:
    numbers = ForgetPipeline([("scale", StandardScaler(random_state=0))])
    model = transformer([("number", numbers, ["age"]), ("city", encoder(), ["city"])])
    parts = model.named_transformers_
    if place == "scaler":
        parts["number"]["scale"].set_params(with_mean=False)
    else:
        parts["city"].set_params(min_frequency=2)
    with pytest.raises(ChangedParametersError):
        model.forget(["a"])
    assert model.n_rows_ == len(FRAME)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    "parts",
    [
        [("n", StandardScaler(random_state=0), ["age"]), ("c", "passthrough", ["city", "part0_0"])],
        [("n", StandardScaler(random_state=0), ["age"]), ("c", "passthrough", ["city"])],
        [("n", "passthrough", ["age"]), ("c", "passthrough", ["city", "age"])],
    ],
)
def test_numbers_and_texts_side_by_side_in_every_library(make: Any, parts: Any) -> None:
    """With polars, a column vanished if two had the same name, and other numbers failed."""
    table = make({name: FRAME[name].tolist() * 5 for name in FRAME} | {"part0_0": range(20)})
    booster = BoostingClassifier(n_estimators=2, random_state=0)
    model = ForgetPipeline([("columns", ForgetColumnTransformer(parts)), ("model", booster)])
    model.fit(table, np.arange(20) % 2, ids=range(20)).forget([3])
    assert model["model"].n_features_in_ == len(model["columns"].get_feature_names_out())
    model.forget([0, 1, 2])
    fresh = clone(model).fit(table[4:], np.arange(4, 20) % 2, ids=range(4, 20))
    assert model.digest() == fresh.digest()


@pytest.mark.parametrize(
    "wrong",
    [
        {"remainder": 5},
        {"transformers": [("n", object(), [0])]},
        {"transformers": None},
        {"sparse_threshold": "x"},
        {"sparse_threshold": None},
        {"verbose_feature_names_out": []},
    ],
)
def test_wrong_parameters_are_refused_before_the_fit(wrong: dict[str, Any]) -> None:
    """Some were accepted, and the file of the model could not be loaded."""
    columns = ForgetColumnTransformer([("n", "passthrough", [0])]).set_params(**wrong)
    with pytest.raises((ValueError, CannotForgetError), match=r"expected|cannot forget|must be"):
        columns.fit(np.eye(3))
