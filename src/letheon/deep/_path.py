"""The path of a net's descent: where it was and which way it went, step by step."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from letheon.deep._rooms import mapped_zeros


class Path:
    """Points w_t, mean gradients g_t and numbers of rows of T steps, w_(t+1) = w_t - rate_t g_t.

    Written once, by whoever allocated it; a request makes another one. A path of many bytes lies in
    a private temporary file that has no name: it ends with the process, however that ends. Its
    blocks are given back to the system then, and are not overwritten.

    Attributes
    ----------
    points, gradients : float32 tensors of shape (T, p)
        On the device, or in a file.
    sizes : int64 tensor of shape (T,)
        Rows whose mean each gradient is, on the CPU; 0 for a step that was skipped.
    """

    def __init__(self, points: Tensor, gradients: Tensor, sizes: Tensor) -> None:
        if points.shape != gradients.shape or sizes.shape != points.shape[:1]:
            raise ValueError(
                f"points {tuple(points.shape)}, gradients {tuple(gradients.shape)} and sizes "
                f"{tuple(sizes.shape)} do not belong together"
            )
        self.points = points
        self.gradients = gradients
        self.sizes = sizes

    @classmethod
    def allocate(cls, n_steps: int, size: int, device: torch.device, max_memory: int) -> Self:
        """Return room for a path: on the device, or in a file if it takes more bytes than that."""
        shape = (2, n_steps, size)
        is_large = 4 * int(np.prod(shape, dtype=np.int64)) > max_memory
        if is_large:
            room = mapped_zeros(shape, "the path", "raise max_memory, or train with larger batches")
        else:
            room = torch.zeros(shape, device=device)
        return cls(room[0], room[1], torch.zeros(n_steps, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        """Tell the size only."""
        return f"<path of {len(self)} steps, {self.points.shape[1]} parameters>"

    def at(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return point and gradient of a step, on a device."""
        return self.points[step].to(device), self.gradients[step].to(device)

    def write(self, step: int, point: Tensor, gradient: Tensor, size: int) -> None:
        """Keep a step."""
        self.points[step].copy_(point)
        self.gradients[step].copy_(gradient)
        self.sizes[step] = size

    def copy_steps(self, source: "Path", n_steps: int) -> None:
        """Take over the first steps of another path."""
        self.points[:n_steps].copy_(source.points[:n_steps])
        self.gradients[:n_steps].copy_(source.gradients[:n_steps])
        self.sizes[:n_steps].copy_(source.sizes[:n_steps])

    def _to_state(self) -> dict[str, Any]:
        return {
            "points": self.points.cpu().numpy(),
            "gradients": self.gradients.cpu().numpy(),
            "sizes": self.sizes.numpy(),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        points, gradients = (
            torch.from_numpy(np.array(state[name], np.float32)) for name in ("points", "gradients")
        )
        return cls(points, gradients, torch.from_numpy(np.array(state["sizes"], np.int64)))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return type(self)._from_state, (self._to_state(),)
