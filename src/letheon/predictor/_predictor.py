"""The objects that predict: of scores, and of estimators of scikit-learn."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from letheon import state
from letheon.data import is_text_column, present_table
from letheon.guarantee import Guarantee
from letheon.predictor._answers import Answers
from letheon.predictor._graph import OnnxGraph, OnnxTable
from letheon.predictor._inputs import NumberInputs, TreeInputs

Floats = NDArray[np.float64]

# Estimators of scikit-learn whose fitted attributes are coefficients, splits, sums and means.
_WITHOUT_ROWS = (
    "BernoulliNB ComplementNB DecisionTreeClassifier DecisionTreeRegressor ElasticNet GaussianNB "
    "Lasso LinearDiscriminantAnalysis LinearRegression LogisticRegression MultinomialNB Perceptron "
    "Ridge RidgeClassifier SGDClassifier SGDRegressor"
)
# The same for transformers: components, moments, scores of columns, edges, knots and categories.
_TRANSFORMERS_WITHOUT_ROWS = (
    "Binarizer FactorAnalysis FastICA GenericUnivariateSelect KBinsDiscretizer MaxAbsScaler "
    "MinMaxScaler NMF Normalizer OneHotEncoder OrdinalEncoder PCA PolynomialFeatures "
    "PowerTransformer RobustScaler SelectFdr SelectFpr SelectFwe SelectKBest SelectPercentile "
    "SimpleImputer SplineTransformer StandardScaler TruncatedSVD VarianceThreshold"
)


def _has_probabilities(predictor: "Predictor") -> bool:
    return predictor._has("predict_proba")


def _has_decision(predictor: "Predictor") -> bool:
    return predictor._has("decision_function")


class Predictor(BaseEstimator):
    """A model for predictions only: it has no training rows, ids, keys or seed, and cannot change.

    `predictor()` of a fitted model returns it. Its predictions are those of the model, bit by bit.
    It can be saved with `letheon.save`. A subclass implements `_predict` and `_has`.

    Attributes
    ----------
    guarantee : Guarantee
        Guarantee of the model, without numbers that depend on rows or requests.
    classes_ : ndarray
        Labels, sorted; only for classification.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if the model was fitted on a frame.

    Notes
    -----
    A predictor is not anonymous. Its numbers are computed from people's rows: thresholds of trees
    and edges of bins are values of people, and a leaf with one row has the target of this row.
    After `forget`, make a new predictor and delete the old one.

    Examples
    --------
    >>> from letheon.forest import DaREForestClassifier
    >>> from letheon.predictor import Predictor
    >>> model = DaREForestClassifier(n_estimators=3, random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> predictor = model.predictor()
    >>> isinstance(predictor, Predictor), hasattr(predictor, "forget")
    (True, False)
    """

    guarantee: Guarantee

    def _require_valid(self) -> None:
        """Raise `ValueError` if a file has no valid guarantee or names of columns."""
        if not isinstance(self.guarantee, Guarantee):
            raise ValueError("the guarantee is missing")
        n_columns, names = self._columns()
        is_count = n_columns is None or (isinstance(n_columns, int) and n_columns >= 0)
        is_named = names is None or (
            len(names) == n_columns and all(isinstance(name, str) for name in names)
        )
        if not (is_count and is_named):
            raise ValueError("the columns and their names do not match")

    def _predict(self, method: str, X: Any) -> Any:
        """Return what a method of the model returns for X."""
        raise NotImplementedError(f"{type(self).__name__} must predict")

    def _has(self, method: str) -> bool:
        """Return whether the model has ``predict_proba`` or ``decision_function``."""
        raise NotImplementedError(f"{type(self).__name__} must know its methods")

    def _labels(self) -> NDArray[Any] | None:
        """Return the labels, or None for regression."""
        raise NotImplementedError(f"{type(self).__name__} must know its labels")

    def _columns(self) -> tuple[int | None, tuple[str, ...] | None]:
        """Return the number of columns (None for texts), and their names or None."""
        raise NotImplementedError(f"{type(self).__name__} must know its columns")

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of each row, or its value for regression.

        Parameters
        ----------
        X : array-like, sparse matrix or frame of shape (n_rows, n_columns)
            Rows with the columns of the model.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        labels: NDArray[Any] = self._answer("predict", X)
        return labels

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities of shape (n_rows, n_classes), in the order of `classes_`."""
        return np.asarray(self._answer("predict_proba", X))

    @available_if(_has_decision)
    def decision_function(self, X: Any) -> Floats:
        """Return decision values of shape (n_rows,) for two classes, else (n_rows, n_classes)."""
        return np.asarray(self._answer("decision_function", X))

    def score(self, X: Any, y: Any, *, sample_weight: Any = None) -> float:
        """Return the accuracy, or R² for regression."""
        measure = r2_score if self._labels() is None else accuracy_score
        return float(measure(y, self.predict(X), sample_weight=sample_weight))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical state, as a hexadecimal string.

        After exact forgetting, it is the digest of the predictor of a model without the rows.
        """
        return state.digest(self)

    def fit(self, X: Any, y: Any = None) -> NoReturn:  # noqa: ARG002
        """Raise `TypeError`: a predictor cannot learn."""
        raise TypeError(
            "a predictor is read-only; fit the model and call its predictor() again. In a "
            "meta-estimator, pass sklearn.frozen.FrozenEstimator(predictor)"
        )

    def to_onnx(self, *, dtype: Any = np.float64) -> Any:
        """Return the predictor as an ONNX model, for onnxruntime and other runtimes.

        Parameters
        ----------
        dtype : {float64, float32}
            Type of the numbers in the input. The model computes with float64 in either case.

        Returns
        -------
        onnx.ModelProto
            Its input is the matrix ``X``; if there are columns of texts, one input of shape
            (n_rows, 1) for each column, with its name (or ``x0``, ``x1``, ...). A missing text is
            the empty text. Outputs: ``label`` and ``probabilities`` or ``scores`` for
            classification, ``value`` for regression.

        Raises
        ------
        TypeError
            The model, or a step of the pipeline, has no ONNX form.
        """
        n_columns, names = self._columns()
        if n_columns is None:
            raise TypeError(f"{self!r} has no ONNX form")
        graph = OnnxGraph(np.dtype(dtype))
        table = graph.add_inputs(n_columns, names, self._find_texts())
        graph.add_answers(*self._export(graph, table))
        return graph.build()

    def to_shap(self) -> dict[str, Any]:
        """Return the trees as the dict that `shap.TreeExplainer` accepts as a model.

        The explained output is the probability of each class or the mean for a forest, and the
        score (log-odds for classification) for boosting. Pass background rows to SHAP as float32,
        because trees compare numbers in float32.

        Returns
        -------
        dict

        Raises
        ------
        TypeError
            The model has no trees, or has columns of categories, which SHAP cannot read.
        """
        raise TypeError(f"to_shap needs a forest or a boosted model; this is {self!r}")

    def _find_texts(self) -> tuple[int, ...]:
        """Return the columns of texts."""
        return ()

    def _export(self, graph: OnnxGraph, table: OnnxTable) -> tuple[str, int, Answers]:  # noqa: ARG002
        """Add the scores to an ONNX graph; return their name, their number and their meaning."""
        raise TypeError(f"{self!r} has no ONNX form")

    def _answer(self, method: str, X: Any) -> Any:
        if not is_text_column(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        return self._predict(method, X)

    @property
    def classes_(self) -> Any:
        """Labels, sorted."""
        labels = self._labels()
        if labels is None:
            raise AttributeError("a regression has no classes_")
        return labels

    @property
    def n_features_in_(self) -> int:
        """Number of columns."""
        n_columns = self._columns()[0]
        if n_columns is None:
            raise AttributeError("the input of this predictor is texts, which have no columns")
        return n_columns

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns."""
        names = self._columns()[1]
        if names is None:
            raise AttributeError("the model was fitted without names of columns")
        return np.array(names, object)

    def __sklearn_is_fitted__(self) -> bool:
        """Return True."""
        return True

    def __sklearn_clone__(self) -> Self:
        """Return the predictor itself, because it cannot change."""
        return self

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        is_classifier = self._labels() is not None
        tags.estimator_type = "classifier" if is_classifier else "regressor"
        tags.classifier_tags = ClassifierTags() if is_classifier else None
        tags.regressor_tags = None if is_classifier else RegressorTags()
        tags.input_tags.allow_nan = tags.input_tags.sparse = True
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803
        """Return the class, the number of columns and the kind of the guarantee."""
        columns = self._columns()[0]
        size = "texts" if columns is None else f"{columns} columns"
        return f"<{type(self).__name__} of {size}, {self.guarantee.kind}>"


class ScorePredictor(Predictor):
    """A predictor in three parts: how X is read, how rows get scores, and what scores mean.

    Parameters
    ----------
    inputs : NumberInputs or TreeInputs
        How X becomes rows of numbers.
    scores : object with the method `compute`
        Function from rows to scores of shape (n_rows, n_scores), such as `TreeScores`.
    answers : Answers
        What scores mean.
    guarantee : Guarantee
        Guarantee of the model.

    Examples
    --------
    >>> from letheon.boosting import BoostingClassifier
    >>> model = BoostingClassifier(random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> predictor = model.predictor()
    >>> type(predictor).__name__, type(predictor.scores).__name__
    ('ScorePredictor', 'TreeScores')
    """

    def __init__(self, inputs: Any, scores: Any, answers: Answers, guarantee: Guarantee) -> None:
        self.inputs = inputs
        self.scores = scores
        self.answers = answers
        self.guarantee = guarantee

    def _require_valid(self) -> None:
        """Raise `ValueError` if the parts in a file do not match."""
        super()._require_valid()
        inputs, scores = self.inputs, self.scores
        if not (isinstance(inputs, NumberInputs | TreeInputs) and hasattr(scores, "compute")):
            raise ValueError("a part of the predictor is missing")
        if hasattr(scores, "n_columns"):
            if inputs.n_columns != scores.n_columns:
                raise ValueError("the input and the scores have different numbers of columns")
            self.answers._require_scores(scores.n_scores)

    def _predict(self, method: str, X: Any) -> Any:
        return getattr(self.answers, method)(self.scores.compute(self.inputs.read(X)))

    def _has(self, method: str) -> bool:
        answers = self.answers
        return answers.has_probabilities if method == "predict_proba" else answers.has_decision

    def _labels(self) -> NDArray[Any] | None:
        return self.answers.classes

    def _columns(self) -> tuple[int, tuple[str, ...] | None]:
        return self.inputs.n_columns, self.inputs.names

    def to_shap(self) -> dict[str, Any]:
        """Return the trees as the dict that `shap.TreeExplainer` accepts; see `Predictor`."""
        if not hasattr(self.scores, "to_shap"):
            return super().to_shap()
        model: dict[str, Any] = self.scores.to_shap()
        return model

    def _find_texts(self) -> tuple[int, ...]:
        return getattr(self.inputs, "columns", ())

    def _export(self, graph: OnnxGraph, table: OnnxTable) -> tuple[str, int, Answers]:
        if not hasattr(self.scores, "export"):
            return super()._export(graph, table)
        name, n_scores = self.scores.export(graph, self.inputs.export(graph, table))
        return name, n_scores, self.answers


class EstimatorPredictor(Predictor):
    """A predictor that consists of a fitted estimator of scikit-learn without its `random_state`.

    Parameters
    ----------
    estimator : estimator
        The fitted estimator.
    guarantee : Guarantee
        Guarantee of the model around it.

    Examples
    --------
    >>> from letheon import NaiveUnlearner
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> predictor = model.predictor()
    >>> type(predictor).__name__, predictor.predict([[0.9]]).tolist()
    ('EstimatorPredictor', [1])
    """

    def __init__(self, estimator: Any, guarantee: Guarantee) -> None:
        self.estimator = estimator
        self.guarantee = guarantee

    @classmethod
    def of(cls, estimator: Any, guarantee: Guarantee) -> Predictor:
        """Return the predictor of a fitted estimator inside a model.

        Raises
        ------
        TypeError
            The estimator may have stored training rows, as nearest neighbours and kernel machines
            do, or letheon does not know it.
        """
        if hasattr(estimator, "predictor"):
            inner: Predictor = estimator.predictor()
            inner.guarantee = guarantee
            return inner
        return cls(_copy_without_seeds(estimator, _WITHOUT_ROWS), guarantee)

    def _predict(self, method: str, X: Any) -> Any:
        return getattr(self.estimator, method)(present_table(X))

    def _has(self, method: str) -> bool:
        return hasattr(self.estimator, method)

    def _labels(self) -> NDArray[Any] | None:
        labels: NDArray[Any] | None = getattr(self.estimator, "classes_", None)
        return labels

    def _columns(self) -> tuple[int, tuple[str, ...] | None]:
        names = getattr(self.estimator, "feature_names_in_", None)
        return self.estimator.n_features_in_, None if names is None else tuple(names)


def copy_transformer(transformer: Any) -> Any:
    """Return a copy of a fitted transformer of scikit-learn without its seeds.

    Parameters
    ----------
    transformer : transformer
        A fitted transformer.

    Returns
    -------
    transformer

    Raises
    ------
    TypeError
        Its fitted attributes may contain rows, or letheon does not know it.

    Examples
    --------
    >>> from letheon.predictor import copy_transformer
    >>> from sklearn.decomposition import PCA
    >>> copy_transformer(PCA(1, random_state=3).fit([[0.0], [1.0]]))
    PCA(n_components=1)
    """
    return _copy_without_seeds(transformer, _TRANSFORMERS_WITHOUT_ROWS)


def _copy_without_seeds(estimator: Any, allowed: str) -> Any:
    kind = type(estimator)
    if not (kind.__module__.startswith("sklearn.") and kind.__name__ in allowed.split()):
        raise TypeError(
            f"a predictor cannot contain {kind.__name__}, because its fitted attributes may "
            f"contain rows; expected a model of letheon or one of: {allowed}"
        )
    return drop_seeds(deepcopy(estimator))


def drop_seeds(estimator: Any) -> Any:
    """Set every `random_state` of an estimator to None, and return it.

    Parameters
    ----------
    estimator : estimator
        Its inner estimators are changed, too.

    Returns
    -------
    estimator
        The same object.

    Examples
    --------
    >>> from sklearn.ensemble import BaggingClassifier
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from letheon.predictor import drop_seeds
    >>> drop_seeds(BaggingClassifier(DecisionTreeClassifier(random_state=1), random_state=2))
    BaggingClassifier(estimator=DecisionTreeClassifier())
    """
    names = estimator.get_params(deep=True)
    seeds = [name for name in names if name.rpartition("__")[2] == "random_state"]
    return estimator.set_params(**dict.fromkeys(seeds))


class PredictorSource:
    """Mixin of models: the hooks of `ForgetMixin.predictor`. By default there is no predictor.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.predictor import PredictorSource
    >>> isinstance(NearestCentroid(), PredictorSource)
    True
    """

    def _make_predictor(self, claim: Guarantee) -> Predictor:  # noqa: ARG002
        """Return the predictor; `claim` is its guarantee."""
        raise TypeError(f"{type(self).__name__} has no predictor: predictions need rows or keys")

    def _public_claim(self, claim: Guarantee) -> Guarantee:
        """Return a guarantee without numbers that depend on rows or requests.

        It covers only what is published. The spent budget would distinguish a model that forgot
        rows from a retrained model.
        """
        return replace(claim, spent=None, budget=None, residual_state=())
