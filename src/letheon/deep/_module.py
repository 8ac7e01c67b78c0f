"""Modules as functions of flat parameters, and trained networks.

A template is the caller's module as a function of one flat vector of parameters.

A checkpoint contains only parameters, so training must not depend on any other state. Therefore
BatchNorm is trained on the statistics of each batch, and its running statistics are computed
after training, from the remaining rows. Any other buffer must be a constant.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import eq
from types import MethodType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from letheon.deep._device import CPU, reproducible_run
from letheon.exceptions import TrainingError
from letheon.removal import Opaque
from letheon.seeds import Purpose, keyed_hash

Shape = tuple[int, ...]
Statistics = dict[str, Tensor]
Factory = Callable[..., nn.Module]
Parameters = Tensor | list[Tensor]

_PROBE_ROWS = 2
# PyTorch errors for layers written in C++, such as nn.GRU, on a CPU and on a GPU.
_CANNOT_STACK = ("atching rule not implemented", "doesn't have storage")
_FIXED_SIZE = (
    ". This module is built without arguments, so it cannot have fewer logits when the last row of "
    "a class is removed: pass a factory that takes (shape, n_classes)"
)


class Template:
    """What all networks of a model have in common: code, parameter layout and constants.

    Parameters
    ----------
    factory : callable
        Takes the shape of a row and the number of classes, or no arguments, and returns a module.
    shape : tuple of int
        Shape of one row.
    n_classes : int
        Number of outputs that the module must return: logits, or the targets of a regressor.
    seed : int
        Seed of the model, 128 bits.
    constants : mapping of str to Tensor, optional
        Values of constant buffers from an earlier template; by default those of the factory.
    dtype : torch.dtype
        Type of the rows that the module gets.
    is_classifier : bool
        Whether the outputs are logits.

    Attributes
    ----------
    names, shapes, sizes
        Names, shapes and sizes of the parameters, in the order of the flat vector.
    n_parameters : int
        Length p of the flat vector.
    constants : dict of str to Tensor
        Buffers other than BatchNorm's, on the CPU.
    """

    def __init__(
        self,
        factory: Factory,
        shape: Shape,
        n_classes: int,
        seed: int,
        constants: Mapping[str, Tensor] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        is_classifier: bool = True,
    ) -> None:
        self.shape, self.n_classes = shape, n_classes
        self._dtype, self._is_classifier = dtype, is_classifier
        self._factory, self._seed = factory, seed
        self._plain = self._build_module(0)
        self._require_repeatable_start()
        self.names, self.shapes = _parameter_layout(self._plain)
        self.sizes = [part.numel() for part in self.shapes]
        self.n_parameters = sum(self.sizes)
        self._running = frozenset(
            f"{name}.{buffer}" if name else buffer
            for name, norm in _batch_norms(self._plain)
            for buffer, _ in norm.named_buffers(recurse=False)
        )
        self._require_trainable()
        buffers = dict(self._plain.named_buffers())
        self.constants = {name: buffers[name] for name in buffers if name not in self._running}
        if constants is not None:
            self._replace_constants(constants)
        self._training = copy.deepcopy(self._plain).train()
        for _, norm in _batch_norms(self._training):
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        self._stacked = copy.deepcopy(self._training)
        for _, norm in _batch_norms(self._stacked):
            norm.forward = MethodType(_normalise_batch, norm)  # type: ignore[method-assign]
        self._check_output()

    @property
    def has_batch_norm(self) -> bool:
        """Whether the network needs running statistics for predictions."""
        return bool(self._running)

    def initial_flat(self, lane: int) -> Tensor:
        """Return the initial parameters of a lane; they depend only on the seed and its number."""
        module = self._build_module(lane)
        if _parameter_layout(module) != (self.names, self.shapes):
            raise TrainingError(
                "module returned networks with different parameters in two calls; it must build "
                "the same architecture every time"
            )
        parts = [part.detach().reshape(-1) for part in module.parameters()]
        return torch.cat(parts) if parts else torch.empty(0)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, as views of a flat vector."""
        parts = zip(self.names, flat.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def split_lanes(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters of networks (..., p) as views, each of the shape (..., *shape)."""
        parts = zip(flat.split(self.sizes, dim=-1), self.shapes, strict=True)
        return [part.view(*flat.shape[:-1], *shape) for part, shape in parts]

    def train_logits(self, flat: Parameters, x: Tensor) -> Tensor:
        """Return the logits of a batch in training mode.

        Dropout is active, and BatchNorm uses the statistics of the batch. `flat` is a vector (p,)
        or what `split_lanes` returns for it.
        """
        logits: Tensor = functional_call(self._training, self._name_parts(flat), (x,))
        return logits

    def compute_stacked_logits(self, flat: Parameters, x: Tensor) -> Tensor:
        """Return the logits of W networks, each for its own batch of k rows, in training mode.

        `flat` has shape (W, p), or is what `split_lanes` returns for it. `x` has shape (W, k, ...),
        and the logits have shape (W, k, C).
        """

        def logits_of_net(line: Parameters, rows: Tensor) -> Any:
            return functional_call(self._stacked, self._name_parts(line), (rows,))

        try:
            # The fused kernels of attention fail under vmap on a GPU, because they need another
            # order of the axes, and run network by network on a CPU.
            with sdpa_kernel(SDPBackend.MATH):
                logits: Tensor = vmap(logits_of_net, randomness="different")(flat, x)
        except RuntimeError as error:
            if not any(words in str(error) for words in _CANNOT_STACK):
                raise
            raise TrainingError(
                f"a layer of this module cannot be trained in several networks at once ({error}); "
                "set lane_width=1"
            ) from error
        return logits

    def _name_parts(self, flat: Parameters) -> dict[str, Tensor]:
        if isinstance(flat, Tensor):
            return self.unflatten(flat)
        return dict(zip(self.names, flat, strict=True))

    def running_statistics(self, flat: Tensor, batches: Iterable[Tensor]) -> Statistics:
        """Return BatchNorm's running means and variances, averaged equally over all batches.

        The result is empty for a module without BatchNorm.
        """
        if not self.has_batch_norm:
            return {}
        module = self.make_module(flat, {})
        for _, norm in _batch_norms(module):
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        with torch.no_grad():
            for batch in batches:
                module(batch)
        return {name: value for name, value in module.named_buffers() if name in self._running}

    def make_module(self, flat: Tensor, statistics: Mapping[str, Tensor]) -> nn.Module:
        """Return a new module with these parameters, in evaluation mode."""
        if len(flat) != self.n_parameters:
            raise TrainingError(
                f"module builds a network with {self.n_parameters} parameters, but the saved "
                f"network has {len(flat)}; use the factory that the model was trained with"
            )
        module = copy.deepcopy(self._plain).to(flat.device)
        with torch.no_grad():
            values = self.unflatten(flat) | dict(statistics)
            module.load_state_dict(values, strict=False)
        return module.eval().requires_grad_(False)

    def to(self, device: torch.device) -> Self:
        """Move the constant buffers to a device and return the template.

        Parameters are not moved: they are passed with every call.
        """
        self._training.to(device)
        self._stacked.to(device)
        return self

    def _replace_constants(self, saved: Mapping[str, Tensor]) -> None:
        both = self.constants, saved
        if not eq(*({name: value.shape for name, value in part.items()} for part in both)):
            raise TrainingError(
                "module builds a network whose constant buffers differ from those of the saved "
                "network; use the factory that the model was trained with"
            )
        for name, value in saved.items():
            self.constants[name].copy_(value)

    def _build_module(self, lane: int) -> nn.Module:
        with reproducible_run(CPU, deterministic=False), torch.device(CPU):
            torch.default_generator.manual_seed(keyed_hash(self._seed, Purpose.NET_INIT, lane))
            module = _call_factory(self._factory, self.shape, self.n_classes)
        if not isinstance(module, nn.Module):
            name = type(module).__name__
            # Possibly a factory of factories.
            hint = f"; did you mean module={name}()?" if callable(module) else ""
            raise TrainingError(
                f"module returned a {name}; expected a factory that returns a torch.nn.Module{hint}"
            )
        for name, part in get_tensors(module).items():
            if is_lazy(part):
                raise TrainingError(
                    f"{name} has no shape yet, because it belongs to a lazy layer; use a layer "
                    "with fixed sizes, computed from the shape that the factory gets"
                )
        return module.cpu()

    def _require_repeatable_start(self) -> None:
        """Raise `TrainingError` if a second call with the same seed gives different weights."""
        again = get_tensors(self._build_module(0))
        for name, value in get_tensors(self._plain).items():
            if name not in again or not has_same_bits(value, again[name]):
                raise TrainingError(
                    f"module builds a different {name} in a second call with the same seed; it "
                    "must use torch's random generator only, so training can be repeated"
                )

    def _require_trainable(self) -> None:
        for name, part in self._plain.named_parameters():
            if not part.requires_grad:
                raise TrainingError(
                    f"parameter {name} has requires_grad=False; register it as a buffer, or use "
                    "CertifiedHeadClassifier for a frozen backbone"
                )
            if part.dtype != torch.float32:
                raise TrainingError(f"parameter {name} is {part.dtype}; expected float32")
        for name, norm in _batch_norms(self._plain):
            if not norm.track_running_stats:
                raise TrainingError(
                    f"BatchNorm {name} has track_running_stats=False, so a prediction would depend "
                    "on the other rows of its batch; set it to True"
                )
        if not self.n_parameters:
            raise TrainingError("the module has no parameters, so there is nothing to train")

    def _check_output(self) -> None:
        """Check the output for a few rows of zeros, and that training changes no constant buffer.

        Raises `TrainingError` if a check fails.
        """
        buffers = [(name, part, part.clone()) for name, part in self._training.named_buffers()]
        logits, again = self._run_on_zeros(), self._run_on_zeros()
        expected = (_PROBE_ROWS, self.n_classes)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            advice, each = "", f"number for each of the {self.n_classes} targets"
            if self._is_classifier:
                advice = "" if _takes_shape(self._factory) else _FIXED_SIZE
                each = f"logit for each of the {self.n_classes} classes"
            raise TrainingError(
                f"module returns {got} for {_PROBE_ROWS} rows of shape {self.shape}; expected a "
                f"tensor of shape {expected}, with one {each}{advice}"
            )
        if not torch.equal(logits.nan_to_num(), again.nan_to_num()):
            raise TrainingError(
                "module returns different outputs for the same rows and seed; it must use torch's "
                "random generator only and store no values, so training can be repeated"
            )
        for name, value, before in buffers:
            if not torch.equal(value, before):
                raise TrainingError(
                    f"buffer {name} changes in training; only BatchNorm's running statistics may "
                    "change, because a checkpoint contains the parameters only"
                )

    def _run_on_zeros(self) -> Any:
        with reproducible_run(CPU, deterministic=False), torch.device(CPU), torch.no_grad():
            torch.default_generator.manual_seed(0)
            rows = torch.zeros(_PROBE_ROWS, *self.shape, dtype=self._dtype)
            try:
                return self._training(rows)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise TrainingError(
                    f"module fails on a trial batch of {_PROBE_ROWS} rows of shape {self.shape}, "
                    f"{str(self._dtype).removeprefix('torch.')}: {error}"
                ) from error


def _call_factory(factory: Factory, shape: Shape, n_classes: int) -> Any:
    """Call a factory with the shape and the number of classes, or without arguments."""
    if _takes_shape(factory):
        return factory(shape, n_classes)
    signature = inspect.signature(factory)
    try:
        signature.bind()
    except TypeError:
        raise TrainingError(
            f"module={factory!r} has the signature {signature}; expected a factory that takes the "
            "shape of a row and the number of classes, or no arguments"
        ) from None
    return factory()


def _takes_shape(factory: Factory) -> bool:
    """Return whether a factory takes the shape of a row and the number of classes.

    If both parameters are optional, they must be named ``shape`` and ``n_classes``. Others, such as
    ``hidden=32, dropout=0.1``, mean something else.
    """
    signature = inspect.signature(factory)
    try:
        signature.bind((1,), 2)
    except TypeError:
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [each for each in signature.parameters.values() if each.kind in by_position][:2]
    required = [each for each in first if each.default is inspect.Parameter.empty]
    return bool(required) or [each.name for each in first] in ([], ["shape", "n_classes"])


def get_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, including buffers outside the state_dict."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def has_same_bits(one: Tensor, two: Tensor) -> bool:
    """Return whether two tensors have the same bits: NaN equals itself, 0 does not equal -0."""
    if one.shape != two.shape or one.dtype != two.dtype or one.device != two.device:
        return False
    parts = (part.detach().contiguous().reshape(-1).view(torch.uint8) for part in (one, two))
    return torch.equal(*parts)


def _batch_norms(module: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]


def _parameter_layout(module: nn.Module) -> tuple[tuple[str, ...], tuple[torch.Size, ...]]:
    named = list(module.named_parameters())
    return tuple(name for name, _ in named), tuple(part.shape for _, part in named)


def _normalise_batch(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise each channel over the batch.

    Return ``(x - mean) / sqrt(variance + eps) * weight + bias``. This is written out because
    torch's own version needs the memory order of the axes, so it fails under vmap on a GPU.
    """
    axes = [0, *range(2, x.ndim)]
    values = x.float()
    centred = values - values.mean(axes, keepdim=True)
    variance = (centred * centred).mean(axes, keepdim=True)
    result = centred * torch.rsqrt(variance + norm.eps)
    if norm.affine:
        shape = (1, -1, *[1] * (x.ndim - 2))
        result = result * norm.weight.view(shape) + norm.bias.view(shape)
    return result.to(x.dtype)


@dataclass(eq=False, repr=False)
class Nets(Opaque):
    """W trained networks of one architecture. They are immutable: a removal creates new networks.

    Parameters
    ----------
    flat : Tensor of shape (W, p)
        Parameters.
    statistics : tuple of dict
        BatchNorm's running statistics of every network.
    answers : tuple of bool
        Which networks are used for predictions. Networks without rows are not.
    classes : ndarray or None
        Labels, in the order of the logits; None for a regressor.
    constants : dict of str to Tensor
        Constant buffers.
    template : Template, optional
        The architecture, if available; it is not saved.
    """

    flat: Tensor
    statistics: tuple[Statistics, ...]
    answers: tuple[bool, ...]
    classes: Any
    constants: dict[str, Tensor]
    template: Template | None = None
    _modules: tuple[torch.device, list[nn.Module]] | None = field(default=None, init=False)

    def make_modules(
        self, build: Callable[["Nets"], Template], device: torch.device
    ) -> list[nn.Module]:
        """Return the networks as modules in evaluation mode; they are built at the first call.

        `build` makes the template and is only called for networks loaded from a file. It waits
        until other threads have finished training. There is no lock: two threads may both build the
        modules, with the same result.
        """
        cached = self._modules
        if cached is None or cached[0] != device:
            template = build(self) if self.template is None else self.template
            modules = [
                template.make_module(
                    line.to(device), {name: part.to(device) for name, part in statistics.items()}
                )
                for line, statistics, answers in zip(
                    self.flat, self.statistics, self.answers, strict=True
                )
                if answers
            ]
            cached = self._modules = device, modules
        return cached[1]

    def _to_state(self) -> dict[str, Any]:
        return {
            "flat": self.flat.detach().cpu().numpy(),
            "statistics": [_as_arrays(each) for each in self.statistics],
            "answers": list(self.answers),
            "classes": self.classes,
            "constants": _as_arrays(self.constants),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(
            torch.from_numpy(np.array(state["flat"], np.float32)),
            tuple(map(_as_tensors, state["statistics"])),
            tuple(state["answers"]),
            state["classes"],
            _as_tensors(state["constants"]),
        )

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return type(self)._from_state, (self._to_state(),)

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return type(self)._from_state(self._to_state())


def _as_arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _as_tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError(
            "the saved network is not valid; expected arrays of parameters and statistics"
        )
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
