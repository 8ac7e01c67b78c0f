"""Who goes into which shard and slice: a pure function of the person's id, risk and the seed.

Nothing about other people enters, so a removal moves nobody, a person's rows stay together and
the look-up of a shard is O(1). With risk tiers (Bourtoule et al., 2021, section VIII), riskier
people share few shards and come in late slices, where forgetting them is cheap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.data import Ids
from letheon.seeds import Purpose

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """The rule that sends a person to a shard and a slice.

    With T tiers, tier t uses the last ``ceil(S / 2**t)`` shards and the slices from
    ``floor(t R / T)`` up to ``floor((t + 1) R / T)``: riskier means fewer shards, later slices.
    """

    seed: int
    n_shards: int
    n_slices: int
    n_tiers: int

    def shards(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the shard of every id."""
        width = -(-self.n_shards // 2 ** np.minimum(tiers, 62))
        hashes = ids.hashes(self.seed, Purpose.SHARD)
        return self.n_shards - width + _modulo(hashes, width)

    def slices(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the slice of every id."""
        first = tiers * self.n_slices // self.n_tiers
        width = np.maximum((tiers + 1) * self.n_slices // self.n_tiers - first, 1)
        return first + _modulo(ids.hashes(self.seed, Purpose.SLICE), width)

    def candidate_shards(self, ids: Ids) -> list[Integers]:
        """Return, for every tier, the shard where each id would be if it were of that tier."""
        return [self.shards(ids, np.full(len(ids), tier)) for tier in range(self.n_tiers)]


def check_risk_edges(edges: Sequence[float] | None) -> NDArray[np.float64]:
    """Return the edges between tiers as an array; empty when there are none."""
    values = np.asarray([] if edges is None else edges, float)
    if values.ndim != 1 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise ValueError(f"risk_edges={edges!r}; expected finite, strictly increasing numbers")
    return values


def risk_tiers(risk: Any, ids: Ids, edges: NDArray[np.float64]) -> Integers:
    """Return the tier of every row: how many edges its person's risk reaches.

    `risk` is one number per row, the same for all rows of a person, or a mapping from id to number.
    """
    if len(edges) == 0 and risk is None:
        return np.zeros(len(ids), np.int64)
    if len(edges) == 0 or risk is None:
        raise ValueError(
            "this model has risk_edges, so new people need a risk; give risk="
            if risk is None
            else "risk was given, but the model has no risk_edges; set them, or leave risk out"
        )
    values = _risk_values(risk, ids)
    if np.isnan(values).any():
        raise ValueError("risk holds NaN; give a number for every person")
    _require_one_value_per_person(values, ids)
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _risk_values(risk: Any, ids: Ids) -> NDArray[np.float64]:
    if isinstance(risk, Mapping):
        people = ids.to_list()
        absent = {person for person in people if person not in risk}
        if absent:
            one = next(iter(absent))
            raise ValueError(f"risk has no value for {len(absent)} id(s), e.g. {one!r}")
        return np.array([risk[person] for person in people], float)
    values = np.asarray(risk, float)
    if values.shape != (len(ids),):
        raise ValueError(f"risk has shape {values.shape}; expected one number per row ({len(ids)})")
    return values


def _require_one_value_per_person(values: NDArray[np.float64], ids: Ids) -> None:
    _, person = np.unique(ids.hashes(0, Purpose.ID_INDEX), return_inverse=True)
    lowest = np.full(person.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, person, values)
    if (values != lowest[person]).any():
        raise ValueError("risk differs between rows of one person; give one value per person")


def _modulo(hashes: NDArray[np.uint64], width: Integers) -> Integers:
    return (hashes % width.astype(np.uint64)).astype(np.int64)
