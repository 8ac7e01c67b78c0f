"""The Fisher information of a net: its diagonal, or Kronecker factors.

The diagonal is made of gradients of single rows:

    F = mean over rows x of sum over labels y of p(y|x) (d log p(y|x) / dw)^2

The labels are the model's own, not those of the rows, and every gradient is squared by itself: the
square of a mean over a batch is something else.

Kronecker factors (Martens and Grosse, 2015): for a layer ``o = W a`` the block of F is the mean of
``(a a') x (g g')``, g = d log p / do; its approximation is the product of the means, A x G. A
convolution is such a layer at T positions (Grosse and Martens, 2016): A is the mean of the sum over
positions of a a', G the mean over rows and positions of g g'. A bias is the weight of an input that
is always 1. Parameters of all other layers have their diagonal.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class Block(NamedTuple):
    """Factors of one layer as eigenvalues and eigenvectors, and where its parameters lie.

    Attributes
    ----------
    inputs, outputs : tuple of Tensor
        Eigenvalues, none negative, and eigenvectors of A and G.
    where : int64 tensor of shape (outputs, inputs)
        Places in the flat vector; those of the bias are the last column.
    """

    inputs: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    where: Tensor

    def applied(self, power: Power, matrix: Tensor) -> Tensor:
        """Return ``Q_G [f(l_G l_A') o (Q_G' V Q_A)] Q_A'`` for the layer's part V of a vector."""
        (l_a, q_a), (l_g, q_g) = self.inputs, self.outputs
        scales = power.of(torch.outer(l_g, l_a))
        return q_g @ (scales * (q_g.T @ matrix @ q_a)) @ q_a.T


class Information:
    """An estimate of F: a diagonal, and blocks for layers that have some.

    Parameters
    ----------
    values : Tensor
        The diagonal, in float64.
    where : Tensor or slice
        Places of the diagonal in the flat vector; all by default.
    blocks : sequence of Block
        Blocks of the other places.
    """

    def __init__(
        self, values: Tensor, where: Tensor | slice = slice(None), blocks: Sequence[Block] = ()
    ) -> None:
        self.values, self._where, self.blocks = values, where, tuple(blocks)

    def applied(self, power: Power, vector: Tensor) -> Tensor:
        """Return a function of F times a flat vector."""
        result = torch.zeros_like(vector)
        for block in self.blocks:
            result[block.where] = block.applied(power, vector[block.where])
        result[self._where] = power.of(self.values) * vector[self._where]
        return result


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
) -> Information:
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
    return Information(total / max(n_rows, 1))


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


def kronecker(module: nn.Module, batches: Batches) -> Information:
    """Return the Fisher information with Kronecker factors where a layer has them.

    Parameters
    ----------
    module : Module
        The net, in evaluation mode and the caller's own; returns logits.
    batches : callable
        Returns the batches anew: they are read twice where some layers have no factors.
    """
    module.requires_grad_(True)
    parameters = dict(module.named_parameters())
    device = next(iter(parameters.values())).device
    sizes = [part.numel() for part in parameters.values()]
    numbers = torch.arange(sum(sizes), device=device).split(sizes)
    places = dict(zip(parameters, numbers, strict=True))
    layers = _layers_with_factors(module, next(batches()).rows)
    factors = {name: _Factors(layer) for name, layer in layers.items()}
    n_rows = 0
    for rows, draws in batches():
        _look(module, list(factors.values()), rows, draws)
        n_rows += len(rows)
    blocks = []
    for name, found in factors.items():
        prefix = f"{name}." if name else ""
        own = [places.pop(f"{prefix}{part}") for part, _ in found.layer.named_parameters()]
        where = torch.cat([place.view(len(found.outputs), -1) for place in own], dim=1)
        blocks.append(Block(_eigen(found.inputs / n_rows), _eigen(found.outputs / n_rows), where))
    if not places:
        nothing = torch.zeros(0, dtype=torch.float64, device=device)
        return Information(nothing, slice(0), blocks)
    rest = diagonal(module, batches(), list(places))
    return Information(rest.values, torch.cat(list(places.values())), blocks)


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
        if isinstance(self.layer, nn.Conv2d):
            gradient = gradient.flatten(2).transpose(1, 2)
        # Rows, positions, outputs.
        g = gradient.reshape(len(gradient), -1, gradient.shape[-1]).double()
        weighted = (g * weights[:, None, None]).flatten(0, 1)
        self.outputs += weighted.T @ g.flatten(0, 1) / g.shape[1]


def _look(module: nn.Module, factors: list[_Factors], rows: Tensor, draws: Tensor | None) -> None:
    """Add what these rows say to the factors."""
    with torch.enable_grad(), _hooked({each.layer: each.on_forward for each in factors}):
        logits = module(rows)
        likely = functional.log_softmax(logits, dim=1)
        for labels, weights in terms(logits, draws):
            # In evaluation mode rows do not meet, so the gradient of a sum is that of each row.
            total = likely.gather(1, labels[:, None]).sum()
            outputs = [each.output for each in factors]
            gradients = torch.autograd.grad(total, outputs, retain_graph=True) if factors else ()
            for each, gradient in zip(factors, gradients, strict=True):
                each.add(gradient, weights)


@contextmanager
def _hooked(hooks: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook) for layer, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layers_with_factors(module: nn.Module, rows: Tensor) -> dict[str, nn.Module]:
    """Return linear layers and convolutions that are used once and share no parameter."""
    owners = Counter(
        id(part) for layer in module.modules() for part in layer.parameters(recurse=False)
    )
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if _has_factors(layer) and all(owners[id(part)] == 1 for part in layer.parameters())
    }
    calls: Counter[nn.Module] = Counter()
    hooks = dict.fromkeys(layers.values(), lambda layer, *_: calls.update([layer]))
    with torch.no_grad(), _hooked(hooks):
        module(rows[:1])
    return {name: layer for name, layer in layers.items() if calls[layer] == 1}


def _has_factors(layer: nn.Module) -> bool:
    """Whether it is linear, with a weight and bias that are not made of other parameters."""
    is_linear = isinstance(layer, nn.Linear)
    if isinstance(layer, nn.Conv2d):
        is_linear = layer.groups == 1 and layer.padding_mode == "zeros"
        is_linear = is_linear and not isinstance(layer.padding, str)
    names = {name for name, _ in layer.named_parameters()}
    return is_linear and names <= {"weight", "bias"} and isinstance(layer.weight, nn.Parameter)


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


def _eigen(factor: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp(min=0.0), vectors
