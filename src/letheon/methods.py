"""The registry of methods: one line per method, read by every other part of the package.

Exports of `letheon`, type tags of files, certificates, audits, candidate selection, benchmarks and
generated pages use this table and the `MethodFacts` of its classes. The table imports nothing, so
that all of them can import it.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["METHODS", "Method", "class_paths", "find_method"]

Certificate = Literal["exact", "certified", "empirical"]


@dataclass(frozen=True)
class Method:
    """One method.

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
        certified method has one, so that no certificate relies on the method alone.
    is_candidate : bool, default=True
        Whether `letheon.select` tries it with its defaults.

    Raises
    ------
    ValueError
        A certified method has no bound.
    """

    name: str
    module: str
    classes: str
    certificate: Certificate
    bound: str | None = None
    is_candidate: bool = True

    def __post_init__(self) -> None:
        """Raise for a certified method without a bound that audits can check."""
        if self.certificate == "certified" and not self.bound:
            raise ValueError(
                f"the certified method {self.name!r} has no bound; add one to letheon.audit and "
                "name it in the registry, or register the method as 'empirical'"
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the estimators."""
        return tuple(self.classes.split())


METHODS: tuple[Method, ...] = (
    Method("naive", "letheon.naive", "NaiveUnlearner", "exact", is_candidate=False),
    Method("sisa", "letheon.sharded", "SISAClassifier SISARegressor", "exact"),
    Method("dare", "letheon.forest", "DaREForestClassifier DaREForestRegressor", "exact"),
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
    Method("sisa-net", "letheon.deep", "SISANetClassifier", "exact"),
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
        "naive-bayes",
        "letheon.sums",
        "MultinomialNB ComplementNB BernoulliNB CategoricalNB",
        "exact",
        is_candidate=False,
    ),
    Method(
        "text-counts",
        "letheon.preprocessing",
        "CountVectorizer TfidfVectorizer",
        "exact",
        is_candidate=False,
    ),
    Method("pipeline", "letheon.compose", "ForgetPipeline", "exact", is_candidate=False),
)


def find_method(name: str) -> Method | None:
    """Return the registered method with this name, or None."""
    return next((method for method in METHODS if method.name == name), None)


def class_paths() -> dict[str, str]:
    """Return the public module of each estimator of all registered methods, by name."""
    return {name: method.module for method in METHODS for name in method.class_names}
