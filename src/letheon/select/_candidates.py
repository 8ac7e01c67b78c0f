"""What somebody needs of a method, who is compared, and which values are tried (Table 2)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor

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

# From the observer who sees least to the one who sees most; a claim about one covers those before.
_OBSERVERS: tuple[Releases, ...] = ("labels-only", "latest-only", "every-version")
_SEES = {
    "labels-only": "labels only",
    "latest-only": "the latest model only",
    "every-version": "every version of the model",
}


@dataclass(frozen=True, kw_only=True)
class Need:
    """Constraints that no measurement can make up for (survey, 6.3, "Candidate selection").

    Parameters
    ----------
    family : {"any", "linear", "forest", "net"}, default="any"
        Kind of model. Nets are tried with "net" only.
    task : {"classification", "regression"}, optional
        By default what the labels look like: floats with fractions, or more than 20 different
        ones, are numbers to be predicted.
    guarantee : {"exact", "certified", "empirical"}, default="empirical"
        The weakest kind that will do; an exact method also serves where "certified" is asked for.
    requests : {"oblivious", "adaptive"}, default="oblivious"
        "adaptive": people may look at the model before they ask to leave.
    releases : {"latest-only", "every-version", "labels-only"}, default="latest-only"
        What an observer holds, at worst.
    immediate : bool, default=True
        Whether a request is served at once. If not, requests may wait and be served together, and
        a method that gains nothing from that is left out.
    strong : bool, default=False
        Leave out methods whose removals take longer and longer (*weak*; survey, Definition 11).
    properties : tuple of str, optional
        Properties of your loss and training that you vouch for, keys of
        `letheon.guarantee.NEEDS`; a method that needs another one is left out. By default you
        train the classes of letheon as they are: their losses have what they need.
    epsilon, delta : float, optional
        The largest that a certificate may state. An exact method has none.
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
        """Refuse words that no method declares."""
        allowed = {
            "family": FAMILIES,
            "guarantee": KINDS,
            "requests": REQUESTS,
            "releases": get_args(Releases),
        }
        words = [(name, getattr(self, name), each) for name, each in allowed.items()]
        words += [("task", self.task, TASKS)] * (self.task is not None)
        words += [("properties", code, tuple(NEEDS)) for code in self.properties or ()]
        for name, word, options in words:
            if word not in options:
                raise ValueError(f"{name}={word!r} is not one of {options}")

    def why_not(self, estimator: BaseEstimator, facts: MethodFacts) -> str:
        """Return in words why a method is not applicable, from its facts; empty if it is.

        What the facts leave open (no families, no tasks) is not held against a method.
        """
        return "; ".join([*self._against_model(estimator, facts), *self._against_claim(facts)])

    def why_not_claim(self, claim: Guarantee) -> str:
        """Return in words what the guarantee of a fitted model lacks; empty if nothing."""
        reasons = []
        if KINDS.index(claim.kind) > KINDS.index(self.guarantee):
            reasons.append(f"its guarantee came out {claim.kind}, you asked for {self.guarantee}")
        if self.requests == "adaptive" != claim.requests:
            reasons.append("with these settings its guarantee does not cover adaptive requests")
        if _OBSERVERS.index(claim.releases) < _OBSERVERS.index(self.releases):
            reasons.append(f"its guarantee covers observers who see {_SEES[claim.releases]}")
        for name in ("epsilon", "delta"):
            stated, limit = getattr(claim, name), getattr(self, name)
            if stated is not None and limit is not None and stated > limit:
                reasons.append(f"it certifies {name} {stated:g}, you asked for {limit:g} at most")
        return "; ".join(reasons)

    def _against_model(self, estimator: BaseEstimator, facts: MethodFacts) -> Iterator[str]:
        """Yield what speaks against the kind of model."""
        if self.family != "any" and not {"any", self.family} & set(facts.families or ("any",)):
            yield f"you asked for {_MODELS[self.family]}, and it serves {facts.applicability}"
        if self.task is None:
            return
        if facts.tasks and self.task not in facts.tasks:
            yield f"you need {self.task}, and it serves {' and '.join(facts.tasks)} only"
        elif (is_regressor if self.task == "classification" else is_classifier)(estimator):
            yield f"you need {self.task}, and this estimator is for the other"

    def _against_claim(self, facts: MethodFacts) -> Iterator[str]:
        """Yield what speaks against what the method claims and needs."""
        if KINDS.index(facts.certificate) > KINDS.index(self.guarantee):
            yield f"you asked for {self.guarantee}, and it is {facts.certificate}"
        if self.requests == "adaptive" != facts.requests:
            yield (
                "people may look before they leave (adaptive requests), and it covers oblivious "
                "requests only"
            )
        if _OBSERVERS.index(facts.releases) < _OBSERVERS.index(self.releases):
            seen, covered = _SEES[self.releases], _SEES[facts.releases]
            yield f"an observer sees {seen}, and it covers one who sees {covered}"
        vouched = facts.needs if self.properties is None else self.properties
        missing = [NEEDS[code] for code in facts.needs if code not in vouched]
        if missing:
            yield f"it needs {' and '.join(missing)}, for which you do not vouch"
        if self.strong and facts.strength != "strong":
            said = "is weak" if facts.strength == "weak" else "does not say how its time grows"
            yield f"you asked for a strong method, and it {said}"
        elif not self.immediate and not facts.batches:
            yield "requests may wait, and it gains nothing from serving many at once"


_MODELS = {"linear": "a linear model", "forest": "a forest", "net": "a net"}


Values = Mapping[str, Sequence[Any]]
_NETS = "letheon.deep"  # the only module that needs torch


@dataclass(frozen=True)
class Candidate:
    """A forgetting estimator and the values of its parameters that are tried.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted; its other parameters are kept.
    efficiency : mapping of str to values, optional
        Parameters that trade speed for something else, values **from slow to fast**. Of an exact
        method they are raised until the tolerance is passed; of an approximate one all are tried.
        By default the range of `letheon.select` for this method; ``{}`` for none.
    certifiability : mapping of str to values, optional
        Parameters of an approximate method that trade assurance; all are tried. An exact method
        has none.
    name : str, optional
        Name in tables and reasons; by default that of the class.
    """

    estimator: Any
    efficiency: Values | None = None
    certifiability: Values | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot forget and parameters that it does not have."""
        facts = getattr(self.estimator, "facts", None)
        if not isinstance(facts, MethodFacts):
            raise TypeError(
                f"a candidate must be a forgetting estimator that declares facts, not "
                f"{type(self.estimator).__name__}; NaiveUnlearner and SISA wrap any estimator"
            )
        if facts.exact and self.certifiability:
            raise ValueError(
                f"{short_name(self.estimator)} is exact: no parameter trades its certifiability; "
                "give what trades speed as efficiency"
            )
        known = self.estimator.get_params()
        for values in (self.efficiency or {}, self.certifiability or {}):
            for parameter, tried in values.items():
                if parameter not in known:
                    raise ValueError(f"{short_name(self.estimator)} has no {parameter!r}")
                if len(tried) == 0:
                    raise ValueError(f"no value of {parameter!r} is given to be tried")

    @property
    def facts(self) -> MethodFacts:
        """What the method declares about itself."""
        facts: MethodFacts = self.estimator.facts
        return facts

    def ranges(self, size: TrainingSize) -> SearchRanges:
        """Return the values to try: those given, else those of the method."""
        depth = self.estimator.get_params(deep=False).get("max_depth")
        usual = self.facts.values_to_try(size._replace(max_depth=depth))
        # Whoever gives some values says which parameters count.
        given = self.efficiency is not None or self.certifiability is not None
        usual = SearchRanges() if given else usual
        chosen = (self.efficiency or usual.efficiency, self.certifiability or usual.certifiability)
        return SearchRanges(
            *({name: tuple(tried) for name, tried in each.items()} for each in chosen)
        )

    def with_settings(self, settings: Mapping[str, Any]) -> Any:
        """Return an unfitted copy of the estimator with these values."""
        return clone(self.estimator).set_params(**settings)


Named = dict[str, Candidate]


def short_name(estimator: Any) -> str:
    """Return the name of a class, and of the estimator inside."""
    inner = estimator.get_params(deep=False).get("estimator")
    return type(estimator).__name__ + (f" of {name_model(inner)}" if inner is not None else "")


def name_candidates(candidates: Iterable[Any]) -> Named:
    """Return candidates by name, sorted, so that their order cannot matter.

    Raises
    ------
    ValueError
        There is none, or two of them are the same.
    """
    several = [each if isinstance(each, Candidate) else Candidate(each) for each in candidates]
    if not several:
        raise ValueError("candidates is empty; there is nobody to choose from")
    short = [each.name or short_name(each.estimator) for each in several]
    often = Counter(short)
    names = [
        name if often[name] == 1 else repr(each.estimator)
        for name, each in zip(short, several, strict=True)
    ]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"two candidates are the same: {twice[0]}; give them different names")
    return dict(sorted(zip(names, several, strict=True)))


def default_candidates(need: Need, task: Task, ordinary: Any) -> tuple[Named, dict[str, str]]:
    """Return one candidate for every method that letheon has, and who cannot be one, with why.

    SISA wraps the ordinary model. Certificates are asked for as `need` says.
    """
    if need.family == "net":
        left_out = {
            "CertifiedHeadClassifier": "it needs a backbone of yours; give it as a candidate",
            "every other method": "you asked for a net",
        }
        return name_candidates(
            _make_estimator(kind, need) for kind in _list_method_classes(task, nets=True)
        ), left_out
    sisa = SISARegressor if task == "regression" else SISAClassifier
    estimators = [_make_estimator(kind, need) for kind in _list_method_classes(task, nets=False)]
    left_out = {"letheon.deep": 'nets are tried with Need(family="net") only'}
    return name_candidates([*estimators, sisa(clone(ordinary))]), left_out


def _list_method_classes(task: Task, *, nets: bool) -> Iterator[Any]:
    """Yield the class of every registered method that is tried; SISA is made by the caller.

    A method that has no class for this task is still named, and left out for what it declares.
    """
    for method in METHODS:
        if method.is_candidate and method.name != "sisa" and nets == (method.module == _NETS):
            classes = [getattr(import_module(method.module), name) for name in method.class_names]
            # Only some methods have a second class, for numbers.
            yield classes[-1 if task == "regression" else 0]


def _make_estimator(kind: Any, need: Need) -> Any:
    """Return an estimator of letheon, with the certificate that is asked for."""
    estimator = kind()
    if estimator.facts.certificate == "certified":
        wanted = {"epsilon": need.epsilon, "delta": need.delta}
        estimator.set_params(**{name: v for name, v in wanted.items() if v is not None})
    return estimator
