"""DeepObliviate's blocks trained from scratch, written independently of it, and small people."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon.data import SlotRows, as_ids
from letheon.deep._base import TrainingContext, loop_settings
from letheon.deep._loop import TrainingPhase
from letheon.deep._module import Template
from letheon.deep._obliviate import DeepObliviateClassifier
from letheon.seeds import keyed_hash


class BlockPeople(NamedTuple):
    X: NDArray[np.float32]
    y: NDArray[np.int64]
    ids: NDArray[np.int64]

    def without(self, gone: Collection[int]) -> "BlockPeople":
        keep = ~np.isin(self.ids, list(gone))
        return BlockPeople(self.X[keep], self.y[keep], self.ids[keep])


def make_people(n_people: int = 24, *, seed: int = 0, n_classes: int = 3) -> BlockPeople:
    """People with one to three rows each; every class has many."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_people), rng.integers(1, 4, n_people))
    rng.shuffle(ids)
    y = np.arange(len(ids)) % n_classes
    X = rng.normal(size=(len(ids), 3)) + y[:, None]
    return BlockPeople(X.astype(np.float32), y, ids)


def linear(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Linear(shape[0], n_classes)


@dataclass(frozen=True)
class Still:
    """A linear net that starts from zeros, whatever the seed."""

    def __call__(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        module = nn.Linear(shape[0], n_classes)
        for part in module.parameters():
            nn.init.zeros_(part)
        return module


def noisy(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Layers that are easy to get wrong: BatchNorm and dropout."""
    return nn.Sequential(
        nn.Linear(shape[0], 4),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(4, n_classes),
    )


def make(**settings: Any) -> DeepObliviateClassifier:
    defaults: dict[str, Any] = {
        "module": linear,
        "n_blocks": 5,
        "epochs": 1,
        "batch_size": 4,
        "learning_rate": 0.1,
        "device": "cpu",
        "random_state": 0,
    }
    return DeepObliviateClassifier(**(defaults | settings))


def fitted(people: BlockPeople, **settings: Any) -> DeepObliviateClassifier:
    return make(**settings).fit(people.X, people.y, ids=people.ids)


def block_of(model: DeepObliviateClassifier, person: int) -> int:
    return keyed_hash(model.seed_, "block", int(person)) % int(model.n_blocks)


def people_in(
    model: DeepObliviateClassifier, people: BlockPeople, blocks: Collection[int]
) -> list[int]:
    """People of some blocks, sorted."""
    return [person for person in np.unique(people.ids) if block_of(model, person) in blocks]


def states(model: DeepObliviateClassifier) -> list[Tensor]:
    """The checkpoints of a model, from before block 0 to after the last."""
    saved_states = [model.vault_.get(i) for i in range(int(model.n_blocks) + 1)]
    assert all(state is not None for state in saved_states)
    return saved_states  # type: ignore[return-value]


def rate_of(model: DeepObliviateClassifier, block: int) -> float:
    """Factor of the learning rate in a block."""
    n_blocks = int(model.n_blocks)
    falls = 1 - block / n_blocks
    if model.anneal == "one-cycle" and n_blocks > 10:
        return min(falls, (block + 1) / (0.1 * n_blocks))
    return 1.0 if model.anneal == "none" else falls


def scratch_states(
    model: DeepObliviateClassifier, people: BlockPeople, gone: Collection[int] = ()
) -> list[Tensor]:
    """Train all blocks with the slots of the fit on `people`, those of some people empty."""
    rows = SlotRows(people.X.copy(), people.y.copy(), as_ids(people.ids.tolist()))
    template = Template(model.module, people.X.shape[1:], len(set(people.y)), model.seed_)
    context = TrainingContext(
        rows, template, loop_settings(model), model.seed_, torch.device("cpu")
    )
    flat = template.initial_flat(0)[None]
    saved_states = [flat[0]]
    with model._training_run():
        for block in range(int(model.n_blocks)):
            slots = [
                -1 if person in gone else position
                for position, person in enumerate(people.ids.tolist())
                if block_of(model, person) == block
            ]
            rate = rate_of(model, block)
            phase = TrainingPhase(block, (np.array(slots, np.int64),), int(model.epochs), rate)
            flat = context.get_loop().train(flat, phase)
            saved_states.append(flat[0])
    return saved_states


def norms_of_moves(saved_states: list[Tensor]) -> NDArray[np.float64]:
    """L1 norm of what every block did: differences in float32, their sum in float64."""
    moves = np.diff(torch.stack(saved_states).numpy(), axis=0)
    return np.array(
        [float(torch.from_numpy(move).abs().sum(dtype=torch.float64)) for move in moves]
    )


def l1(one: Tensor, two: Tensor) -> float:
    return float(np.abs(one.double().numpy() - two.double().numpy()).sum())


def with_private_columns(people: BlockPeople, size: float = 1.0) -> BlockPeople:
    """Give every person a column that is zero for all others: weights of it tell who was seen."""
    own = np.zeros((len(people.ids), int(people.ids.max()) + 1), np.float32)
    own[np.arange(len(people.ids)), people.ids] = size
    return BlockPeople(np.hstack([people.X, own]), people.y, people.ids)


def memory_of(state: Tensor, start: Tensor, person: int, n_classes: int = 3) -> float:
    """How far the weights of a person's own column are from where training started."""
    weights = (state - start)[:-n_classes].view(n_classes, -1)
    return float(weights[:, 3 + person].abs().max())
