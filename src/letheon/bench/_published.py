"""Numbers of the survey's Tables 2 and 3, as printed, to be set beside measured ones.

Mercuri et al., "An Introduction to Machine Unlearning", arXiv:2209.00939 (2022). The survey took
them from papers with different data, experiments and machines, and says that they must not be used
to compare methods with each other. Where the print is wrong, `note` says so and the number stays as
printed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["PUBLISHED", "Published", "Spread", "find_published"]


class Spread(NamedTuple):
    """Least value, geometric mean and largest value over experiments."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Published:
    """One line of the survey's Table 3, with its line of Table 2.

    Attributes
    ----------
    method : str
        As in the benchmark's own lines.
    settings : tuple of str
        The benchmark's own settings that it stands beside; empty where there is none.
    row : str
        The line's second column in Table 3.
    source : str
        Whose experiments they are.
    efficiency : Spread or str
        Times faster than a retrain; or a formula, where nobody measured it.
    effectiveness : str
        As printed: a bound over experiments, in brackets one that stands out.
    efficiency_against, effectiveness_against : str
        Which of our baselines the number belongs to. Papers on exact methods compare accuracy
        with an ordinary model, and SISA's compares times with one too.
    consistency : Spread, str or None
        None: not reported.
    consistency_name : str
        Which of the survey's consistencies it is.
    certificate : str
        Table 2's last column.
    certifiability : float or None
        Per cent, SAPE on deleted rows: Table 2, geometric mean over data sets.
    note : str
        What to know before comparing, and errors of the print.
    """

    method: str
    settings: tuple[str, ...]
    row: str
    source: str
    efficiency: Spread | str
    effectiveness: str
    efficiency_against: str = "same algorithm"
    effectiveness_against: str = "same algorithm"
    consistency: Spread | str | None
    consistency_name: str = ""
    certificate: str
    certifiability: float | None = None
    note: str = ""


def _lines_of(method: str, **common: Any) -> Callable[..., Published]:
    """Return a function that makes a line of a method: its row, our settings, what is printed."""

    def make_line(
        row: str,
        settings: tuple[str, ...],
        efficiency: tuple[float, float, float] | str,
        effectiveness: str = "not measured",
        **others: Any,
    ) -> Published:
        return Published(
            method=method,
            row=row,
            settings=settings,
            efficiency=efficiency if isinstance(efficiency, str) else Spread(*efficiency),
            effectiveness=effectiveness,
            **{**common, **others},
        )

    return make_line


_ORDINARY, _HE, _BOURTOULE = "ordinary model", "He et al. 2021", "Bourtoule et al. 2021"
_EXACT = {"effectiveness_against": _ORDINARY, "consistency": "exact", "certificate": "exact"}
_REGRESSION = {
    "source": "Mahadevan and Mathioudakis 2021",
    "consistency": None,
    "note": (
        "logistic regression; noise sigma = 1; the least volume m of each data set, hundreds of "
        "rows"
    ),
}
_THEORY = (
    "by theory; ratio of iterations of a retrain to those of the first deletion I, not of times"
)
_DEPTH = "forests; single deletions; depth by a cross-validation tolerance of"
_KNATS = "3.3 and 33.4 kNATs (Golatkar et al. 2020, two data sets)"

_sisa = _lines_of("SISA", efficiency_against=_ORDINARY, **_EXACT)
_dare = _lines_of("DaRE", source="Brophy and Lowd 2021, Table 6", **_EXACT)
_fisher = _lines_of("Fisher", certificate=_KNATS, **_REGRESSION)
_influence = _lines_of("Influence", certificate="(epsilon, delta)", **_REGRESSION)
_delta_grad = _lines_of("DeltaGrad", source="Wu et al. 2020", certificate="none")
_descent = _lines_of(
    "Descent-to-Delete",
    source="Neel et al. 2021, Table 1",
    consistency_name="(alpha, beta)-accuracy",
    certificate="(epsilon, delta)",
    note=_THEORY,
)
_obliviate = _lines_of(
    "DeepObliviate",
    source=f"{_HE}, Tables I, II, III, V, VI",
    consistency_name="output consistency",
    note="nets; the least volume, the first block: the slowest case",
)

PUBLISHED: tuple[Published, ...] = (
    _sisa(
        _BOURTOULE,
        ("S = 5, R = 1",),
        (1.36, 2.49, 4.63),
        "< 2 % (18.76 %)",
        source=_BOURTOULE,
        note="nets; 8, 18 or 39 deletions in a batch; 18.76 % is ImageNet",
    ),
    _sisa(
        _HE,
        ("S R = B",),
        (14.0, 39.6, 75.0),
        "< 5 % (15.1 %)",
        source=_HE,
        note=(
            "nets; single deletions; 15.1 % is ImageNet. The text gives 73 as the largest factor, "
            "the table 75"
        ),
    ),
    _dare(
        "min d_rmax", ("least d_rmax",), (10.0, 366.0, 9735.0), "<= 0.5 %", note=f"{_DEPTH} 0.1 %"
    ),
    _dare(
        "max d_rmax",
        ("largest d_rmax",),
        (145.0, 1272.0, 35856.0),
        "<= 2.5 %",
        note=f"{_DEPTH} 1 %",
    ),
    _fisher("m' = floor(m/8)", ("m' = m/8",), (1.0, 3.3, 36.8), "about 0.0 %", certifiability=0.0),
    _fisher("m' = m", ("m' = m",), (1.5, 13.0, 282.4), "< 0.2 %", certifiability=0.26),
    _influence("m' = floor(m/8)", ("m' = m/8",), (0.3, 5.9, 75.7), "< 0.55 %", certifiability=0.1),
    _influence("m' = m", ("m' = m",), (2.5, 38.2, 215.1), "< 0.57 %", certifiability=1.1),
    _delta_grad(
        "",
        ("T0 = 2", "T0 = 20"),
        (1.6, 2.7, 6.5),
        "about 0.0 %",
        consistency=Spread(1.7e-6, 1.1e-5, 1.4e-4),
        consistency_name="parameter consistency",
        note=(
            "logistic regression and a net. T0 differs between experiments; the survey's text "
            "turns its effect round: a larger T0 is faster"
        ),
    ),
    _descent(
        "PGD",
        ("PGD, I = 10", "PGD, I = 200"),
        "1 + log(epsilon n / sqrt(p)) / I",
        consistency="p / (e^I epsilon^2 n^2)",
    ),
    _descent(
        "sRPGD",
        ("sRPGD, I = 50",),
        "I^(-3/5) (epsilon n / sqrt(p))^(2/5)",
        consistency="(sqrt(p) / (epsilon n I))^(2/5)",
    ),
    _descent(
        "wRPGD",
        ("wRPGD, I = 50",),
        "I^(-3/4) sqrt(epsilon n / sqrt(p))",
        consistency="sqrt(sqrt(p) / (epsilon p sqrt(I)))",
        note=f"{_THEORY}. The p below epsilon is a misprint of n",
    ),
    _descent(
        "DPGD",
        (),
        "min(log(n) / I, n^((4 - 3 xi) / 2) + log(epsilon n / sqrt(p)) / I)",
        consistency="2 exp(-I n^((4 - 3 xi) / 2)) / (epsilon^2 n^2) + 1 / n^xi",
        note=f"{_THEORY}. The 2 before exp is presumably p",
    ),
    _obliviate(
        "min epsilon (0.04 or 0.05)",
        ("epsilon = 0.05",),
        (6.17, 13.97, 45.45),
        "< 0.18 %",
        consistency=Spread(97.25, 98.82, 99.95),
        certificate="6.39 % on backdoored rows",
        certifiability=6.39,
    ),
    _obliviate(
        "epsilon = 0.1",
        ("epsilon = 0.1",),
        (9.26, 22.81, 66.67),
        "< 0.35 %",
        consistency=Spread(95.78, 97.61, 99.85),
        certificate="8.28 % on backdoored rows",
        certifiability=8.28,
    ),
)


def find_published(method: str, setting: str) -> Published | None:
    """Return the survey's line for one of the benchmark's own, or None."""
    return next((p for p in PUBLISHED if p.method == method and setting in p.settings), None)
