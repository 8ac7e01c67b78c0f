"""What a registered monitor tolerates; it is sealed beside the model, with rows of people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from letheon import state
from letheon.ledger.models.versions import ModelRow, VersionRow, read_head, read_judged

if TYPE_CHECKING:
    from letheon.ledger.ledger import Ledger

__all__ = ["Watch", "watch_of"]

_MOST_KNOWN = 256
_UNKNOWN = "unknown"
# By the address of the sealed monitor: the same bytes tolerate the same.
_known: dict[str, "Watch | None"] = {}


@dataclass(frozen=True)
class Watch:
    """What a monitor tolerates.

    Attributes
    ----------
    metric : str
        Performance that it looks at.
    tolerances : mapping of str to float
        Largest accepted effectiveness and certifiability, least accepted efficiency, largest share
        of a budget, largest residual; only those that are looked at.
    limits : mapping of str to mapping
        For each estimated property the calibrated proxy: `score`, `factor`, `floor`, and `miss`,
        the share of rehearsed streams in which the tolerance was passed unseen.
    assumption : str
        What its decisions take for granted about requests to come, in words; empty if nothing.
    """

    metric: str
    tolerances: Mapping[str, float]
    limits: Mapping[str, Mapping[str, Any]]
    assumption: str = ""


def watch_of(ledger: "Ledger", model: str, *, tenant: str = "default") -> Watch | None:
    """Return what the monitor of a model tolerates; None where no monitor is registered."""
    core, row = ledger._core, ledger._row(model, tenant)

    def read(head: VersionRow) -> Watch | None:
        address = head.monitor_blob
        if address is None:
            return None
        found = _known.get(address, _UNKNOWN)
        if isinstance(found, str):
            judged = read_judged(core, row, head)
            packed = None if judged is None else judged.monitor
            found = None if packed is None else _unpacked(row, packed)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[address] = found
        return found

    return read_head(core, row, read)


def _unpacked(row: ModelRow, packed: bytes) -> Watch:
    from letheon.monitor._given import assumptions
    from letheon.monitor._saved import read_calibration

    record = state.decode(packed, trusted=row.trusted, max_memory=state.UNLIMITED)["record"]
    limits = {
        name: {key: limit[key] for key in ("score", "factor", "floor", "miss")}
        for name, limit in record["limits"].items()
    }
    tolerances = {
        name: float(value) for name, value in record["tolerances"].items() if value is not None
    }
    metric = record["metric"] or (
        "mean probability of the true label" if record["uses_probability"] else "performance"
    )
    taken = assumptions(read_calibration(record["calibration"])) if limits else ()
    return Watch(metric, tolerances, limits, "; ".join(taken))
