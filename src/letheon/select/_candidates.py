"""Requirements on a method, candidate methods, and the parameter values to try (Table 2)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor

from letheon.compose import ForgetPipeline
from letheon.evaluation import name_model
from letheon.guarantee import (
    FAMILIES,
    KINDS,
    NEEDS,
    REQUESTS,
    TASKS,
    Family,
    Guarantee,
    Kind,
    MethodFacts,
    Releases,
    Requests,
    SearchRanges,
    Task,
    TrainingSize,
)
from letheon.methods import METHODS
from letheon.sharded import SISAClassifier, SISARegressor
from letheon.table_pipeline import make_table_pipeline, needs_pipeline

# From the weakest to the strongest observer; a claim covers all weaker observers.
_OBSERVERS: tuple[Releases, ...] = ("labels-only", "latest-only", "every-version")
_SEES = {
    "labels-only": "labels only",
    "latest-only": "the latest model only",
    "every-version": "every version of the model",
}


@dataclass(frozen=True, kw_only=True)
class Need:
    """Constraints that a method must satisfy (survey, 6.3, "Candidate selection").

    Parameters
    ----------
    family : {"any", "linear", "forest", "net"}, default="any"
        Kind of model. Neural networks are tried only with "net".
    task : {"classification", "regression"}, optional
        By default inferred from the labels: floats with fractions, or with more than 20 distinct
        values, mean regression.
    guarantee : {"exact", "certified", "empirical"}, default="empirical"
        The weakest acceptable kind of guarantee; an exact method also satisfies "certified".
    requests : {"oblivious", "adaptive"}, default="oblivious"
        Whether requests may depend on the model ("adaptive") or not ("oblivious").
    releases : {"latest-only", "every-version", "labels-only"}, default="latest-only"
        What the strongest observer sees: the latest model, every version, or only predicted labels.
    immediate : bool, default=True
        Whether each request must be applied immediately. If False, requests are batched, and
        methods that are not faster for batches are excluded.
    strong : bool, default=False
        Whether to exclude *weak* methods, whose removals get slower along a sequence (survey,
        Definition 11).
    properties : tuple of str, optional
        Properties of your loss and training that you guarantee, as keys of
        `letheon.guarantee.NEEDS`. Methods that need other properties are excluded. By default
        the losses of letheon's classes are used, which have the required properties.
    epsilon, delta : float, optional
        Largest acceptable values in a certificate. They do not apply to exact methods.

    Examples
    --------
    >>> from letheon import FisherClassifier
    >>> model = FisherClassifier()
    >>> Need(guarantee="exact").why_not(model, model.facts)
    'you require exact; it is certified'
    """

    family: Family = "any"
    task: Task | None = None
    guarantee: Kind = "empirical"
    requests: Requests = "oblivious"
    releases: Releases = "latest-only"
    immediate: bool = True
    strong: bool = False
    properties: tuple[str, ...] | None = None
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        """Raise if an argument has an unknown value."""
        allowed = {
            "family": FAMILIES,
            "guarantee": KINDS,
            "requests": REQUESTS,
            "releases": get_args(Releases),
        }
        words = [(name, getattr(self, name), options) for name, options in allowed.items()]
        words += [("task", self.task, TASKS)] * (self.task is not None)
        words += [("properties", code, tuple(NEEDS)) for code in self.properties or ()]
        for name, word, options in words:
            if word not in options:
                raise ValueError(f"{name} must be one of {options}, not {word!r}")

    def why_not(self, estimator: BaseEstimator, facts: MethodFacts) -> str:
        """Return why a method is not applicable, from its facts; empty if it is applicable.

        Facts that are not declared (no families, no tasks) do not exclude a method.
        """
        return "; ".join([*self._against_model(estimator, facts), *self._against_claim(facts)])

    def why_not_claim(self, claim: Guarantee) -> str:
        """Return why the guarantee of a fitted model is not sufficient; empty if it is."""
        reasons = []
        if KINDS.index(claim.kind) > KINDS.index(self.guarantee):
            reasons.append(f"its guarantee is {claim.kind}, you require {self.guarantee}")
        if self.requests == "adaptive" != claim.requests:
            reasons.append("with these settings its guarantee does not cover adaptive requests")
        if _OBSERVERS.index(claim.releases) < _OBSERVERS.index(self.releases):
            reasons.append(f"its guarantee covers only observers who see {_SEES[claim.releases]}")
        for name in ("epsilon", "delta"):
            stated, limit = getattr(claim, name), getattr(self, name)
            if stated is not None and limit is not None and stated > limit:
                reasons.append(f"its {name} is {stated:g}, you require at most {limit:g}")
        return "; ".join(reasons)

    def _against_model(self, estimator: BaseEstimator, facts: MethodFacts) -> Iterator[str]:
        """Yield reasons why the method does not fit the required kind of model or task."""
        if self.family != "any" and not {"any", self.family} & set(facts.families or ("any",)):
            yield f"you require {_MODELS[self.family]}; it supports {facts.applicability}"
        if self.task is None:
            return
        if facts.tasks and self.task not in facts.tasks:
            yield f"you require {self.task}; it supports {' and '.join(facts.tasks)} only"
        elif (is_regressor if self.task == "classification" else is_classifier)(estimator):
            yield f"you require {self.task}; this estimator is for the other task"

    def _against_claim(self, facts: MethodFacts) -> Iterator[str]:
        """Yield reasons why guarantee, assumptions or speed of the method are not sufficient."""
        if KINDS.index(facts.certificate) > KINDS.index(self.guarantee):
            yield f"you require {self.guarantee}; it is {facts.certificate}"
        if self.requests == "adaptive" != facts.requests:
            yield (
                "you require adaptive requests (they may depend on the model); it covers oblivious "
                "requests only"
            )
        if _OBSERVERS.index(facts.releases) < _OBSERVERS.index(self.releases):
            seen, covered = _SEES[self.releases], _SEES[facts.releases]
            yield f"your observer sees {seen}; it covers observers who see {covered}"
        properties = facts.needs if self.properties is None else self.properties
        missing = [NEEDS[code] for code in facts.needs if code not in properties]
        if missing:
            yield f"it needs {' and '.join(missing)}, which is not among your properties"
        if self.strong and facts.strength != "strong":
            strength = "is weak" if facts.strength == "weak" else "does not state its strength"
            yield f"you require a strong method; it {strength}"
        elif not self.immediate and not facts.batches:
            yield "you allow batches of requests; it gains nothing from them"


_MODELS = {"linear": "a linear model", "forest": "a forest", "net": "a neural network"}


Values = Mapping[str, Sequence[Any]]
_NETS = "letheon.deep"  # Only this module needs PyTorch.


@dataclass(frozen=True)
class Candidate:
    """A forgetting estimator and the parameter values to try.

    Parameters
    ----------
    estimator : forgetting estimator
        An unfitted estimator. Parameters that are not searched keep their values.
    efficiency : mapping of str to values, optional
        Parameters that trade accuracy for speed, with values **from slow to fast**. For an exact
        method they are tried in this order until the tolerance is exceeded; for an approximate
        method all are tried. By default the ranges of the method; ``{}`` to try no values.
    certifiability : mapping of str to values, optional
        Parameters of an approximate method that affect certifiability; all values are tried. An
        exact method has none.
    name : str, optional
        Name in tables and texts; by default the class name.

    Examples
    --------
    >>> from letheon import DaREForestClassifier
    >>> candidate = Candidate(DaREForestClassifier(), efficiency={"random_depth": [0, 2, 4]})
    >>> candidate.with_settings({"random_depth": 2})
    DaREForestClassifier(random_depth=2)
    """

    estimator: Any
    efficiency: Values | None = None
    certifiability: Values | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Raise if the estimator cannot forget, or if a parameter is unknown or has no values."""
        facts = getattr(self.estimator, "facts", None)
        if not isinstance(facts, MethodFacts):
            raise TypeError(
                "a candidate must be an estimator of letheon, or have MethodFacts as `facts`, not "
                f"{type(self.estimator).__name__}; to use any estimator, wrap it in NaiveUnlearner "
                "or SISA"
            )
        if facts.exact and self.certifiability:
            raise ValueError(
                f"{short_name(self.estimator)} is exact and has no certifiability parameters; use "
                "efficiency for parameters that affect its speed"
            )
        known = self.estimator.get_params()
        for values in (self.efficiency or {}, self.certifiability or {}):
            for parameter, options in values.items():
                if parameter not in known:
                    raise ValueError(f"{short_name(self.estimator)} has no parameter {parameter!r}")
                if len(options) == 0:
                    raise ValueError(f"the list of values for {parameter!r} must not be empty")

    @property
    def facts(self) -> MethodFacts:
        """The `MethodFacts` that the estimator declares."""
        facts: MethodFacts = self.estimator.facts
        return facts

    def ranges(self, size: TrainingSize) -> SearchRanges:
        """Return the parameter values to try: those of the candidate, or those of the method.

        `size` is the size of the training data, on which the values of the method depend.
        """
        depth = self.estimator.get_params(deep=False).get("max_depth")
        usual = self.facts.values_to_try(size._replace(max_depth=depth))
        # If the candidate has values for some parameters, only these are tried.
        has_values = self.efficiency is not None or self.certifiability is not None
        usual = SearchRanges() if has_values else usual
        chosen = (self.efficiency or usual.efficiency, self.certifiability or usual.certifiability)
        return SearchRanges(
            *({name: tuple(options) for name, options in values.items()} for values in chosen)
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Any:
        """Return an unfitted copy of the estimator with these values."""
        return clone(self.estimator).set_params(**settings)


Named = dict[str, Candidate]
# These candidates contain the ordinary model, with its preprocessing.
_WRAPPERS = (SISAClassifier, SISARegressor)


def add_preprocessing(candidates: Named, X: Any, size: TrainingSize) -> Named:
    """Return the candidates as pipelines if the table has categories or missing values.

    The same parameter values are tried, for the last step. The preprocessing depends on the types
    of the columns; see `letheon.table_pipeline`.
    """
    if not needs_pipeline(X):
        return candidates
    return name_candidates(
        candidate
        if isinstance(candidate.estimator, _WRAPPERS)
        else _with_preprocessing(candidate, X, size)
        for candidate in candidates.values()
    )


def _with_preprocessing(candidate: Candidate, X: Any, size: TrainingSize) -> Candidate:
    efficiency, certifiability = (
        {f"model__{name}": options for name, options in values.items()}
        for values in candidate.ranges(size)
    )
    return Candidate(make_table_pipeline(candidate.estimator, X), efficiency, certifiability)


def short_name(estimator: Any) -> str:
    """Return the class name, followed by the name of the inner estimator or last step, if any.

    Parameters
    ----------
    estimator : forgetting estimator
        An estimator of letheon.

    Returns
    -------
    str

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from letheon import SISAClassifier
    >>> short_name(SISAClassifier(LogisticRegression()))
    'SISAClassifier of LogisticRegression'
    """
    inner = estimator.get_params(deep=False).get("estimator")
    if isinstance(estimator, ForgetPipeline):
        inner = estimator
    return type(estimator).__name__ + (f" of {name_model(inner)}" if inner is not None else "")


def name_candidates(candidates: Iterable[Any]) -> Named:
    """Return candidates by name, sorted by name so that the order of the input does not matter.

    Raises
    ------
    ValueError
        If there are no candidates, or if two candidates have the same name.
    """
    listed = [item if isinstance(item, Candidate) else Candidate(item) for item in candidates]
    if not listed:
        raise ValueError("candidates is empty; expected at least one candidate")
    short = [candidate.name or short_name(candidate.estimator) for candidate in listed]
    counts = Counter(short)
    names = [
        name if counts[name] == 1 else repr(candidate.estimator)
        for name, candidate in zip(short, listed, strict=True)
    ]
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise ValueError(f"duplicate candidate: {duplicates[0]}; set different values of name")
    return dict(sorted(zip(names, listed, strict=True)))


def default_candidates(need: Need, task: Task, ordinary: Any) -> tuple[Named, dict[str, str]]:
    """Return one candidate per method of letheon, and the excluded methods with reasons.

    SISA wraps the ordinary model. Certified methods use the epsilon and delta of `need`.

    Parameters
    ----------
    need : Need
        Constraints; the family, epsilon and delta are used.
    task : {"classification", "regression"}
        Kind of targets.
    ordinary : estimator
        The model that SISA wraps.

    Returns
    -------
    (dict of str to Candidate, dict of str to str)

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> candidates, excluded = default_candidates(Need(), "classification", LogisticRegression())
    >>> "SISAClassifier of LogisticRegression" in candidates, list(excluded)
    (True, ['letheon.deep'])
    """
    if need.family == "net":
        left_out = {
            "CertifiedHeadClassifier": "it needs a backbone; pass it as a candidate",
            "every other method": "you require a neural network",
        }
        return name_candidates(
            _make_estimator(kind, need) for kind in _list_method_classes(task, nets=True)
        ), left_out
    sisa = SISARegressor if task == "regression" else SISAClassifier
    estimators = [_make_estimator(kind, need) for kind in _list_method_classes(task, nets=False)]
    left_out = {"letheon.deep": 'neural networks are tried with Need(family="net") only'}
    return name_candidates([*estimators, sisa(clone(ordinary))]), left_out


def _list_method_classes(task: Task, *, nets: bool) -> Iterator[Any]:
    """Yield the classes of the registered methods that can be candidates, except SISA.

    A method without a class for this task is included, and later excluded by its facts.
    """
    for method in METHODS:
        if method.is_candidate and method.name != "sisa" and nets == (method.module == _NETS):
            classes = [getattr(import_module(method.module), name) for name in method.class_names]
            # Some methods have a second class, for regression.
            yield classes[-1 if task == "regression" else 0]


def _make_estimator(kind: Any, need: Need) -> Any:
    """Return an unfitted estimator of class `kind`, with the required epsilon and delta."""
    estimator = kind()
    if estimator.facts.certificate == "certified":
        limits = {"epsilon": need.epsilon, "delta": need.delta}
        estimator.set_params(**{name: v for name, v in limits.items() if v is not None})
    return estimator
