"""What may be given to a forest, and how it says no."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon import DaREForestClassifier, DaREForestRegressor
from letheon.data import as_matrix
from letheon.exceptions import PrecisionWarning
from letheon.forest._inputs import LabelTable, resolve_max_features
from letheon.forest._weights import as_weights

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

X = np.random.default_rng(0).normal(size=(60, 3)).round(2).astype(np.float32).astype(np.float64)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
COLUMNS = ["a", "b", "c"]
SMALL: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "random_state": 0}


def classifier(**params: Any) -> DaREForestClassifier:
    return DaREForestClassifier(**{**SMALL, **params})


def regressor(**params: Any) -> DaREForestRegressor:
    return DaREForestRegressor(**{**SMALL, **params})


def strided(matrix: NDArray[Any]) -> NDArray[Any]:
    wide = np.zeros((2 * len(matrix), 3 * matrix.shape[1]), matrix.dtype)
    wide[::2, ::3] = matrix
    return wide[::2, ::3]


def reversed_view(matrix: NDArray[Any]) -> NDArray[Any]:
    return matrix[::-1, ::-1].copy()[::-1, ::-1]


def read_only(matrix: NDArray[Any]) -> NDArray[Any]:
    copy = matrix.copy()
    copy.flags.writeable = False
    return copy


def doubled(matrix: NDArray[Any]) -> Any:
    """Return a sparse matrix in which every value is stored in two halves."""
    rows, columns = np.indices(matrix.shape).reshape(2, -1)
    halves = np.tile(matrix.ravel() / 2, 2)
    return sp.coo_array((halves, (np.tile(rows, 2), np.tile(columns, 2))), shape=matrix.shape)


SPELLINGS: dict[str, Callable[[], Any]] = {
    "csr": lambda: sp.csr_array(X),
    "csc": lambda: sp.csc_matrix(X.astype(np.float32)),
    "coo with duplicates": lambda: doubled(X),
    "float32": lambda: X.astype(np.float32),
    "big-endian": lambda: X.astype(">f8"),
    "long double": lambda: X.astype(np.longdouble),
    "objects": lambda: X.astype(object),
    "list": X.tolist,
    "tuple of rows": lambda: tuple(X),
    "Fortran order": lambda: np.asfortranarray(X),
    "strided": lambda: strided(X),
    "reversed": lambda: reversed_view(X),
    "read-only": lambda: read_only(X),
    "matrix subclass": lambda: X.view(type("Sub", (np.ndarray,), {})),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_the_same_numbers_gives_the_same_model(spelling: str) -> None:
    expected = classifier().fit(X, Y)
    given_X = SPELLINGS[spelling]()
    model = classifier().fit(given_X, Y)
    assert model.digest() == expected.digest()
    np.testing.assert_array_equal(model.predict_proba(given_X), expected.predict_proba(X))
    np.testing.assert_array_equal(model.apply(given_X), expected.apply(X))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool])
def test_whole_numbers_and_truth_values_are_numbers(dtype: Any) -> None:
    whole = (X > 0).astype(dtype)
    model = classifier().fit(whole, Y)
    assert model.digest() == classifier().fit(whole.astype(float), Y).digest()


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_bring_their_names(frame: Any) -> None:
    table = frame({name: X[:, i] for i, name in enumerate(COLUMNS)})
    model = classifier().fit(table, Y)
    assert model.feature_names_in_.tolist() == COLUMNS
    plain = classifier().fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(table), plain.predict_proba(X))
    with pytest.warns(UserWarning, match="valid feature names"):
        model.predict(X)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a", "c"]])
    with pytest.raises(ValueError, match="feature names"):
        model.learn(table[["b", "a", "c"]], Y, ids=range(60))


def with_missing() -> dict[str, Any]:
    flags = [None if i % 7 == 0 else bool(Y[i]) for i in range(60)]
    whole = [None if i % 5 == 0 else i % 4 for i in range(60)]
    decimal = [None if i % 3 == 0 else float(X[i, 0]) for i in range(60)]
    return {"flag": flags, "whole": whole, "decimal": decimal}


def plain_with_missing() -> NDArray[np.float64]:
    return np.column_stack([np.array(column, float) for column in with_missing().values()])


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame(with_missing()),
        pd.DataFrame(with_missing()),
        pd.DataFrame(with_missing()).convert_dtypes(),
        pd.DataFrame(with_missing()).convert_dtypes().astype(object),
    ],
    ids=["polars", "pandas objects", "pandas nullable", "objects with pd.NA"],
)
def test_every_kind_of_missing_value_is_nan(table: Any) -> None:
    np.testing.assert_array_equal(as_matrix(table), plain_with_missing())
    fresh = classifier().fit(plain_with_missing(), Y)
    model = classifier().fit(table, Y)
    np.testing.assert_array_equal(
        model.predict_proba(table), fresh.predict_proba(plain_with_missing())
    )


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(["x", "y"] * 30),
        pl.Series(["x", "y"] * 30, dtype=pl.Categorical),
        pd.Series(["x", "y"] * 30),
        pd.Series(["x", "y"] * 30, dtype="category"),
    ],
)
def test_columns_that_are_no_numbers_are_named(column: Any) -> None:
    frame = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    table = frame({"n": X[:, 0], "kind": column})
    with pytest.raises(ValueError, match="columns 'kind' are not numeric; name them in"):
        classifier(categorical_features=None).fit(table, Y)
    with pytest.raises(ValueError, match="columns 'kind' are not numeric; name them in"):
        classifier().fit(table[["n"]], Y).predict(table[["kind"]])


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_dates_are_named_with_advice_of_their_own(frame: Any) -> None:
    days = np.array(["2020-01-01", "2021-01-01"] * 30, "datetime64[us]")
    table = frame({"n": X[:, 0], "kind": ["x"] * 60, "day": days, "for": days - days[0]})
    with pytest.raises(ValueError, match="columns 'day', 'for' are not numeric; convert dates"):
        classifier().fit(table, Y)


@pytest.mark.parametrize("wrong", ["a", [1], pd.Timestamp("2020-01-01")])
def test_an_object_that_is_no_number_is_shown_with_its_column(wrong: Any) -> None:
    column = pd.Series([wrong, *X[1:, 0].tolist()], dtype=object)
    with pytest.raises(ValueError, match="column 'kind' is not numeric"):
        classifier().fit(pd.DataFrame({"n": X[:, 0], "kind": column}), Y)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([None] * 60),
        pl.Series([None] * 60, dtype=pl.String),
        pd.Series([None] * 60, dtype=object),
        pd.Series([pd.NA] * 60, dtype="Int64"),
        pd.Series([np.nan] * 60),
    ],
)
def test_a_column_without_any_value_is_nan(column: Any) -> None:
    frame = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    table = frame({"a": X[:, 0], "nothing": column})
    expected = np.column_stack([X[:, 0], np.full(60, np.nan)])
    np.testing.assert_array_equal(as_matrix(table), expected)


def test_lazy_frames_are_refused() -> None:
    table = pl.DataFrame(X, schema=COLUMNS)
    with pytest.raises(TypeError, match=r"lazy frame.*collect\(\)"):
        classifier().fit(table.lazy(), Y)
    with pytest.raises(TypeError, match=r"lazy frame.*collect\(\)"):
        classifier().fit(table, Y).predict(table.lazy())


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, 3.5e38])
def test_infinity_and_what_float32_cannot_hold_are_refused(kind: Any, wrong: float) -> None:
    bad = X.copy()
    bad[17, 2] = wrong
    with np.errstate(over="ignore"):
        bad = bad.astype(kind)
    with pytest.raises(ValueError, match="infinity"):
        classifier().fit(bad, Y)
    model = classifier().fit(X, Y)
    with pytest.raises(ValueError, match="infinity"):
        model.predict(bad)
    with pytest.raises(ValueError, match="infinity"):
        model.apply(bad)
    with pytest.raises(ValueError, match="infinity"):
        model.learn(bad, Y, ids=range(60))
    assert model.digest() == classifier().fit(X, Y).digest()


@pytest.mark.parametrize("wrong", [X[:, :2], np.ones((1, 4)), X[0], np.empty((0, 3)), [["a"] * 3]])
def test_questions_of_another_shape_are_refused(wrong: Any) -> None:
    model = classifier().fit(X, Y)
    for ask in (model.predict, model.predict_proba, model.apply):
        with pytest.raises(ValueError, match=r"features|1D|0 sample|convert"):
            ask(wrong)


def test_questions_are_rounded_as_rows_are() -> None:
    table = np.array([[0.1], [0.2], [0.3], [0.4]])
    model = classifier(n_thresholds=None).fit(table, [0, 1, 0, 1])
    assert (model.predict_proba(table) == model.predict_proba(table.astype(np.float32))).all()


def test_the_two_zeros_are_one() -> None:
    signed = np.where(np.arange(60)[:, None] % 2, 0.0, -0.0) * np.ones((60, 2))
    signed[:30, 1] = 1
    plain = np.abs(signed)
    assert classifier().fit(signed, Y).digest() == classifier().fit(plain, Y).digest()
    flat = regressor().fit(X, np.where(Y, 0.0, -0.0))
    assert flat.digest() == regressor().fit(X, np.zeros(60)).digest()


def test_all_nan_are_one() -> None:
    bits = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    rows = np.tile(X.astype(np.float32), 1)
    rows[:3, 0], plain = bits, rows.copy()
    plain[:3, 0] = np.nan
    assert classifier().fit(rows, Y).digest() == classifier().fit(plain, Y).digest()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.where(Y, 1.0, np.nan), "NaN"),
        (np.where(Y, 1.0, np.inf), "infinity"),
        (X[:, 0], "Unknown label type"),
        ([None, *Y[1:]], r"missing labels \(None\)"),
        (np.array([None, *"ab" * 29, "a"], object), r"missing labels \(None\)"),
        (np.array([np.nan, *"ab" * 29, "a"], object), r"missing labels \(NaN\)"),
        (pd.Series([pd.NA, *"ab" * 29, "a"], dtype="string"), "missing labels"),
        (pd.Series([pd.NA, *Y[1:]], dtype="Int64"), "missing labels"),
        (pd.Series([np.nan, *Y[1:]]), "NaN"),
        (pl.Series([None, *"ab" * 29, "a"]), "missing labels"),
        (np.array([b"a", b"b"] * 30), "labels of type bytes8; expected"),
        (np.array([b"a", b"b"] * 30, object), "labels of type bytes; expected"),
        (np.array(["2020", "2021"] * 30, "datetime64[D]"), r"type datetime64\[D\]; expected"),
        (pd.Series(pd.to_datetime(["2020", "2021"] * 30)).astype("M8[ns]"), r"datetime64\[ns\]"),
        (np.array([1, "a", 2.5] * 20, object), "several types: float and int and str"),
        ([1, "1"] * 30, "several types"),
        (np.array([1, "1"] * 30, object), "several types"),
        (np.array(["1", 1] * 30, object), "several types"),
        (np.column_stack([Y, Y]), "1d array"),
        (Y[:-1], "inconsistent numbers"),
        (None, "requires y"),
    ],
)
def test_labels_that_make_no_sense_are_refused(y: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        classifier().fit(X, y)


def test_a_class_for_every_row_is_no_reason_to_warn() -> None:
    # What is left after many requests, or a few rows that are learned, may look like that.
    model = classifier().fit(X, np.arange(60))
    assert model.n_classes_ == 60


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (Y, np.int64),
        (Y.astype(np.uint8), np.int64),
        (Y.astype(float), np.float64),
        (Y.astype(bool), bool),
        (np.array(["no", "yes"])[Y], "<U3"),
        (np.array(["no", "yes"], object)[Y], "<U3"),
        (np.array(["no", "a very long yes"])[np.zeros(60, int)], "<U2"),
        (pd.Series(Y), np.int64),
        (pl.Series(Y.astype(str)), "<U1"),
    ],
)
def test_labels_keep_their_kind(y: Any, kind: Any) -> None:
    model = classifier().fit(X, y)
    assert model.classes_.dtype == kind
    assert model.predict(X).dtype == kind
    assert set(model.predict(X).tolist()) <= set(np.asarray(y).tolist())


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(60, np.nan), "NaN"),
        (np.full(60, np.inf), "infinity"),
        (np.array(["a", "b"])[Y], "numbers"),
        (np.column_stack([Y, Y]), "1d array"),
        (Y[:-1], "inconsistent numbers"),
        (None, "requires y"),
    ],
)
def test_targets_that_make_no_sense_are_refused(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, y)


def test_targets_beyond_their_bound_are_refused() -> None:
    with pytest.raises(ValueError, match=r"contains 1, which exceeds y_max=0\.5"):
        regressor(y_max=0.5).fit(X, Y)
    model = regressor(y_max=1).fit(X, Y)
    with pytest.raises(ValueError, match=r"contains -1\.01, which exceeds y_max=1"):
        model.learn(X[:1], [-1.01], ids=[99])
    assert model.digest() == regressor(y_max=1).fit(X, Y).digest()


@pytest.mark.parametrize("largest", [1.0, 1.99, 0.75, 1e-300])
@pytest.mark.parametrize("bits", [15, 16, 31])
def test_a_bound_that_leaves_few_bits_is_worth_a_warning(largest: float, bits: int) -> None:
    y = np.where(Y, -largest, largest / 3)
    y_max = largest * 2.0 ** (31 - bits)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model = regressor(y_max=y_max).fit(X, y)
    assert [each.category for each in heard] == ([PrecisionWarning] if bits < 16 else [])
    assert all(f"y_max={y_max} rounds targets to steps of" in str(each.message) for each in heard)
    assert all(each.filename == __file__ for each in heard)
    model.learn(X[:1], [largest / 2**20], ids=[99])  # small ones among others are as usual


def test_targets_of_zero_fit_any_bound() -> None:
    assert (regressor(y_max=1e300).fit(X, np.zeros(60)).predict(X) == 0).all()


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 1e300])
def test_targets_of_any_size(scale: float) -> None:
    y = np.where(Y, scale, -scale) * 1.5
    model = regressor(max_depth=None).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.full(60, 0.5), r"contains 0\.5; expected whole numbers of at least 0"),
        (np.array([1] * 59 + [-7]), "contains -7; expected whole numbers of at least 0"),
        (np.full(60, np.nan), "NaN"),
        (np.ones(59), "one weight for each of the 60 rows"),
        (np.ones((60, 2)), "one weight for each of the 60 rows"),
        (np.array(["1"] * 60), "whole numbers"),
        ([f"p{i}" for i in range(60)], r"contains 'p0'; .* use the keyword ids="),
        (2, r"sample_weight=2 is a single value"),
        (np.zeros(60), "zero"),
        (np.full(60, 2**30), "is larger than 2147483647"),
        (np.full(60, 2**40), "is larger than 2147483647"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier().fit(X, Y, sample_weight=weights)
    model = classifier().fit(X, Y)
    with pytest.raises(ValueError, match=message):
        model.learn(X, Y, sample_weight=weights, ids=range(60))
    assert model.digest() == classifier().fit(X, Y).digest()


@given(st.lists(st.integers(0, 3), min_size=60, max_size=60).filter(any), st.booleans())
def test_a_weight_is_so_many_copies(weights: list[int], classify: bool) -> None:
    make = classifier if classify else regressor
    weighted = make().fit(X, Y, sample_weight=weights)
    copied = make().fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights))
    np.testing.assert_array_equal(weighted.predict(X), copied.predict(X))
    assert weighted.n_rows_ == np.count_nonzero(weights)


def test_weights_of_one_are_no_weights_and_of_zero_no_rows() -> None:
    expected = classifier().fit(X, Y).digest()
    assert classifier().fit(X, Y, sample_weight=np.ones(60)).digest() == expected
    more, labels = np.vstack([X, X + 1]), np.concatenate([Y, Y + 7])
    weights = np.repeat([1, 0], 60)
    model = classifier().fit(more, labels, sample_weight=weights)
    assert model.digest() == expected
    assert model.ids_.tolist() == list(range(60))
    assert model.classes_.tolist() == [0, 1]


def test_the_label_of_a_row_without_weight_leaves_no_trace() -> None:
    y = np.array(["elm", "oak", "a much longer name"])
    model = classifier().fit(X[:3], y, sample_weight=[1, 1, 0])
    assert model.classes_.dtype == "<U3"
    assert model.digest() == classifier().fit(X[:2], y[:2]).digest()
    model.learn(X[:2], y[1:], sample_weight=[1, 0], ids=[9, 9])
    assert model.classes_.dtype == "<U3"


def test_weights_may_be_integral_floats() -> None:
    assert as_weights([1.0, 2.0], 2) is not None
    assert as_weights(pd.Series([True, False]), 2) is not None
    assert as_weights(None, 2) is None


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("criterion", "squared_error", ValueError),
        ("criterion", None, ValueError),
        ("n_estimators", 0, ValueError),
        ("n_estimators", -1, ValueError),
        ("n_estimators", 2.0, TypeError),
        ("n_estimators", True, TypeError),
        ("n_estimators", 2**40, ValueError),
        ("max_depth", -1, ValueError),
        ("max_depth", "10", TypeError),
        ("max_features", 0, ValueError),
        ("max_features", -2, ValueError),
        ("max_features", 0.0, ValueError),
        ("max_features", 1.5, ValueError),
        ("max_features", "auto", ValueError),
        ("max_features", [1], TypeError),
        ("max_features", True, TypeError),
        ("n_thresholds", 0, ValueError),
        ("n_thresholds", 2.5, TypeError),
        ("random_depth", -1, ValueError),
        ("random_depth", None, TypeError),
        ("min_samples_split", 1, ValueError),
        ("min_samples_leaf", 0, ValueError),
        ("subsample", 0.0, ValueError),
        ("subsample", 1.1, ValueError),
        ("subsample", np.nan, ValueError),
        ("subsample", None, TypeError),
        ("rebuild", "now", ValueError),
        ("random_state", -1, ValueError),
        ("random_state", "0", TypeError),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    name: str, value: Any, error: type[Exception]
) -> None:
    model = classifier().fit(X, Y)
    digest = model.digest()
    with pytest.raises(error, match=name):
        model.set_params(**{name: value}).fit(X, Y)
    assert model.set_params(**{name: classifier().get_params()[name]}).digest() == digest


def test_the_limits_of_parameters_are_said() -> None:
    with pytest.raises(ValueError, match="=1000000000000; expected a whole number from 1 to"):
        classifier(n_estimators=10**12).fit(X, Y)
    with pytest.raises(ValueError, match=r"'sqrt', 'log2', a whole .* a number .* or None"):
        classifier(max_features="auto").fit(X, Y)


@pytest.mark.parametrize("value", [0, -1.0, np.inf, np.nan, "1", True])
def test_a_bound_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="y_max"):
        regressor(y_max=value).fit(X, Y)


@pytest.mark.parametrize(
    ("value", "p", "expected"),
    [
        ("sqrt", 107, 10),
        ("sqrt", 1, 1),
        ("log2", 107, 6),
        ("log2", 1, 1),
        (None, 107, 107),
        (1.0, 107, 107),
        (0.5, 107, 53),
        (0.001, 107, 1),
        (7, 107, 7),
        (np.int32(7), 5, 5),
    ],
)
def test_max_features_speaks_as_scikit_learn(value: Any, p: int, expected: int) -> None:
    assert resolve_max_features(value, p) == expected


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1), min_size=1, max_size=6))
def test_codes_always_lead_back_to_labels(batches: list[list[int]]) -> None:
    table, codes = LabelTable.from_labels(np.array(batches[0]))
    assert table.labels[codes].tolist() == batches[0]
    for batch in batches[1:]:
        counts = np.array([label % 2 for label in table.labels.tolist()])  # even ones leave
        kept = table.without_empty(counts) if counts[table.is_used].any() else table
        table, codes = kept.add_labels(np.array(batch))
        assert table.labels[codes].tolist() == batch
        labels = set(kept.classes.tolist()) | set(batch)
        assert table.classes.tolist() == sorted(labels)
        assert table.labels[table.code_order].tolist() == sorted(labels)
        assert (table.labels[~table.is_used] == 0).all()
