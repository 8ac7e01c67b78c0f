"""Attacks on the certified linear methods, with 20,000 runs each way.

    python -m benchmarks.attack_certified [n_runs] [name of a method ...]

Prints a line per attack and case, and exits with 1 if a claim is refuted. About two minutes per
line on one core with 20,000 runs.
"""

import sys
from collections.abc import Iterator
from typing import Any

from letheon import DescentToDeleteClassifier, FisherClassifier, InfluenceClassifier
from letheon.checks import (
    CASES,
    AttackResult,
    attack_account,
    attack_fold,
    attack_lattice,
    attack_refusal,
    make_hard_cases,
    play_worlds,
)

METHODS: dict[str, Any] = {
    "influence": InfluenceClassifier(),
    "influence-pure": InfluenceClassifier(delta=0.0),
    "fisher": FisherClassifier(),
    "fisher-isotropic": FisherClassifier(covariance="isotropic", state="secret"),
    "descent": DescentToDeleteClassifier(),
    "descent-published": DescentToDeleteClassifier(state="published"),
}
# All lines together are wrong with probability 5 % at most.
LEVEL = 0.05 / (len(METHODS) * (3 * len(CASES) + 1))


def attack_all(estimator: Any, n_runs: int) -> Iterator[AttackResult]:
    """Yield the result of each attack on each case."""
    for case in CASES:
        runs = play_worlds(estimator, case, n_runs=n_runs)
        for attack in (attack_lattice, attack_fold, attack_refusal):
            yield attack(estimator, runs, level=LEVEL)
    if hasattr(estimator, "mechanism"):  # the account of the others is no gradient
        yield attack_account(estimator, make_hard_cases(max(n_runs // 20, 12)), level=LEVEL)


def main() -> int:
    """Attack the methods that are named, or all."""
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    is_refuted = False
    for name in sys.argv[2:] or METHODS:
        for result in attack_all(METHODS[name], n_runs):
            print(f"{'FAIL' if result.is_refuted else 'PASS'} {name}: {result}", flush=True)
            is_refuted |= result.is_refuted
    return int(is_refuted)


if __name__ == "__main__":
    sys.exit(main())
