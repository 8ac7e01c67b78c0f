"""Numbers of the survey's Tables 2 and 3, as printed, to be set beside measured ones.

Mercuri et al., "An Introduction to Machine Unlearning", arXiv:2209.00939 (2022). The survey took
them from papers with different data, experiments and machines, and says that they must not be used
to compare methods with each other. Where the print is wrong, `note` says so and the number stays as
printed.
"""

from dataclasses import dataclass
from typing import NamedTuple

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


_MAHADEVAN = "Mahadevan and Mathioudakis 2021"
_ONE_BATCH = "noise sigma = 1; the least volume m of each data set, hundreds of rows"
_NEEL = "Neel et al. 2021, Table 1"
_WORK = "ratio of iterations of a retrain to those of the first deletion I, not of times"

PUBLISHED: tuple[Published, ...] = (
    Published(
        method="SISA",
        settings=("S = 5, R = 1",),
        row="Bourtoule et al. 2021",
        source="Bourtoule et al. 2021",
        efficiency=Spread(1.36, 2.49, 4.63),
        effectiveness="< 2 % (18.76 %)",
        efficiency_against="ordinary model",
        effectiveness_against="ordinary model",
        consistency="exact",
        certificate="exact",
        note="nets; 8, 18 or 39 deletions in a batch; 18.76 % is ImageNet",
    ),
    Published(
        method="SISA",
        settings=("S R = B",),
        row="He et al. 2021",
        source="He et al. 2021",
        efficiency=Spread(14.0, 39.6, 75.0),
        effectiveness="< 5 % (15.1 %)",
        efficiency_against="ordinary model",
        effectiveness_against="ordinary model",
        consistency="exact",
        certificate="exact",
        note=(
            "nets; single deletions; 15.1 % is ImageNet. The text gives 73 as the largest factor, "
            "the table 75"
        ),
    ),
    Published(
        method="DaRE",
        settings=("least d_rmax",),
        row="min d_rmax",
        source="Brophy and Lowd 2021, Table 6",
        efficiency=Spread(10.0, 366.0, 9735.0),
        effectiveness="<= 0.5 %",
        effectiveness_against="ordinary model",
        consistency="exact",
        certificate="exact",
        note="forests; single deletions; depth by a cross-validation tolerance of 0.1 %",
    ),
    Published(
        method="DaRE",
        settings=("largest d_rmax",),
        row="max d_rmax",
        source="Brophy and Lowd 2021, Table 6",
        efficiency=Spread(145.0, 1272.0, 35856.0),
        effectiveness="<= 2.5 %",
        effectiveness_against="ordinary model",
        consistency="exact",
        certificate="exact",
        note="forests; single deletions; depth by a cross-validation tolerance of 1 %",
    ),
    Published(
        method="Fisher",
        settings=("m' = m/8",),
        row="m' = floor(m/8)",
        source=_MAHADEVAN,
        efficiency=Spread(1.0, 3.3, 36.8),
        effectiveness="about 0.0 %",
        consistency=None,
        certificate="3.3 and 33.4 kNATs (Golatkar et al. 2020, two data sets)",
        certifiability=0.0,
        note=f"logistic regression; {_ONE_BATCH}",
    ),
    Published(
        method="Fisher",
        settings=("m' = m",),
        row="m' = m",
        source=_MAHADEVAN,
        efficiency=Spread(1.5, 13.0, 282.4),
        effectiveness="< 0.2 %",
        consistency=None,
        certificate="3.3 and 33.4 kNATs (Golatkar et al. 2020, two data sets)",
        certifiability=0.26,
        note=f"logistic regression; {_ONE_BATCH}",
    ),
    Published(
        method="Influence",
        settings=("m' = m/8",),
        row="m' = floor(m/8)",
        source=_MAHADEVAN,
        efficiency=Spread(0.3, 5.9, 75.7),
        effectiveness="< 0.55 %",
        consistency=None,
        certificate="(epsilon, delta)",
        certifiability=0.1,
        note=f"logistic regression; {_ONE_BATCH}",
    ),
    Published(
        method="Influence",
        settings=("m' = m",),
        row="m' = m",
        source=_MAHADEVAN,
        efficiency=Spread(2.5, 38.2, 215.1),
        effectiveness="< 0.57 %",
        consistency=None,
        certificate="(epsilon, delta)",
        certifiability=1.1,
        note=f"logistic regression; {_ONE_BATCH}",
    ),
    Published(
        method="DeltaGrad",
        settings=("T0 = 2", "T0 = 20"),
        row="",
        source="Wu et al. 2020",
        efficiency=Spread(1.6, 2.7, 6.5),
        effectiveness="about 0.0 %",
        consistency=Spread(1.7e-6, 1.1e-5, 1.4e-4),
        consistency_name="parameter consistency",
        certificate="none",
        note=(
            "logistic regression and a net. T0 differs between experiments; the survey's text "
            "turns its effect round: a larger T0 is faster"
        ),
    ),
    Published(
        method="Descent-to-Delete",
        settings=("PGD, I = 10", "PGD, I = 200"),
        row="PGD",
        source=_NEEL,
        efficiency="1 + log(epsilon n / sqrt(p)) / I",
        effectiveness="not measured",
        consistency="p / (e^I epsilon^2 n^2)",
        consistency_name="(alpha, beta)-accuracy",
        certificate="(epsilon, delta)",
        note=f"by theory; {_WORK}",
    ),
    Published(
        method="Descent-to-Delete",
        settings=("sRPGD, I = 50",),
        row="sRPGD",
        source=_NEEL,
        efficiency="I^(-3/5) (epsilon n / sqrt(p))^(2/5)",
        effectiveness="not measured",
        consistency="(sqrt(p) / (epsilon n I))^(2/5)",
        consistency_name="(alpha, beta)-accuracy",
        certificate="(epsilon, delta)",
        note=f"by theory; {_WORK}",
    ),
    Published(
        method="Descent-to-Delete",
        settings=("wRPGD, I = 50",),
        row="wRPGD",
        source=_NEEL,
        efficiency="I^(-3/4) sqrt(epsilon n / sqrt(p))",
        effectiveness="not measured",
        consistency="sqrt(sqrt(p) / (epsilon p sqrt(I)))",
        consistency_name="(alpha, beta)-accuracy",
        certificate="(epsilon, delta)",
        note=f"by theory; {_WORK}. The p below epsilon is a misprint of n",
    ),
    Published(
        method="Descent-to-Delete",
        settings=(),
        row="DPGD",
        source=_NEEL,
        efficiency="min(log(n) / I, n^((4 - 3 xi) / 2) + log(epsilon n / sqrt(p)) / I)",
        effectiveness="not measured",
        consistency="2 exp(-I n^((4 - 3 xi) / 2)) / (epsilon^2 n^2) + 1 / n^xi",
        consistency_name="(alpha, beta)-accuracy",
        certificate="(epsilon, delta)",
        note=f"by theory; {_WORK}. The 2 before exp is presumably p",
    ),
    Published(
        method="DeepObliviate",
        settings=("epsilon = 0.05",),
        row="min epsilon (0.04 or 0.05)",
        source="He et al. 2021, Tables I, II, III, V, VI",
        efficiency=Spread(6.17, 13.97, 45.45),
        effectiveness="< 0.18 %",
        consistency=Spread(97.25, 98.82, 99.95),
        consistency_name="output consistency",
        certificate="6.39 % on backdoored rows",
        certifiability=6.39,
        note="nets; the least volume, the first block: the slowest case",
    ),
    Published(
        method="DeepObliviate",
        settings=("epsilon = 0.1",),
        row="epsilon = 0.1",
        source="He et al. 2021, Tables I, II, III, V, VI",
        efficiency=Spread(9.26, 22.81, 66.67),
        effectiveness="< 0.35 %",
        consistency=Spread(95.78, 97.61, 99.85),
        consistency_name="output consistency",
        certificate="8.28 % on backdoored rows",
        certifiability=8.28,
        note="nets; the least volume, the first block: the slowest case",
    ),
)


def find_published(method: str, setting: str) -> Published | None:
    """Return the survey's line for one of the benchmark's own, or None."""
    for line in PUBLISHED:
        if line.method == method and setting in line.settings:
            return line
    return None
