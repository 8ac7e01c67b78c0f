"""The certificate, end to end: models that forgot against fresh ones, told apart by samples.

Rows of about equal length, most of one class: the bounds are then nearly what the steps really
leave (nine tenths of it and more), so that a model may use its budget to the end and a small lie
shows. With seeds the runs of `make test` are repeatable; `make soak` draws from the system.

Thresholds are also fixed at the limit: residuals up to it are then left as they are, which is the
certificate at its tightest as long as hardly any noise comes near. Where much does, fixed
thresholds tear a hole into the law of the parameters, and the drawn ones must not.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from letheon.convex import _influence_base, _influence_removal, _newton
from letheon.convex._account import Account, Thresholds
from letheon.convex._influence_base import InfluenceBase
from letheon.convex._newton import Proposal
from tests.convex import reference as ref
from tests.convex.audit import epsilon_lower_bound
from tests.convex.people import estimator

Floats = NDArray[np.float64]

# Leads to a warning where training is stopped early on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@dataclass(frozen=True)
class Scenario:
    """Rows, requests and settings of a model with one column and no intercept."""

    x: Any
    y: Any
    requests: tuple[tuple[int, ...], ...]
    sigma: float
    kind: str = "logistic"
    delta: float = 0.1
    epsilon: float = 1.0
    l2: float = 0.02
    max_iter: int = 1000
    tol: float = 1e-10

    def fitted(self, seed: int | None, kept: Any = slice(None)) -> Any:
        model = estimator(
            self.kind,
            sigma=self.sigma,
            epsilon=self.epsilon,
            delta=self.delta,
            l2=self.l2,
            tol=self.tol,
            max_iter=self.max_iter,
            fit_intercept=False,
            noise_seed=seed,
            if_unproved="downgrade",
        )
        x, y = np.asarray(self.x, np.float64)[:, None], np.asarray(self.y)
        return model.fit(x[kept], y[kept], ids=np.arange(len(y))[kept])

    @property
    def kept(self) -> Any:
        gone = [row for request in self.requests for row in request]
        return np.setdiff1d(np.arange(len(self.y)), gone)


@dataclass(frozen=True)
class Outcome:
    """What two lots of models looked like, and what the first claimed."""

    leak: float
    promised: bool
    use: float
    rebuilt: frozenset[str]


def watch(scenario: Scenario, n_runs: int, *, secret: bool = False) -> Outcome:
    """Run forget and fit again and again; bound the epsilon between them from below."""
    forgot, fresh, use, rebuilt, promised = [], [], [], set(), True
    for run in range(n_runs):
        model = scenario.fitted(None if secret else run)
        promised &= model.account_.is_covered
        for request in scenario.requests:
            rebuilt |= set(model.forget(list(request)).rebuilt)
            promised &= model.account_.is_covered
        use.append(model.account_.spent / model.account_.limit)
        forgot.append(model.coef_.ravel())
        other = scenario.fitted(None if secret else n_runs + run, scenario.kept)
        fresh.append(other.coef_.ravel())
    leak = epsilon_lower_bound(np.array(forgot), np.array(fresh), scenario.delta)
    return Outcome(leak, promised, float(np.median(use)), frozenset(rebuilt))


def is_false_claim(scenario: Scenario, outcome: Outcome) -> bool:
    """The test of a certificate: something is promised, and the samples contradict it."""
    return outcome.promised and outcome.leak > scenario.epsilon


ALIKE = np.linspace(0.98, 1.02, 40)
RARE = (np.arange(40) >= 10).astype(np.int64)
LONG = np.append(np.linspace(0.8, 1.2, 30), 5.0)

AT_ONCE = Scenario(ALIKE, RARE, ((0, 1, 2, 3, 4, 5),), sigma=0.8)
ONE_BY_ONE = replace(AT_ONCE, requests=((0,), (1,), (2,), (3,), (4,), (5,)), sigma=0.85)
PURE = replace(AT_ONCE, delta=0.0, sigma=0.75)
# Limits that the sum of the bounds passes, but none of them alone.
OVERDRAWN = replace(ONE_BY_ONE, sigma=0.3)
THREE = Scenario(LONG, np.append(np.arange(30) % 3, 2), ((30,),), sigma=0.4, kind="softmax")
REST = replace(THREE, kind="ovr")
NUMBERS = Scenario(
    LONG, np.append(np.linspace(-1.0, 3.0, 30), -9.0), ((30,),), sigma=0.3, kind="huber"
)
EXACT = replace(NUMBERS, kind="squared")
# Training is stopped far from the optimum. Who leaves matters on the way there, and not at the end.
LAZY = Scenario(
    LONG, np.append(np.arange(30) % 10 < 8, 1).astype(np.int64), ((30,),), sigma=0.06, max_iter=1
)

HONEST = {
    "at once": AT_ONCE,
    "one by one": ONE_BY_ONE,
    "pure": PURE,
    "overdrawn": OVERDRAWN,
    "softmax": THREE,
    "one against the rest": REST,
    "pseudo-Huber": NUMBERS,
    "squared": EXACT,
}
FEW = 250


def fix_thresholds(patch: pytest.MonkeyPatch, measure: float, polish: float) -> None:
    """Take these shares of the limit instead of draws."""

    def drawn(cls: type[Thresholds], limit: float, _: Any) -> Thresholds:
        return cls(measure * limit, polish * limit)

    patch.setattr(Thresholds, "drawn", classmethod(drawn))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals up to the limit are left as they are: the certificate at its tightest."""
    fix_thresholds(monkeypatch, 1.0, 1.0)


@pytest.mark.parametrize("name", HONEST)
def test_samples_do_not_contradict_the_claim(name: str) -> None:
    assert not is_false_claim(HONEST[name], watch(HONEST[name], FEW))


# Without a residual thresholds do not matter. Fixed ones tear a small hole where noise reaches the
# limit: delta forgives it, and a pure epsilon does not (20,000 runs show it).
LATE = [name for name in HONEST if name not in {"squared", "pure"}]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("name", LATE)
def test_samples_do_not_contradict_the_claim_when_all_is_left(name: str) -> None:
    assert not is_false_claim(HONEST[name], watch(HONEST[name], FEW))


@pytest.mark.usefixtures("late")
def test_scenarios_use_their_budget() -> None:
    """Otherwise nothing could be caught."""
    assert 0.8 < watch(AT_ONCE, 30).use <= 1.0
    assert 0.8 < watch(ONE_BY_ONE, 30).use <= 1.0
    assert "exact residuals" in watch(OVERDRAWN, 10).rebuilt
    assert not watch(LAZY, 8).promised


def halve_the_noise(patch: pytest.MonkeyPatch) -> None:
    real = InfluenceBase._draw
    patch.setattr(InfluenceBase, "_draw", lambda *given: real(*given) / 2)


def step_the_wrong_way(patch: pytest.MonkeyPatch) -> None:
    real = _newton.propose

    def propose(curvature: Any, W: Floats, *given: Any) -> Proposal:
        proposal = real(curvature, W, *given)
        return replace(proposal, W=2 * W - proposal.W)

    patch.setattr(_influence_removal, "propose", propose)


def omit_the_noise_from_the_residual(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InfluenceBase, "_problem_now", lambda model: model._problem(model._held(), None))


def forget_what_was_spent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "plus", lambda account, bound: replace(account, spent=bound))


def ignore_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_influence_base, "Account", lambda _, limit: Account(0.0, limit))


def believe_in_no_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "plus", lambda account, _: account)


PLANTED = [
    (halve_the_noise, AT_ONCE, 900),
    (halve_the_noise, PURE, 900),
    (step_the_wrong_way, AT_ONCE, FEW),
    (omit_the_noise_from_the_residual, OVERDRAWN, 400),
    (forget_what_was_spent, OVERDRAWN, FEW),
    (believe_in_no_bound, OVERDRAWN, FEW),
    (ignore_the_start, LAZY, FEW),
]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("plant", "scenario", "n_runs"),
    PLANTED,
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_planted_bugs_are_false_claims(
    plant: Any, scenario: Scenario, n_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_false_claim(scenario, watch(scenario, n_runs))


@dataclass(frozen=True)
class Torn:
    """Where a fixed threshold leaves a hole, because half of the noise lies on either side of it.

    The hole is an interval of the noise, in units of sigma, for which the parameters would be the
    exact optimum of the rows left. A fit lands there with the probability of a Gaussian.
    """

    scenario: Scenario
    hole: tuple[float, float]
    n_runs: int

    @property
    def share_of_fits(self) -> float:
        low, high = stats.norm.cdf(self.hole)
        return float(high - low)

    def n_in_hole(self) -> int:
        """How many of the models that forgot land in the hole."""
        scenario = self.scenario
        x, y = np.asarray(scenario.x)[scenario.kept, None], np.asarray(scenario.y)[scenario.kept]
        rest = ref.Case(x, y, "logistic", scenario.l2)
        found = 0
        for run in range(self.n_runs):
            model = scenario.fitted(OTHER_SEEDS + run)
            for request in scenario.requests:
                model.forget(list(request))
            assert model.account_.is_covered
            noise = -ref.gradient(rest, model.model_.weights).item() / scenario.sigma
            found += self.hole[0] < noise < self.hole[1]
        return found

    def leak(self, found: int) -> float:
        """A lower bound on epsilon, wrong once in a thousand: the event was fixed beforehand."""
        high = stats.binomtest(found, self.n_runs, alternative="less").proportion_ci(0.999).high
        return math.log((self.share_of_fits - self.scenario.delta) / high)


# The bound reaches the limit for half of the noise, or the residual a quarter of it. The holes
# were seen with other seeds than those used below.
TORN = {
    "measuring": Torn(
        replace(AT_ONCE, requests=((0, 1, 2),), sigma=0.27, delta=0.01), (0.11, 0.59), 200
    ),
    "polishing": Torn(
        Scenario(
            np.append(np.linspace(0.8, 1.2, 80), 8.0),
            np.append(np.arange(80) % 10 < 8, 0).astype(np.int64),
            ((80,),),
            sigma=4.6,
            delta=0.01,
        ),
        (0.13, 0.26),
        600,
    ),
}
OTHER_SEEDS = 100_000


@pytest.mark.parametrize("name", TORN)
def test_fixed_thresholds_are_a_false_claim(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = TORN[name]
    fix_thresholds(monkeypatch, 1.0, 0.25)
    assert torn.leak(torn.n_in_hole()) > torn.scenario.epsilon


@pytest.mark.parametrize("name", TORN)
def test_drawn_thresholds_tear_no_hole(name: str) -> None:
    torn = TORN[name]
    assert stats.binomtest(torn.n_in_hole(), torn.n_runs, torn.share_of_fits).pvalue > 1e-3


LONG_RUNS: dict[str, tuple[Scenario, bool]] = {
    **{f"{name} near the threshold": (torn.scenario, False) for name, torn in TORN.items()},
    **{f"{name}, as drawn": (scenario, False) for name, scenario in HONEST.items()},
    **{f"{name}, late": (HONEST[name], True) for name in LATE},
}


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG_RUNS)
def test_many_samples_do_not_contradict_the_claim(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, is_late = LONG_RUNS[name]
    if is_late:
        fix_thresholds(monkeypatch, 1.0, 1.0)
    assert not is_false_claim(scenario, watch(scenario, 20_000, secret=True))


@pytest.mark.soak
@pytest.mark.parametrize("name", TORN)
def test_many_samples_show_the_hole_to_the_audit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody says where to look."""
    fix_thresholds(monkeypatch, 1.0, 0.25)
    scenario = TORN[name].scenario
    assert is_false_claim(scenario, watch(scenario, 10_000, secret=True))
