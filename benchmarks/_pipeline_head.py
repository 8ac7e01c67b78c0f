"""An exact head on a frozen network that was trained on half of MNIST."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks._data import load_data
from letheon.deep import Backbone, ExactHeadClassifier

WIDTH = 128


class HeadData(NamedTuple):
    """Images of two halves and of a test set, with labels."""

    first: tuple[torch.Tensor, torch.Tensor]
    second: tuple[Any, Any]
    test: tuple[Any, Any]
    is_real: bool


def make_body() -> nn.Module:
    """Return the network without its last layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, WIDTH),
        nn.ReLU(),
    )


def load_halves(n_rows: int) -> HeadData:
    """Return two halves of the training digits, and test digits."""
    data = load_data("mnist").sample(n_rows * 7 // 6, 0)
    X = (data.X / max(1.0, float(data.X.max()))).astype(np.float32).reshape(-1, 1, 28, 28)
    y = data.y.astype(np.int64)
    n_rows = len(y) * 6 // 7
    half = n_rows // 2
    first = torch.from_numpy(X[:half]), torch.from_numpy(y[:half])
    second, test = (X[half:n_rows], y[half:n_rows]), (X[n_rows:], y[n_rows:])
    return HeadData(first, second, test, data.real)


def train_network(net: nn.Module, X: torch.Tensor, y: torch.Tensor, epochs: int) -> nn.Module:
    """Train all layers by Adam."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), y[rows]).backward()
            optimizer.step()
    return net


def score_network(net: nn.Module, X: Any, y: Any) -> float:
    """Return the accuracy of a network."""
    with torch.no_grad():
        return float((net(torch.from_numpy(X)).argmax(1).numpy() == y).mean())


def compare_heads(n_rows: int, epochs: int) -> tuple[Any, float, float, bool]:
    """Return the exact head, its accuracy, that of fine-tuning, and whether the data is real."""
    torch.manual_seed(0)
    data = load_halves(n_rows)
    net = nn.Sequential(make_body(), nn.Linear(WIDTH, 10))
    train_network(net, *data.first, epochs)
    backbone = Backbone(make_body, net[0].state_dict())
    head = ExactHeadClassifier(backbone, "ridge", n_components=256, random_state=0, device="cpu")
    head.fit(*data.second)
    second = torch.from_numpy(data.second[0]), torch.from_numpy(data.second[1])
    tuned = train_network(net, *second, epochs)
    accuracy = float(head.score(*data.test))
    return head, accuracy, score_network(tuned, *data.test), data.is_real
