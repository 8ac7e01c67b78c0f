"""Classes and functions of torch as values: losses and optimisers are listed, the rest is not."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from letheon import state
from letheon.exceptions import UntrustedClassError
from letheon.state._allowed import CLASS_VALUES, FUNCTIONS
from letheon.state._decode import import_name

torch = pytest.importorskip("torch")
functional = torch.nn.functional

TELL = "from letheon.state import environment; print(environment())"
LISTED = sorted(name for name in CLASS_VALUES | FUNCTIONS if name.startswith("torch."))


@pytest.mark.parametrize("name", LISTED)
def test_listed_names_exist_and_come_back_without_trust(name: str) -> None:
    value = import_name(name)
    assert state.names_of(state.to_tree(value)) == (name,)
    assert state.decode(state.encode(value)) is value


def test_listed_values_inside_a_partial() -> None:
    make = state.decode(state.encode(partial(torch.optim.SGD, lr=0.5, momentum=0.9)))
    loss = state.decode(state.encode(partial(functional.cross_entropy, reduction="none")))
    assert make([torch.zeros(1)]).defaults["momentum"] == 0.9
    assert loss(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)).shape == (3,)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (torch.Tensor, "torch.Tensor"),
        (torch.relu, "torch.relu"),
        (functional.gelu, "torch._C._nn.gelu"),
        (functional.relu, "torch.nn.functional.relu"),
        (torch.load, "torch.serialization.load"),
        (torch.optim.LBFGS, "torch.optim.lbfgs.LBFGS"),
    ],
)
def test_other_values_of_torch_need_trust(value: Any, name: str) -> None:
    blob = state.encode({"value": value})
    with pytest.raises(UntrustedClassError, match=name):
        state.decode(blob)
    assert state.decode(blob, trusted=[value])["value"] is value
    assert state.decode(blob, trusted=[name])["value"] is value


def test_torch_in_the_process_changes_no_environment() -> None:
    message = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for code in (TELL, f"import torch; {TELL}")
    ]
    assert "'blas'" in message[0]
    assert message[0] == message[1]


# A net of the caller; torch may be absent, so it is no class statement.
Net = type("Net", (torch.nn.Module,), {"__module__": __name__})


def test_net_of_the_caller_as_a_factory() -> None:
    blob = state.encode({"module": Net})
    with pytest.raises(UntrustedClassError, match=r"test_torch_values\.Net"):
        state.decode(blob)
    assert state.decode(blob, trusted=[Net])["module"] is Net


def test_settings_of_nets_take_listed_classes_and_functions() -> None:
    from letheon import SISANetClassifier
    from letheon.deep import CNN, MLP

    ordinary: list[dict[str, Any]] = [
        {"module": MLP, "optimizer": torch.optim.SGD, "loss": functional.cross_entropy},
        {"module": CNN(conv="matmul"), "optimizer": "adam", "device": "cuda:1"},
        {"module": partial(CNN, conv="matmul"), "optimizer": partial(torch.optim.SGD, lr=0.1)},
        {"loss": partial(functional.cross_entropy, label_smoothing=0.1, reduction="none")},
    ]
    for settings in ordinary:
        value = SISANetClassifier(**settings)
        assert state.digest(state.decode(state.encode(value))) == state.digest(value)
    hostile: list[dict[str, Any]] = [
        {"module": functional.cross_entropy},
        {"optimizer": functional.cross_entropy},
        {"optimizer": "other"},
        {"optimizer": partial(torch.optim.SGD, lr="text")},
        {"loss": torch.optim.SGD},
        {"loss": partial(functional.cross_entropy, weight=functional.cross_entropy)},
        {"device": "a/path"},
        {"checkpoint_dir": "states"},
    ]
    for settings in hostile:
        with pytest.raises(UntrustedClassError, match=next(iter(settings))):
            state.decode(state.encode(SISANetClassifier(**settings)))
