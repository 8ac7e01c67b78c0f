"""A pipeline that forgets for a table with categories and missing values.

The preprocessing of a column depends on its type only: numbers or not. It must not depend on
values, such as on whether some row has a missing value, because rows may be removed later.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

import narwhals.stable.v2 as nw
import numpy as np
import scipy.sparse as sp

from letheon.base import ForgetMixin
from letheon.boosting import BoostingClassifier, BoostingRegressor
from letheon.compose import ForgetPipeline
from letheon.exceptions import CannotForgetError, InvalidParameterError
from letheon.forest import DaREForestClassifier, DaREForestRegressor
from letheon.guarantee import Task
from letheon.linear import InfluenceClassifier, InfluenceRegressor
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from letheon.scoring import infer_task
from letheon.sums import Ridge, RidgeClassifier
from letheon.validation import collect_rules

__all__ = [
    "ColumnTreatment",
    "TableMethod",
    "choose_task",
    "list_treatments",
    "make_model",
    "make_table_pipeline",
    "needs_pipeline",
]

TableMethod = Literal["dare", "boosting", "influence", "ridge"]
# The classes of each method, for classification and for regression.
_MODELS: dict[str, tuple[type[Any], type[Any]]] = {
    "dare": (DaREForestClassifier, DaREForestRegressor),
    "boosting": (BoostingClassifier, BoostingRegressor),
    "influence": (InfluenceClassifier, InfluenceRegressor),
    "ridge": (RidgeClassifier, Ridge),
}
# Models that take categories and missing values themselves, and are fitted again if the number of
# columns changes. A forest takes them too, but keeps its trees when an encoder drops a column.
_TAKES_TABLES = (BoostingClassifier, BoostingRegressor)
_WORDS = {"none": None, "true": True, "false": False}
# Categories with fewer rows share one column.
_LEAST_ROWS = 10


class ColumnTreatment(NamedTuple):
    """What happens to a column of a table before the model.

    Parameters
    ----------
    column : str
        Name of the column.
    steps : str
        Names of the steps that it passes through.

    Examples
    --------
    >>> ColumnTreatment("city", "OneHotEncoder").column
    'city'
    """

    column: str
    steps: str


def make_model(method: TableMethod, task: Task, settings: Iterable[tuple[str, str]] = ()) -> Any:
    """Return an unfitted model.

    Parameters
    ----------
    method : {"dare", "boosting", "influence", "ridge"}
        A random forest (exact), gradient boosting (exact), a linear model with certified removal,
        or ridge regression (exact).
    task : {"classification", "regression"}
        What to predict.
    settings : iterable of (str, str)
        Names of parameters and their values as texts, such as ``"0.5"``, ``"none"`` or ``"true"``.

    Raises
    ------
    InvalidParameterError
        The model has no such parameter, or the value is not allowed.

    Returns
    -------
    estimator

    Raises
    ------
    ValueError
        There is no such method.

    Examples
    --------
    >>> make_model("boosting", "regression", [("loss", "poisson"), ("max_leaves", "8")])
    BoostingRegressor(loss='poisson', max_leaves=8)
    """
    if method not in _MODELS:
        raise ValueError(f"method={method!r}; expected one of {get_args(TableMethod)}")
    model = _MODELS[method][task == "regression"]()
    for name, text in settings:
        model.set_params(**{name: _read_setting(model, name, text)})
    return model


def choose_task(method: TableMethod, y: Any, settings: Iterable[tuple[str, str]] = ()) -> Task:
    """Return the task for a target: regression if only a regressor has the loss of the settings.

    Without such a loss the target decides (`letheon.scoring.infer_task`).

    Parameters
    ----------
    method, settings
        See `make_model`.
    y : array-like
        The target.

    Examples
    --------
    >>> choose_task("boosting", [0, 3, 1]), choose_task("boosting", [0, 3], [("loss", "poisson")])
    ('classification', 'regression')
    """
    loss = dict(settings).get("loss")
    rules = [collect_rules(kind).get("loss") for kind in _MODELS.get(method, ())]
    accepts = [rule is not None and rule.accepts(loss) for rule in rules]
    return "regression" if accepts == [False, True] else infer_task(y)


def _read_setting(model: Any, name: str, text: str) -> Any:
    """Return the value that a text means for a parameter: the first that its rule allows."""
    rules = collect_rules(type(model))
    names = sorted(rules.keys() & model.get_params(deep=False).keys())
    if name not in names:
        raise InvalidParameterError(
            f"{name!r} is not a setting of {type(model).__name__}; expected one of: "
            f"{', '.join(names)}"
        )
    for read in (lambda word: _WORDS.get(word.lower(), word), int, float):
        with suppress(ValueError):
            value: Any = read(text)
            if rules[name].accepts(value):
                return value
    raise InvalidParameterError(
        f"{name}={text!r}; expected {rules[name].text} for {type(model).__name__}"
    )


def needs_pipeline(X: Any) -> bool:
    """Return whether a table has columns other than numbers, or missing values.

    Parameters
    ----------
    X : table
        The rows.

    Returns
    -------
    bool

    Examples
    --------
    >>> needs_pipeline([[1.0, 2.0]]), needs_pipeline([[1.0, float("nan")]])
    (False, True)
    """
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        has_missing = any(frame[name].is_null().any() for name in frame.columns)
        return has_missing or not all(map(_is_number, frame.schema.values()))
    if sp.issparse(X) or np.ndim(X) != 2:
        return False
    array = np.asarray(X)
    return array.dtype.kind in "OU" or (array.dtype.kind == "f" and bool(np.isnan(array).any()))


def make_table_pipeline(model: Any, X: Any) -> ForgetPipeline:
    """Return an unfitted pipeline that prepares the columns of a table for a model.

    Numbers and booleans: missing values are replaced by the mean. The columns are scaled, except
    for trees, which do not depend on the scale. Texts, categories and other columns are one-hot
    encoded; categories with fewer than ten rows share one column. Gradient boosting gets all
    columns as they are, because it takes categories and missing values.

    Parameters
    ----------
    model : forgetting estimator
        The last step.
    X : data frame or array of shape (n_rows, n_columns)
        A table with the columns of the training rows; only their names and types are used.

    Returns
    -------
    ForgetPipeline

    Raises
    ------
    CannotForgetError
        The model is not a model of letheon.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon import DaREForestClassifier
    >>> frame = pd.DataFrame({"age": [31.0, None], "city": ["Rome", "Oslo"]})
    >>> pipeline = make_table_pipeline(DaREForestClassifier(random_state=0), frame)
    >>> pipeline.fit(frame, [0, 1]).steps_[0][1].get_feature_names_out().tolist()
    ['number__age', 'category__city_infrequent_sklearn']
    """
    if not isinstance(model, ForgetMixin):
        raise CannotForgetError(f"model={model!r} cannot forget; expected a model of letheon")
    if isinstance(model, _TAKES_TABLES):
        return ForgetPipeline([("model", model)])
    numbers, others = _split_columns(X)
    is_forest = "forest" in model.facts.families
    number_steps: Any = SimpleImputer(keep_empty_features=True)
    if not is_forest:
        steps = [("impute", number_steps), ("scale", StandardScaler())]
        number_steps = ForgetPipeline(steps)
    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=_LEAST_ROWS, sparse_output=False
    )
    parts = [("number", number_steps, numbers), ("category", encoder, others)]
    columns = ForgetColumnTransformer([part for part in parts if part[2]])
    return ForgetPipeline([("columns", columns), ("model", model)])


def list_treatments(pipeline: Any) -> list[ColumnTreatment]:
    """Return each column of a fitted pipeline that starts with a column transformer.

    If the pipeline has only a model that takes tables, its columns are unchanged. An empty list for
    other models.

    Parameters
    ----------
    pipeline : estimator
        A fitted model.

    Returns
    -------
    list of ColumnTreatment

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon import DaREForestClassifier
    >>> frame = pd.DataFrame({"age": [31.0, None], "city": ["Rome", "Oslo"]})
    >>> pipeline = make_table_pipeline(DaREForestClassifier(random_state=0), frame)
    >>> [each.column for each in list_treatments(pipeline.fit(frame, [0, 1]))]
    ['age', 'city']
    """
    fitted = getattr(pipeline, "steps_", None)
    first = None if fitted is None else fitted[0][1]
    if isinstance(first, _TAKES_TABLES):
        names = getattr(pipeline, "feature_names_in_", range(pipeline.n_features_in_))
        return [ColumnTreatment(str(name), "unchanged") for name in names]
    if not isinstance(first, ForgetColumnTransformer):
        return []
    known = getattr(first, "feature_names_in_", None)
    names = range(first.n_features_in_) if known is None else known
    treatments = {
        column: _name_steps(step) for _, step, columns in first.transformers_ for column in columns
    }
    return [
        ColumnTreatment(str(name), treatments.get(column, "dropped"))
        for column, name in enumerate(names)
    ]


def _name_steps(step: Any) -> str:
    steps = [part for _, part in step.steps] if hasattr(step, "steps") else [step]
    return ", ".join(part if isinstance(part, str) else type(part).__name__ for part in steps)


def _is_number(dtype: Any) -> bool:
    return bool(dtype.is_numeric()) or dtype == nw.Boolean


def _split_columns(X: Any) -> tuple[list[Any], list[Any]]:
    """Return the columns with numbers, and all other columns."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        numbers = [name for name, dtype in frame.schema.items() if _is_number(dtype)]
        return numbers, [name for name in frame.columns if name not in numbers]
    columns = list(range(np.shape(X)[1]))
    return ([], columns) if np.asarray(X).dtype.kind in "OU" else (columns, [])
