"""The Fisher information of a net by Kronecker factors (Martens and Grosse, 2015).

For a layer ``o = W a`` the block of F is the mean of ``(a a') x (g g')``, g = d log p / do; its
approximation is the product of the means, A x G. A convolution is such a layer at T positions
(Grosse and Martens, 2016): A is the mean of the sum over positions of a a', G the mean over rows
and positions of g g'. A bias is the weight of an input that is always 1. Parameters of all other
layers have their diagonal.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from letheon.deep._diagonal import Batch, Diagonal, Power, diagonal, terms

Batches = Callable[[], Iterator[Batch]]


class Eigen(NamedTuple):
    """Eigenvalues, none negative, and eigenvectors of a factor."""

    values: Tensor
    vectors: Tensor


class Block(NamedTuple):
    """Factors of one layer, and where its weight and bias lie in the flat vector."""

    inputs: Eigen
    outputs: Eigen
    places: tuple[slice, ...]

    def applied(self, power: Power, vector: Tensor) -> Tensor:
        """Return ``Q_G [f(l_G l_A') o (Q_G' V Q_A)] Q_A'`` for the layer's part V of the vector."""
        matrix = self._matrix(vector)
        scales = power.of(torch.outer(self.outputs.values, self.inputs.values))
        q_g, q_a = self.outputs.vectors, self.inputs.vectors
        return q_g @ (scales * (q_g.T @ matrix @ q_a)) @ q_a.T

    def put(self, matrix: Tensor, into: Tensor) -> None:
        """Write the layer's part into a flat vector."""
        weight, *bias = self.places
        n_inputs = (weight.stop - weight.start) // len(matrix)
        into[weight] = matrix[:, :n_inputs].reshape(-1)
        if bias:
            into[bias[0]] = matrix[:, -1]

    def _matrix(self, vector: Tensor) -> Tensor:
        weight, *bias = self.places
        columns = [vector[weight].view(len(self.outputs.values), -1)]
        return torch.cat([*columns, *(vector[place][:, None] for place in bias)], dim=1)


class Kronecker:
    """F as a matrix of blocks, one per layer, and a diagonal for `rest`."""

    def __init__(self, blocks: Sequence[Block], rest: Diagonal, places: Sequence[slice]) -> None:
        self.blocks, self.rest, self._places = tuple(blocks), rest, tuple(places)

    def applied(self, power: Power, vector: Tensor) -> Tensor:
        """Return a function of F times a flat vector."""
        result = torch.zeros_like(vector)
        for block in self.blocks:
            block.put(block.applied(power, vector), result)
        begin, scales = 0, power.of(self.rest.values)
        for place in self._places:
            end = begin + place.stop - place.start
            result[place] = scales[begin:end] * vector[place]
            begin = end
        return result


def kronecker(module: nn.Module, batches: Batches) -> Kronecker:
    """Return the Fisher information with Kronecker factors where a layer has them.

    Parameters
    ----------
    module : Module
        The net, in evaluation mode and the caller's own; returns logits.
    batches : callable
        Returns the batches anew: they are read twice where some layers have no factors.
    """
    module.requires_grad_(True)
    places = _places(module)
    layers = _layers_with_factors(module, next(batches()).rows)
    factors = {name: _Factors(layer) for name, layer in layers.items()}
    n_rows = 0
    for rows, draws in batches():
        _look(module, factors, rows, draws)
        n_rows += len(rows)
    blocks = [
        Block(
            _eigen(found.inputs / n_rows),
            _eigen(found.outputs / n_rows),
            tuple(places.pop(part) for part in _parameters_of(name, found.layer)),
        )
        for name, found in factors.items()
    ]
    rest = diagonal(module, batches(), list(places)) if places else Diagonal(_nothing(module))
    return Kronecker(blocks, rest, list(places.values()))


class _Factors:
    """Sums over rows of a layer's factors, gathered while rows go through the net."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        weight = layer.get_parameter("weight").detach().flatten(1)
        n_inputs = weight.shape[1] + (layer.bias is not None)
        self.inputs = weight.new_zeros(n_inputs, n_inputs, dtype=torch.float64)
        self.outputs = weight.new_zeros(len(weight), len(weight), dtype=torch.float64)
        self.output: Tensor

    def on_forward(self, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to the first factor, and keep the output for the gradient."""
        a = _inputs_of(self.layer, args[0].detach()).flatten(0, 1).double()
        self.inputs += a.T @ a
        self.output = output
        # The next layer may work in place.
        return output.clone()

    def add(self, gradient: Tensor, weights: Tensor) -> None:
        """Add to the second factor, from the gradients of every row by itself."""
        g = _by_position(self.layer, gradient).double()
        weighted = (g * weights[:, None, None]).flatten(0, 1)
        self.outputs += weighted.T @ g.flatten(0, 1) / g.shape[1]


def _look(
    module: nn.Module, factors: dict[str, _Factors], rows: Tensor, draws: Tensor | None
) -> None:
    """Add what these rows say to the factors."""
    found = list(factors.values())
    with torch.enable_grad(), _watched(found):
        logits = module(rows)
        likely = functional.log_softmax(logits, dim=1)
        for labels, weights in terms(logits, draws):
            # In evaluation mode rows do not meet, so the gradient of a sum is that of each row.
            total = likely.gather(1, labels[:, None]).sum()
            outputs = [each.output for each in found]
            gradients = torch.autograd.grad(total, outputs, retain_graph=True) if found else ()
            for each, gradient in zip(found, gradients, strict=True):
                each.add(gradient, weights)


@contextmanager
def _watched(factors: Sequence[_Factors]) -> Iterator[None]:
    hooks = [each.layer.register_forward_hook(each.on_forward) for each in factors]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _places(module: nn.Module) -> dict[str, slice]:
    """Return where each parameter lies in the flat vector."""
    places, begin = {}, 0
    for name, part in module.named_parameters():
        places[name] = slice(begin, begin + part.numel())
        begin += part.numel()
    return places


def _layers_with_factors(module: nn.Module, rows: Tensor) -> dict[str, nn.Module]:
    """Return linear layers and convolutions that are used once and share no parameter."""
    owners = Counter(
        id(part) for layer in module.modules() for part in layer.parameters(recurse=False)
    )
    calls: Counter[str] = Counter()
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if _has_factors(layer) and all(owners[id(part)] == 1 for part in layer.parameters())
    }
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: calls.update([name]))
        for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            module(rows[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: layer for name, layer in layers.items() if calls[name] == 1}


def _has_factors(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str) and _is_plain(layer)
    return isinstance(layer, nn.Linear) and _is_plain(layer)


def _is_plain(layer: nn.Module) -> bool:
    """Whether the layer's only parameters are its weight and bias, not what they are made of."""
    return {name for name, _ in layer.named_parameters()} <= {"weight", "bias"} and isinstance(
        layer.weight, nn.Parameter
    )


def _parameters_of(name: str, layer: nn.Module) -> list[str]:
    prefix = f"{name}." if name else ""
    return [f"{prefix}{part}" for part, _ in layer.named_parameters()]


def _inputs_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Return what the layer multiplies with its weight, shape (rows, positions, inputs)."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        windows = functional.unfold(
            x, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        a = windows.transpose(1, 2)
    else:
        a = x.reshape(len(x), -1, x.shape[-1])
    return a if layer.bias is None else torch.cat([a, torch.ones_like(a[..., :1])], dim=2)


def _by_position(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Return gradients of outputs, shape (rows, positions, outputs)."""
    if isinstance(layer, nn.Conv2d):
        return gradient.flatten(2).transpose(1, 2)
    return gradient.reshape(len(gradient), -1, gradient.shape[-1])


def _eigen(factor: Tensor) -> Eigen:
    values, vectors = torch.linalg.eigh(factor)
    return Eigen(values.clamp(min=0.0), vectors)


def _nothing(module: nn.Module) -> Tensor:
    some = next(module.parameters())
    return torch.zeros(0, dtype=torch.float64, device=some.device)
