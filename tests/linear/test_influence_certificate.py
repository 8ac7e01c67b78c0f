"""The certificate, end to end: models that forgot against fresh ones, told apart by samples.

Nothing but the noise of a release is random, so one model that forgot and one fresh one are made,
and each is released many times. Rows of about equal length, most of one class, and a regulariser of
the size of their curvature: the parameters are then about half as far apart as the account says, so
that a lie by a factor of a few shows.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from letheon.linear import _influence_base, _newton
from letheon.linear._account import Account
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._newton import Proposal
from letheon.noise import NoiseSource
from tests.linear.audit import epsilon_lower_bound
from tests.linear.people import estimator

Floats = NDArray[np.float64]

# Leads to a warning where training is stopped early on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::letheon.exceptions.GuaranteeWarning")


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
    l2: float = 0.15
    max_iter: int = 1000
    tol: float = 1e-12

    def fitted(self, kept: Any = slice(None)) -> Any:
        model = estimator(
            self.kind,
            sigma=self.sigma,
            epsilon=self.epsilon,
            delta=self.delta,
            l2=self.l2,
            tol=self.tol,
            max_iter=self.max_iter,
            fit_intercept=False,
            noise_seed=None,
            if_unproved="downgrade",
        )
        x, y = np.asarray(self.x, np.float64)[:, None], np.asarray(self.y)
        return model.fit(x[kept], y[kept], ids=np.arange(len(y))[kept])

    def forgot(self) -> tuple[Any, set[str]]:
        """Return a model that served all requests, and what its receipts counted."""
        model, rebuilt = self.fitted(), set()
        for request in self.requests:
            rebuilt |= set(model.forget(list(request)).rebuilt)
        return model, rebuilt

    def fresh(self) -> Any:
        gone = [row for request in self.requests for row in request]
        return self.fitted(np.setdiff1d(np.arange(len(self.y)), gone))


def sample(model: Any, n: int, seed: int | None) -> Floats:
    """Return the parameters of many releases of one model."""
    weights = model.weights_.open().ravel()
    return np.asarray(model._make_mechanism().release(np.tile(weights, (n, 1)), NoiseSource(seed)))


@dataclass(frozen=True)
class ReleaseComparison:
    """What two lots of releases looked like, and what the first claimed."""

    leak: float
    is_promised: bool
    use: float
    rebuilt: frozenset[str]


def watch(scenario: Scenario, n: int, seeds: tuple[Any, Any] = (1, 2)) -> ReleaseComparison:
    """Release again and again; bound the epsilon between the two laws from below."""
    (model, rebuilt), fresh = scenario.forgot(), scenario.fresh()
    released, retrained = sample(model, n, seeds[0]), sample(fresh, n, seeds[1])
    leak = epsilon_lower_bound(released, retrained, scenario.delta)
    use = model.account_.spent / model.account_.limit
    is_promised = {model.guarantee_.kind, fresh.guarantee_.kind} == {"certified"}
    return ReleaseComparison(leak, is_promised, use, frozenset(rebuilt))


ALIKE = np.linspace(0.98, 1.02, 120)
RARE = (np.arange(120) >= 10).astype(np.int64)
LONG = np.append(np.linspace(0.8, 1.2, 30), 5.0)

AT_ONCE = Scenario(ALIKE, RARE, (tuple(range(8)),), sigma=0.0165)
ONE_BY_ONE = replace(AT_ONCE, requests=tuple((row,) for row in range(8)), sigma=0.017)
PURE = replace(AT_ONCE, delta=0.0, sigma=0.015)
# Limits that the sum of the bounds passes.
OVERDRAWN = replace(ONE_BY_ONE, sigma=0.001)
THREE = Scenario(LONG, np.append(np.arange(30) % 3, 2), ((30,),), sigma=0.6, kind="softmax")
REST = replace(THREE, kind="ovr", sigma=0.9)
NUMBERS = Scenario(
    LONG, np.append(np.linspace(-1.0, 3.0, 30), -9.0), ((30,),), sigma=2.9, kind="huber"
)
EXACT = replace(NUMBERS, kind="squared", sigma=1e-6)
# Training is stopped far from the optimum. Who leaves matters on the way there, and not at the end.
LAZY = Scenario(
    LONG,
    np.append(np.arange(30) % 10 < 8, 1).astype(np.int64),
    ((30,),),
    sigma=0.0005,
    l2=0.02,
    max_iter=1,
)
# Many removals, of which none spends much.
MANY = Scenario(
    ALIKE, (np.arange(120) >= 25).astype(np.int64), tuple((row,) for row in range(20)), sigma=0.012
)

HONEST = {
    "at once": AT_ONCE,
    "one by one": ONE_BY_ONE,
    "pure": PURE,
    "overdrawn": OVERDRAWN,
    "many": MANY,
    "softmax": THREE,
    "one against the rest": REST,
    "pseudo-Huber": NUMBERS,
    "squared": EXACT,
}
FEW = 4_000


@pytest.mark.parametrize("name", HONEST)
def test_samples_do_not_contradict_the_claim(name: str) -> None:
    outcome = watch(HONEST[name], FEW)
    assert outcome.is_promised
    assert outcome.leak <= HONEST[name].epsilon


def test_scenarios_use_their_budget() -> None:
    """Otherwise nothing could be caught."""
    assert all(0.8 < watch(each, 30).use <= 1.0 for each in (AT_ONCE, ONE_BY_ONE, PURE))
    assert "exact residuals" in watch(OVERDRAWN, 30).rebuilt
    assert not watch(LAZY, 30).is_promised


def test_nothing_but_the_release_depends_on_noise() -> None:
    """So neither a refusal nor a repair tells anything of it."""
    (first, rebuilt), (other, again) = OVERDRAWN.forgot(), OVERDRAWN.forgot()
    np.testing.assert_array_equal(first.weights_.open(), other.weights_.open())
    assert (first.account_, rebuilt) == (other.account_, again)
    assert first.coef_ != other.coef_


def shrink_the_noise(patch: pytest.MonkeyPatch) -> None:
    real = ReleaseGrid.release
    patch.setattr(
        ReleaseGrid,
        "release",
        lambda grid, *arguments, **options: real(
            ReleaseGrid(grid.step, grid.scale // 4), *arguments, **options
        ),
    )


def step_the_wrong_way(patch: pytest.MonkeyPatch) -> None:
    real = _newton.propose_removal

    def propose(curvature: Any, W: Floats, *arguments: Any) -> Proposal:
        proposal = real(curvature, W, *arguments)
        return replace(proposal, W=2 * W - proposal.W)

    patch.setattr(_influence_base, "propose_removal", propose)


def measure_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_newton, "l2_norm", lambda _: 0.0)


def forget_what_was_spent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "add_bound", lambda account, bound: replace(account, spent=bound))


def ignore_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_influence_base, "Account", lambda _, limit: Account(0.0, limit))
    patch.setattr(_influence_base, "convergence_warnings", lambda *_: ())


def believe_in_no_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "add_bound", lambda account, _: account)


PLANTED = [
    (shrink_the_noise, AT_ONCE),
    (shrink_the_noise, PURE),
    (step_the_wrong_way, AT_ONCE),
    (measure_nothing, OVERDRAWN),
    (forget_what_was_spent, MANY),
    (believe_in_no_bound, OVERDRAWN),
    (ignore_the_start, LAZY),
]


@pytest.mark.parametrize(
    ("plant", "scenario"), PLANTED, ids=lambda value: value.__name__ if callable(value) else ""
)
def test_planted_bugs_are_false_claims(
    plant: Any, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    outcome = watch(scenario, FEW)
    assert outcome.is_promised
    assert outcome.leak > scenario.epsilon


@pytest.mark.soak
@pytest.mark.parametrize("name", HONEST)
def test_many_samples_do_not_contradict_the_claim(name: str) -> None:
    outcome = watch(HONEST[name], 200_000, (None, None))
    assert outcome.is_promised
    assert outcome.leak <= HONEST[name].epsilon
