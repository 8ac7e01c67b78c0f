"""The path of a gradient descent: where it was and which way it went, step by step."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.linear._losses import Floats
from letheon.removal import allocate_file

Sizes = NDArray[np.int64]


class Trajectory:
    """Points w_t, mean gradients g_t and numbers of rows of T steps, w_(t+1) = w_t - rate g_t.

    Written once, by whoever allocated it; a request makes another one. With few bytes at hand the
    numbers lie in a private temporary file that has no name: it ends with the process, however
    that ends. Its blocks are given back to the system then, and are not overwritten.

    Attributes
    ----------
    points, gradients : ndarray of shape (T, N)
        N parameters, score after score.
    sizes : ndarray of int64, shape (T,)
        Rows whose mean each gradient is; 0 for a step that was skipped.
    """

    def __init__(self, points: Floats, gradients: Floats, sizes: Sizes) -> None:
        if points.shape != gradients.shape or sizes.shape != points.shape[:1]:
            raise ValueError(
                f"points {points.shape}, gradients {gradients.shape} and sizes {sizes.shape} do "
                "not belong together"
            )
        self.points = points
        self.gradients = gradients
        self.sizes = sizes

    @classmethod
    def allocate(cls, n_steps: int, n_parameters: int, max_memory: int) -> Self:
        """Return room for a path: in memory, or in a file if it takes more bytes than that."""
        shape = (2, n_steps, n_parameters)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        if n_bytes <= max_memory:
            room = np.zeros(shape)
        else:
            room = np.frombuffer(allocate_file(n_bytes), np.float64).reshape(shape)
        return cls(room[0], room[1], np.zeros(n_steps, np.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        """Tell the size only: the last point is the model without its noise."""
        return f"<trajectory of {len(self)} steps, {self.points.shape[1]} parameters>"

    def _to_state(self) -> dict[str, Any]:
        return {"points": self.points, "gradients": self.gradients, "sizes": self.sizes}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["points"], state["gradients"], state["sizes"])
