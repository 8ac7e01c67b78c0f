"""A frozen feature extractor: a network whose weights never change."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon import state
from letheon.deep._device import CPU, copy_rows, reproducible_run, resolve_device
from letheon.deep._module import get_tensors, has_same_bits
from letheon.exceptions import TrainingError
from letheon.removal import Cache

Weights = Mapping[str, Any]

# The assumption of every guarantee of a model with a backbone.
FROZEN = "backbone-never-saw-the-rows"

# Largest difference between features of a row in a batch and alone, relative to the largest one:
# kernels for other shapes add in another order. Training features are never computed in batches.
_ROUNDING = 1e-4
_PROBED = 8
_REPEATED = 32


class Backbone:
    """A network with fixed weights that turns rows into features; immutable.

    A PyTorch module cannot be written to a file safely. So a backbone stores what is needed to
    build the module again: an importable factory and the weights.

    Parameters
    ----------
    factory : callable
        ``factory(*arguments)`` returns the `torch.nn.Module`: a function or class at the top of
        a module, or a factory of `letheon.deep`. It is called again after a saved model is loaded.
    weights : mapping of str to tensor or array, optional
        The module's ``state_dict()``. None uses the initial weights of the factory, which are drawn
        from torch's generator; call `torch.manual_seed` first. The state of the generator is
        restored afterwards, so two calls in a row draw the same weights.
    arguments : tuple, default=()
        Positional arguments of the factory.

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
        module = self._build_module()
        self._set_weights(module.state_dict() if weights is None else weights)
        _load_weights(module, self._weights)

    def _set_weights(self, weights: Weights) -> None:
        self._weights = {name: _freeze_array(name, value) for name, value in weights.items()}
        self.fingerprint: str = state.digest([self.factory, self.arguments, self._weights])
        # By device: the module with its weights, and a copy of its tensors to compare with.
        self._modules: Cache[dict[str, tuple[nn.Module, dict[str, Tensor]]]] = Cache({})

    @property
    def weights(self) -> Mapping[str, NDArray[Any]]:
        """The weights by name, read-only."""
        return MappingProxyType(self._weights)

    def features(self, X: Any, *, batch_size: int = 1024, device: str = "auto") -> NDArray[Any]:
        """Return the features of rows, shape (n_rows, n_features).

        Parameters
        ----------
        X : array-like or Tensor of shape (n_rows, ...)
            Rows, float32 or uint8; other numbers become float32. uint8 is not scaled.
        batch_size : int, default=1024
            Rows per forward pass.
        device : str, default="auto"
            "cpu", "cuda" or "auto", which uses a GPU if there is one.

        Raises
        ------
        TrainingError
            The module does not return one finite vector per row, or one of its parameters or
            buffers changes.
        """
        return self.compute_features(copy_rows(self, X), batch_size=batch_size, device=device)

    def compute_features(self, rows: NDArray[Any], *, batch_size: int, device: str) -> NDArray[Any]:
        """Return the features of rows that are already validated."""
        target = resolve_device(device)
        module, tensors = self._load_module(target)
        with torch.no_grad(), torch.autocast(target.type, enabled=False):
            parts = [
                _compute_vectors(module, _to_batch(rows[begin : begin + batch_size], target))
                for begin in range(0, len(rows), batch_size)
            ]
        self._require_constant(module, tensors)
        features: NDArray[Any] = torch.cat(parts).numpy()
        n_bad = int((~np.isfinite(features).all(axis=1)).sum())
        if n_bad:
            raise TrainingError(
                f"the backbone returns NaN or infinity for {n_bad} of {len(features)} row(s); "
                "scale the rows as the backbone expects, or check its weights"
            )
        return features

    def compute_row_features(self, rows: NDArray[Any], *, device: str) -> NDArray[Any]:
        """Return features for training; every row is computed in a batch of its own.

        On one device and with one version of the libraries, the same row always gives the same
        bits: kernels are deterministic, a CPU uses one thread, and no other row is in the batch. To
        check this, some rows are computed again at the end, in another order.

        Raises
        ------
        TrainingError
            As in `features`, or if the module returns other features for the same row in a second
            run.
        """
        target = resolve_device(device)
        sample = np.unique(np.linspace(0, len(rows) - 1, _REPEATED).astype(np.int64))[::-1]
        with reproducible_run(target, deterministic=True):
            features = self.compute_features(rows, batch_size=1, device=device)
            again = self.compute_features(rows[sample], batch_size=1, device=device)
        if again.tobytes() != features[sample].tobytes():
            self._modules.content = None
            raise TrainingError(
                "the backbone returns different features for the same row in a second run; "
                "features must depend on the row alone. Check for dropout that is always on, and "
                "for layers that store values between calls"
            )
        return features

    def require_row_by_row(self, rows: NDArray[Any], *, batch_size: int, device: str) -> None:
        """Raise `TrainingError` if features of a row depend on other rows, or are random.

        Training features are computed row by row, so other rows cannot affect them. Predictions
        are computed in batches: a module that mixes rows would predict from features that it was
        not trained on. One batch of rows spread over the data is checked. The features of a row
        must be the same bit by bit next to other rows, and up to rounding at another place in the
        batch or alone.
        """
        target = resolve_device(device)
        module, tensors = self._load_module(target)
        where = np.linspace(0, len(rows) - 1, min(batch_size, len(rows))).astype(np.int64)
        try:
            with torch.no_grad(), reproducible_run(target, deterministic=True):
                _require_row_by_row(module, _to_batch(rows[where], target))
        except Exception:
            # If the module changed itself, that error is the more specific one.
            self._require_constant(module, tensors)
            # The module may have stored values of these rows.
            self._modules.content = None
            raise
        self._require_constant(module, tensors)

    def make_module(self) -> nn.Module:
        """Return a new module with the weights, on the CPU and in evaluation mode."""
        module = self._build_module()
        _load_weights(module, self._weights)
        return module.eval()

    def _load_module(self, device: torch.device) -> tuple[nn.Module, dict[str, Tensor]]:
        kept = self._modules.content
        if kept is None:
            kept = self._modules.content = {}
        if str(device) not in kept:
            module = self.make_module().to(device).requires_grad_(False)
            tensors = {name: part.detach().clone() for name, part in get_tensors(module).items()}
            kept[str(device)] = module, tensors
        return kept[str(device)]

    def _require_constant(self, module: nn.Module, before: dict[str, Tensor]) -> None:
        """Raise `TrainingError` if a parameter or buffer of the module has changed.

        A frozen module must not store anything about rows.
        """
        now = get_tensors(module)
        changed = now.keys() ^ before.keys()
        common = now.keys() & before.keys()
        changed |= {name for name in common if not has_same_bits(now[name], before[name])}
        if changed:
            self._modules.content = None
            name = min(changed)
            kind = "parameter" if name in dict(module.named_parameters()) else "buffer"
            raise TrainingError(
                f"{kind} {name} of the backbone changes in evaluation mode, so the features of a "
                f"row depend on earlier rows; use a module that does not change it"
            )

    def _build_module(self) -> nn.Module:
        # Drawing the initial weights must not advance the caller's generator.
        with reproducible_run(CPU, deterministic=False), torch.device(CPU):
            try:
                module = self.factory(*self.arguments)
            except TypeError as error:
                raise TypeError(
                    f"the factory of the backbone failed with arguments={self.arguments!r}; MLP, "
                    f"CNN and ResNet take (shape of a row, number of classes): {error}"
                ) from error
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"the factory of the backbone returned {type(module).__name__}; expected a "
                "torch.nn.Module"
            )
        for name, part in module.named_parameters():
            if part.is_floating_point() and part.dtype != torch.float32:
                raise TypeError(
                    f"parameter {name} of the backbone is {part.dtype}; expected float32, the "
                    "dtype of its input"
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
        """Return the backbone without calling the factory; reading a file must not run code."""
        backbone = cls.__new__(cls)
        factory, arguments, weights = values["factory"], values["arguments"], values["weights"]
        if not callable(factory) or not isinstance(arguments, tuple):
            raise ValueError(
                "the state of the backbone is not valid: expected a callable factory "
                "and a tuple of arguments"
            )
        backbone.factory, backbone.arguments = factory, arguments
        backbone._set_weights(weights)
        return backbone


def _to_batch(rows: NDArray[Any], device: torch.device) -> Tensor:
    return torch.tensor(rows, device=device).to(torch.float32)


def _freeze_array(name: str, value: Any) -> NDArray[Any]:
    """Return a read-only copy of the weights with this name, as an array."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bfloat16:
            raise TypeError(f"weights[{name!r}] are bfloat16; convert the module to float32 first")
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(
            f"weights[{name!r}] is {type(value).__name__}; expected the module's state_dict(), "
            "whose values are tensors or arrays"
        )
    array = np.array(value, order="C")
    array.flags.writeable = False
    return array


def _load_weights(module: nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    try:
        module.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    except RuntimeError as error:
        raise ValueError(
            f"weights do not match the module that the factory returns: {error}"
        ) from None


def _compute_vectors(module: nn.Module, batch: Tensor) -> Tensor:
    output = module(batch)
    if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(batch):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise TrainingError(
            f"for {len(batch)} row(s) the backbone returns {shape}; expected one vector per row"
        )
    return output.flatten(1).cpu()


def _require_row_by_row(module: nn.Module, batch: Tensor) -> None:
    together = _compute_vectors(module, batch)
    order = torch.randperm(len(batch))
    moved = torch.empty_like(together)
    parts = _compute_vectors(module, batch[order.to(batch.device)])
    sample = np.unique(np.linspace(0, len(batch) - 1, _PROBED).astype(np.int64)).tolist()
    alone = torch.cat([_compute_vectors(module, batch[k : k + 1]) for k in sample])
    if {parts.shape[1], alone.shape[1]} != {together.shape[1]}:
        raise TrainingError(
            "the number of features that the backbone returns depends on the "
            "batch; expected a fixed number"
        )
    moved[order] = parts
    # Features that are not finite raise another error.
    gaps = torch.cat([together - moved, together[sample] - alone]).nan_to_num(0.0)
    most = _ROUNDING * together.nan_to_num(0.0, 0.0, 0.0).abs().max()
    if gaps.abs().max() > most or _depends_on_neighbours(module, batch, together):
        raise TrainingError(
            "the backbone mixes the rows of a batch: the features of a row depend on other rows. "
            "Check for BatchNorm without running statistics and for dropout that is always on; "
            "expected a module whose features depend on one row only"
        )


def _depends_on_neighbours(module: nn.Module, batch: Tensor, together: Tensor) -> bool:
    """Return whether the features of a row change if other rows of the batch change.

    Shapes and kernels are the same, so rounding cannot explain a difference.
    """
    for kept in (slice(0, None, 2), slice(1, None, 2)):
        other = batch.roll(1, 0)
        other[kept] = batch[kept]
        if not has_same_bits(_compute_vectors(module, other)[kept], together[kept]):
            return True
    return False
