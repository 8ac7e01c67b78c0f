"""What else is in a model's file: nothing but what a fresh fit on the remaining rows has.

Noise, and what an approximate removal leaves, make numbers differ between two fits. Their names,
dtypes and shapes do not differ, nor do the rows that the model holds. So a fresh fit shows whether
something was put into the file beside the model; what the numbers are, it does not show.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from letheon import state
from letheon.audit._difference import Difference, differences, join_places
from letheon.audit._neutral import with_neutral
from letheon.audit._rederive import (
    CannotRederiveError,
    names_another_environment,
    rederive,
    with_environment,
)
from letheon.audit._tolerance import judge_differences
from letheon.data import Rows
from letheon.ledger.certificates.claims import counted_part
from letheon.linear import fingerprint_rows

__all__ = ["FEATURES", "Beside", "beside_the_model", "unwrapped"]

# The last bits of features depend on the batch that they were computed in.
FEATURES = 1e-3
_ROWS = re.compile(r"\brows_\.(X|y|ids)\b")


class Beside(NamedTuple):
    """What is wrong with a file, and what cannot be decided here; None where there is nothing."""

    wrong: str | None = None
    undecided: str | None = None


def beside_the_model(
    model: Any, rows: Rows, *, content: bytes | None = None, same_place: bool = False
) -> Beside:
    """Return what is in a file of a method that is not exact beside the numbers of a fit.

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
        return Beside("the file holds bytes that the model does not")
    try:
        fresh = rederive(model, rows)
    except CannotRederiveError as error:
        return Beside(str(error))
    _rekey(fresh, model, rows)
    tree = state.to_tree(model)
    expected = with_neutral(tree, state.to_tree(fresh))
    is_elsewhere = not same_place and names_another_environment(model, fresh)
    if is_elsewhere:
        expected = with_environment(expected, model.environment_)
    is_bounded = model.guarantee_.kind == "certified"
    rule = _Rule(counted=_counted_place(model), is_bounded=is_bounded)
    strange = [one for one in differences(tree, expected, None) if not rule.permits(one)]
    wrong, undecided = [one.place for one in strange], list[str]()
    if is_elsewhere:
        beyond, unknown, within = judge_differences(model, fresh, strange)
        wrong, undecided = beyond, unknown + within
    if wrong:
        return Beside(f"a fresh fit has not what the file has at {join_places(wrong)}")
    if undecided:
        return Beside(
            undecided=f"made with other libraries, and it differs at {join_places(undecided)}, "
            "where rounding may be the cause. Repeat the audit with these libraries"
        )
    return Beside()


@dataclass(frozen=True)
class _Rule:
    """Where noise or an approximation may make numbers differ."""

    counted: str
    is_bounded: bool

    def permits(self, difference: Difference) -> bool:
        place, gap = difference.place, difference.gap
        if difference.numbers == "seed":
            return place.rpartition(".")[2] == "seed_"
        if _ROWS.search(place):
            return self.counted == "head_" and gap is not None and gap <= FEATURES
        return place.startswith(self.counted) and self._is_number(difference)

    def _is_number(self, difference: Difference) -> bool:
        """Whether only numbers differ; where a bound is claimed, none beside the rows."""
        if not self.is_bounded:
            return difference.numbers != "other"
        return difference.numbers in ("float", "count") and "rows_" not in difference.place


def _rekey(fresh: Any, model: Any, rows: Rows) -> None:
    """Give a fresh fit the model's salt and key, so that what is not random can be compared."""
    given = vars(counted_part(model))
    key, salt = given.get("fingerprint_key_"), given.get("release_salt_")
    inner, seen = unwrapped(fresh, rows)
    if _is_key(salt) and _is_key(vars(inner).get("release_salt_")):
        inner.release_salt_ = salt
    if _is_key(key) and vars(inner).get("fingerprint_key_") is not None:
        X, target = inner._design().rows(seen.X), inner._known_target(seen.y)
        inner.rows_.extra["fingerprint"] = fingerprint_rows(X, target, key)
        inner.fingerprint_key_ = key


def _is_key(text: Any) -> bool:
    return type(text) is str and re.fullmatch("[0-9a-f]{64}", text) is not None


def unwrapped(model: Any, rows: Rows) -> tuple[Any, Rows]:
    """Return the convex part of a model, and what it sees of the rows."""
    if hasattr(model, "head_"):
        features = np.asarray(model._training_features(rows.X))
        return model.head_, Rows(features, rows.y, rows.ids)
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
