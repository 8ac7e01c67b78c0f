"""Copies of a prototype that are trained to be judged, not to be used."""

from typing import Any

from sklearn.base import clone

from letheon.inner import SeedSlots, parts_of
from letheon.seeds import Purpose

__all__ = ["fresh_copy"]


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
    copy = clone(prototype)
    parts = list(parts_of(copy))
    for part in parts:
        if part.params.get("checkpoint_dir") is not None:
            part.estimator.set_params(checkpoint_dir=None)
    if "random_state" in parts[0].params:
        return copy.set_params(random_state=seed)
    SeedSlots(copy).fill(seed, Purpose.STEP)
    return copy
