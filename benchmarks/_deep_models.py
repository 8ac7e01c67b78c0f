"""Recipes of the nets, the naive retrain that everything is held against, and small helpers."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._deep_data import ImageSet
from benchmarks._report import Seconds, timed
from letheon import Receipt
from letheon.deep import (
    CNN,
    MLP,
    DeepObliviateClassifier,
    DeltaGradNetClassifier,
    FisherNetClassifier,
    SISANetClassifier,
)
from letheon.measures import output_consistency

__all__ = [
    "BIG_CNN",
    "SMALL_CNN",
    "WIDE_MLP",
    "Recipe",
    "Request",
    "Yardstick",
    "accuracy",
    "agreement",
    "clocked",
    "deltagrad",
    "fisher",
    "naive",
    "obliviate",
    "percent",
    "points",
    "request",
    "sisa",
    "times",
    "twin",
]

Positions = NDArray[np.int64]

SEED = 0
SMALL_CNN = CNN(channels=(8, 16), hidden=0, kernel=5, conv="cudnn")
BIG_CNN = CNN(channels=(16, 32), hidden=64)
WIDE_MLP = MLP(widths=(256,), scale=1 / 255)


@dataclass(frozen=True)
class Recipe:
    """How a net is trained in one go."""

    epochs: int
    batch_size: int
    learning_rate: float
    precision: str = "float32"
    module: Any = SMALL_CNN
    weight_decay: float = 0.0

    def __str__(self) -> str:
        """Say the recipe in a few words."""
        words = [f"{self.epochs} epochs, batch {self.batch_size}, rate {self.learning_rate:g}"]
        conv = getattr(self.module, "conv", "cudnn")
        words += [self.precision] if self.precision != "float32" else []
        words += [f"convolutions by {conv}"] if conv != "cudnn" else []
        return ", ".join(words)

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of an estimator."""
        return {
            "module": self.module,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "precision": self.precision,
            "momentum": 0.9,
            "weight_decay": self.weight_decay,
            "optimizer": "sgd",
            "schedule": "one-cycle",
            "random_state": SEED,
        }


def naive(recipe: Recipe, device: str, **others: Any) -> SISANetClassifier:
    """Return naive retraining: one shard, one slice, so that a request trains from scratch."""
    return sisa(recipe, device, n_shards=1, n_slices=1, **others)


def sisa(recipe: Recipe, device: str, **others: Any) -> SISANetClassifier:
    """Return shards of the recipe's net; each takes as many passes over its own rows."""
    return SISANetClassifier(device=device, **(recipe.settings() | others))


def obliviate(device: str, **others: Any) -> DeepObliviateClassifier:
    """Return blocks of plain gradient descent: small steps, else residuals never fade.

    Chosen among 18 settings by the mean accuracy of three seeds on 8,000 training images that were
    left out; those with a higher rate, momentum or one more layer were not better.
    """
    settings: dict[str, Any] = {
        "module": SMALL_CNN,
        "n_blocks": 100,
        "epochs": 1,
        "batch_size": 10,
        "learning_rate": 0.15,
        "optimizer": "sgd",
        "momentum": 0.0,
        "anneal": "one-cycle",
        "stop": "robust",
        "epsilon": 0.1,
        "random_state": SEED,
    }
    return DeepObliviateClassifier(device=device, **(settings | others))


def fisher(recipe: Recipe, device: str, **others: Any) -> FisherNetClassifier:
    """Return the recipe's net, scrubbed with noise."""
    return FisherNetClassifier(device=device, **(recipe.settings() | others))


def deltagrad(device: str, **others: Any) -> DeltaGradNetClassifier:
    """Return a net trained by plain gradient descent that is replayed."""
    return DeltaGradNetClassifier(device=device, random_state=SEED, **others)


def clocked(call: Callable[[], Any], device: str) -> tuple[Any, Seconds]:
    """Return what the call returns and how long it took, until the GPU has done it."""
    wait = torch.cuda.synchronize if device == "cuda" else _nothing

    def work() -> Any:
        result = call()
        wait()
        return result

    wait()
    return timed(work)


def _nothing() -> None:
    """Wait for nothing: a CPU is done when a call returns."""


def accuracy(model: Any, data: ImageSet) -> float:
    """Return the share of test images that the model names rightly, in per cent."""
    return 100 * float(np.mean(model.predict(data.X_test) == data.y_test))


def agreement(one: NDArray[Any], two: NDArray[Any]) -> float:
    """Return the percentage of equal answers."""
    return output_consistency(one, two).value


def twin(model: Any, **rule: Any) -> Any:
    """Return a copy with another stop rule, which plays no part in training."""
    found = copy.copy(model)
    found.set_params(**rule)
    vars(found).update(found._remember_settings())
    return found


class Request(NamedTuple):
    """One request: its receipt, its time, and the time of the call that warmed things up."""

    receipt: Receipt
    seconds: Seconds
    first_use: float


def request(model: Any, people: Iterable[int], device: str, warm_up: int | None = None) -> Request:
    """Forget people; before that somebody else, so that everything is loaded and captured."""
    first_use = 0.0
    if warm_up is not None:
        first_use = clocked(lambda: model.forget([warm_up]), device)[1].wall
    wanted = list(people)
    receipt, seconds = clocked(lambda: model.forget(wanted), device)
    return Request(receipt, seconds, first_use)


@dataclass
class Yardstick:
    """Naive retraining of one set by the tuned recipe."""

    data: ImageSet
    recipe: Recipe
    device: str
    model: SISANetClassifier
    first: Seconds
    again: list[Seconds] = field(default_factory=list)
    answers: NDArray[Any] = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, data: ImageSet, recipe: Recipe, device: str, repeats: int) -> "Yardstick":
        """Train once, then again without one more person each time."""
        model = naive(recipe, device)
        first = clocked(lambda: model.fit(data.X, data.y), device)[1]
        found = cls(data, recipe, device, model, first)
        found.answers = model.predict(data.X_test)
        for _ in range(repeats):
            found.look()
        return found

    def look(self) -> None:
        """Retrain once more, without one more person."""
        person = len(self.data.y) - 1 - len(self.again)
        self.again.append(clocked(lambda: self.model.forget([person]), self.device)[1])
        if len(self.again) == 1:  # one reference for everything
            self.answers = self.model.predict(self.data.X_test)

    @property
    def seconds(self) -> Seconds:
        """Mean time of a retrain when everything is loaded and captured."""
        walls, cpus = zip(*(self.again or [self.first]), strict=True)
        return Seconds(float(np.mean(walls)), float(np.mean(cpus)))

    @property
    def accuracy(self) -> float:
        """Test accuracy of the retrained net, in per cent."""
        return 100 * float(np.mean(self.answers == self.data.y_test))


def times(ratio: float) -> str:
    """Write a speed-up; a loss where the retrain is quicker."""
    return f"{ratio:,.1f}x" + (" LOSS" if ratio < 1 else "")


def percent(value: float) -> str:
    """Write a percentage."""
    return f"{value:.2f} %"


def points(value: float) -> str:
    """Write a difference of percentages."""
    return f"{value:+.2f}"
