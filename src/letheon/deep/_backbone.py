"""A frozen feature extractor: a net whose weights never change again."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon import state
from letheon.deep._device import CPU, hold_rows, repeatable, resolve_device
from letheon.deep._module import has_same_bits, named_tensors
from letheon.exceptions import TrainingError
from letheon.removal import Cache

Weights = Mapping[str, Any]

# How far features of a row in a batch may be from those of the row alone, of the largest feature:
# kernels for other shapes add in another order. Nothing that is learned from is in a batch.
_ROUNDING = 1e-4
_PROBED = 8
_REPEATED = 32


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
        The module's ``state_dict()``. None takes the weights with which the factory made it: drawn
        from torch's generator, which is left as it was, so seed it first (`torch.manual_seed`);
        two calls in a row draw the same.
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
        self.factory, self.arguments = factory, tuple(arguments)
        module = self._made()
        self._keep(module.state_dict() if weights is None else weights)
        _fill(module, self._weights)

    def _keep(self, weights: Weights) -> None:
        self._weights = {name: _frozen(name, value) for name, value in weights.items()}
        self.fingerprint: str = state.digest([self.factory, self.arguments, self._weights])
        # By device: a module with the weights in it, and copies of its tensors at that time.
        self._modules: Cache[dict[str, tuple[nn.Module, dict[str, Tensor]]]] = Cache({})

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
            The module gives something else than one finite vector per row, or one of its
            parameters or buffers changes.
        """
        return self.of_rows(hold_rows(self, X), batch_size=batch_size, device=device)

    def of_rows(self, rows: NDArray[Any], *, batch_size: int, device: str) -> NDArray[Any]:
        """Return the features of rows that were checked before."""
        unit = resolve_device(device)
        module, tensors = self._built(unit)
        with torch.no_grad(), torch.autocast(unit.type, enabled=False):
            parts = [
                _one_vector_per_row(module, _batch(rows[begin : begin + batch_size], unit))
                for begin in range(0, len(rows), batch_size)
            ]
        self._require_constant(module, tensors)
        features: NDArray[Any] = torch.cat(parts).numpy()
        n_bad = int((~np.isfinite(features).all(axis=1)).sum())
        if n_bad:
            raise TrainingError(
                f"the backbone gives NaN or infinity for {n_bad} of {len(features)} row(s); scale "
                "the rows as it expects them, or look at its weights"
            )
        return features

    def of_single_rows(self, rows: NDArray[Any], *, device: str) -> NDArray[Any]:
        """Return the features of rows to learn from: each row goes through the module alone.

        On one device with one version of the libraries they are a function of the row, bit by
        bit: kernels are deterministic, a CPU uses one thread, and nothing else is in the batch.
        Some rows go through once more at the end, in another order, and must give the same bits.

        Raises
        ------
        TrainingError
            As `features`, and for a module that gives a row other features later.
        """
        unit = resolve_device(device)
        some = np.unique(np.linspace(0, len(rows) - 1, _REPEATED).astype(np.int64))[::-1]
        with repeatable(unit, deterministic=True):
            features = self.of_rows(rows, batch_size=1, device=device)
            again = self.of_rows(rows[some], batch_size=1, device=device)
        if again.tobytes() != features[some].tobytes():
            self._modules.content = None
            raise TrainingError(
                "the backbone gives a row other features when it sees the row again, so that they "
                "depend on chance or on other rows: dropout that is always on, or a memory of "
                "earlier rows? Features must be a function of the row alone"
            )
        return features

    def require_row_by_row(self, rows: NDArray[Any], *, batch_size: int, device: str) -> None:
        """Raise `TrainingError` if features of a row depend on other rows, or on chance.

        Features that are learned from are computed row by row, so other rows cannot enter them.
        Answers are computed in batches: a module that mixes their rows gives answers for features
        that nothing was learned from. One batch is looked at, of rows from all over. With other
        rows beside it a row must keep its features bit by bit; in another place of the batch, and
        alone, up to rounding.
        """
        unit = resolve_device(device)
        module, tensors = self._built(unit)
        where = np.linspace(0, len(rows) - 1, min(batch_size, len(rows))).astype(np.int64)
        try:
            with torch.no_grad(), repeatable(unit, deterministic=True):
                _require_row_by_row(module, _batch(rows[where], unit))
        except Exception:
            # A module that changes itself is refused for that: the text says where to look.
            self._require_constant(module, tensors)
            # It may have kept something of these rows.
            self._modules.content = None
            raise
        self._require_constant(module, tensors)

    def _built(self, device: torch.device) -> tuple[nn.Module, dict[str, Tensor]]:
        kept = self._modules.content
        if kept is None:
            kept = self._modules.content = {}
        if str(device) not in kept:
            module = self._made()
            _fill(module, self._weights)
            module = module.to(device).eval().requires_grad_(False)
            tensors = {name: part.detach().clone() for name, part in named_tensors(module).items()}
            kept[str(device)] = module, tensors
        return kept[str(device)]

    def _require_constant(self, module: nn.Module, before: dict[str, Tensor]) -> None:
        """Raise if a module has changed itself: it is frozen, and must remember no rows."""
        now = named_tensors(module)
        changed = now.keys() ^ before.keys()
        common = now.keys() & before.keys()
        changed |= {name for name in common if not has_same_bits(now[name], before[name])}
        if changed:
            self._modules.content = None
            name = min(changed)
            kind = "parameter" if name in dict(module.named_parameters()) else "buffer"
            raise TrainingError(
                f"{kind} {name} of the backbone changes in evaluation mode, so that features of a "
                "row depend on the rows before it; make it a constant"
            )

    def _made(self) -> nn.Module:
        # Initial weights are drawn, but not at the cost of the caller's generator.
        with repeatable(CPU, deterministic=False), torch.device(CPU):
            module = self.factory(*self.arguments)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"the factory of a backbone returned {type(module).__name__}; expected a "
                "torch.nn.Module"
            )
        for name, part in module.named_parameters():
            if part.is_floating_point() and part.dtype != torch.float32:
                raise TypeError(
                    f"parameter {name} of the backbone is {part.dtype}, and rows reach it as "
                    "float32; the factory must return a module in float32"
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
        backbone._keep(weights)
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
    order = torch.randperm(len(batch))
    moved = torch.empty_like(together)
    parts = _one_vector_per_row(module, batch[order.to(batch.device)])
    some = np.unique(np.linspace(0, len(batch) - 1, _PROBED).astype(np.int64)).tolist()
    alone = torch.cat([_one_vector_per_row(module, batch[k : k + 1]) for k in some])
    if {parts.shape[1], alone.shape[1]} != {together.shape[1]}:
        raise TrainingError("the backbone gives another number of features to other batches")
    moved[order] = parts
    # Features that are not finite have an error of their own.
    gaps = torch.cat([together - moved, together[some] - alone]).nan_to_num(0.0)
    most = _ROUNDING * together.nan_to_num(0.0, 0.0, 0.0).abs().max()
    if gaps.abs().max() > most or _depends_on_neighbours(module, batch, together):
        raise TrainingError(
            "the backbone mixes the rows of a batch: a row has other features alone than among "
            "other rows. Does it use BatchNorm without running statistics, or dropout that is "
            "always on? Use a module whose features depend on one row at a time"
        )


def _depends_on_neighbours(module: nn.Module, batch: Tensor, together: Tensor) -> bool:
    """Whether bits of a row's features change with the other rows, in the same place.

    Shapes and kernels are the same, so that rounding is no excuse.
    """
    for kept in (slice(0, None, 2), slice(1, None, 2)):
        other = batch.roll(1, 0)
        other[kept] = batch[kept]
        if not has_same_bits(_one_vector_per_row(module, other)[kept], together[kept]):
            return True
    return False
