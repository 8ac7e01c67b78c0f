"""The Fisher information of a network: its diagonal, or Kronecker factors.

The diagonal is computed from row gradients:

    F = mean over rows x of sum over labels y of p(y|x) (d log p(y|x) / dw)^2

The labels are those that the model predicts, not those of the rows. Every row gradient is squared
by itself; the square of a mean over a batch is a different quantity.

Kronecker factors (Martens and Grosse, 2015): for a layer ``o = W a``, the block of F is the mean of
``(a a') x (g g')``, where g = d log p / do. It is approximated by the product of the means, A x G.
A convolution is such a layer at T positions (Grosse and Martens, 2016): A is the mean of the sum
over positions of a a', G the mean over rows and positions of g g'. A bias is the weight of an input
that is always 1. For parameters of all other layers, the diagonal is used.
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


class FisherBatch(NamedTuple):
    """Float32 rows, and for each row a uniform random number that selects its label.

    If `draws` is None, all labels are used.
    """

    rows: Tensor
    draws: Tensor | None

    def __repr__(self) -> str:
        return opaque_repr(self)


class LabelTerm(NamedTuple):
    """One label per row and its weight in an expectation over labels.

    The weights of all terms of a row sum to 1.
    """

    labels: Tensor
    weights: Tensor

    def __repr__(self) -> str:
        return opaque_repr(self)


class Power(NamedTuple):
    """The function ``min(1 / (f + damping), clamp)^exponent`` of the Fisher information."""

    exponent: float
    damping: float
    clamp: float | None = None

    def evaluate_at(self, information: Tensor) -> Tensor:
        """Return the value of the function for each entry of `information`."""
        inverse = 1.0 / (information + self.damping)
        if self.clamp is not None:
            inverse = inverse.clamp(max=self.clamp)
        return inverse**self.exponent


class KroneckerBlock(NamedTuple):
    """Kronecker factors A and G of one layer, and the positions of its parameters.

    Attributes
    ----------
    inputs, outputs : tuple of Tensor
        Eigenvalues (not negative) and eigenvectors of A and G.
    where : int64 tensor of shape (outputs, inputs)
        Positions of the parameters in the flat vector; the last column has those of the bias.
    """

    inputs: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    where: Tensor

    def apply_power(self, power: Power, matrix: Tensor) -> Tensor:
        """Return the function of this block times a vector, given as the matrix V of the layer.

        The result is ``Q_G [f(l_G l_A') o (Q_G' V Q_A)] Q_A'``.
        """
        (l_a, q_a), (l_g, q_g) = self.inputs, self.outputs
        scales = power.evaluate_at(torch.outer(l_g, l_a))
        return q_g @ (scales * (q_g.T @ matrix @ q_a)) @ q_a.T


class FisherInformation:
    """An estimate of F: a diagonal, and Kronecker blocks for some layers.

    Parameters
    ----------
    values : Tensor
        The diagonal, in float64.
    where : Tensor or slice
        Positions of these entries in the flat vector; all positions by default.
    blocks : sequence of KroneckerBlock
        Blocks of the other positions.
    """

    def __init__(
        self,
        values: Tensor,
        where: Tensor | slice = slice(None),
        blocks: Sequence[KroneckerBlock] = (),
    ) -> None:
        self.values, self._where, self.blocks = values, where, tuple(blocks)

    def apply_power(self, power: Power, vector: Tensor) -> Tensor:
        """Return the function `power` of F times a flat vector."""
        result = torch.zeros_like(vector)
        for block in self.blocks:
            result[block.where] = block.apply_power(power, vector[block.where])
        result[self._where] = power.evaluate_at(self.values) * vector[self._where]
        return result


def label_terms(logits: Tensor, draws: Tensor | None) -> list[LabelTerm]:
    """Return the terms of an expectation over the labels that the model predicts.

    Without `draws`, these are all labels, weighted by their probabilities. Otherwise there is
    one label per row; `draws` has for each row a uniform random number that selects its label.
    """
    shares = functional.softmax(logits.detach().double(), dim=1)
    n_rows, n_classes = shares.shape
    if draws is None:
        all_labels = torch.arange(n_classes, device=logits.device)
        return [LabelTerm(label.expand(n_rows), shares[:, label]) for label in all_labels]
    # A matrix product: the cumulative sum of a GPU does not add in a fixed order.
    below = torch.ones(n_classes, n_classes, dtype=shares.dtype, device=shares.device).triu()
    labels = (shares @ below < draws[:, None]).sum(dim=1).clamp(max=n_classes - 1)
    return [LabelTerm(labels, torch.ones_like(shares[:, 0]))]


def diagonal_fisher(
    module: nn.Module, batches: Iterable[FisherBatch], names: Sequence[str] | None = None
) -> FisherInformation:
    """Return the diagonal of the Fisher information.

    Parameters
    ----------
    module : Module
        The network, in evaluation mode; returns logits.
    batches : iterable of FisherBatch
        Batches of rows. The gradients of all rows of a batch are in memory at once (rows x
        parameters).
    names : sequence of str, optional
        Names of the parameters to include; all by default.
    """
    everything = {name: part.detach() for name, part in module.named_parameters()}
    chosen = {name: everything[name] for name in (everything if names is None else names)}
    compute_gradients = row_gradients(module, chosen)
    total = torch.zeros(sum(part.numel() for part in chosen.values()), dtype=torch.float64)
    total, n_rows = total.to(next(iter(everything.values())).device), 0
    # `grad` builds its own graph; nothing else needs one.
    with torch.no_grad():
        for rows, draws in batches:
            for labels, weights in label_terms(module(rows), draws):
                parts = compute_gradients(rows, labels).values()
                squares = [weights.float() @ part.flatten(1).square() for part in parts]
                total += torch.cat(squares)
            n_rows += len(rows)
    return FisherInformation(total / max(n_rows, 1))


def row_gradients(
    module: nn.Module, parameters: Mapping[str, Tensor]
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Return a function (rows, labels) -> d log p(label | row) / dw, with one gradient per row.

    The function computes all rows at once, or one after the other if torch cannot vectorise the
    module: some layers, and code that branches on values, are not supported by vmap.
    """
    current, errors = dict(parameters), list[RuntimeError]()

    def log_likelihood(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(module, values, (row[None],))
        return -functional.cross_entropy(logits, label[None])

    at_once = vmap(grad(log_likelihood), in_dims=(None, 0, 0))

    def one_by_one(rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        gradients = []
        for row, label in zip(rows, labels, strict=True):
            leaves = {name: part.detach().requires_grad_() for name, part in current.items()}
            with torch.enable_grad():
                value = log_likelihood(leaves, row, label)
            gradients.append(torch.autograd.grad(value, list(leaves.values())))
        stacks = (torch.stack(parts) for parts in zip(*gradients, strict=True))
        return dict(zip(current, stacks, strict=True))

    def compute_gradients(rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if not errors:
            try:
                return at_once(current, rows, labels)  # type: ignore[no-any-return]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                errors.append(error)
        return one_by_one(rows, labels)

    return compute_gradients


def gaussian_kl(mean0: ArrayLike, var0: ArrayLike, mean1: ArrayLike, var1: ArrayLike) -> float:
    """Return the Kullback-Leibler divergence between two sets of independent normal variables.

    For N(mean0, var0) and N(mean1, var1) it is

        1/2 sum ((mean0 - mean1)^2 / var1 + var0 / var1 - log(var0 / var1) - 1)

    For the distributions of scrubbed and of retrained parameters, the divergence bounds the
    remaining information (Golatkar et al. 2020, Proposition 1). It requires the retrained network,
    so it is a measure for evaluation, not a guarantee. The authors' code omits the factor 1/2.

    Parameters
    ----------
    mean0, var0, mean1, var1 : array-like of shape (n,)
        Means and variances of both distributions.

    Returns
    -------
    float

    Examples
    --------
    >>> gaussian_kl([0.0, 1.0], [1.0, 1.0], [0.0, 3.0], [1.0, 4.0])
    0.8181471805599454
    """
    ratio = np.asarray(var0, np.float64) / np.asarray(var1, np.float64)
    gap = np.asarray(mean0, np.float64) - np.asarray(mean1, np.float64)
    terms_of_sum = gap**2 / np.asarray(var1, np.float64) + ratio - np.log(ratio) - 1.0
    return float(terms_of_sum.sum() / 2)


FisherBatches = Callable[[], Iterator[FisherBatch]]


def kronecker_fisher(module: nn.Module, batches: FisherBatches) -> FisherInformation:
    """Return the Fisher information, with Kronecker factors for layers that have them.

    Parameters
    ----------
    module : Module
        The network, in evaluation mode; returns logits. It is modified.
    batches : callable
        Function that returns an iterator over the batches. It is called again for layers without
        factors.
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
        _add_rows(module, list(factors.values()), rows, draws)
        n_rows += len(rows)
    blocks = []
    for name, sums in factors.items():
        prefix = f"{name}." if name else ""
        own = [places.pop(f"{prefix}{part}") for part, _ in sums.layer.named_parameters()]
        where = torch.cat([place.view(len(sums.outputs), -1) for place in own], dim=1)
        inputs, outputs = (_decompose_factor(part / n_rows) for part in (sums.inputs, sums.outputs))
        blocks.append(KroneckerBlock(inputs, outputs, where))
    if not places:
        nothing = torch.zeros(0, dtype=torch.float64, device=device)
        return FisherInformation(nothing, slice(0), blocks)
    rest = diagonal_fisher(module, batches(), list(places))
    return FisherInformation(rest.values, torch.cat(list(places.values())), blocks)


class _Factors:
    """Running sums over rows of the Kronecker factors of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        weight = layer.get_parameter("weight").detach().flatten(1)
        n_inputs = weight.shape[1] + (layer.bias is not None)
        self.inputs = weight.new_zeros(n_inputs, n_inputs, dtype=torch.float64)
        self.outputs = weight.new_zeros(len(weight), len(weight), dtype=torch.float64)
        self.output: Tensor

    def on_forward(self, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Forward hook: add the inputs to the factor A, and store the output for the gradient."""
        a = _inputs_of(self.layer, args[0].detach()).flatten(0, 1).double()
        self.inputs += a.T @ a
        self.output = output
        # The next layer may modify its input in place.
        return output.clone()

    def add(self, gradient: Tensor, weights: Tensor) -> None:
        """Add the gradients of the output, weighted by row, to the factor G."""
        if isinstance(self.layer, nn.Conv2d):
            gradient = gradient.flatten(2).transpose(1, 2)
        # Rows, positions, outputs.
        g = gradient.reshape(len(gradient), -1, gradient.shape[-1]).double()
        weighted = (g * weights[:, None, None]).flatten(0, 1)
        self.outputs += weighted.T @ g.flatten(0, 1) / g.shape[1]


def _add_rows(
    module: nn.Module, factors: list[_Factors], rows: Tensor, draws: Tensor | None
) -> None:
    """Add the contribution of these rows to the factors."""
    with torch.enable_grad(), _forward_hooks({each.layer: each.on_forward for each in factors}):
        logits = module(rows)
        likely = functional.log_softmax(logits, dim=1)
        for labels, weights in label_terms(logits, draws):
            # In evaluation mode rows are independent, so the gradient of a sum has row gradients.
            total = likely.gather(1, labels[:, None]).sum()
            outputs = [each.output for each in factors]
            gradients = torch.autograd.grad(total, outputs, retain_graph=True) if factors else ()
            for each, gradient in zip(factors, gradients, strict=True):
                each.add(gradient, weights)


@contextmanager
def _forward_hooks(hooks: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook) for layer, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layers_with_factors(module: nn.Module, rows: Tensor) -> dict[str, nn.Module]:
    """Return linear layers and convolutions, by name, that are called once per forward pass.

    Layers that share a parameter with another layer are omitted.
    """
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
    with torch.no_grad(), _forward_hooks(hooks):
        module(rows[:1])
    return {name: layer for name, layer in layers.items() if calls[layer] == 1}


def _has_factors(layer: nn.Module) -> bool:
    """Return whether Kronecker factors can be computed for a layer.

    It must be linear or a plain convolution, with weight and bias as its only parameters.
    """
    is_linear = isinstance(layer, nn.Linear)
    if isinstance(layer, nn.Conv2d):
        is_linear = layer.groups == 1 and layer.padding_mode == "zeros"
        is_linear = is_linear and not isinstance(layer.padding, str)
    names = {name for name, _ in layer.named_parameters()}
    return is_linear and names <= {"weight", "bias"} and isinstance(layer.weight, nn.Parameter)


def _inputs_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the inputs of the matrix product of a layer, of shape (rows, positions, inputs)."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        windows = functional.unfold(
            x, layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        a = windows.transpose(1, 2)
    else:
        a = x.reshape(len(x), -1, x.shape[-1])
    return a if layer.bias is None else torch.cat([a, torch.ones_like(a[..., :1])], dim=2)


def _decompose_factor(factor: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp(min=0.0), vectors
