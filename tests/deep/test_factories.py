"""What may be given as `module`, and what is said where it may not."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from letheon import SISANetClassifier
from letheon.deep import CNN, MLP
from letheon.deep._module import Template
from letheon.exceptions import LetheonWarning, TrainingError
from tests.sharded.people import make_people


class Optional(nn.Sequential):
    """A net that can be built with nothing."""

    def __init__(self, hidden: int = 5, depth: int = 1) -> None:
        layers = [nn.Linear(3 if i == 0 else hidden, hidden) for i in range(depth)]
        super().__init__(*layers, nn.Linear(hidden, 3))


def by_name(shape: Any = (3,), n_classes: int = 9) -> nn.Module:
    return nn.Linear(shape[0], n_classes)


def by_position(*given: Any) -> nn.Module:
    return nn.Linear(given[0][0], given[1])


def half(shape: Any, n_classes: int = 9) -> nn.Module:
    return nn.Linear(shape[0], n_classes)


def narrow(shape: Any, n_classes: int) -> nn.Module:
    return nn.Linear(2, n_classes)


@pytest.mark.parametrize("factory", [by_name, by_position, half])
def test_a_factory_that_asks_gets_shape_and_classes(factory: Any) -> None:
    assert Template(factory, (3,), 4, 0).n_parameters == 16


@pytest.mark.parametrize(("factory", "n"), [(Optional, 38), (partial(Optional, hidden=2), 17)])
def test_settings_of_a_net_are_not_taken_for_shape_and_classes(factory: Any, n: int) -> None:
    assert Template(factory, (3,), 3, 0).n_parameters == n


def test_a_net_without_arguments_says_why_it_cannot_lose_a_class() -> None:
    people = make_people(20, seed=6)
    people.y[people.ids == 0] = 2
    keep = (people.y != 2) | (people.ids == 0)
    X, y, ids = people.X[keep], people.y[keep], people.ids[keep]
    model = SISANetClassifier(module=Optional, n_shards=2, epochs=1, device="cpu").fit(
        X, y, ids=ids
    )
    before = model.digest()
    with pytest.raises(TrainingError, match=r"built without arguments.*takes \(shape, n_classes\)"):
        model.forget([0])
    assert model.digest() == before


def test_a_module_that_fails_says_on_what() -> None:
    with pytest.raises(
        TrainingError, match=r"trial batch of 2 rows of shape \(3,\), float32: mat1"
    ):
        Template(narrow, (3,), 3, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module": nn.Linear(3, 3)}, r"module is an instance \(Linear\); expected a factory"),
        ({"module": nn.Linear}, r"module is a torch layer \(Linear\)"),
        ({"module": MLP}, r"did you mean module=MLP\(\)\?"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "loss is a module"),
        ({"optimizer": torch.optim.Adam([torch.zeros(1)])}, r"partial\(torch.optim.Adam, lr="),
        ({"deterministic": "yes"}, "deterministic='yes'; expected True or False"),
    ],
)
def test_common_wrong_settings(settings: dict[str, Any], message: str) -> None:
    people = make_people(20)
    with pytest.raises(ValueError, match=message):
        SISANetClassifier(device="cpu", **settings).fit(people.X, people.y)


def test_images_that_were_scaled_before_are_noticed() -> None:
    X = np.random.default_rng(0).random((20, 4, 4))
    y = np.arange(20) % 2
    settings: dict[str, Any] = {"n_shards": 1, "epochs": 1, "device": "cpu"}
    with pytest.warns(LetheonWarning, match=r"pass scale=1\.0"):
        SISANetClassifier(module=CNN(channels=(2,), hidden=0), **settings).fit(X, y)
    quiet = CNN(channels=(2,), hidden=0, scale=1.0)
    assert SISANetClassifier(module=quiet, **settings).fit(X, y).n_rows_ == 20
