"""The receipt of one `forget`."""

from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from letheon.guarantee import Guarantee


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The result of one `forget` in numbers, without ids.

    A receipt is for the operator. For data subjects, use the result of `for_requester`.

    Attributes
    ----------
    method : str
        Name of the method (`MethodFacts.method`).
    n_ids, n_rows : int
        Number of distinct ids and of rows removed.
    guarantee : Guarantee
        Guarantee of the model after the removal.
    seconds : float
        Wall-clock time of the call, without digests.
    work : float
        Cost of the removal, as a share of the cost of naive retraining on the remaining rows.
    rebuilt : dict of str to int
        Number of retrained parts, by kind; the kinds depend on the method.
    estimates : dict of str to float
        Estimates of the method about the result, by name; not part of the guarantee.
    digest_before, digest_after : str or None
        SHA-256 of the canonical state; only with ``forget(ids, digest=True)``. Digests are
        confidential: with the remaining rows and an old digest, an attacker can test guesses of a
        forgotten row.
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
        """Return the values that a data subject may see: method, counts and guarantee.

        Time, work, `rebuilt`, estimates, digests and the spent privacy loss are omitted: they
        depend on the removed rows, and the guarantee covers only the parameters.
        """
        claim = asdict(self.guarantee)
        shown = {name: claim[name] for name in claim if name not in ("spent", "budget")}
        counts = {name: getattr(self, name) for name in ("method", "n_ids", "n_rows")}
        return counts | {"guarantee": shown}

    def __str__(self) -> str:
        """Return method, counts, time, work and kind of guarantee in one line."""
        rebuilt = self._format_rebuilt()
        return (
            f"{self.method}: forgot {self._format_counts()} in {self.seconds:.3f} s, "
            f"{self.work:.1%} of a retrain"
            + (f"; rebuilt {rebuilt}" if rebuilt else "")
            + f"; {self.guarantee.kind}"
        )

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks."""
        cells = {
            "Method": self.method,
            "Forgotten": self._format_counts(),
            "Time": f"{self.seconds:.3f} s, {self.work:.1%} of a retrain",
            "Rebuilt": self._format_rebuilt() or "nothing",
            "Guarantee": str(self.guarantee),
        }
        rows = "".join(
            f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in cells.items()
        )
        return f"<table><caption>Receipt</caption><tbody>{rows}</tbody></table>"

    def _format_counts(self) -> str:
        people = "1 person" if self.n_ids == 1 else f"{self.n_ids} people"
        return f"{people}, {_format_count(self.n_rows, 'rows')}"

    def _format_rebuilt(self) -> str:
        return ", ".join(_format_count(number, name) for name, number in self.rebuilt.items())


def _format_count(number: int, noun: str) -> str:
    """Return number and noun, such as ``1 row`` or ``4 rows``; `noun` is in the plural."""
    ending = "es" if noun.endswith(("sses", "xes", "ches", "shes")) else "s"
    return f"{number} {noun.removesuffix(ending) if number == 1 else noun}"
