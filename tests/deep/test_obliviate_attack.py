"""DeepObliviate's declared residue is real: who has file and rows can compute forgotten rows.

Every block is one full step of a linear net, so that all equations can be written down.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import letheon
from letheon.deep._obliviate import BLOCK, DeepObliviateClassifier
from tests.deep.obliviate_reference import linear, make

Floats = NDArray[np.float64]

N_BLOCKS, N_CLASSES, N_COLUMNS, RATE = 8, 3, 4, 0.5
AFFECTED = 1


class Victim(NamedTuple):
    person: int
    x: Floats
    y: int


class Attacker:
    """Knows a saved model and nothing else; works in float64."""

    def __init__(self, path: Path) -> None:
        self.model = letheon.load(path, trusted=[linear])
        store = self.model.vault_
        self.states: list[Floats] = [store.get(i).double().numpy() for i in range(N_BLOCKS + 1)]

    def gradient(self, w: Floats, block: int) -> Floats:
        """Mean gradient of the rows that are held of a block."""
        rows = self.model.rows_
        here = rows.alive & (rows.extra[BLOCK] == block)
        x, y = rows.X[here].astype(float), rows.y[here]
        weights, biases = w[:-N_CLASSES].reshape(N_CLASSES, -1), w[-N_CLASSES:]
        shares = np.exp(x @ weights.T + biases)
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(y)), y] -= 1.0
        return np.concatenate([(shares.T @ x).ravel(), shares.sum(axis=0)]) / len(y)

    def n_rows(self, block: int) -> int:
        return int(self.model.block_sizes_[block])

    def old_state(self) -> Floats:
        """State of the destroyed run before the first block that was not retrained.

        Newton's method for: from there the later blocks move as the file says they moved.
        """
        first = self.model.exact_blocks_
        apart = [self.states[i] - self.states[first] for i in range(first, N_BLOCKS)]
        moves = [self.states[i + 1] - self.states[i] for i in range(first, N_BLOCKS)]

        def misses(u: Floats) -> Floats:
            steps = [RATE * self.gradient(u + v, first + k) for k, v in enumerate(apart)]
            return np.concatenate([-s - move for s, move in zip(steps, moves, strict=True)])

        u: Floats = self.states[first].copy()
        for _ in range(6):
            lines = [(misses(u + e) - misses(u - e)) / 2e-5 for e in 1e-5 * np.eye(len(u))]
            u -= np.linalg.lstsq(np.array(lines).T, misses(u), rcond=1e-8)[0]
        return u

    def old_state_after_the_affected_block(self) -> Floats:
        """Go back block by block: the old state is where a step to the next one starts."""
        u = self.old_state()
        for block in range(self.model.exact_blocks_ - 1, AFFECTED, -1):
            end = u.copy()
            for _ in range(40):
                u = end + RATE * self.gradient(u, block)
        return u

    def row_and_label(self) -> tuple[Floats, int]:
        """What is missing in the step of the affected block is the gradient of one row."""
        start, n_left = self.states[AFFECTED], self.n_rows(AFFECTED)
        step = (start - self.old_state_after_the_affected_block()) / RATE
        own = (n_left + 1) * step - n_left * self.gradient(start, AFFECTED)
        weights, biases = own[:-N_CLASSES].reshape(N_CLASSES, -1), own[-N_CLASSES:]
        largest = int(np.abs(biases).argmax())
        return weights[largest] / biases[largest], int(biases.argmin())


def forgetful(seed: int, folder: Path, **settings: Any) -> tuple[DeepObliviateClassifier, Victim]:
    """Fit, forget one row of the affected block, and save."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, 400)
    X = (rng.normal(size=(400, N_COLUMNS)) + 0.5 * y[:, None]).astype(np.float32)
    shared: dict[str, Any] = {"n_blocks": N_BLOCKS, "batch_size": 1000, "learning_rate": RATE}
    model = make(**(shared | {"random_state": seed} | settings)).fit(X, y)
    person = int(np.flatnonzero(model.rows_.extra[BLOCK] == AFFECTED)[3])
    model.forget([person])
    letheon.save(model, folder / "model")
    return model, Victim(person, X[person].astype(float), int(y[person]))


@pytest.mark.parametrize("seed", range(3))
def test_forgotten_row_and_label_can_be_computed_after_an_early_stop(
    seed: int, tmp_path: Path
) -> None:
    model, victim = forgetful(seed, tmp_path, epsilon=0.1)
    assert model.exact_blocks_ < N_BLOCKS
    row, label = Attacker(tmp_path / "model").row_and_label()
    assert label == victim.y
    assert np.linalg.norm(row - victim.x) < 0.02 * np.linalg.norm(victim.x)
    assert any(
        "forgotten rows and labels, can be computed" in text for text in model.residual_state_
    )


def test_files_of_requests_that_went_to_the_end_do_not_depend_on_who_left(tmp_path: Path) -> None:
    """Two people who differ in row and label leave the same bytes, so nothing can be computed."""
    files = []
    for number, canary in enumerate((5.0, -3.0)):
        rng = np.random.default_rng(0)
        y = rng.integers(0, N_CLASSES, 60)
        X = rng.normal(size=(60, N_COLUMNS)).astype(np.float32)
        X[7], y[7] = canary, number
        model = make(epsilon=0.0, stop="paper").fit(X, y)
        model.forget([7])
        letheon.save(model, tmp_path / str(number))
        files.append((tmp_path / str(number)).read_bytes())
    assert files[0] == files[1]
    assert not any("can be computed" in text for text in model.residual_state_)
