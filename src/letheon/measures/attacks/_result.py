"""What an attack found, beside what it finds where there is nothing to be found."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from numpy.typing import NDArray

from letheon.measures._measure import Measure

__all__ = ["About", "AttackResult"]

About = Literal["forgotten", "retained"]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The measures of one attack, each with its null floor.

    The floor is the same attack, run the same way, on models that were retrained without the
    forgotten people. An attack that scores as well there has found nothing.

    Parameters
    ----------
    attack : str
        Name of the attack: "u-lira", "rmia", "klom", ...
    about : {"forgotten", "retained"}
        Whose data was attacked.
    measures : dict of str to Measure
        What was measured, the main one first.
    floor : dict of str to Measure
        The same keys, retrain against retrain.
    n_models : int
        Models trained for it.
    note : str, default=""
        What the numbers do not prove.
    scores, labels, owners : ndarray or None
        One entry for each (person, world): the attack's score, 1 where the person was trained on
        and then unlearned and 0 where not, and which person (a number, never the id). Not
        part of `to_dict`.

    Examples
    --------
    >>> def auc(value, low, high):
    ...     return Measure(name="AUC", value=value, low=low, high=high, n=100, better="lower",
    ...                    basis="measured")
    >>> result = AttackResult(attack="u-lira", about="forgotten", n_models=64,
    ...     measures={"AUC": auc(0.93, 0.9, 0.95)}, floor={"AUC": auc(0.5, 0.46, 0.54)})
    >>> print(result)
    u-lira on forgotten people: AUC 0.93 [0.9, 0.95] (floor 0.5 [0.46, 0.54]): found
    """

    attack: str
    about: About
    measures: dict[str, Measure]
    floor: dict[str, Measure]
    n_models: int
    note: str = ""
    scores: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    owners: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        """Refuse measures that have no floor."""
        if self.about not in get_args(About):
            raise ValueError(f"about must be one of {get_args(About)}, not {self.about!r}")
        if not self.measures or list(self.measures) != list(self.floor):
            raise ValueError(
                "every measure needs its floor, in the same order; got "
                f"{list(self.measures)} and {list(self.floor)}"
            )

    @property
    def main(self) -> str:
        """Name of the main measure."""
        return next(iter(self.measures))

    @property
    def found(self) -> bool:
        """Whether the main measure's interval lies beyond its floor's, on the bad side.

        An end that is not known counts as unbounded: without intervals nothing is ever found.
        """
        return is_beyond(self.measures[self.main], self.floor[self.main])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without the scores of single people."""
        return {
            "attack": self.attack,
            "about": self.about,
            "measures": {name: asdict(measure) for name, measure in self.measures.items()},
            "floor": {name: asdict(measure) for name, measure in self.floor.items()},
            "n_models": self.n_models,
            "note": self.note,
            "found": self.found,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the result that `to_dict` described."""
        given = {name: value for name, value in values.items() if name != "found"}
        for name in ("measures", "floor"):
            given[name] = {key: Measure(**fields) for key, fields in given[name].items()}
        return cls(**given)

    def __str__(self) -> str:
        """Say the result in one line."""
        measure, floor = self.measures[self.main], self.floor[self.main]
        verdict = "found" if self.found else "not found"
        return (
            f"{self.attack} on {self.about} people: {self.main} {_figures(measure)} "
            f"(floor {_figures(floor)}): {verdict}"
        )


def is_beyond(measure: Measure, floor: Measure) -> bool:
    """Return whether the interval lies wholly on the bad side of the floor's interval."""
    if measure.better == "lower":
        return measure.low is not None and floor.high is not None and measure.low > floor.high
    return measure.high is not None and floor.low is not None and measure.high < floor.low


def _figures(measure: Measure) -> str:
    """Return value and interval, short."""
    ends = ["?" if end is None else f"{end:.3g}" for end in (measure.low, measure.high)]
    interval = "" if ends == ["?", "?"] else f" [{', '.join(ends)}]"
    return f"{measure.value:.3g}{interval}"
