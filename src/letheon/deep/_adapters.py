"""Low-rank adapters of a frozen network (LoRA; Hu et al., 2022), as a factory of modules.

The weights of the frozen network are buffers of the module, so all shards share them: stacked
networks multiply by them once, and only the low-rank products are batched.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from letheon.deep._backbone import Backbone
from letheon.deep._module import Shape
from letheon.exceptions import TrainingError
from letheon.validation import (
    POSITIVE,
    Either,
    OneOf,
    ParameterRule,
    Rules,
    Whole,
    validate_parameters,
)

_PROBED_ROWS = 2


class LoraLinear(nn.Module):
    """Frozen linear layer with a trained correction: ``x W' + b + alpha / rank (x A') B'``.

    A begins as in `torch.nn.Linear`, and B with zeros.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.scaling = alpha / rank
        self.register_buffer("base_weight", layer.weight.detach())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.lora_A = nn.Parameter(torch.empty(rank, self.in_features))
        self.lora_B = nn.Parameter(torch.zeros(self.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The corrected weight, for modules that do not call this layer but use its weight."""
        correction: Tensor = self.scaling * (self.lora_B @ self.lora_A)
        return self.base_weight + correction  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the frozen layer plus the correction."""
        frozen = functional.linear(x, self.base_weight, self.bias)  # type: ignore[arg-type]
        low = functional.linear(functional.linear(x, self.lora_A), self.lora_B)
        return frozen + self.scaling * low


class _FrozenNorm(nn.Module):
    """BatchNorm in evaluation mode, also in training."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise TrainingError(
                "a BatchNorm of the backbone has track_running_stats=False, so its output would "
                "depend on the other rows of a batch; set it to True"
            )
        scale = torch.rsqrt(norm.running_var + norm.eps)
        if norm.affine:
            scale = scale * norm.weight.detach()
        shift = -norm.running_mean * scale
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift + norm.bias.detach() if norm.affine else shift)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``scale x + shift``, per channel."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        y: Tensor = x * self.scale.view(shape) + self.shift.view(shape)  # type: ignore[operator]
        return y


class AdaptedNet(nn.Module):
    """A frozen network with adapters, and a trained linear layer on its outputs."""

    def __init__(self, base: nn.Module, n_features: int, n_outputs: int) -> None:
        super().__init__()
        self.base, self.classifier = base, nn.Linear(n_features, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit per class, or one output per target."""
        y: Tensor = self.classifier(self.base(x).flatten(1))
        return y


class _BackboneRule(ParameterRule):
    text = "a letheon.deep.Backbone"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Backbone)


class _Names(ParameterRule):
    text = "a tuple of names of linear layers, such as ('linear1', 'linear2')"

    def accepts(self, value: Any) -> bool:
        is_tuple = isinstance(value, tuple) and len(value) > 0
        return is_tuple and all(isinstance(name, str) for name in value)


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Factory of networks with a frozen backbone and low-rank adapters.

    The networks of all shards share the backbone. What is trained is an adapter for each chosen
    linear layer, and a linear layer on the outputs of the backbone.

    Parameters
    ----------
    backbone : Backbone
        The frozen network; its BatchNorm uses its running statistics.
    rank : int, default=8
        Rank of the adapters.
    alpha : float, default=16.0
        The corrections are multiplied by ``alpha / rank``.
    target_modules : "all-linear" or tuple of str, default="all-linear"
        The linear layers that get an adapter, as in `peft`: a name means every layer whose
        path is this name or ends with it.

    References
    ----------
    E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

    Examples
    --------
    >>> from letheon.deep import MLP, Backbone
    >>> backbone = Backbone(MLP(widths=(8,)), arguments=((4,), 6))
    >>> net = LoRA(backbone=backbone, rank=2, target_modules=("hidden1",))((4,), 3)
    >>> [name for name, _ in net.named_parameters()]
    ['base.hidden1.lora_A', 'base.hidden1.lora_B', 'classifier.weight', 'classifier.bias']
    """

    _parameter_rules: ClassVar[Rules] = {
        "backbone": _BackboneRule(),
        "rank": Whole(1),
        "alpha": POSITIVE,
        "target_modules": Either(OneOf(("all-linear",), "'all-linear'"), _Names()),
    }

    backbone: Backbone
    rank: int = 8
    alpha: float = 16.0
    target_modules: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        """Raise `InvalidParameterError` if a setting is invalid."""
        self._require_valid()

    def _require_valid(self) -> None:
        """Check the settings; the reader of files calls this too."""
        validate_parameters(self)

    def __call__(self, shape: Shape, n_outputs: int) -> nn.Module:
        """Build the network for rows of this shape and this number of classes or targets."""
        base = self.backbone.make_module()
        n_features = _count_features(base, shape)
        targets = self._find_targets(base)
        for path in targets:
            layer = base.get_submodule(path)
            assert isinstance(layer, nn.Linear)
            base = _replace_module(base, path, LoraLinear(layer, self.rank, self.alpha))
        for path, norm in list(base.named_modules()):
            if isinstance(norm, _BatchNorm):
                base = _replace_module(base, path, _FrozenNorm(norm))
        _freeze_parameters(base)
        return AdaptedNet(base, n_features, n_outputs)

    def _find_targets(self, base: nn.Module) -> list[str]:
        """Return the paths of the layers that get an adapter; raise if a name fits none."""
        linear = [path for path, part in base.named_modules() if isinstance(part, nn.Linear)]
        names = ("",) if isinstance(self.target_modules, str) else self.target_modules
        matches = [[path for path in linear if _is_match(path, name)] for name in names]
        for name, paths in zip(names, matches, strict=True):
            if not paths:
                what = f"target_modules names {name!r}, but" if name else "there is no layer:"
                raise TrainingError(
                    f"{what} the linear layers of the backbone are {linear}; expected names of "
                    "some of them"
                )
        chosen = {path for paths in matches for path in paths}
        return [path for path in linear if path in chosen]


def _is_match(path: str, name: str) -> bool:
    return not name or path == name or path.endswith(f".{name}")


def _count_features(base: nn.Module, shape: Shape) -> int:
    """Return the number of outputs of the frozen network for a row of this shape."""
    # The factory does not know whether rows are numbers or tokens.
    for dtype in (torch.float32, torch.int64):
        try:
            with torch.no_grad():
                features = base.eval()(torch.zeros(_PROBED_ROWS, *shape, dtype=dtype))
        except RuntimeError as problem:
            reason = str(problem)
        else:
            return int(features.flatten(1).shape[1])
    raise TrainingError(f"the backbone fails on rows of shape {shape}: {reason}")


def _replace_module(base: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """Replace a part of a module, and return the module; the part may be the module itself."""
    if not path:
        return new
    parent, _, name = path.rpartition(".")
    setattr(base.get_submodule(parent), name, new)
    return base


def _freeze_parameters(base: nn.Module) -> None:
    """Turn all parameters into buffers, except those of the adapters."""
    for part in base.modules():
        for name, value in list(part._parameters.items()):
            if value is not None and not name.startswith("lora_"):
                del part._parameters[name]
                part.register_buffer(name, value.detach())


def save_adapters(model: Any, folder: str | Path) -> list[Path]:
    """Write the adapter of every shard to a folder of its own, in the file layout of `peft`.

    The folders have `adapter_config.json` and `adapter_model.safetensors`. They are models: destroy
    them after a removal.

    Parameters
    ----------
    model : SISANetClassifier or SISANetRegressor
        A fitted model whose `module` is a `LoRA`.
    folder : str or Path
        The folder; created if necessary.

    Returns
    -------
    list of Path
        The folders of the shards that have rows.

    Raises
    ------
    TypeError
        The `module` of the model is not a `LoRA`.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from letheon.deep import MLP, Backbone, SISANetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> lora = LoRA(backbone=Backbone(MLP(widths=(8,)), arguments=((4,), 6)), rank=2)
    >>> model = SISANetClassifier(module=lora, n_shards=2, epochs=1, device="cpu").fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [place.name for place in save_adapters(model, folder)]
    ['shard-0', 'shard-1']
    """
    factory = model.module
    if not isinstance(factory, LoRA):
        raise TypeError(f"module={factory!r} is not a LoRA; this model has no adapters")
    folders = []
    shards = [shard for shard, answers in enumerate(model.nets_.answers) if answers]
    for shard, module in zip(shards, model.to_modules(), strict=True):
        place = Path(folder) / f"shard-{shard}"
        place.mkdir(parents=True, exist_ok=True)
        save_file(dict(_name_for_peft(module)), place / "adapter_model.safetensors")
        targets = sorted(
            path.removeprefix("base.")
            for path, part in module.named_modules()
            if isinstance(part, LoraLinear)
        )
        config = {
            "peft_type": "LORA",
            "r": factory.rank,
            "lora_alpha": factory.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets,
            "modules_to_save": ["classifier"],
            "base_model_name_or_path": None,
            "inference_mode": True,
        }
        text = json.dumps(config, indent=2, sort_keys=True)
        (place / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
        folders.append(place)
    return folders


def _name_for_peft(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, part in module.named_parameters():
        path = re.sub(r"\.(lora_[AB])$", r".\1.weight", name.removeprefix("base."))
        yield f"base_model.model.{path}", part.detach().contiguous()
