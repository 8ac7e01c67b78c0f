"""Claims about a model (`Guarantee`) and facts about a method (`MethodFacts`)."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal, NamedTuple, Self, get_args

Kind = Literal["exact", "certified", "empirical"]
Requests = Literal["oblivious", "adaptive"]
Releases = Literal["latest-only", "every-version", "labels-only"]
Family = Literal["any", "linear", "forest", "net"]
Task = Literal["classification", "regression"]
Replay = Literal["bitwise", "bitwise-same-kernel", "tolerance"]
# A code, or a function of the model that returns one.
Code = str | Callable[[Any], str]

FAMILIES: tuple[Family, ...] = get_args(Family)
TASKS: tuple[Task, ...] = get_args(Task)
KINDS = ("exact", "certified", "empirical")
REQUESTS = ("oblivious", "adaptive")
RELEASES = ("latest-only", "every-version", "labels-only")

# Requirements of methods on the loss and on training (survey, Table 2).
NEEDS: dict[str, str] = {
    "strongly-convex": "a strongly convex loss",
    "smooth": "a smooth loss",
    "lipschitz-hessian": "a Hessian that is Lipschitz",
    "bounded-gradients": "gradients with a known bound",
    "locally-quadratic": "a loss that is quadratic near its minimum",
    "sum-over-rows": "a loss that is a sum over rows",
    "gradient-descent": "training by plain gradient descent",
    "incremental-training": "training that can continue from a saved state",
    "frozen-backbone": "a backbone that was not trained on the rows",
}

# Default rule and mechanism of a method outside letheon.
DECLARED = "declared-by-method"
# A default that depends on another field, without None in the type.
_FROM_EXACT: Any = None


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The claim about one model in its current state.

    Attributes
    ----------
    kind : {"exact", "certified", "empirical"}
        *exact*: the model has the bytes of a fresh `fit` on the remaining rows (survey,
        Definition 2). *certified*: the model is (epsilon, delta)-indistinguishable from a
        retrained one (Definition 5). *empirical*: measured, not proved; there is no bound on what
        the model reveals.
    reference : str
        Theorem or paper behind the claim.
    requests : {"oblivious", "adaptive"}
        Whether requests may depend on the model (Gupta et al., 2021).
    releases : {"latest-only", "every-version", "labels-only"}
        What an observer may see: only the latest model, every version, or only labels.
    assumptions : tuple of str
        Codes of the assumptions under which the claim holds.
    epsilon, delta, spent, budget : float or None
        Bounds, spent budget and budget of a certified guarantee, otherwise None. `spent` covers the
        whole sequence of requests.
    residual_state : tuple of str
        Parts of the saved state that may still depend on forgotten rows.
    tuning : str or None
        How hyper-parameters were chosen, if declared. Tuning on rows that are forgotten later
        weakens every guarantee.

    Raises
    ------
    ValueError
        A field is invalid, or fields contradict each other.

    Examples
    --------
    >>> from letheon import Guarantee
    >>> guarantee = Guarantee(kind="exact", reference="Definition 2")
    >>> guarantee.requests, guarantee.releases, guarantee.epsilon
    ('oblivious', 'latest-only', None)
    """

    kind: Kind
    reference: str
    requests: Requests = "oblivious"
    releases: Releases = "latest-only"
    assumptions: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    spent: float | None = None
    budget: float | None = None
    residual_state: tuple[str, ...] = ()
    tuning: str | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` if a field is invalid or fields contradict each other."""
        _require_one_of("kind", self.kind, KINDS)
        _require_one_of("requests", self.requests, REQUESTS)
        _require_one_of("releases", self.releases, RELEASES)
        accounting = (self.epsilon, self.delta, self.spent, self.budget)
        if self.kind == "certified":
            if self.epsilon is None or self.delta is None:
                raise ValueError("epsilon or delta is None; kind='certified' requires both")
            if not (self.epsilon >= 0 and 0 <= self.delta < 1):
                bounds = f"epsilon={self.epsilon}, delta={self.delta}"
                raise ValueError(f"{bounds}; expected epsilon >= 0 and 0 <= delta < 1")
        elif any(number is not None for number in accounting):
            raise ValueError(
                f"kind={self.kind!r} has epsilon, delta, spent or budget; they require "
                "kind='certified'"
            )

    def with_tuning(self, tuning: str | None) -> Self:
        """Return a copy of the guarantee with a text on how hyper-parameters were chosen."""
        return replace(self, tuning=tuning)

    def __str__(self) -> str:
        """Return the guarantee as one line of text."""
        parts = [f"{self.kind}, {self.requests} requests, {self.releases}"]
        if self.kind == "certified":
            parts.append(f"epsilon {self.epsilon:g}, delta {self.delta:g}")
        if self.residual_state:
            parts.append(f"residual state: {', '.join(self.residual_state)}")
        return "; ".join([*parts, self.reference])

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks."""
        from letheon.terminal import FactTable

        has_budget = self.spent is not None and self.budget is not None
        facts = {
            "Kind": self.kind,
            "Epsilon": "" if self.epsilon is None else f"{self.epsilon:g}",
            "Delta": "" if self.delta is None else f"{self.delta:g}",
            "Spent": f"{self.spent:.3g} of {self.budget:.3g}" if has_budget else "",
            "Requests": self.requests,
            "Releases": self.releases,
            "Assumptions": ", ".join(self.assumptions),
            "Residual state": ", ".join(self.residual_state),
            "Tuning": self.tuning or "",
            "Reference": self.reference,
        }
        return FactTable("Guarantee", {k: v for k, v in facts.items() if v})._repr_html_()


class TrainingSize(NamedTuple):
    """Size of a problem.

    Parameters
    ----------
    n_people : int
        Number of training ids.
    n_together : int
        Number of ids in the smallest request.
    max_depth : int or None
        Number of levels of the trees.

    Examples
    --------
    >>> from letheon.guarantee import TrainingSize
    >>> TrainingSize(n_people=1000, n_together=10)
    TrainingSize(n_people=1000, n_together=10, max_depth=None)
    """

    n_people: int
    n_together: int
    max_depth: int | None = None


class SearchRanges(NamedTuple):
    """Parameter values to try.

    Parameters
    ----------
    efficiency : mapping of str to tuple
        Values of efficiency parameters, from slow to fast.
    certifiability : mapping of str to tuple
        Values of certifiability parameters.

    Examples
    --------
    >>> from letheon.guarantee import SearchRanges
    >>> SearchRanges(efficiency={"n_shards": (2, 4, 8)}).efficiency["n_shards"]
    (2, 4, 8)
    """

    efficiency: Mapping[str, tuple[Any, ...]] = {}
    certifiability: Mapping[str, tuple[Any, ...]] = {}


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """Facts about a method in machine-readable form.

    They are used for the survey's Table 2, for `letheon.select` and for certificates.

    Attributes
    ----------
    method : str
        Short name, as in receipts and certificates.
    applicability : str
        Models or losses that the method applies to.
    exact : bool
        Whether the removal mechanism is exact (survey, Definition 2).
    strength : {"strong", "weak", "not stated"}
        Growth of the update time over a sequence of requests (survey, Definition 11).
    efficiency_parameters, certifiability_parameters : tuple of str
        Constructor parameters that affect speed, and those that affect the guarantee.
    requests, releases : str
        The strongest claims that a model of this method can make; by default the weakest ones.
    state_holds_rows : bool
        Whether a saved model contains its training rows and is therefore personal data.
    definition_name : str
        Name of the definition text in `letheon.definitions`, which states the claim, the
        assumptions, the pseudo-code, and the proof or reference.
    definition_text : str or None
        The definition text itself, for a method outside letheon.
    families : tuple of {"any", "linear", "forest", "net"}
        Families of models that the method applies to. Empty if not stated.
    tasks : tuple of {"classification", "regression"}
        Tasks that the models of the method solve. Empty if not stated.
    needs : tuple of str
        Properties of the loss and of training that the method requires, as keys of `NEEDS`. The
        losses of letheon's classes have these properties.
    certificate : {"exact", "certified", "empirical"}
        The strongest kind of guarantee that a model of this method may have. By default "exact"
        or "empirical", according to `exact`; it is "exact" if and only if `exact` is true.
    batches : bool
        Whether one request with many ids is cheaper than many requests with one id.
    accounting : str or callable
        Code of the rule by which a certified model counts its privacy loss, or a function of the
        model that returns it.
    adds_up : bool
        Whether the privacy loss accumulates over requests under the accounting rule.
    noise : str or callable
        Code of the mechanism that adds noise, or a function of the model that returns it.
    has_noise_at_fit : bool
        Whether a fresh fit also adds noise.
    replay : {"bitwise", "bitwise-same-kernel"}
        Where a fresh fit gives the same bytes: on every machine, because neither BLAS nor libm is
        used ("bitwise"), or only on machines with the same kernels ("bitwise-same-kernel").
    search_ranges : callable, optional
        Function from a `TrainingSize` to the values of parameters that `letheon.select` tries.

    Examples
    --------
    >>> from letheon import SISAClassifier
    >>> SISAClassifier.facts.method, SISAClassifier.facts.exact, SISAClassifier.facts.certificate
    ('sisa', True, 'exact')
    """

    method: str
    applicability: str
    exact: bool
    strength: Literal["strong", "weak", "not stated"]
    efficiency_parameters: tuple[str, ...] = ()
    certifiability_parameters: tuple[str, ...] = ()
    requests: Requests = "oblivious"
    releases: Releases = "latest-only"
    state_holds_rows: bool = True
    definition_name: str = ""
    definition_text: str | None = None
    families: tuple[Family, ...] = ()
    tasks: tuple[Task, ...] = ()
    needs: tuple[str, ...] = ()
    certificate: Kind = _FROM_EXACT
    batches: bool = False
    accounting: Code = DECLARED
    adds_up: bool = True
    noise: Code = DECLARED
    has_noise_at_fit: bool = True
    replay: Replay = "bitwise-same-kernel"
    search_ranges: Callable[[TrainingSize], SearchRanges] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` unless there is one definition text and all codes are consistent."""
        if bool(self.definition_name) == bool(self.definition_text):
            raise ValueError(
                "both or neither of definition_name and definition_text are set; expected "
                "definition_name for a text in letheon, or definition_text for your own text"
            )
        for name, allowed in (("families", FAMILIES), ("tasks", TASKS), ("needs", tuple(NEEDS))):
            for word in getattr(self, name):
                _require_one_of(name, word, allowed)
        if self.certificate is _FROM_EXACT:
            object.__setattr__(self, "certificate", "exact" if self.exact else "empirical")
        _require_one_of("certificate", self.certificate, KINDS)
        if self.exact != (self.certificate == "exact"):
            raise ValueError(
                f"exact={self.exact} contradicts certificate={self.certificate!r}; certificate "
                "must be 'exact' if and only if exact is True"
            )

    def accounting_code(self, model: Any) -> str:
        """Return the code of the rule by which a model counts its privacy loss."""
        return self.accounting if isinstance(self.accounting, str) else self.accounting(model)

    def noise_code(self, model: Any) -> str:
        """Return the code of the mechanism that adds noise to a model."""
        return self.noise if isinstance(self.noise, str) else self.noise(model)

    def values_to_try(self, size: TrainingSize) -> SearchRanges:
        """Return the parameter values that `letheon.select` tries for data of this size."""
        return SearchRanges() if self.search_ranges is None else self.search_ranges(size)

    @property
    def definition(self) -> str:
        """Definition text with the claim, assumptions, pseudo-code, and proof or reference."""
        if self.definition_text:
            return self.definition_text
        file = resources.files("letheon.definitions") / f"{self.definition_name}.md"
        return file.read_text(encoding="utf-8")

    @property
    def definition_digest(self) -> str:
        """SHA-256 of the definition text, as in certificates."""
        return hashlib.sha256(self.definition.encode()).hexdigest()


def _require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; expected one of {allowed}")
