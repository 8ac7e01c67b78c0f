"""What one `forget` did."""

from dataclasses import asdict, dataclass, field
from typing import Any

from letheon.guarantee import Guarantee


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one `forget` did: numbers of people and rows, never who they were.

    It is for whoever runs the model. Give `for_requester` to the people who asked.

    Attributes
    ----------
    method : str
        Name of the method (`MethodFacts.method`).
    n_ids, n_rows : int
        Distinct people and rows that were removed.
    guarantee : Guarantee
        What is claimed about the model after it.
    seconds : float
        Wall-clock time of the call, digests not counted.
    work : float
        Training work done, as a share of naive retraining on the remaining rows.
    rebuilt : dict of str to int
        What was trained again, counted in the method's own parts.
    estimates : dict of str to float
        What the method estimated about the result, by its own names; no part of the guarantee.
    digest_before, digest_after : str or None
        SHA-256 of the canonical state; only with ``forget(ids, digest=True)``. The digest of a
        model is confidential: with the remaining rows at hand, the old one tells a guesser when
        a guess of the forgotten row is right.
    """

    method: str
    n_ids: int
    n_rows: int
    guarantee: Guarantee
    seconds: float
    work: float
    rebuilt: dict[str, int] = field(default_factory=dict)
    estimates: dict[str, float] = field(default_factory=dict)
    digest_before: str | None = None
    digest_after: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as plain values, ready for JSON."""
        return asdict(self)

    def for_requester(self) -> dict[str, Any]:
        """Return what the people who asked may see, as plain values: method, counts and claim.

        Time, work, `rebuilt`, estimates, digests and what was spent are left out: they depend on
        the rows that left, and the guarantee is about the parameters only.
        """
        claim = asdict(self.guarantee)
        shown = {name: claim[name] for name in claim if name not in ("spent", "budget")}
        counts = {name: getattr(self, name) for name in ("method", "n_ids", "n_rows")}
        return counts | {"guarantee": shown}

    def __str__(self) -> str:
        """One line for people."""
        people = "1 person" if self.n_ids == 1 else f"{self.n_ids} people"
        parts = ", ".join(_count(number, name) for name, number in self.rebuilt.items())
        return (
            f"{self.method}: forgot {people}, {_count(self.n_rows, 'rows')} in "
            f"{self.seconds:.3f} s, {self.work:.1%} of a retrain"
            + (f"; rebuilt {parts}" if parts else "")
            + f"; {self.guarantee.kind}"
        )


def _count(number: int, things: str) -> str:
    """Return ``1 row`` or ``4 rows``: parts are named in the plural."""
    ending = "es" if things.endswith(("sses", "xes", "ches", "shes")) else "s"
    return f"{number} {things.removesuffix(ending) if number == 1 else things}"
