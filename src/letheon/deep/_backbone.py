"""A frozen feature extractor: a net whose weights never change again."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon import state
from letheon.convex._cache import Cache
from letheon.deep._device import resolve_device
from letheon.deep._inputs import hold_rows
from letheon.exceptions import TrainingError

Weights = Mapping[str, Any]

# How far the features of a row may depend on its batch, by rounding (coarse on some GPUs).
_ROUNDING = 1e-2
_PROBED = 8


class Backbone:
    """A net with fixed weights that turns rows into features; immutable.

    A module cannot be written to a file, so this holds what it can be built from again: a factory
    that has a name, and the weights.

    Parameters
    ----------
    factory : callable
        ``factory(*arguments)`` returns the `torch.nn.Module`: a function or class at the top of
        a module, or a factory of `letheon.deep`. It is called again when a saved model is used.
    weights : mapping of str to tensor or array, optional
        The module's ``state_dict()``. None takes the weights with which the factory made it.
    arguments : tuple, default=()
        What the factory is called with.

    Attributes
    ----------
    fingerprint : str
        SHA-256 of factory, arguments and weights.

    Examples
    --------
    >>> from torch import nn
    >>> from letheon.deep import MLP, Backbone
    >>> Backbone(MLP(widths=(8,)), arguments=((4,), 3))
    Backbone(MLP, 67 numbers)
    """

    def __init__(
        self,
        factory: Callable[..., nn.Module],
        weights: Weights | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        self.factory = factory
        self.arguments = tuple(arguments)
        module = self._made()
        held = module.state_dict() if weights is None else weights
        self._weights = {name: _frozen(name, value) for name, value in held.items()}
        _fill(module, self._weights)
        self.fingerprint: str = state.digest([factory, self.arguments, self._weights])
        self._modules: Cache[dict[str, nn.Module]] = Cache({})

    @property
    def weights(self) -> Mapping[str, NDArray[Any]]:
        """The weights by name, read-only."""
        return MappingProxyType(self._weights)

    def features(self, X: Any, *, batch_size: int = 1024, device: str = "auto") -> NDArray[Any]:
        """Return the features of rows, shape (n_rows, n_features), as the module gives them.

        Parameters
        ----------
        X : array-like or Tensor of shape (n_rows, ...)
            Rows, float32 or uint8; other numbers become float32. uint8 is not scaled.
        batch_size : int, default=1024
            Rows at a time.
        device : str, default="auto"
            "cpu", "cuda", or the GPU where there is one.

        Raises
        ------
        TrainingError
            The module gives something else than one finite vector per row.
        """
        return self.of_rows(hold_rows(self, X), batch_size=batch_size, device=device)

    def of_rows(self, rows: NDArray[Any], *, batch_size: int, device: str) -> NDArray[Any]:
        """Return the features of rows that were checked before."""
        unit = resolve_device(device)
        module = self._module(unit)
        with torch.no_grad():
            parts = [
                _one_vector_per_row(module, _batch(rows[begin : begin + batch_size], unit))
                for begin in range(0, len(rows), batch_size)
            ]
        features = torch.cat(parts).numpy()
        if not np.isfinite(features).all():
            bad = len(features) - int(np.isfinite(features).all(axis=1).sum())
            raise TrainingError(
                f"the backbone gives NaN or infinity for {bad} of {len(features)} row(s); scale "
                "the rows as it expects them, or look at its weights"
            )
        return features

    def require_row_by_row(self, rows: NDArray[Any], *, device: str) -> None:
        """Raise `TrainingError` if features of the first rows depend on other rows, or on chance.

        One person's features would then hold something of another's.
        """
        unit = resolve_device(device)
        with torch.no_grad():
            _require_row_by_row(self._module(unit), _batch(rows[:_PROBED], unit))

    def _module(self, device: torch.device) -> nn.Module:
        modules = self._modules.content
        if modules is None:
            modules = self._modules.content = {}
        found = modules.get(str(device))
        if found is None:
            found = self._made()
            _fill(found, self._weights)
            found = modules[str(device)] = found.to(device).eval().requires_grad_(False)
        return found

    def _made(self) -> nn.Module:
        # Initial weights are drawn, but not at the cost of the caller's generator.
        with torch.random.fork_rng(devices=[]):
            module = self.factory(*self.arguments)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"the factory of a backbone returned {type(module).__name__}; expected a "
                "torch.nn.Module"
            )
        return module

    def __repr__(self) -> str:
        name = getattr(self.factory, "__name__", type(self.factory).__name__)
        return f"Backbone({name}, {sum(array.size for array in self._weights.values())} numbers)"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._from_state, (self._to_state(),)

    def _to_state(self) -> dict[str, Any]:
        return {"factory": self.factory, "arguments": self.arguments, "weights": self._weights}

    def _digest_state(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint}

    @classmethod
    def _from_state(cls, values: dict[str, Any]) -> Self:
        """Return the backbone without calling the factory: reading a file runs nothing."""
        backbone = cls.__new__(cls)
        factory, arguments, weights = values["factory"], values["arguments"], values["weights"]
        if not callable(factory) or not isinstance(arguments, tuple):
            raise ValueError("a backbone needs a factory and a tuple of arguments")
        backbone.factory, backbone.arguments = factory, arguments
        backbone._weights = {name: _frozen(name, value) for name, value in weights.items()}
        backbone.fingerprint = state.digest([factory, arguments, backbone._weights])
        backbone._modules = Cache({})
        return backbone


def _batch(rows: NDArray[Any], device: torch.device) -> Tensor:
    return torch.tensor(rows, device=device).to(torch.float32)


def _frozen(name: str, value: Any) -> NDArray[Any]:
    """Return weights as an array of their own that nobody can write to."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bfloat16:
            raise TypeError(f"weights[{name!r}] are bfloat16; turn the module into float32 first")
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(
            f"weights[{name!r}] is {type(value).__name__}; expected the module's state_dict(), "
            "whose values are tensors or arrays"
        )
    array = np.array(value, order="C")
    array.flags.writeable = False
    return array


def _fill(module: nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    try:
        module.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    except RuntimeError as error:
        raise ValueError(f"the weights are not those of the factory's module: {error}") from None


def _one_vector_per_row(module: nn.Module, batch: Tensor) -> Tensor:
    said = module(batch)
    if not isinstance(said, Tensor) or said.ndim < 2 or len(said) != len(batch):
        shape = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
        raise TrainingError(
            f"for {len(batch)} row(s) the backbone gives {shape}; expected one vector per row"
        )
    return said.flatten(1).cpu()


def _require_row_by_row(module: nn.Module, batch: Tensor) -> None:
    together = _one_vector_per_row(module, batch)
    alone = torch.cat([_one_vector_per_row(module, batch[k : k + 1]) for k in range(len(batch))])
    if together.shape != alone.shape:
        raise TrainingError("the backbone gives another number of features to other batches")
    scale = together.abs().max().clamp(min=torch.finfo(together.dtype).tiny)
    if (together - alone).abs().max() > _ROUNDING * scale:
        raise TrainingError(
            "the backbone gives a row other features when it is alone than among other rows, so "
            "that people mix: BatchNorm without running statistics, or dropout that is always on?"
        )
