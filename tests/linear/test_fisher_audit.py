"""The certificate from end to end: removals and retrains cannot be told apart better than claimed.

A tiny problem, in which one row matters more than all others. The same audit finds planted bugs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from letheon.linear import _fisher, _fisher_walk
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._fisher import FisherClassifier
from letheon.linear._fisher_walk import FisherMatrix, GradientEvaluation, NewtonWalk, evaluate_at
from letheon.linear._problem import NO_ROWS, FitProblem, Floats
from letheon.noise import NoiseSource
from letheon.removal import Change
from tests.linear.audit import epsilon_lower_bound

CANARY = 19
X = np.column_stack([np.append(np.linspace(-1, 1, 19), 3.0), np.cos(np.arange(20))])
Y = np.append(X[:-1, 0] > 0.1, False).astype(int)
# So little noise that the first step alone would not do.
SETTINGS: dict[str, Any] = {"l2": 0.05, "sigma": 1e-4, "epsilon": 1.0, "delta": 1e-4}
KINDS: dict[str, dict[str, Any]] = {
    "published": {},
    "secret": {"state": "secret"},
    "isotropic": {"covariance": "isotropic", "state": "secret"},
    "much noise": {"sigma": 0.01},
}


def weights(model: FisherClassifier) -> Floats:
    return model.model_.weights.ravel()


def retrained(kind: str, count: int) -> Floats:
    settings = SETTINGS | KINDS[kind]
    rest = (X[:CANARY], Y[:CANARY])
    return np.array([weights(FisherClassifier(**settings).fit(*rest)) for _ in range(count)])


def removed(kind: str, count: int) -> Floats:
    settings, releases = SETTINGS | KINDS[kind], []
    for _ in range(count):
        model = FisherClassifier(**settings).fit(X, Y)
        claim = model.forget([CANARY]).guarantee
        assert (claim.kind, claim.epsilon, claim.delta) == ("certified", 1.0, 1e-4)
        releases.append(weights(model))
    return np.array(releases)


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Noise that the models take for secret; real noise in long runs."""
    if "soak" in request.keywords:
        return
    rng = np.random.default_rng(7)

    def words(self: NoiseSource, n: int) -> NDArray[np.uint64]:
        return rng.integers(0, 2**64, n, np.uint64)

    monkeypatch.setattr(NoiseSource, "_words", words)


# Low-order bits (Mironov 2012): does a release lie where noise of doubles could have put it?


def is_explained(released: Floats, before: Floats, scale: float) -> NDArray[np.bool_]:
    """Whether before + scale ndtri(k / 2^53), in doubles, can be what was released."""
    guess = np.round(ndtr((released - before) / scale) * 2.0**52)
    is_reachable = np.zeros(len(released), bool)
    for step in range(-40, 41):
        uniform = (2 * (guess + step) + 1) * 2.0**-53
        uniform = np.clip(uniform, 2.0**-53, 1 - 2.0**-53)
        is_reachable |= before + scale * ndtri(uniform) == released
    return is_reachable


def lattice_gap(released: Floats, others: Floats, before: Floats, scale: float) -> float:
    """Return how much more often `before` explains what was released than what others are."""
    rates = [is_explained(each, before, scale).mean() for each in (released, others)]
    return float(abs(rates[0] - rates[1]))


# One row that matters, one column: parameters and scale of the noise are single numbers.
LINE, SIDES = np.array([[1.0], [0.4], [-0.3], [-1.2], [2.0]]), np.array([1, 0, 1, 0, 0])


def on_a_line(covariance: str, state: str) -> FisherClassifier:
    settings: dict[str, Any] = {"covariance": covariance, "state": state, "fit_intercept": False}
    return FisherClassifier(l2=0.1, sigma=0.5, **settings)


def released_on_a_line(covariance: str, state: str, count: int) -> tuple[Floats, Floats, float]:
    """Return releases after a removal, parameters before noise, and the noise's deviation."""
    releases, ends = [], []
    for _ in range(count):
        model = on_a_line(covariance, state).fit(LINE, SIDES)
        walks: list[NewtonWalk] = []
        publish = model._prepare_release

        def watch(positions: Any, counts: Any, walk: NewtonWalk, roots: Any) -> Change:
            walks.append(walk)  # noqa: B023
            return publish(positions, counts, walk, roots)  # noqa: B023

        vars(model)["_prepare_release"] = watch
        model.forget([4])
        ends.append(walks[0].W[0, 0])
        releases.append(weights(model)[0])
    rows = LINE[:4, 0]
    score = rows * retrained_line()
    curvature = float((rows**2 / (2 + np.exp(score) + np.exp(-score))).sum()) / 4 + 0.1
    scale = 0.5 * (curvature**-0.25 if covariance == "fisher" else 1.0)
    return np.array(releases), np.array(ends), scale


@cache
def retrained_line() -> float:
    model = FisherClassifier(l2=0.1, sigma=0.0, fit_intercept=False).fit(LINE[:4], SIDES[:4])
    return float(weights(model)[0])


def check_lattice(covariance: str, state: str, count: int) -> None:
    """Parameters before noise explain a release no more often than one of a retrain."""
    released, before, scale = released_on_a_line(covariance, state, count)
    fresh = [on_a_line(covariance, state).fit(LINE[:4], SIDES[:4]) for _ in range(count)]
    others = np.array([weights(model)[0] for model in fresh])
    # Three standard errors of a difference of rates, each at most a half.
    allowed = 3 * np.sqrt(0.5 / count) + 1 / count
    assert lattice_gap(released, others, before, scale) <= allowed
    steps = released / ReleaseGrid.of_sigma(0.5).step
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert abs((released - before).std() / scale - 1) < 5 / np.sqrt(2 * count)


@pytest.mark.parametrize("covariance", ["fisher", "isotropic"])
def test_low_order_bits_tell_nothing(covariance: str) -> None:
    check_lattice(covariance, "secret", 60)


@pytest.mark.soak
@pytest.mark.parametrize("covariance", ["fisher", "isotropic"])
@pytest.mark.parametrize("state", ["secret", "published"])
def test_low_order_bits_tell_nothing_in_many_runs(covariance: str, state: str) -> None:
    check_lattice(covariance, state, 20_000)


def test_the_lattice_attack_finds_noise_that_is_added_in_doubles() -> None:
    source, before = NoiseSource(3), np.full(400, 0.731)
    released, others = (mean + 0.5 * source.normals(400) for mean in (0.731, 0.732))
    assert is_explained(released, before, 0.5).mean() > 0.9
    assert lattice_gap(released, others, before, 0.5) > 0.5


def leak(a: NDArray[Any], b: NDArray[Any]) -> float:
    return epsilon_lower_bound(a, b, delta=SETTINGS["delta"])


@pytest.mark.parametrize("kind", ["published", "secret", "isotropic"])
def test_removals_and_retrains_cannot_be_told_apart(kind: str) -> None:
    assert leak(removed(kind, 250), retrained(kind, 250)) <= SETTINGS["epsilon"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_removals_and_retrains_cannot_be_told_apart_in_many_runs(kind: str) -> None:
    assert leak(removed(kind, 20_000), retrained(kind, 20_000)) <= SETTINGS["epsilon"]


@cache
def some_retrained() -> Floats:
    return retrained("published", 500)


def with_less_noise(share: float) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        publish = FisherClassifier._prepare_release

        def bad(
            self: FisherClassifier, positions: Any, counts: Any, walk: NewtonWalk, roots: Any
        ) -> Change:
            change = publish(self, positions, counts, walk, roots)
            model = change.attributes["model_"]
            W = walk.W + share * (model.weights - walk.W)
            return replace(
                change, attributes=change.attributes | {"model_": replace(model, weights=W)}
            )

        monkeypatch.setattr(FisherClassifier, "_prepare_release", bad)

    return plant


def with_the_wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FisherMatrix.newton_step
    monkeypatch.setattr(FisherMatrix, "newton_step", lambda self, W, G: -step(self, W, G))
    with_a_loose_stop(monkeypatch)


def with_a_loose_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewtonWalk, "run_until_hidden", lambda self: True)


def with_a_look_at_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(problem: FitProblem, W: Floats) -> GradientEvaluation:
        return evaluate_at(replace(problem, removed=NO_ROWS), W)

    monkeypatch.setattr(_fisher, "evaluate_at", bad)
    monkeypatch.setattr(_fisher_walk, "evaluate_at", bad)


def with_the_old_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step starts from the noisy model and is thought to need no more noise."""
    with_less_noise(0.0)(monkeypatch)


# Bugs of the steps. The account measures where they lead, and the claim is withdrawn.
SEEN_BY_THE_ACCOUNT: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "wrong sign": with_the_wrong_sign,
    "stop rule loosened": with_a_loose_stop,
}


@pytest.mark.parametrize("bug", SEEN_BY_THE_ACCOUNT)
def test_a_step_that_leads_nowhere_is_not_certified(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    SEEN_BY_THE_ACCOUNT[bug](monkeypatch)
    model = FisherClassifier(**SETTINGS | KINDS["published"]).fit(X, Y)
    assert model.guarantee_.kind == "certified"
    claim = model.forget([CANARY]).guarantee
    assert (claim.kind, claim.epsilon) == ("empirical", None)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "noise halved": with_less_noise(0.5),
    "no fresh noise": with_the_old_noise,
    "gradient of the rows that leave kept": with_a_look_at_all_rows,
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    # A wrong scale shows in the tails only, a wrong mean at once.
    fresh = some_retrained()[: 500 if bug == "noise halved" else 150]
    BUGS[bug](monkeypatch)
    assert leak(removed("published", len(fresh)), fresh) > SETTINGS["epsilon"]
