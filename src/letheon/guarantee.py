"""What a method claims: `Guarantee` of a model as it is, `MethodFacts` of a method in general."""

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

# What a method may need of the loss and of training (survey, Table 2), in words.
NEEDS: dict[str, str] = {
    "strongly-convex": "a strongly convex loss",
    "smooth": "a smooth loss",
    "lipschitz-hessian": "a Hessian that is Lipschitz",
    "bounded-gradients": "gradients with a known bound",
    "locally-quadratic": "a loss that is quadratic near its minimum",
    "sum-over-rows": "a loss that is a sum over rows",
    "gradient-descent": "training by plain gradient descent",
    "incremental-training": "training that can go on from a saved state",
    "frozen-backbone": "a backbone that never saw the rows",
}

# The rule and the mechanism of a method outside letheon that names none.
DECLARED = "declared-by-method"
# Makes a default that depends on another field possible, without a type that admits None.
_FROM_EXACT: Any = None


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is claimed about one model as it is now.

    Attributes
    ----------
    kind : {"exact", "certified", "empirical"}
        *exact*: the model has the bytes of a fresh `fit` on the remaining rows (survey,
        Definition 2). *certified*: (epsilon, delta)-indistinguishable from one (Definition 5).
        *empirical*: measured, not proved; it does not bound what the model still reveals.
    reference : str
        Theorem or paper behind the claim.
    requests : {"oblivious", "adaptive"}
        Whether people may choose to leave after seeing the model (Gupta et al., 2021).
    releases : {"latest-only", "every-version", "labels-only"}
        What an observer may hold: only the newest model, every version, or only labels.
    assumptions : tuple of str
        Short codes of what must hold for the claim.
    epsilon, delta, spent, budget : float or None
        Only for certified ones; `spent` counts the whole sequence of requests.
    residual_state : tuple of str
        What a forgotten row may still have touched in the saved state.
    tuning : str or None
        How hyper-parameters were chosen, when the caller says. Tuning on rows that are forgotten
        later weakens every guarantee.
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
        """Refuse a claim that contradicts itself."""
        _one_of("kind", self.kind, KINDS)
        _one_of("requests", self.requests, REQUESTS)
        _one_of("releases", self.releases, RELEASES)
        accounting = (self.epsilon, self.delta, self.spent, self.budget)
        if self.kind == "certified":
            if self.epsilon is None or self.delta is None:
                raise ValueError("a certified guarantee states epsilon and delta; got None")
            if not (self.epsilon >= 0 and 0 <= self.delta < 1):
                raise ValueError(
                    f"need epsilon >= 0 and 0 <= delta < 1; got {self.epsilon}, {self.delta}"
                )
        elif any(number is not None for number in accounting):
            raise ValueError(f"only a certified guarantee has a budget; this one is {self.kind}")

    def with_tuning(self, tuning: str | None) -> Self:
        """Return the same claim with a note on how hyper-parameters were chosen."""
        return replace(self, tuning=tuning)


class TrainingSize(NamedTuple):
    """How much there is: training people, people in the smallest request, levels of a tree."""

    n_people: int
    n_together: int
    max_depth: int | None = None


class SearchRanges(NamedTuple):
    """Values to try by parameter; those of efficiency from slow to fast."""

    efficiency: Mapping[str, tuple[Any, ...]] = {}
    certifiability: Mapping[str, tuple[Any, ...]] = {}


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """What a method declares about itself, as data.

    The survey's Table 2, candidate selection and the hash in a certificate are made from this.

    Attributes
    ----------
    method : str
        Short name, as in receipts and certificates.
    applicability : str
        Models or losses it serves.
    exact : bool
        Whether the removal mechanism is exact (survey, Definition 2).
    strength : {"strong", "weak", "not stated"}
        Growth of the update time over a sequence of requests (survey, Definition 11).
    efficiency_parameters, certifiability_parameters : tuple of str
        Constructor parameters that trade speed, and assurance, for something else.
    requests, releases : str
        The strongest claims that any model of this method may make; by default the weakest.
    state_holds_rows : bool
        Whether a saved model keeps its training rows, and so is personal data.
    definition_name : str
        Name of the definition text in `letheon.definitions`: claim, assumptions, pseudo-code,
        proof or reference.
    definition_text : str or None
        The definition text itself, for a method that lives outside letheon.
    families : tuple of {"any", "linear", "forest", "net"}
        Kinds of model it serves. Empty: not stated.
    tasks : tuple of {"classification", "regression"}
        What its models can learn. Empty: not stated.
    needs : tuple of str
        Properties of the loss and of training that it rests on, keys of `NEEDS`. The classes of
        letheon bring losses that have them.
    certificate : {"exact", "certified", "empirical"}
        The strongest kind of guarantee that a model of this method may have. By default "exact"
        or "empirical", as `exact` says; it is "exact" if and only if `exact` is true.
    batches : bool
        Whether one request of many people is cheaper than many requests of one.
    accounting : str or callable
        Code of the rule by which a certified model counts what it spends, or a function of the
        model that returns it.
    adds_up : bool
        Whether what is spent grows from request to request by that rule.
    noise : str or callable
        Code of the mechanism that adds noise, or a function of the model that returns it.
    has_noise_at_fit : bool
        Whether a fresh fit has noise, too.
    replay : {"bitwise", "bitwise-same-kernel"}
        How exactly a fresh fit gives an exact model again: on every machine (its decisions need
        neither BLAS nor libm), or where the same kernels run.
    search_ranges : callable, optional
        From a `TrainingSize` to the values of its parameters that `letheon.select` tries.
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
        """Require one definition text, known words, and a certificate that fits `exact`."""
        if bool(self.definition_name) == bool(self.definition_text):
            raise ValueError("give definition_name (a text of letheon's) or definition_text")
        for name, allowed in (("families", FAMILIES), ("tasks", TASKS), ("needs", tuple(NEEDS))):
            for word in getattr(self, name):
                _one_of(name, word, allowed)
        if self.certificate is _FROM_EXACT:
            object.__setattr__(self, "certificate", "exact" if self.exact else "empirical")
        _one_of("certificate", self.certificate, KINDS)
        if self.exact != (self.certificate == "exact"):
            raise ValueError(
                f"exact={self.exact} and certificate={self.certificate!r} contradict each other"
            )

    def accounting_code(self, model: Any) -> str:
        """Return the code of the rule by which a model of this method counts what it spends."""
        return self.accounting if isinstance(self.accounting, str) else self.accounting(model)

    def noise_code(self, model: Any) -> str:
        """Return the code of the mechanism that adds noise to a model of this method."""
        return self.noise if isinstance(self.noise, str) else self.noise(model)

    def values_to_try(self, size: TrainingSize) -> SearchRanges:
        """Return the values of its parameters that `letheon.select` tries on data of a size."""
        return SearchRanges() if self.search_ranges is None else self.search_ranges(size)

    @property
    def definition(self) -> str:
        """The definition text: claim, assumptions, pseudo-code, proof or reference."""
        if self.definition_text:
            return self.definition_text
        file = resources.files("letheon.definitions") / f"{self.definition_name}.md"
        return file.read_text(encoding="utf-8")

    @property
    def definition_digest(self) -> str:
        """SHA-256 of the definition text, as certificates quote it."""
        return hashlib.sha256(self.definition.encode()).hexdigest()


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {allowed}")
