"""Trained nets: their parameters and statistics, and the modules that answer with them."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon.deep._module import Statistics, Template
from letheon.removal import Opaque


class Nets(Opaque):
    """W trained nets of one architecture. Immutable: a request makes others.

    Parameters
    ----------
    flat : Tensor of shape (W, p)
        Parameters.
    statistics : sequence of dict
        BatchNorm's running statistics of every net.
    answers : sequence of bool
        Which nets answer: one that never saw a row does not.
    classes : ndarray
        Labels, in the order of the logits.
    constants : dict of str to Tensor
        Buffers that do not change.
    template : Template, optional
        The architecture, where it is at hand: it is no part of what is saved.
    """

    def __init__(
        self,
        flat: Tensor,
        statistics: Sequence[Statistics],
        answers: Sequence[bool],
        classes: NDArray[Any],
        constants: dict[str, Tensor],
        template: Template | None = None,
    ) -> None:
        self.flat = flat
        self.statistics = tuple(statistics)
        self.answers = tuple(answers)
        self.classes = classes
        self.constants = constants
        self._template = template
        self._modules: tuple[torch.device, list[nn.Module]] | None = None

    def modules(self, build: Callable[["Nets"], Template], device: torch.device) -> list[nn.Module]:
        """Return the nets that answer, as modules in evaluation mode, made at the first call.

        Only nets that were loaded have to `build` a template, and wait for whoever is training.
        Without a lock: two threads may both make them, and they are the same.
        """
        made = self._modules
        if made is None or made[0] != device:
            template = build(self) if self._template is None else self._template
            made = self._modules = device, self._made_modules(template, device)
        return made[1]

    def _made_modules(self, template: Template, device: torch.device) -> list[nn.Module]:
        nets = zip(self.flat, self.statistics, self.answers, strict=True)
        return [
            template.answering(
                line.to(device), {name: part.to(device) for name, part in stats.items()}
            )
            for line, stats, answers in nets
            if answers
        ]

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
            [_as_tensors(each) for each in state["statistics"]],
            state["answers"],
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
        raise ValueError("the parts of a net are no arrays")
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
