"""Optimisers over lanes against torch's own, lane by lane and step by step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam, AdamW, RMSprop

from letheon.deep._optim import (
    CustomOptimizer,
    FlatAdam,
    FlatSGD,
    LaneOptimizer,
    LoopSettings,
    make_optimizer,
)
from letheon.exceptions import TrainingError

W, P, STEPS = 3, 6, 50
SHAPES = [torch.Size([2, 2]), torch.Size([2])]

# name, momentum, weight decay, and torch's own
BY_NAME: list[tuple[str, float, float, Callable[..., Any]]] = [
    ("sgd", 0.0, 0.0, SGD),
    ("sgd", 0.9, 0.0, lambda ps, **rate: SGD(ps, momentum=0.9, **rate)),
    ("sgd", 0.9, 0.01, lambda ps, **rate: SGD(ps, momentum=0.9, weight_decay=0.01, **rate)),
    ("sgd", 0.0, 0.01, lambda ps, **rate: SGD(ps, weight_decay=0.01, **rate)),
    ("adam", 0.0, 0.0, Adam),
    ("adam", 0.0, 0.1, lambda ps, **rate: Adam(ps, weight_decay=0.1, **rate)),
    ("adamw", 0.0, 0.1, lambda ps, **rate: AdamW(ps, weight_decay=0.1, **rate)),
]


def start() -> Tensor:
    return torch.randn(W, P, generator=torch.Generator().manual_seed(0))


def made(name: Any, flat: Tensor, momentum: float, decay: float) -> LaneOptimizer:
    settings = LoopSettings(4, name, 0.1, momentum, decay, "constant", "cross_entropy", "float32")
    return make_optimizer(settings, flat, SHAPES)


def gradient(flat: Tensor) -> Tensor:
    """Gradient of a function with a different curvature in every direction."""
    return flat * torch.linspace(0.2, 2.0, P) + torch.sin(3 * flat)


def plan(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rates and activity of every step and lane; lane 1 begins late, and lane 2 makes no step."""
    rng = torch.Generator().manual_seed(seed)
    rates = 0.01 + 0.04 * torch.rand(STEPS, W, generator=rng)
    active = torch.rand(STEPS, W, generator=rng) < 0.7
    active[:5, 1] = False
    active[:, 2] = False
    return rates, active


def run(optimizer: LaneOptimizer, flat: Tensor, rates: Tensor, active: Tensor) -> list[Tensor]:
    path = []
    for rate, mask in zip(rates, active, strict=True):
        optimizer.step(gradient(flat), rate[:, None], mask[:, None])
        path.append(flat.clone())
    return path


def torch_path(
    line: Tensor, make: Callable[..., Any], rates: Tensor, active: Tensor
) -> list[Tensor]:
    """One lane by torch's optimiser: it is not called in steps without this lane."""
    parameter = line.clone()
    optimizer = make([parameter], lr=1.0)
    path = []
    for rate, mask in zip(rates.tolist(), active.tolist(), strict=True):
        if mask:
            optimizer.param_groups[0]["lr"] = rate
            parameter.grad = gradient(parameter)
            optimizer.step()
        path.append(parameter.clone())
    return path


def memory(optimizer: Any) -> list[Tensor]:
    parts = [
        getattr(optimizer, name, None) for name in ("_velocity", "_first", "_second", "_count")
    ]
    return [part for part in parts if part is not None]


@pytest.mark.parametrize(("name", "momentum", "decay", "make"), BY_NAME)
def test_by_name_equals_torch(
    name: str, momentum: float, decay: float, make: Callable[..., Any]
) -> None:
    flat, (rates, active) = start(), plan()
    path = run(made(name, flat, momentum, decay), flat, rates, active)
    for lane in range(W):
        expected = torch_path(start()[lane], make, rates[:, lane], active[:, lane])
        got = torch.stack(path)[:, lane].numpy()
        np.testing.assert_allclose(got, torch.stack(expected).numpy(), rtol=1e-6, atol=1e-6)
    assert torch.equal(flat[2], start()[2])


@pytest.mark.parametrize(("name", "momentum", "decay", "make"), BY_NAME)
def test_a_lane_that_takes_no_part_stays_as_it_is(
    name: str, momentum: float, decay: float, make: Any
) -> None:
    flat, (rates, active) = start(), plan()
    optimizer = made(name, flat, momentum, decay)
    run(optimizer, flat, rates[:10], torch.ones_like(active[:10]))
    before = [part.clone() for part in (flat, *memory(optimizer))]
    slopes = gradient(flat)
    slopes[1] = 1e15
    mask = torch.tensor([[True], [False], [True]])
    optimizer.step(slopes, torch.full((W, 1), 0.1), mask)
    for old, new in zip(before, (flat, *memory(optimizer)), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[[0, 2]], new[[0, 2]])
        assert torch.isfinite(new).all()


@pytest.mark.parametrize(("name", "momentum", "decay", "make"), BY_NAME)
def test_a_reset_forgets_every_earlier_step(
    name: str, momentum: float, decay: float, make: Any
) -> None:
    flat, (rates, active) = start(), plan()
    optimizer = made(name, flat, momentum, decay)
    run(optimizer, flat, torch.full_like(rates, torch.nan), active)  # also after a divergence
    flat.copy_(start())
    optimizer.reset()
    again = run(optimizer, flat, rates, active)
    fresh_flat = start()
    fresh = made(name, fresh_flat, momentum, decay)
    for one, other in zip(again, run(fresh, fresh_flat, rates, active), strict=True):
        assert torch.equal(one, other)


OWN: dict[str, Callable[..., Any]] = {
    "sgd": lambda ps: SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda ps: Adam(ps, lr=0.05),
    "rmsprop": lambda ps: RMSprop(ps, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", OWN)
def test_an_own_optimiser_trains_every_lane_as_if_alone(name: str) -> None:
    flat, (rates, active) = start(), plan()
    path = run(made(OWN[name], flat, 0.0, 0.0), flat, rates, active)
    for lane in range(W):
        parts = [part.clone() for part in start()[lane].split([4, 2])]
        optimizer = OWN[name](parts)
        for step, mask in enumerate(active[:, lane].tolist()):
            if mask:
                both = gradient(torch.cat(parts)).split([4, 2])
                for part, slope in zip(parts, both, strict=True):
                    part.grad = slope
                optimizer.step()
            np.testing.assert_allclose(path[step][lane].numpy(), torch.cat(parts).numpy(), 1e-6)


@pytest.mark.parametrize("name", OWN)
def test_an_own_optimiser_starts_afresh_too(name: str) -> None:
    flat, (rates, active) = start(), plan()
    optimizer = made(OWN[name], flat, 0.0, 0.0)
    first = run(optimizer, flat, rates, active)
    flat.copy_(start())
    optimizer.reset()
    for one, other in zip(first, run(optimizer, flat, rates, active), strict=True):
        assert torch.equal(one, other)


def test_an_own_optimiser_sees_parameters_in_their_shapes() -> None:
    seen: list[list[torch.Size]] = []

    def make(parameters: Any) -> Any:
        seen.append([part.shape for part in parameters])
        return SGD(parameters, lr=0.1)

    made(make, start(), 0.0, 0.0)
    assert seen == [SHAPES] * W


def test_an_own_optimiser_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(TrainingError, match="optimizer LBFGS needs a closure"):
        made(LBFGS, start(), 0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "kind", "captured"),
    [("sgd", FlatSGD, True), ("adam", FlatAdam, True), (OWN["sgd"], CustomOptimizer, False)],
)
def test_the_choice(given: Any, kind: type, captured: bool) -> None:
    optimizer = made(given, start(), 0.9, 0.0)
    assert isinstance(optimizer, kind)
    assert optimizer.can_be_captured is captured
