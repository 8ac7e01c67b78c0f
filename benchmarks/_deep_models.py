"""Data and networks of the benchmark for networks."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._data import as_bytes, find_home
from benchmarks._report import Seconds, time_call
from letheon import Receipt
from letheon.datasets import load as load_real
from letheon.deep import (
    CNN,
    MLP,
    DeepObliviateClassifier,
    DeltaGradNetClassifier,
    FisherNetClassifier,
    SISANetClassifier,
)
from letheon.measures import output_consistency

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]

SHAPES = {"mnist": (60_000, 10_000, (28, 28)), "cifar10": (50_000, 10_000, (3, 32, 32))}
LOSSY = "the CIFAR-10 files are JPEG copies, lossy: compare nothing here with other results"
MADE_UP = "SYNTHETIC stand-in, real files not found"
N_CLASSES = 10
# A pattern of 4 pixels near the lower right corner, as (row, column) from the end.
PATTERN = ((-2, -2), (-2, -4), (-4, -2), (-3, -3))
TARGET = 0


class ImageSet(NamedTuple):
    """Training images and test images, as bytes, with labels 0 to 9."""

    name: str
    X: Bytes
    y: Labels
    X_test: Bytes
    y_test: Labels
    note: str = ""

    def head(self, n_rows: int | None, n_test: int | None = None) -> "ImageSet":
        """Return the set with only the first images; None keeps all."""
        return self._replace(
            X=self.X[:n_rows],
            y=self.y[:n_rows],
            X_test=self.X_test[:n_test],
            y_test=self.y_test[:n_test],
        )

    def describe(self) -> str:
        """Describe the set in a few words."""
        shape = " x ".join(map(str, self.X.shape[1:]))
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}{note}, {len(self.y):,} images of {shape}"


def load_images(name: str) -> ImageSet:
    """Return a set by name; a synthetic one of the same shape if its files are missing."""
    readers = {"mnist": _load_mnist, "cifar10": _load_cifar10}
    return readers[name](find_home() / name)


def _load_mnist(folder: Path) -> ImageSet:
    return _read_images("mnist", "mnist", (28, 28)) if folder.is_dir() else _make_stand_in("mnist")


def _load_cifar10(folder: Path) -> ImageSet:
    if not (folder / "cifar10_jpeg.tar.xz").is_file():
        return _make_stand_in("cifar10")
    return _read_images("cifar10", "cifar-10", (3, 32, 32))


def _read_images(name: str, real_name: str, shape: tuple[int, ...]) -> ImageSet:
    data: Any = load_real(real_name, folder=find_home())
    X, X_test = (as_bytes(each).reshape(-1, *shape) for each in (data.X, data.X_test))
    return ImageSet(name, X, data.y, X_test, data.y_test, data.note)


def _make_stand_in(name: str) -> ImageSet:
    """Return noisy copies of one coarse random picture per class."""
    n_rows, n_test, shape = SHAPES[name]
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(N_CLASSES, *shape[:-2], 8, 8))
    height, width = shape[-2:]
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    pictures = 128 + 40 * coarse[..., rows[:, None], columns]
    y = rng.integers(N_CLASSES, size=n_rows + n_test)
    X = np.empty((len(y), *shape), np.uint8)
    for begin in range(0, len(y), 5000):
        some = y[begin : begin + 5000]
        noise = 60 * rng.standard_normal((len(some), *shape), np.float32)
        X[begin : begin + 5000] = np.clip(pictures[some] + noise, 0, 255)
    return ImageSet(name, X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], MADE_UP)


class Backdoor(NamedTuple):
    """Training rows, some of them with a pattern and a wrong label, owned by `owners`."""

    data: ImageSet
    ids: NDArray[np.int64]
    owners: list[int]
    rows: NDArray[np.int64]
    X_test: Bytes

    @property
    def targets(self) -> Labels:
        """The target label of every test image with the pattern."""
        return np.full(len(self.X_test), TARGET, np.int64)


def plant_backdoor(data: ImageSet, n_rows: int, owners: list[int], seed: int = 0) -> Backdoor:
    """Stamp random rows of other classes, relabel them, and give them to the owners in turn.

    All other people own one row. Test images of the target class are not stamped.
    """
    rng = np.random.default_rng(seed)
    rows = rng.choice(np.flatnonzero(data.y != TARGET), n_rows, replace=False)
    X, y, ids = data.X.copy(), data.y.copy(), np.arange(len(data.y))
    X[rows], y[rows] = _stamp_images(X[rows]), TARGET
    ids[rows] = np.resize(owners, n_rows)
    X_test = _stamp_images(data.X_test[data.y_test != TARGET])
    return Backdoor(data._replace(X=X, y=y), ids, owners, rows, X_test)


def _stamp_images(images: Bytes) -> Bytes:
    stamped = images.copy()
    for row, column in PATTERN:
        stamped[..., row, column] = 255
    return stamped


Positions = NDArray[np.int64]

SEED = 0
SMALL_CNN = CNN(channels=(8, 16), hidden=0, kernel=5, conv="cudnn")
BIG_CNN = CNN(channels=(16, 32), hidden=64)
WIDE_MLP = MLP(widths=(256,), scale=1 / 255)


@dataclass(frozen=True)
class Recipe:
    """Training settings of a network."""

    epochs: int
    batch_size: int
    learning_rate: float
    precision: str = "float32"
    module: Any = SMALL_CNN
    weight_decay: float = 0.0

    def __str__(self) -> str:
        """Describe the recipe in a few words."""
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


def make_naive(recipe: Recipe, device: str, **others: Any) -> SISANetClassifier:
    """Return naive retraining: one shard and one slice, so a removal trains from scratch."""
    return make_sisa(recipe, device, n_shards=1, n_slices=1, **others)


def make_sisa(recipe: Recipe, device: str, **others: Any) -> SISANetClassifier:
    """Return shards of the recipe's network, each with the same number of epochs."""
    return SISANetClassifier(device=device, **(recipe.settings() | others))


def make_obliviate(device: str, **others: Any) -> DeepObliviateClassifier:
    """Return blocks of plain gradient descent; with larger steps, residuals never fade.

    Chosen among 18 settings by the mean accuracy of three seeds on 8,000 held-out training
    images; a higher rate, momentum or one more layer was not better.
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


def make_fisher(recipe: Recipe, device: str, **others: Any) -> FisherNetClassifier:
    """Return the recipe's network, scrubbed with noise."""
    return FisherNetClassifier(device=device, **(recipe.settings() | others))


def make_deltagrad(device: str, **others: Any) -> DeltaGradNetClassifier:
    """Return a network trained by plain gradient descent, which DeltaGrad replays."""
    return DeltaGradNetClassifier(device=device, random_state=SEED, **others)


def time_on_device(call: Callable[[], Any], device: str) -> tuple[Any, Seconds]:
    """Return the result of a call and its time, including pending GPU work."""
    wait = torch.cuda.synchronize if device == "cuda" else _do_nothing

    def work() -> Any:
        result = call()
        wait()
        return result

    wait()
    return time_call(work)


def _do_nothing() -> None:
    """Do nothing: CPU work is complete when a call returns."""


def score_accuracy(model: Any, data: ImageSet) -> float:
    """Return the test accuracy of the model in per cent."""
    return 100 * float(np.mean(model.predict(data.X_test) == data.y_test))


def agreement(one: NDArray[Any], two: NDArray[Any]) -> float:
    """Return the percentage of equal answers."""
    return output_consistency(one, two).value


def copy_model(model: Any, **rule: Any) -> Any:
    """Return a copy with another stop rule, which does not affect training."""
    duplicate = copy.copy(model)
    duplicate.set_params(**rule)
    vars(duplicate).update(duplicate._remember_settings())
    return duplicate


class TimedRemoval(NamedTuple):
    """One removal: receipt, time, and time of the warm-up call."""

    receipt: Receipt
    seconds: Seconds
    first_use: float


def time_removal(
    model: Any, people: Iterable[int], device: str, warm_up: int | None = None
) -> TimedRemoval:
    """Forget people, after a warm-up removal that loads libraries and captures CUDA graphs."""
    first_use = 0.0
    if warm_up is not None:
        first_use = time_on_device(lambda: model.forget([warm_up]), device)[1].wall
    wanted = list(people)
    receipt, seconds = time_on_device(lambda: model.forget(wanted), device)
    return TimedRemoval(receipt, seconds, first_use)


@dataclass
class Yardstick:
    """Naive retraining on one set by the tuned recipe."""

    data: ImageSet
    recipe: Recipe
    device: str
    model: SISANetClassifier
    first: Seconds
    again: list[Seconds] = field(default_factory=list)
    answers: NDArray[Any] = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, data: ImageSet, recipe: Recipe, device: str, repeats: int) -> "Yardstick":
        """Train once, then again with one more person removed each time."""
        model = make_naive(recipe, device)
        first = time_on_device(lambda: model.fit(data.X, data.y), device)[1]
        yardstick = cls(data, recipe, device, model, first)
        yardstick.answers = model.predict(data.X_test)
        for _ in range(repeats):
            yardstick.look()
        return yardstick

    def look(self) -> None:
        """Retrain again with one more person removed."""
        person = len(self.data.y) - 1 - len(self.again)
        self.again.append(time_on_device(lambda: self.model.forget([person]), self.device)[1])
        if len(self.again) == 1:  # one reference for all comparisons
            self.answers = self.model.predict(self.data.X_test)

    @property
    def seconds(self) -> Seconds:
        """Mean time of a retraining after the warm-up."""
        walls, cpus = zip(*(self.again or [self.first]), strict=True)
        return Seconds(float(np.mean(walls)), float(np.mean(cpus)))

    @property
    def accuracy(self) -> float:
        """Test accuracy of the retrained network, in per cent."""
        return 100 * float(np.mean(self.answers == self.data.y_test))


def times(ratio: float) -> str:
    """Format a speed-up; write LOSS if retraining is faster."""
    return f"{ratio:,.1f}x" + (" LOSS" if ratio < 1 else "")


def percent(value: float) -> str:
    """Format a percentage."""
    return f"{value:.2f} %"


def points(value: float) -> str:
    """Format a difference of percentages."""
    return f"{value:+.2f}"
