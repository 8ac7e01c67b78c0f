"""DeltaGrad once more, from the formulas: dense, slow, row by row, and no code of the package."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ReplayData(NamedTuple):
    X: Floats
    y: NDArray[Any]
    ids: NDArray[np.int64]

    def without(self, gone: Any) -> "ReplayData":
        keep = ~np.isin(self.ids, list(gone))
        return ReplayData(self.X[keep], self.y[keep], self.ids[keep])


def make_data(n: int = 60, p: int = 3, *, n_classes: int = 2, seed: int = 0) -> ReplayData:
    """Every class has rows; people own one row each."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.normal(size=(n, p)) + 0.7 * y[:, None]
    return ReplayData(X, y, np.arange(n))


def row_gradient(w: Floats, x: Floats, y: int, lam: float, kind: str) -> Floats:
    """Gradient of one row's loss and its share of the regulariser; w of shape (K, d)."""
    z = w @ x
    if kind == "softmax":
        q = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        q[y] -= 1.0
    elif kind == "ovr":
        q = 1 / (1 + np.exp(-z)) - (np.arange(len(w)) == y)
    else:
        q = 1 / (1 + np.exp(-z)) - y
    return np.outer(q, x) + lam * w


def row_hessian(w: Floats, x: Floats, kind: str) -> Floats:
    """Hessian of one row's loss, of size Kd."""
    z = w @ x
    if kind == "softmax":
        q = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        middle = np.diag(q) - np.outer(q, q)
    else:
        middle = np.diag(1 / (1 + np.exp(-z)) / (1 + np.exp(z)))
    return np.kron(middle, np.outer(x, x))


def bfgs_matrix(pairs: list[tuple[Floats, Floats]], least_scale: float = 1e-3) -> Floats:
    """Return the BFGS matrix by its updates, one pair after the other."""
    s, y = pairs[-1]
    B: Floats = max(float(s @ y) / float(s @ s), least_scale) * np.eye(len(s))
    for s, y in pairs:
        Bs = B @ s
        B = B - np.outer(Bs, Bs) / (s @ Bs) + np.outer(y, y) / (s @ y)
    return B


class DeltaGradReference:
    """Gradient descent and DeltaGrad on rows with an intercept; `batches[t]` are ids."""

    def __init__(
        self,
        data: ReplayData,
        *,
        kind: str,
        l2: float,
        reg: str,
        rate: float,
        batches: list[set[int]],
    ) -> None:
        self.X = np.column_stack([data.X, np.ones(len(data.X))])
        self.y, self.ids = data.y, data.ids.tolist()
        self.kind, self.l2, self.reg, self.rate = kind, l2, reg, rate
        self.batches = batches
        K = 1 if kind == "binary" else int(data.y.max()) + 1
        w, self.path = np.zeros((K, self.X.shape[1])), []
        for batch in batches:
            g = self.mean_gradient(w, set(self.ids) & batch)
            self.path.append((w, g))
            w = w - rate * g
        self.end = w

    def lam(self, n: int) -> float:
        return self.l2 if self.reg == "per_sample" else self.l2 / n

    def sum_gradient(self, w: Floats, members: set[int], lam: float) -> Floats:
        total = np.zeros_like(w)
        for x, y, own in zip(self.X, self.y, self.ids, strict=True):
            if own in members:
                total += row_gradient(w, x, int(y), lam, self.kind)
        return total

    def mean_gradient(self, w: Floats, members: set[int]) -> Floats:
        return self.sum_gradient(w, members, self.lam(len(self.ids))) / max(len(members), 1)

    def forget(self, gone: set[int], *, burn_in: int, period: int, history: int) -> None:
        """Section 4 of Wu et al. as it must read: exact steps, L-BFGS steps from the cached g_t."""
        before, after = self.lam(len(self.ids)), self.lam(len(self.ids) - len(gone))
        n_blocks = 1 if self.kind == "softmax" else len(self.end)
        pairs: list[list[tuple[Floats, Floats]]] = [[] for _ in range(n_blocks)]
        w, path = self.path[0][0], []
        for t, batch in enumerate(self.batches):
            remaining = set(self.ids) & batch
            stay = remaining - gone
            old_w, old_g = self.path[t]
            v = w - old_w
            if not stay:
                path.append((w, np.zeros_like(w)))
                continue
            bent = self._product(pairs, v, history)
            if t <= burn_in or (t - burn_in) % period == 0 or bent is None:
                g = self.mean_gradient(w, remaining)
                s_blocks, y_blocks = (self._blocks(u, n_blocks) for u in (v, g - old_g))
                for own, s, y in zip(pairs, s_blocks, y_blocks, strict=True):
                    if s @ y > 0:
                        own.append((s, y))
            else:
                g = old_g + bent
            data_sum = len(remaining) * (g - before * w) - self.sum_gradient(
                w, remaining & gone, 0.0
            )
            g = data_sum / len(stay) + after * w
            path.append((w, g))
            w = w - self.rate * g
        self._leave(gone, path, w)

    def _product(
        self, pairs: list[list[tuple[Floats, Floats]]], v: Floats, history: int
    ) -> Floats | None:
        blocks = self._blocks(v, len(pairs))
        if any(not own and change.any() for own, change in zip(pairs, blocks, strict=True)):
            return None
        parts = [
            bfgs_matrix(own[-history:]) @ change if change.any() else change
            for own, change in zip(pairs, blocks, strict=True)
        ]
        long = [
            np.linalg.norm(part) > 2 / self.rate * np.linalg.norm(change)
            for part, change in zip(parts, blocks, strict=True)
        ]
        return None if any(long) else np.concatenate(parts).reshape(v.shape)

    @staticmethod
    def _blocks(v: Floats, n_blocks: int) -> list[Floats]:
        return list(v.reshape(n_blocks, -1))

    def forget_by_hessians(self, gone: set[int], nodes: list[int], nearest: list[int]) -> None:
        """The cached variant, the Hessians taken at `nodes` of the path now."""
        n_left = len(self.ids) - len(gone)
        before, after = self.lam(len(self.ids)), self.lam(n_left)
        rest = [x for x, own in zip(self.X, self.ids, strict=True) if own not in gone]
        hessians = [
            sum(row_hessian(self.path[node][0], x, self.kind) for x in rest) / n_left
            for node in nodes
        ]
        w, path = self.path[0][0], []
        for t, batch in enumerate(self.batches):
            remaining = set(self.ids) & batch
            stay = remaining - gone
            old_w, old_g = self.path[t]
            g = np.zeros_like(w)
            if stay:
                own = self.sum_gradient(old_w, remaining & gone, 0.0)
                v = (w - old_w).ravel()
                bent = np.asarray(hessians[nearest[t]] @ v + after * v).reshape(w.shape)
                g = (
                    (len(remaining) * (old_g - before * old_w) - own) / len(stay)
                    + after * old_w
                    + bent
                )
            path.append((w, g))
            w = w - self.rate * g
        self._leave(gone, path, w)

    def _leave(self, gone: set[int], path: list[tuple[Floats, Floats]], end: Floats) -> None:
        keep = [own not in gone for own in self.ids]
        self.X, self.y = self.X[keep], self.y[keep]
        self.ids = [own for own in self.ids if own not in gone]
        self.path, self.end = path, end
