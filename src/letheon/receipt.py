"""The receipt of one `forget`."""

from dataclasses import asdict, dataclass, field
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
        Wall-clock time of the call, without digests and without work that is done later, as with
        ``rebuild="lazy"``.
    work : float
        Cost of the removal, also of what is done later, as a share of the cost of naive retraining
        on the remaining rows.
    rebuilt : dict of str to int
        Number of parts retrained, now or later, by kind; the kinds depend on the method.
    estimates : dict of str to float
        Estimates of the method about the result, by name; not part of the guarantee.
    digest_before, digest_after : str or None
        SHA-256 of the canonical state; only with ``forget(ids, digest=True)``. Digests are
        confidential: with the remaining rows and an old digest, an attacker can test guesses of a
        forgotten row.

    Examples
    --------
    >>> from letheon import NaiveUnlearner
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = NaiveUnlearner(GaussianNB()).fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    >>> receipt = model.forget([0])
    >>> receipt.method, receipt.n_ids, receipt.n_rows, receipt.guarantee.kind
    ('naive', 1, 1, 'exact')
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
        """Return method, counts, time of the call, work and kind of guarantee in one line."""
        return (
            f"{self.method}: forgot {self._format_counts()}; call {format_seconds(self.seconds)}, "
            f"work {self._format_work()}; {self.guarantee.kind}"
        )

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks."""
        from letheon.terminal import FactTable

        cells = {
            "Method": self.method,
            "Forgotten": self._format_counts(),
            "Time of the call": format_seconds(self.seconds),
            "Work, now or later": self._format_work(),
            "Guarantee": str(self.guarantee),
        }
        return FactTable("Receipt", cells)._repr_html_()

    def _format_counts(self) -> str:
        people = "1 person" if self.n_ids == 1 else f"{self.n_ids} people"
        return f"{people}, {_format_count(self.n_rows, 'rows')}"

    def _format_work(self) -> str:
        parts = ", ".join(_format_count(number, name) for name, number in self.rebuilt.items())
        return f"{self.work:.1%} of a retrain" + (f" ({parts})" if parts else "")


def format_seconds(seconds: float) -> str:
    """Return a time with three digits, in milliseconds if it is less than a second.

    Parameters
    ----------
    seconds : float
        The time.

    Returns
    -------
    str

    Examples
    --------
    >>> from letheon.receipt import format_seconds
    >>> format_seconds(0.0123), format_seconds(12.3), format_seconds(3600)
    ('12.3 ms', '12.3 s', '3,600 s')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _format_count(number: int, noun: str) -> str:
    """Return number and noun, such as ``1 row`` or ``4 rows``; `noun` is in the plural."""
    ending = "es" if noun.endswith(("sses", "xes", "ches", "shes")) else "s"
    return f"{number} {noun.removesuffix(ending) if number == 1 else noun}"
