"""The registry of methods: one entry per method, read by every other part of the package.

Exports of `letheon`, type tags of files, certificates, audits, candidate selection, benchmarks and
generated pages use this table and the `MethodFacts` of its classes. This module imports no other
part of the package, so that all parts can import it.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["METHODS", "Method", "class_paths", "find_method"]

Certificate = Literal["exact", "certified", "empirical"]


@dataclass(frozen=True)
class Method:
    """A registered method: its name, its estimators and its kind of guarantee.

    Parameters
    ----------
    name : str
        Short name, as in receipts and certificates: `MethodFacts.method` of its classes.
    module : str
        Public module of the classes.
    classes : str
        Names of the estimators, separated by spaces.
    certificate : {"exact", "certified", "empirical"}
        The strongest kind of guarantee: `MethodFacts.certificate` of its classes.
    bound : str, optional
        Name of the function in `letheon.audit` that recomputes (epsilon, delta) of a model with
        independent formulas; ``"inner"`` if the inner model is certified and checked. Every
        certified method needs a bound, so that no certificate relies on the method alone.
    is_candidate : bool, default=True
        Whether `letheon.select` tries the method by default.
    is_exported : bool, default=True
        Whether `letheon` exports the classes. Classes with the names of scikit-learn's are only
        available from their own module.

    Raises
    ------
    ValueError
        A certified method has no bound.

    Examples
    --------
    >>> from letheon.methods import Method
    >>> method = Method(name="mine", module="mine", classes="Mine Other", certificate="empirical")
    >>> list(method.class_names)
    ['Mine', 'Other']
    """

    name: str
    module: str
    classes: str
    certificate: Certificate
    bound: str | None = None
    is_candidate: bool = True
    is_exported: bool = True

    def __post_init__(self) -> None:
        """Raise if a certified method has no bound that audits can check."""
        if self.certificate == "certified" and not self.bound:
            raise ValueError(
                f"the certified method {self.name!r} has no bound; add one to letheon.audit and "
                "name it in the registry, or register the method as 'empirical'"
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the estimators as a tuple."""
        return tuple(self.classes.split())


METHODS: tuple[Method, ...] = (
    Method("naive", "letheon.naive", "NaiveUnlearner", "exact", is_candidate=False),
    Method("sisa", "letheon.sharded", "SISAClassifier SISARegressor", "exact"),
    Method("dare", "letheon.forest", "DaREForestClassifier DaREForestRegressor", "exact"),
    Method("boosting", "letheon.boosting", "BoostingClassifier BoostingRegressor", "exact"),
    Method("fisher", "letheon.linear", "FisherClassifier", "certified", "fisher"),
    Method(
        "influence",
        "letheon.linear",
        "InfluenceClassifier InfluenceRegressor",
        "certified",
        "influence",
    ),
    Method("deltagrad", "letheon.linear", "DeltaGradClassifier", "empirical"),
    Method(
        "descent-to-delete", "letheon.linear", "DescentToDeleteClassifier", "certified", "descent"
    ),
    Method("nearest-centroid", "letheon.centroid", "NearestCentroid", "exact"),
    Method("deepobliviate", "letheon.deep", "DeepObliviateClassifier", "empirical"),
    Method("sisa-net", "letheon.deep", "SISANetClassifier SISANetRegressor", "exact"),
    Method("fisher-net", "letheon.deep", "FisherNetClassifier", "empirical"),
    Method("deltagrad-net", "letheon.deep", "DeltaGradNetClassifier", "empirical"),
    Method(
        "certified-head",
        "letheon.deep",
        "CertifiedHeadClassifier",
        "certified",
        "inner",
        is_candidate=False,
    ),
    Method(
        "sums",
        "letheon.sums",
        "Ridge RidgeClassifier LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis GaussianNB "
        "PCA",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method("recommend", "letheon.recommend", "EASE ItemKNN", "exact", is_candidate=False),
    Method("keyed-sample", "letheon.preprocessing", "KeyedSample", "exact", is_candidate=False),
    Method("forget-search", "letheon.search", "ForgetSearchCV", "exact", is_candidate=False),
    Method("pipeline", "letheon.compose", "ForgetPipeline", "exact", is_candidate=False),
    Method(
        "stable-preprocessing",
        "letheon.preprocessing",
        "ForgetColumnTransformer OneHotEncoder OrdinalEncoder QuantileBinner RobustScaler "
        "SimpleImputer StandardScaler TargetEncoder",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method(
        "exact-head",
        "letheon.deep",
        "ExactHeadClassifier",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method(
        "naive-bayes",
        "letheon.sums",
        "MultinomialNB ComplementNB BernoulliNB CategoricalNB",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method(
        "random-features",
        "letheon.sums",
        "RandomFeatures",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method(
        "text-counts",
        "letheon.preprocessing",
        "CountVectorizer TfidfVectorizer",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
    Method(
        "vector-index",
        "letheon.neighbors",
        "VectorIndex KNeighborsClassifier KNeighborsRegressor",
        "exact",
        is_candidate=False,
        is_exported=False,
    ),
)


def find_method(name: str) -> Method | None:
    """Return the registered method with this name, or None.

    Parameters
    ----------
    name : str
        Short name of a method.

    Returns
    -------
    Method or None

    Examples
    --------
    >>> from letheon.methods import find_method
    >>> find_method("sisa").classes
    'SISAClassifier SISARegressor'
    >>> find_method("unknown") is None
    True
    """
    return next((method for method in METHODS if method.name == name), None)


def class_paths(*, exported_only: bool = False) -> dict[str, str]:
    """Return a dict from the class name of every registered estimator to its public module.

    Parameters
    ----------
    exported_only : bool, default=False
        Whether to leave out classes that are only available from their own module.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> from letheon.methods import class_paths
    >>> class_paths()["SISAClassifier"]
    'letheon.sharded'
    """
    methods = [method for method in METHODS if method.is_exported or not exported_only]
    return {name: method.module for method in methods for name in method.class_names}
