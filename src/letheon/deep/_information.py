"""The Fisher information of a net: its diagonal, or Kronecker factors.

The Fisher information of a net: its diagonal, from gradients of single rows.

    F = mean over rows x of sum over labels y of p(y|x) (d log p(y|x) / dw)^2

The labels are the model's own, not those of the rows, and every gradient is squared by itself: the
square of a mean over a batch is something else.

The Fisher information of a net by Kronecker factors (Martens and Grosse, 2015).

For a layer ``o = W a`` the block of F is the mean of ``(a a') x (g g')``, g = d log p / do; its
approximation is the product of the means, A x G. A convolution is such a layer at T positions
(Grosse and Martens, 2016): A is the mean of the sum over positions of a a', G the mean over rows
and positions of g g'. A bias is the weight of an input that is always 1. Parameters of all other
layers have their diagonal.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from letheon.removal import opaque_repr


class Batch(NamedTuple):
    """Rows, float32; and a uniform number of each, by which its label is drawn, or None for all."""

    rows: Tensor
    draws: Tensor | None

    def __repr__(self) -> str:
        return opaque_repr(self)


class Term(NamedTuple):
    """One label per row and its weight; the weights of a row's terms have the sum 1 on average."""

    labels: Tensor
    weights: Tensor

    def __repr__(self) -> str:
        return opaque_repr(self)


class Power(NamedTuple):
    """The function ``min(1 / (f + damping), clamp)^exponent`` of the Fisher information."""

    exponent: float
    damping: float
    clamp: float | None = None

    def of(self, information: Tensor) -> Tensor:
        """Return its values."""
        inverse = 1.0 / (information + self.damping)
        if self.clamp is not None:
            inverse = inverse.clamp(max=self.clamp)
        return inverse**self.exponent


class Diagonal:
    """F as a diagonal matrix; `values` has one float64 per parameter, in the flat order."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def applied(self, power: Power, vector: Tensor) -> Tensor:
        """Return a function of F times a flat vector."""
        return power.of(self.values) * vector


def terms(logits: Tensor, draws: Tensor | None) -> list[Term]:
    """Return the labels that an expectation over the model's labels is made of.

    All of them, weighted by their probabilities; or one per row, drawn by a uniform number.
    """
    shares = functional.softmax(logits.detach().double(), dim=1)
    n_rows, n_classes = shares.shape
    if draws is None:
        all_labels = torch.arange(n_classes, device=logits.device)
        return [Term(label.expand(n_rows), shares[:, label]) for label in all_labels]
    # A product, because a GPU has no cumulative sum that adds in a fixed order.
    below = torch.ones(n_classes, n_classes, dtype=shares.dtype, device=shares.device).triu()
    labels = (shares @ below < draws[:, None]).sum(dim=1).clamp(max=n_classes - 1)
    return [Term(labels, torch.ones_like(shares[:, 0]))]


def diagonal(
    module: nn.Module, batches: Iterable[Batch], names: Sequence[str] | None = None
) -> Diagonal:
    """Return the diagonal of the Fisher information.

    Parameters
    ----------
    module : Module
        The net, in evaluation mode; returns logits.
    batches : iterable of Batch
        Gradients of all rows of a batch are in memory at once: rows x parameters.
    names : sequence of str, optional
        Parameters to look at; all of them by default.
    """
    everything = {name: part.detach() for name, part in module.named_parameters()}
    chosen = {name: everything[name] for name in (everything if names is None else names)}
    gradients = row_gradients(module, chosen)
    total = torch.zeros(sum(part.numel() for part in chosen.values()), dtype=torch.float64)
    total, n_rows = total.to(next(iter(everything.values())).device), 0
    # `grad` has a graph of its own; nothing else needs one.
    with torch.no_grad():
        for rows, draws in batches:
            for labels, weights in terms(module(rows), draws):
                found = gradients(rows, labels).values()
                squares = [weights.float() @ part.flatten(1).square() for part in found]
                total += torch.cat(squares)
            n_rows += len(rows)
    return Diagonal(total / max(n_rows, 1))


def row_gradients(
    module: nn.Module, parameters: Mapping[str, Tensor]
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Return the function (rows, labels) -> d log p(label | row) / dw of every row by itself.

    All rows at once, or one after the other where torch cannot vectorise the module: some layers,
    and code that looks at values, have no rule for it.
    """
    given, refused = dict(parameters), list[RuntimeError]()

    def log_likelihood(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(module, values, (row[None],))
        return -functional.cross_entropy(logits, label[None])

    at_once = vmap(grad(log_likelihood), in_dims=(None, 0, 0))

    def one_by_one(rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = []
        for row, label in zip(rows, labels, strict=True):
            leaves = {name: part.detach().requires_grad_() for name, part in given.items()}
            with torch.enable_grad():
                value = log_likelihood(leaves, row, label)
            found.append(torch.autograd.grad(value, list(leaves.values())))
        stacks = (torch.stack(parts) for parts in zip(*found, strict=True))
        return dict(zip(given, stacks, strict=True))

    def gradients(rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if not refused:
            try:
                return at_once(given, rows, labels)  # type: ignore[no-any-return]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                refused.append(error)
        return one_by_one(rows, labels)

    return gradients


def gaussian_kl(mean0: ArrayLike, var0: ArrayLike, mean1: ArrayLike, var1: ArrayLike) -> float:
    """Return KL(N(mean0, var0) || N(mean1, var1)) of independent normal numbers.

        1/2 sum ((mean0 - mean1)^2 / var1 + var0 / var1 - log(var0 / var1) - 1)

    With the laws of scrubbed and of retrained parameters this bounds the information that remains
    (Golatkar et al. 2020, Proposition 1). It needs the retrained net, so it serves to evaluate and
    cannot be claimed. The authors' code leaves out the factor 1/2.

    Examples
    --------
    >>> gaussian_kl([0.0, 1.0], [1.0, 1.0], [0.0, 3.0], [1.0, 4.0])
    0.8181471805599454
    """
    ratio = np.asarray(var0, np.float64) / np.asarray(var1, np.float64)
    gap = np.asarray(mean0, np.float64) - np.asarray(mean1, np.float64)
    terms_of_sum = gap**2 / np.asarray(var1, np.float64) + ratio - np.log(ratio) - 1.0
    return float(terms_of_sum.sum() / 2)


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


# An estimate of the Fisher information F, as a matrix that functions can be taken of.
Information = Diagonal | Kronecker


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
