"""`ForgetColumnTransformer`: the columns of scikit-learn's, and every part forgets."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.preprocessing import FunctionTransformer, Normalizer
from sklearn.preprocessing import OneHotEncoder as PlainEncoder

import letheon
from letheon import DataIndependent, ForgetPipeline
from letheon.exceptions import CannotForgetError, LetheonError
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
