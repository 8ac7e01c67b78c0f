"""What somebody needs of a method, and why a method does not have it (survey, Table 2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from sklearn.base import BaseEstimator, is_classifier, is_regressor

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
    Task,
)

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
        words: list[tuple[str, str | None, tuple[str, ...]]] = [
            ("family", self.family, FAMILIES),
            ("task", self.task, TASKS),
            ("guarantee", self.guarantee, KINDS),
            ("requests", self.requests, REQUESTS),
            ("releases", self.releases, get_args(Releases)),
            *(("properties", code, tuple(NEEDS)) for code in self.properties or ()),
        ]
        for name, word, allowed in words:
            if word is not None and word not in allowed:
                raise ValueError(f"{name}={word!r} is not one of {allowed}")

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
