"""Copies of a prototype that are trained to be judged, not to be used."""

from typing import Any

from sklearn.base import clone

from letheon.inner import SeedSlots, parts_of
from letheon.seeds import Purpose

__all__ = ["fresh_copy", "require_copy"]


def require_copy(prototype: Any, copy: Any) -> Any:
    """Return a clone, or raise if it is not another object of the same class."""
    if copy is prototype or type(copy) is not type(prototype):
        name = type(prototype).__name__
        what = "itself" if copy is prototype else f"a {type(copy).__name__}"
        raise TypeError(
            f"clone of a {name} returned {what}, so it would not be judged itself; remove its "
            "__sklearn_clone__"
        )
    return copy


def fresh_copy(prototype: Any, seed: int) -> Any:
    """Return an unfitted copy with this seed that keeps no files.

    A copy is trained on people who leave the original later, or who never asked to be in it. So it
    must not leave states in the `checkpoint_dir` of the original, at any depth.

    Parameters
    ----------
    prototype : estimator
        It is cloned, and never changed.
    seed : int
        Becomes the `random_state`. Where the estimator has none of its own (a pipeline), every
        `random_state` inside it is derived from the seed and its place.

    Returns
    -------
    estimator
    """
    copy = require_copy(prototype, clone(prototype))
    parts = list(parts_of(copy))
    for part in parts:
        if part.params.get("checkpoint_dir") is not None:
            part.estimator.set_params(checkpoint_dir=None)
    if "random_state" in parts[0].params:
        return copy.set_params(random_state=seed)
    SeedSlots(copy).fill(seed, Purpose.STEP)
    return copy
