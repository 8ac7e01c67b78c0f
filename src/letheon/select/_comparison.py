"""What `choose` found: who was tried, who was left out, who is best, and why."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from letheon.datasets import Requests
from letheon.evaluation import Evaluation
from letheon.exceptions import NoCandidateError
from letheon.measures import Measure
from letheon.plot import ParetoDisplay, pareto_front
from letheon.select._need import Need
from letheon.select._tolerances import LOST, Tolerances
from letheon.select._tried import Tried
from letheon.select._tune import Tuning

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

__all__ = ["Comparison"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods, their measures, the choice under tolerances and the reason for it.

    Attributes
    ----------
    tried : tuple of Tried
        Every setting that was evaluated.
    excluded : dict of str to str
        Who was left out, and why.
    tunings : dict of str to tuple of Tuning
        How the efficiency parameters of exact methods were found.
    need, tolerances, requests, expected_requests
        As given.
    ordinary, ordinary_chosen : str
        The ordinary model that everybody is held against, and how it was chosen.
    scored_by : str
        The metric, and why this one.
    n_rows, n_people, n_test_rows : int
        Training rows and people of the comparison, and the rows that they were tested on.
    is_subsample : bool
        Whether these are some of the rows only.
    """

    tried: tuple[Tried, ...]
    excluded: dict[str, str]
    tunings: dict[str, tuple[Tuning, ...]]
    need: Need
    tolerances: Tolerances
    requests: Requests
    expected_requests: int
    ordinary: str
    ordinary_chosen: str
    scored_by: str
    n_rows: int
    n_people: int
    n_test_rows: int
    is_subsample: bool

    @cached_property
    def best(self) -> Tried | None:
        """The fastest of those within all tolerances; None if nobody is."""
        within = [each for each in self.tried if each.verdict == "within"]
        # Names decide between equals, so that the order of candidates does not.
        return min(within, key=lambda each: (-each.speed, each.name), default=None)

    @property
    def reason(self) -> str:
        """Why this one, in words and numbers; or why nobody."""
        from letheon.select._words import reason

        return reason(self)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Every evaluation, by candidate and settings."""
        return {each.name: each.evaluation for each in self.tried}

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining serves the expected requests in less time than the best."""
        return self.best is not None and self.best.cost.retraining_is_cheaper

    def pareto(self) -> tuple[Tried, ...]:
        """Return who is beaten by nobody in speed-up, score lost and certifiability together.

        Values count, not intervals; so do settings that are not within the tolerances.
        """
        names = ("efficiency", LOST, "certifiability")
        whole = {each.name: each.points for each in self.tried if set(names) <= each.points.keys()}
        front = set(pareto_front(whole, names))
        return tuple(each for each in self.tried if each.name in front)

    def best_estimator(self) -> Any:
        """Return an unfitted copy of the best estimator with its settings.

        Its settings were chosen by looking at rows. `fit_best` fits it and says so in the
        guarantee; after a `fit` of your own call ``declare_tuning(comparison.tuning)``.

        Raises
        ------
        NoCandidateError
            Nobody is within all tolerances.
        """
        if self.best is None:
            raise NoCandidateError(self.reason)
        return clone(self.best.estimator)

    @property
    def tuning(self) -> str:
        """How the settings were chosen, as `declare_tuning` wants it."""
        some = " of a random subsample" if self.is_subsample else ""
        return (
            f"letheon.select: method and settings chosen of {len(self.tried)} by cross-validation "
            f"and evaluation on {self.n_rows:,} training rows of {self.n_people:,} people{some} "
            f"and {self.n_test_rows:,} test rows; rows forgotten later had a say in it"
        )

    def fit_best(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        """Fit the best estimator, and declare in its guarantee how it was chosen."""
        return self.best_estimator().fit(X, y, ids=ids).declare_tuning(self.tuning)

    def plot(self, *, ax: Any = None) -> ParetoDisplay:
        """Draw speed-up against score lost, with tolerances and the choice.

        Who is not within all tolerances, also those that are not drawn, has a hollow marker.
        """
        points: dict[str, dict[str, Measure]] = {each.name: each.points for each in self.tried}
        display = ParetoDisplay(
            points,
            x=LOST,
            tolerances=self.tolerances.by_measure(),
            chosen=None if self.best is None else self.best.name,
            doubtful=[each.name for each in self.tried if each.verdict != "within"],
        )
        return display.plot(ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but estimators as plain values."""
        return {
            "best": None if self.best is None else self.best.name,
            "reason": self.reason,
            "tried": [each.to_dict() for each in self.tried],
            "excluded": dict(self.excluded),
            "tunings": {
                name: [dict(vars(each)) for each in tunings]
                for name, tunings in self.tunings.items()
            },
            "need": dict(vars(self.need)),
            "tolerances": dict(vars(self.tolerances)),
            "requests": {
                "kind": self.requests.kind,
                "n": self.requests.n,
                "batch": self.requests.batch,
            },
            "expected requests": self.expected_requests,
            "ordinary": {"name": self.ordinary, "chosen": self.ordinary_chosen},
            "scored by": self.scored_by,
            "n_rows": self.n_rows,
            "n_people": self.n_people,
            "n_test_rows": self.n_test_rows,
            "is_subsample": self.is_subsample,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each setting, as a pandas frame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "to_frame needs pandas, which is not installed: pip install pandas; "
                "to_dict() has the same content"
            ) from error
        return pd.DataFrame([self._row(each) for each in self.tried])

    def _row(self, each: Tried) -> dict[str, Any]:
        row: dict[str, Any] = {
            "candidate": each.candidate,
            "settings": ", ".join(f"{name}={value!r}" for name, value in each.settings.items()),
            "verdict": each.verdict,
            "best": each is self.best,
            "guarantee": each.evaluation.guarantee.kind,
        }
        for name, measure in each.points.items():
            row |= {name: measure.value, f"{name} low": measure.low, f"{name} high": measure.high}
        return row | {"total seconds": each.cost.method, "plain seconds": each.cost.plain}

    def __rich__(self) -> "RenderableType":
        """Show a table of the settings, and the reason below it."""
        from letheon.select._show import as_table

        return as_table(self)

    def __str__(self) -> str:
        """Say the reason."""
        return self.reason
