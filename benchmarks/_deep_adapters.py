"""Adapters of a frozen vision transformer against one adapter that is trained on all rows."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks._deep_models import (
    ImageSet,
    Recipe,
    make_sisa,
    percent,
    score_accuracy,
    time_on_device,
    times,
)
from benchmarks._report import Table, TargetCheck
from letheon.deep import Backbone, LoRA

__all__ = ["AdapterRace", "check_adapters", "make_adapter_table", "measure_adapters"]

N_SHARDS, RANK, PATCH = 20, 8, 7
COLUMNS = ("what", "fit s", "one person s", "accuracy")
NOTE = (
    "A vision transformer of {layers} layers and width {width}, trained on {public:,} public "
    "images for {epochs} epochs, accuracy {accuracy}; then adapters of rank {rank} on {rows:,} "
    "other images, {adapter_epochs} epochs, batch {batch}. The adapters of all shards are trained "
    "at once on a GPU, and one by one on a CPU; times are those of the second call."
)


class VisionTransformer(nn.Module):
    """A transformer on patches of 7 x 7 pixels of grey images of 28 x 28."""

    def __init__(self, layers: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH * PATCH, width)
        self.positions = nn.Parameter(0.02 * torch.randn((28 // PATCH) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit per class."""
        parts = x.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(1, 2).flatten(2)
        tokens = self.patches(parts / 255) + self.positions
        y: Tensor = self.output(self.norm(self.encoder(tokens).mean(dim=1)))
        return y


def make_transformer(shape: Any, n_outputs: int, *, layers: int, width: int) -> nn.Module:  # noqa: ARG001
    """Return a vision transformer; a factory for `module`."""
    return VisionTransformer(layers, width, n_outputs)


class AdapterRun(NamedTuple):
    """Seconds of a fit and of a request of one person, and the accuracy in per cent."""

    n_shards: int
    fit: float
    request: float
    accuracy: float


class AdapterRace(NamedTuple):
    """Adapters of many shards, and one adapter for all rows."""

    layers: int
    width: int
    public: Recipe
    recipe: Recipe
    n_public: int
    n_rows: int
    public_accuracy: float
    shards: AdapterRun
    single: AdapterRun


def measure_adapters(
    data: ImageSet, device: str, *, layers: int, width: int, epochs: tuple[int, int]
) -> AdapterRace:
    """Train a backbone on the first half of the rows, and adapters on the second half."""
    half = len(data.y) // 2
    module = partial(make_transformer, layers=layers, width=width)
    public = Recipe(epochs[0], 128, 2e-3, module=module)
    own = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 0.1}
    naive = make_sisa(public, device, n_shards=1, n_slices=1, **own).fit(
        data.X[:half], data.y[:half]
    )
    weights = naive.to_modules()[0].state_dict()
    lora = LoRA(backbone=Backbone(VisionTransformer, weights, (layers, width, 10)), rank=RANK)
    recipe, runs = Recipe(epochs[1], 32, 2e-3, module=lora), []
    for n_shards in (N_SHARDS, 1):
        model = make_sisa(recipe, device, n_shards=n_shards, n_slices=1, **own)
        rows = data.X[half:], data.y[half:]
        model.fit(*rows)
        fit = time_on_device(lambda m=model, r=rows: m.fit(*r), device)[1].wall  # type: ignore[misc]
        model.forget([0])
        request = time_on_device(lambda m=model: m.forget([1]), device)[1].wall  # type: ignore[misc]
        runs.append(AdapterRun(n_shards, fit, request, score_accuracy(model, data)))
    before = score_accuracy(naive, data)
    return AdapterRace(layers, width, public, recipe, half, len(data.y) - half, before, *runs)


def make_adapter_table(race: AdapterRace, data: ImageSet) -> Table:
    """Return the table of a race."""
    rows = [
        (f"{run.n_shards} adapter(s)", run.fit, run.request, percent(run.accuracy))
        for run in (race.shards, race.single)
    ]
    note = NOTE.format(
        layers=race.layers,
        width=race.width,
        public=race.n_public,
        epochs=race.public.epochs,
        accuracy=percent(race.public_accuracy),
        rank=RANK,
        rows=race.n_rows,
        adapter_epochs=race.recipe.epochs,
        batch=race.recipe.batch_size,
    )
    return Table(f"Adapters: {data.describe()}", COLUMNS, rows, note)


def check_adapters(race: AdapterRace) -> list[TargetCheck]:
    """Compare the adapters of all shards with one adapter for all rows."""
    shards, single = race.shards, race.single
    lost, slower = single.accuracy - shards.accuracy, shards.fit / single.fit
    faster = single.fit / shards.request
    return [
        TargetCheck("accuracy lost by adapters of shards", f"{lost:.2f}", "<= 1 point", lost <= 1),
        TargetCheck("all adapters over one on all rows", times(slower), "<= 1.5x", slower <= 1.5),
        TargetCheck(
            "one adapter on all rows over one person", times(faster), ">= 15x", faster >= 15
        ),
    ]
