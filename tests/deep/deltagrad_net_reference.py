"""DeltaGrad for nets by the book: double precision, dense matrices, one row after the other."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from letheon.deep._deltagrad import DeltaGradNetClassifier, _slot_table
from letheon.deep._replay import StepSchedule

Floats = NDArray[np.float64]


class CurvaturePair(NamedTuple):
    s: Floats
    y: Floats


def dense_bfgs(pairs: list[CurvaturePair]) -> Floats:
    """BFGS updates of c I, oldest pair first, c being that of the newest."""
    newest = pairs[-1]
    B = np.eye(len(newest.s)) * (newest.s @ newest.y) / (newest.s @ newest.s)
    for s, y in pairs:
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    return B


class ReplayReference:
    """Row gradients of a fitted model in double precision, and its batches as lists of rows."""

    def __init__(self, model: DeltaGradNetClassifier) -> None:
        self.model = model
        self.template = model._make_template(model.nets_)
        context = model._current_context()
        plan = StepSchedule.from_slots(
            _slot_table(model.rows_, model.n_slots_), context.settings, model.epochs, model.seed_
        )
        self.batches = [
            rows[weights > 0].tolist()
            for rows, weights in zip(plan.rows, plan.weights, strict=True)
        ]
        self.rate, self.decay = model.learning_rate, model.weight_decay
        self.missed = 0.0

    def row_gradient(self, w: Floats, row: int) -> Floats:
        """Gradient of the loss of one row and of the decay."""
        leaf = torch.tensor(w, requires_grad=True)
        x = torch.tensor(self.model.rows_.X[row : row + 1], dtype=torch.float64)
        target = torch.tensor(self.model.rows_.y[row : row + 1])
        loss = functional.cross_entropy(self.template.train_logits(leaf, x), target)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return np.array(gradient.tolist()) + self.decay * w

    def mean(self, w: Floats, rows: list[int]) -> Floats:
        mean: Floats = np.mean([self.row_gradient(w, row) for row in rows], axis=0)
        return mean

    def path(self, gone: frozenset[int] = frozenset()) -> tuple[list[Floats], list[Floats]]:
        """Points and gradients of a descent without some rows."""
        w: Floats = self.template.initial_flat(0).double().numpy()
        points, gradients = [], []
        for batch in self.batches:
            rows = [row for row in batch if row not in gone]
            gradient = self.mean(w, rows) if rows else np.zeros_like(w)
            points.append(w)
            gradients.append(gradient)
            w = w - self.rate * gradient
        return [*points, w], gradients

    def replayed(self, gone: frozenset[int], accepts: Callable[[CurvaturePair], bool]) -> Floats:
        """End of the replay without some rows; products are trusted after two pairs that passed.

        The last step is exact if nothing has tested a product after the burn-in. `missed` is then
        what the errors of products add up to.
        """
        model = self.model
        points, gradients = self.path()
        first = next(t for t, batch in enumerate(self.batches) if gone.intersection(batch))
        last = max(t for t, batch in enumerate(self.batches) if not gone.issuperset(batch))
        w, pairs, is_trusted = points[first], list[CurvaturePair](), False
        errors, n_products = list[float](), 0
        for t in range(first, len(self.batches)):
            batch, count = self.batches[t], t - first
            leaving = [row for row in batch if row in gone]
            if len(leaving) == len(batch):
                continue
            v = w - points[t]
            after = count - model.burn_in
            is_due = after <= 0 or after % model.period == 0 or (t == last and not errors)
            if is_due or not is_trusted:
                g = self.mean(w, batch)
                pair = CurvaturePair(v, g - gradients[t])
                if is_trusted and after > 0:
                    errors.append(float(np.linalg.norm(pair.y - dense_bfgs(pairs) @ v)))
                is_kept = accepts(pair)
                is_trusted = is_kept and bool(pairs)
                if is_kept:
                    pairs = [*pairs, pair][-model.history :]
            else:
                n_products += 1
                g = gradients[t] + dense_bfgs(pairs) @ v
            own = sum((self.row_gradient(w, row) for row in leaving), np.zeros_like(w))
            w = w - self.rate * (len(batch) * g - own) / (len(batch) - len(leaving))
        typical = float(np.sqrt(np.mean(np.square(errors)))) if n_products else 0.0
        self.missed = self.rate * np.sqrt(n_products) * typical
        return w
