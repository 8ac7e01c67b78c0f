"""The Fisher information of a net: its diagonal, from gradients of single rows.

    F = mean over rows x of sum over labels y of p(y|x) (d log p(y|x) / dw)^2

The labels are the model's own, not those of the rows, and every gradient is squared by itself: the
square of a mean over a batch is something else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

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


class Information(Protocol):
    """An estimate of the Fisher information F, as a matrix that functions can be taken of."""

    def applied(self, power: Power, vector: Tensor) -> Tensor:
        """Return a function of F times a flat vector."""


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
