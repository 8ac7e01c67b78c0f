"""What else is in a model's file: nothing but what a fresh fit on the remaining rows has.

Noise, and what an approximate removal leaves, make numbers differ between two fits. Their names,
dtypes and shapes do not differ, nor do the rows that the model holds. So a fresh fit shows whether
something was put into the file beside the model; what the numbers are, it does not show.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from letheon import state
from letheon.audit._difference import Difference, differences
from letheon.audit._neutral import with_neutral
from letheon.audit._rederive import (
    ROUNDING,
    CannotRederiveError,
    is_about_environment,
    names_another_environment,
    rederive,
)
from letheon.convex._data_free import fingerprints
from letheon.ledger._claims import counted_part
from letheon.rows import Rows

__all__ = ["FEATURES", "beside_the_model", "unwrapped"]

# The last bits of features depend on the batch that they were computed in.
FEATURES = 1e-3
_SHOWN = 3
_ROWS = re.compile(r"\brows_\.(X|y|ids)\b")


def beside_the_model(
    model: Any, rows: Rows, *, content: bytes | None = None, same_place: bool = False
) -> str | None:
    """Return what is wrong with a file of a method that is not exact; None if nothing is.

    Parameters
    ----------
    model : fitted estimator
        The model under audit.
    rows : Rows
        The remaining rows, in held order.
    content : bytes, optional
        The file that the model was decoded from.
    same_place : bool, default=False
        The certificate names the libraries and the kernel that are here.
    """
    if content is not None and state.encode(model) != content:
        return "the file holds bytes that the model does not"
    try:
        fresh = rederive(model, rows)
    except CannotRederiveError as error:
        return str(error)
    _rekey(fresh, model, rows)
    tree = state.to_tree(model)
    found = differences(tree, with_neutral(tree, state.to_tree(fresh)), None)
    rule = _Rule(
        counted=_counted_place(model),
        is_bounded=model.guarantee_.kind == "certified",
        elsewhere=not same_place and names_another_environment(model, fresh),
    )
    strange = [difference.place for difference in found if not rule.permits(difference)]
    if not strange:
        return None
    more = " and elsewhere" if len(strange) > _SHOWN else ""
    return f"a fresh fit has not what the file has at {', '.join(strange[:_SHOWN])}{more}"


@dataclass(frozen=True)
class _Rule:
    """Where noise, an approximation or another machine may make numbers differ."""

    counted: str
    is_bounded: bool
    elsewhere: bool

    def permits(self, difference: Difference) -> bool:
        place, gap = difference.place, difference.gap
        if self.elsewhere and is_about_environment(place):
            return True
        if difference.numbers == "seed":
            return place.rpartition(".")[2] == "seed_"
        if _ROWS.search(place):
            return self.counted == "head_" and gap is not None and gap <= FEATURES
        if place.startswith(self.counted):
            return self._is_number(difference)
        return self.elsewhere and gap is not None and gap <= ROUNDING

    def _is_number(self, difference: Difference) -> bool:
        """Whether only numbers differ; where a bound is claimed, none beside the rows."""
        if not self.is_bounded:
            return difference.numbers != "other"
        return difference.numbers in ("float", "count") and "rows_" not in difference.place


def _rekey(fresh: Any, model: Any, rows: Rows) -> None:
    """Give a fresh fit without rows the model's key, so that fingerprints can be compared."""
    key = vars(counted_part(model)).get("fingerprint_key_")
    if type(key) is not str or re.fullmatch("[0-9a-f]{64}", key) is None:
        return
    inner, seen = unwrapped(fresh, rows)
    if vars(inner).get("fingerprint_key_") is not None:
        X, target = inner._design().rows(seen.X), inner._known_target(seen.y)
        inner.rows_.extra["fingerprint"] = fingerprints(X, target, key)
        inner.fingerprint_key_ = key


def unwrapped(model: Any, rows: Rows) -> tuple[Any, Rows]:
    """Return the convex part of a model, and what it sees of the rows."""
    if hasattr(model, "head_"):
        return model.head_, Rows(np.asarray(model.features(rows.X)), rows.y, rows.ids)
    if hasattr(model, "steps_"):
        table = model.fitted_.transform(rows.X)
        return unwrapped(model.steps_[-1][1], Rows(table, rows.y, rows.ids))
    return model, rows


def _counted_place(model: Any) -> str:
    """Return where the part lies that noise or an approximation changes; "" for the whole model."""
    if hasattr(model, "head_"):
        return "head_"
    if hasattr(model, "steps_"):
        last = len(model.steps_) - 1
        return f"fitted_.steps[{last}][1].{_counted_place(model.steps_[-1][1])}".rstrip(".")
    return ""
