"""Attacks on the certified linear methods, with 20,000 runs each way, and the exact delta.

Run ``python benchmarks/attack_certified.py`` (about 90 minutes on one core), with fewer runs
``--runs 200``, only some methods: ``--only influence,fisher``, or ``--fast``: models are fitted
once where the noise affects only the release (20 minutes). Results go to
``benchmarks/results/attacks.md``, those of a part to files named after it.
"""

import copy
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import typer
from sklearn.base import clone

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._report import BenchmarkReport, Table, TargetCheck
from letheon import DescentToDeleteClassifier, FisherClassifier, InfluenceClassifier
from letheon.checks import (
    CASES,
    AttackCase,
    ClaimAttackResult,
    Releases,
    attack_account,
    attack_fold,
    attack_lattice,
    attack_refusal,
    get_released_parameters,
    make_hard_cases,
    play_worlds,
)
from letheon.linear._calibrate import ReleaseGrid, gaussian_delta
from letheon.noise import NoiseSource

RESULTS = Path(__file__).resolve().parent / "results"
METHODS: dict[str, Any] = {
    "influence": InfluenceClassifier(),
    "influence-pure": InfluenceClassifier(delta=0.0),
    "fisher": FisherClassifier(state="secret"),
    "fisher-published": FisherClassifier(state="published"),
    "fisher-isotropic": FisherClassifier(covariance="isotropic", state="secret"),
    "descent": DescentToDeleteClassifier(),
    "descent-published": DescentToDeleteClassifier(state="published"),
}
N_RUNS, N_SMALL, N_WORST, N_CONFIRMING = 20_000, 2_000, 10, 30
# All bounds together are wrong with a probability of at most 5 %.
LEVEL = 0.05 / (len(METHODS) * (3 * len(CASES) + 1) + N_WORST)


def sample_worlds(estimator: Any, case: AttackCase, n_runs: int, *, is_whole: bool) -> Releases:
    """Sample both worlds, or release the parameters of one model of each repeatedly.

    The secret parameters before noise do not depend on the noise; complete runs confirm this.
    """
    is_shaped = getattr(estimator, "covariance", "isotropic") != "isotropic"
    if is_whole or is_shaped or getattr(estimator, "state", "secret") != "secret":
        return play_worlds(estimator, case, n_runs=n_runs)
    few = play_worlds(estimator, case, n_runs=N_CONFIRMING)
    settings = {**case.settings, "noise_seed": None}
    worlds = []
    for who, leaving in ((range(len(case.y)), case.leaving), (case.remaining, ())):
        models = [make_model(estimator, settings, case, who, leaving) for _ in range(3)]
        weights = [model._weights_before_noise() for model in models]
        assert all(np.array_equal(weights[0], other) for other in weights)
        worlds.append(release_again(models[0], weights[0], n_runs))
    forgot, fresh = worlds
    return Releases(case, few.forgot._replace(seen=forgot), few.fresh._replace(seen=fresh))


def make_model(
    estimator: Any, settings: dict[str, Any], case: AttackCase, who: Any, leaving: Any
) -> Any:
    """Fit on some rows and remove some people."""
    own = estimator.get_params(deep=False)
    model = clone(estimator)
    model.set_params(**{name: value for name, value in settings.items() if name in own})
    rows = np.asarray(who)
    model.fit(case.X[rows], case.y[rows], ids=rows)
    for person in leaving:
        model.forget([person])
    return model


def release_again(model: Any, weights: Any, n_runs: int) -> Any:
    """Return the observations of many releases of the same parameters."""
    grid, source, twin = model._release_grid(), NoiseSource(None), copy.copy(model)
    seen = []
    for _ in range(n_runs):
        released = grid.release(weights, source, is_pure=model.delta == 0.0)
        twin.model_ = model.model_.with_weights(released)
        seen.append(get_released_parameters(twin))
    return np.array(seen)


def attack_all(estimator: Any, n_runs: int, *, is_whole: bool) -> Iterator[ClaimAttackResult]:
    """Yield the result of each attack on each case."""
    for case in CASES.values():
        runs = sample_worlds(estimator, case, n_runs, is_whole=is_whole)
        yield attack_fold(estimator, runs, level=LEVEL)
        yield attack_refusal(estimator, runs, level=LEVEL)
        if getattr(estimator, "state", "secret") == "secret":  # the attack would need a secret
            yield attack_lattice(estimator, runs, level=LEVEL)
    if hasattr(estimator, "mechanism"):  # the account of the other methods is not a gradient
        yield attack_account(estimator, make_hard_cases(max(n_runs // 20, 12)), level=LEVEL)


def make_small_cases(n: int) -> list[AttackCase]:
    """Return problems of 4 to 8 rows, like those that refuted noise in the objective."""
    rng, cases = np.random.default_rng(18), []
    for number in range(n):
        n_rows, n_columns = int(rng.integers(4, 9)), int(rng.integers(1, 3))
        X = rng.normal(size=(n_rows, n_columns)) * np.exp(rng.normal(size=(n_rows, 1)))
        y = rng.permutation(np.arange(n_rows) % 2)
        settings = {"fit_intercept": False, "l2": float(10.0 ** rng.uniform(-4, 0))}
        cases.append(AttackCase(f"small-{number}", X, y, (0,), settings))
    return cases


def attack_small(n_cases: int, n_runs: int, *, is_whole: bool) -> Iterator[ClaimAttackResult]:
    """Attack the small problems that use the largest share of their budget."""
    estimator, shares = InfluenceClassifier(), []
    for case in make_small_cases(n_cases):
        who = range(len(case.y))
        account = make_model(estimator, dict(case.settings), case, who, case.leaving).account_
        shares.append((account.spent / account.limit, case))
    shares.sort(key=lambda pair: -pair[0])
    for _, case in shares[:N_WORST]:
        runs = sample_worlds(estimator, case, n_runs, is_whole=is_whole)
        yield attack_fold(estimator, runs, level=LEVEL)


def compute_tail(scale: int, begin: int) -> float:
    """Return the probability that a discrete Gaussian is at least `begin`, summed term by term."""
    total = np.longdouble(0)
    for first in range(begin, begin + 14 * scale, 1 << 20):
        z = np.arange(first, first + (1 << 20), dtype=np.float64).astype(np.longdouble) / scale
        total += np.exp(-z * z / 2).sum()
    # The sum over all integers, up to a relative error of e^(-2 pi^2 scale^2).
    return float(total / (scale * np.sqrt(2 * np.longdouble(math.pi))))


def compute_exact_delta(epsilon: float, scale: int, shift: int) -> float:
    """Return the delta of a discrete Gaussian against itself, `shift` steps on."""
    begin = math.floor(epsilon * scale * scale / shift - shift / 2) + 1
    return compute_tail(scale, begin) - math.exp(epsilon) * compute_tail(scale, begin + shift)


def make_delta_table() -> tuple[Table, TargetCheck]:
    """Compare the exact delta of one parameter with the continuous and the stated delta."""
    grid, rows, is_fine = ReleaseGrid.of_sigma(0.01), [], True
    for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-4), (1.0, 1e-8), (5.0, 1e-6)):
        distance = grid.max_hidden_distance(epsilon, delta, 1)
        steps = math.floor(distance / grid.step) + 1  # rounding can add one step
        exact = compute_exact_delta(epsilon, grid.scale, steps)
        continuous = gaussian_delta(epsilon, steps / grid.scale)
        stated = grid.compute_delta(epsilon, distance, 1)
        is_fine &= exact <= stated and exact <= delta
        rows.append(
            (epsilon, delta, steps, f"{exact:.12g}", f"{continuous:.12g}", f"{stated:.12g}")
        )
    columns = ("epsilon", "delta", "steps hidden", "exact", "continuous", "stated")
    note = "One parameter, sigma 0.01, parameters as far apart as is claimed to be hidden."
    table = Table("Delta of discrete Gaussian noise", columns, rows, note)
    return table, TargetCheck("exact delta <= stated and claimed", str(is_fine), "True", is_fine)


def main(
    runs: int = typer.Option(N_RUNS, help="Models in each world."),
    only: str = typer.Option("", help="Methods, or 'small' or 'delta', separated by commas."),
    fast: bool = typer.Option(False, help="Fit once where the noise affects only the release."),
) -> None:
    """Attack every method; exit with 1 if a claim is refuted."""
    chosen = [name for name in only.split(",") if name] or [*METHODS, "small", "delta"]
    is_full = runs == N_RUNS
    settings = {"runs": runs, "only": only or "everything", "fast": fast}
    name = "_".join(["attacks", *only.split(",")]) if only else "attacks"
    file = RESULTS / (name if is_full else "attacks_quick")
    report = BenchmarkReport("Attacks on the certified linear methods", settings, file=file)
    for name in chosen:
        if name == "delta":
            table, verdict = make_delta_table()
            report.add(table, [verdict])
            continue
        n_small = N_SMALL if is_full else max(N_WORST, runs // 10)
        if name == "small":
            attacks = list(attack_small(n_small, runs, is_whole=not fast))
        else:
            attacks = list(attack_all(METHODS[name], runs, is_whole=not fast))
        report.add(_make_table(name, attacks), [_check_claims(name, attacks)])
    report.write()
    raise typer.Exit(0 if report.passed else 1)


def _make_table(name: str, attacks: list[ClaimAttackResult]) -> Table:
    rows = [
        (
            each.attack,
            each.case,
            each.n_runs,
            each.bound,
            each.epsilon,
            each.delta,
            _format_details(each),
        )
        for each in attacks
    ]
    columns = ("attack", "case", "runs", "epsilon >=", "claimed", "delta", "details")
    note = f"Lower bounds on epsilon, each too large with probability {LEVEL:.2g} at most."
    return Table(name, columns, rows, note)


def _format_details(result: ClaimAttackResult) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in result.details.items())


def _check_claims(name: str, attacks: list[ClaimAttackResult]) -> TargetCheck:
    refuted = [f"{each.attack} on {each.case}" for each in attacks if each.is_refuted]
    worst = max(each.bound for each in attacks)
    what = f"{name}: lower bounds on epsilon in {len(attacks)} attacks"
    reached = f"at most {worst:.3g}" + (f"; refuted: {refuted}" if refuted else "")
    return TargetCheck(what, reached, "no claim refuted", not refuted)


if __name__ == "__main__":
    typer.run(main)
