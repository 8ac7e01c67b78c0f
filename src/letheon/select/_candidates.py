"""Who is compared: forgetting estimators, and the values of their parameters that are tried."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sklearn.base import clone

from letheon.guarantee import MethodFacts, SearchRanges, Task, TrainingSize
from letheon.methods import METHODS
from letheon.select._need import Need
from letheon.sharded import SISAClassifier, SISARegressor

__all__ = ["Candidate", "Named", "default_candidates", "named", "short_name"]

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
    return type(estimator).__name__ + (f" of {_last_name(inner)}" if inner is not None else "")


def _last_name(estimator: Any) -> str:
    return type(estimator[-1] if hasattr(estimator, "steps") else estimator).__name__


def named(candidates: Iterable[Any]) -> Named:
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
        return named(_made(kind, need) for kind in _registered(task, nets=True)), left_out
    sisa = SISARegressor if task == "regression" else SISAClassifier
    estimators = [_made(kind, need) for kind in _registered(task, nets=False)]
    left_out = {"letheon.deep": 'nets are tried with Need(family="net") only'}
    return named([*estimators, sisa(clone(ordinary))]), left_out


def _registered(task: Task, *, nets: bool) -> Iterator[Any]:
    """Yield the class of every registered method that is tried; SISA is made by the caller.

    A method that has no class for this task is still named, and left out for what it declares.
    """
    for method in METHODS:
        if method.is_candidate and method.name != "sisa" and nets == (method.module == _NETS):
            classes = [getattr(import_module(method.module), name) for name in method.class_names]
            # Only some methods have a second class, for numbers.
            yield classes[-1 if task == "regression" else 0]


def _made(kind: Any, need: Need) -> Any:
    """Return an estimator of letheon, with the certificate that is asked for."""
    estimator = kind()
    wanted: dict[str, Any] = {}
    if estimator.facts.certificate == "certified":
        wanted = {"epsilon": need.epsilon, "delta": need.delta}
    return estimator.set_params(**{name: v for name, v in wanted.items() if v is not None})
