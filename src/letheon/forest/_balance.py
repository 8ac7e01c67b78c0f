"""Classes and categories of the rows of a model: codes, weights, and checks of a state."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.data import CategoryColumns, CategoryTable, IntIds, TextIds
from letheon.forest._inputs import ForestBatch, ForestSettings, LabelTable
from letheon.forest._weights import ClassBalance, require_class_weights


def read_categories(state: dict[str, Any]) -> CategoryTable:
    """Return the categories of the rows of a state.

    Parameters
    ----------
    state : dict
        The parts of a model file.

    Raises
    ------
    ValueError
        They are not those of the columns in the settings.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from letheon.forest import read_categories
    >>> state = {"settings": SimpleNamespace(seed=7, categorical=())}
    >>> read_categories(state).columns.columns
    ()
    """
    settings = state["settings"]
    categories = CategoryTable(CategoryColumns(settings.seed))
    if "categories" in state:
        categories = CategoryTable.from_state(state["categories"], settings.seed, state["X"])
    if categories.columns.columns != settings.categorical:
        raise ValueError("categories are not those of the columns that the settings state")
    return categories


def encode_target(
    settings: ForestSettings, target: NDArray[Any]
) -> tuple[LabelTable | None, NDArray[Any]]:
    """Return the label table and the codes of the target; None and the target for regression."""
    return (None, target) if settings.is_regression else LabelTable.from_labels(target)


def count_classes(
    settings: Any, table: LabelTable | None, codes: NDArray[Any]
) -> ClassBalance | None:
    """Return the weights of the classes of these rows; None without `class_weight`."""
    if settings.class_weight is None or table is None:
        return None
    counts = np.bincount(codes, minlength=len(table))
    return ClassBalance.from_counts(settings.class_weight, settings.seed, table.labels, counts)


def weigh_classes(
    settings: Any, batch: ForestBatch, table: LabelTable | None, codes: NDArray[Any]
) -> tuple[ForestBatch, ClassBalance | None]:
    """Return the rows with the weights of their classes, and these weights.

    Parameters
    ----------
    settings : object
        Resolved settings, with `class_weight` and `seed`.
    batch : ForestBatch
        The rows.
    table : LabelTable or None
        The labels.
    codes : ndarray
        Codes of the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import EncodedRows
    >>> from letheon.forest import ForestBatch, LabelTable, weigh_classes
    >>> batch = ForestBatch.from_input(EncodedRows(np.eye(2)), np.array([0, 1]), None, ["a", "b"])
    >>> from types import SimpleNamespace
    >>> settings = SimpleNamespace(class_weight={0: 1.0, 1: 3.0}, seed=7)
    >>> table, codes = LabelTable.from_labels(batch.target)
    >>> weigh_classes(settings, batch, table, codes)[0].weights.tolist()
    [256, 768]
    """
    balance = count_classes(settings, table, codes)
    if balance is None or table is None:
        return batch, None
    require_class_weights(settings.class_weight, table.labels[np.flatnonzero(balance.counts)])
    return replace(batch, weights=balance.weigh(batch.weights, codes)), balance


def read_balance(
    settings: Any, table: LabelTable | None, batch: ForestBatch
) -> ClassBalance | None:
    """Return the weights of the classes of a state.

    Parameters
    ----------
    settings, table, batch
        As for `weigh_classes`.

    Raises
    ------
    ValueError
        Codes or weights do not match the classes.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import EncodedRows
    >>> from letheon.forest import ForestBatch, read_balance
    >>> batch = ForestBatch.from_input(EncodedRows(np.eye(2)), np.array([0, 1]), None, ["a", "b"])
    >>> from types import SimpleNamespace
    >>> read_balance(SimpleNamespace(class_weight=None, seed=7), None, batch) is None
    True
    """
    codes = batch.target
    if settings.class_weight is not None and table is not None:
        is_code = isinstance(codes, np.ndarray) and codes.dtype == np.uint32 and codes.ndim == 1
        # Before anything is counted: a forged code would need a long array.
        if not is_code or (codes >= len(table)).any():
            raise ValueError("target contains a code that is not the code of a class")
    balance = count_classes(settings, table, codes)
    if balance is not None and (
        batch.weights is None or (batch.weights % balance.factors[codes]).any()
    ):
        raise ValueError("a weight is not a multiple of the weight of its class")
    return balance


def verify_state(settings: Any, classes: Any, batch: ForestBatch, trees: Any) -> None:
    """Raise `ValueError` if parts of a state do not match; the core checks rows and trees."""
    if not isinstance(settings, ForestSettings) or not isinstance(batch.ids, IntIds | TextIds):
        raise ValueError("settings is not a ForestSettings, or ids is not IntIds or TextIds")
    X = batch.X
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] != settings.n_columns:
        raise ValueError(
            f"X is not a matrix with {settings.n_columns} columns, as the settings state"
        )
    if not isinstance(trees, np.ndarray) or settings.n_trees > trees.size:
        raise ValueError("the state contains fewer trees than its settings require")
    if not 0 < settings.subsample <= 1:
        raise ValueError(f"subsample={settings.subsample}; expected a share above 0 and at most 1")
    if settings.is_regression != (classes is None):
        raise ValueError(
            "classes must be None for a regression criterion, and an array for a classification "
            "criterion"
        )
    if classes is not None and not are_classes(classes):
        raise ValueError("classes must be an array of distinct labels of one type, in sorted order")
    if isinstance(batch.ids, TextIds):
        blob, offsets = batch.ids.blob, batch.ids.offsets
        blob.tobytes().decode()  # raises unless it is valid UTF-8
        if (blob[offsets[offsets < len(blob)]] & 0xC0 == 0x80).any():
            raise ValueError("ids is damaged: an id starts in the middle of a UTF-8 character")


def are_classes(classes: Any) -> bool:
    """Return whether this is an array of distinct labels of one type, in sorted order.

    Parameters
    ----------
    classes : object
        The value to check.

    Examples
    --------
    >>> import numpy as np
    >>> are_classes(np.array(["no", "yes"])), are_classes(np.array([1, 0]))
    (True, False)
    """
    plain = isinstance(classes, np.ndarray) and classes.ndim == 1 and classes.dtype.kind in "biUf"
    # The last comparison detects a single NaN.
    return plain and bool((classes[1:] > classes[:-1]).all() and (classes == classes.copy()).all())
