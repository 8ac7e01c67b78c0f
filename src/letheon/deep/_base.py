"""What the nets share: parameters, rows in, labels, answers, requests that end in a retrain."""

import copy
import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length
from torch import Tensor, nn

from letheon.base import (
    ForgetMixin,
    KeywordScoreMixin,
    Outcome,
    Removal,
    lock_for_change,
    require_fitted,
    warn_all,
)
from letheon.data import SlotRows, hold_labels, row_ids
from letheon.deep._device import (
    ask_rows,
    describe_device,
    hold_rows,
    repeatable,
    resolve_device,
    shape_attributes,
)
from letheon.deep._loop import (
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    Callback,
    DeviceData,
    Loop,
    LoopSettings,
)
from letheon.deep._module import Nets, Statistics, Template
from letheon.deep._nets import MLP
from letheon.exceptions import LetheonWarning, warn_caller
from letheon.guarantee import MethodFacts
from letheon.receipt import Receipt
from letheon.removal import (
    Cache,
    Change,
    Opaque,
    ProbabilitiesMixin,
    RowsMixin,
    TrainingRows,
)
from letheon.seeds import Purpose, seed_from
from letheon.validation import (
    POSITIVE,
    AnyCallable,
    Boolean,
    Either,
    Interval,
    OneOf,
    OrNone,
    Rules,
    Whole,
    require_target,
    validate_parameters,
)

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]

_ANSWER_BATCH = 4096
_CALIBRATION_BATCH = 256
_CALIBRATION_ROWS = 4096
_FACTORY = "a factory: it takes the shape of a row and the number of classes, and returns a net"


def loop_settings(model: Any) -> LoopSettings:
    """Return the settings of the loop; losses reduce nothing, where they can be told to."""
    loss = model.loss
    try:
        has_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # a name, or written in C
        has_reduction = False
    return LoopSettings(
        batch_size=int(model.batch_size),
        optimizer=model.optimizer,
        learning_rate=float(model.learning_rate),
        momentum=float(model.momentum),
        weight_decay=float(model.weight_decay),
        schedule=model.schedule,
        loss=partial(loss, reduction="none") if has_reduction else loss,
        precision=model.precision,
    )


@dataclass(eq=False, repr=False)
class Workshop(Opaque):
    """Rows on the device, the template, and loops with their captured steps.

    On a CPU the rows are those of `SlotRows`, in the same memory. On a GPU they are a copy, from
    which `wipe` removes people too.

    Parameters
    ----------
    rows : SlotRows
        Rows held; the slots of the device are theirs.
    template : Template
        The architecture.
    settings : LoopSettings
        How to train.
    seed : int
        Seed of the model.
    device : torch.device
        Where to train.
    calibration_rows : int
        Rows, at most, that BatchNorm's running statistics are taken from.
    """

    rows: SlotRows
    template: Template
    settings: LoopSettings
    seed: int
    device: torch.device
    calibration_rows: int = _CALIBRATION_ROWS

    def __post_init__(self) -> None:
        self._X, self._y = self.rows.X, self.rows.y
        self.data = DeviceData(
            torch.from_numpy(self._X).to(self.device), torch.from_numpy(self._y).to(self.device)
        )
        self._loops: dict[tuple[tuple[int, ...], int], Loop] = {}

    def loop(self, lanes: tuple[int, ...] = (0,), group: int = 0) -> Loop:
        """Return the loop of some lanes; it is made once."""
        key = lanes, group
        if key not in self._loops:
            self._loops[key] = Loop(
                self.template, self.settings, self.data, seed=self.seed, lanes=lanes, group=group
            )
        return self._loops[key]

    def serves(self, rows: SlotRows, device: torch.device) -> bool:
        """Whether the slots of these rows are still those of this device."""
        return rows.X is self._X and rows.y is self._y and device == self.device

    def wipe(self, positions: Positions) -> None:
        """Remove people from the device's own copy of the rows, if it has one."""
        if self.device.type != "cpu":
            where = torch.from_numpy(positions).to(self.device)
            self.data.X[where] = 0
            self.data.y[where] = 0

    def statistics(self, flat: Tensor, positions: Positions) -> Statistics:
        """Return BatchNorm's running statistics of one net, from a sample of its rows."""
        if not self.template.has_batch_norm or not len(positions):
            return {}
        sample = calibration_sample(self.rows, positions, self.seed, self.calibration_rows)
        if len(sample) == 1:
            sample = np.repeat(sample, 2)  # BatchNorm refuses one row; in training too
        parts = np.array_split(sample, -(-len(sample) // _CALIBRATION_BATCH))
        return self.template.statistics(flat, map(self.rows_at, parts))

    def rows_at(self, positions: Positions) -> Tensor:
        """Return rows as a net takes them."""
        where = torch.from_numpy(positions).to(self.device)
        return self.data.X.index_select(0, where).to(torch.float32)


def calibration_sample(rows: SlotRows, positions: Positions, seed: int, limit: int) -> Positions:
    """Return the `limit` of these rows whose people have the smallest keyed hashes.

    Whether a row is in the sample of a smaller group of people depends on nobody who left before.
    """
    if len(positions) <= limit:
        return positions
    hashes = rows.ids_at(positions).hashes(seed, Purpose.CALIBRATION)
    return positions[np.sort(np.argsort(hashes, kind="stable")[:limit])]


def alive_without(rows: SlotRows, leaving: Positions | None) -> NDArray[np.bool_]:
    """Return which slots hold rows that stay."""
    alive = rows.alive.copy()
    if leaving is not None:
        alive[leaving] = False
    return alive


def numbered_slots(groups: Positions) -> Positions:
    """Return the slot of every row: how many rows of its group stand before it."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    slots = np.empty_like(groups)
    slots[order] = np.arange(len(groups)) - np.searchsorted(ranked, ranked)
    return slots


def net_facts(method: str, **own: Any) -> MethodFacts:
    """Return the facts of a method for nets; `own` are those that differ from most others."""
    facts: dict[str, Any] = {
        "applicability": "any torch module that classifies",
        "exact": False,
        "strength": "strong",
        "requests": "oblivious",
        "releases": "latest-only",
        "state_holds_rows": True,
        "families": ("net",),
        "tasks": ("classification",),
        "batches": True,
    }
    return MethodFacts(method=method, definition_name=method, **(facts | own))


@dataclass(kw_only=True, eq=False, repr=False)
class NetParameters:
    """Parameters of all nets: each is declared once, with its default."""

    module: Any = None
    epochs: int = 20
    optimizer: Any = "adam"
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "constant"
    loss: Any = "cross_entropy"
    batch_size: int = 64
    precision: str = "float32"
    calibration_rows: int = 4096
    device: str = "auto"
    deterministic: bool = True
    random_state: Any = None


class NetBase(
    NetParameters, ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin, RowsMixin, BaseEstimator
):
    """A classifier made of one or more nets of one architecture, which holds its rows.

    A family writes `_train` (everything from scratch) and `_remove` (a request after which every
    class still has rows); both return a `Change` to be committed.
    """

    counts_: NDArray[np.int64]  # a net is a classifier
    nets_: Nets
    shape_: tuple[int, ...]
    cache_: Cache[Workshop]
    environment_: dict[str, str]
    seed_: int
    n_features_in_: int

    # Where a net is trained is part of `environment_`, where its states lie of nothing.
    _neutral_parameters: ClassVar[frozenset[str]] = frozenset({"device", "max_memory"})
    _parameter_rules: ClassVar[Rules] = {
        "epochs": Whole(1),
        "batch_size": Whole(1),
        "calibration_rows": Whole(2),
        "precision": OneOf(PRECISIONS),
        "schedule": OneOf(SCHEDULES),
        "optimizer": Either(OneOf(OPTIMIZERS), AnyCallable()),
        "learning_rate": POSITIVE,
        "momentum": Interval(0, 1, closed="left"),
        "weight_decay": Interval(0),
        "loss": Either(OneOf(("cross_entropy",), "'cross_entropy'"), AnyCallable()),
        "module": OrNone(AnyCallable(), "a small MLP"),
        "deterministic": Boolean(),
    }
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | {"cache_"}

    def fit(self, X: Any, y: Any, *, ids: Any = None, callback: Callback | None = None) -> Self:
        """Train on all rows and keep them.

        Parameters
        ----------
        X : array-like, Tensor, pandas or polars frame, of shape (n_rows, ...)
            Training rows: tables, or images and the like with more axes. Held as uint8 if they
            are, else as float32; either way a batch reaches the net as float32.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            Whose row each is; may repeat. Default ``0..n-1``.
        callback : callable, optional
            Called with a `Progress` after every epoch. It may ask this model, but not change it.

        Returns
        -------
        self
        """
        with lock_for_change(self):
            self._check_settings()
            seed = seed_from(self.random_state)
            held = self._hold(X, y, ids)
            # Before training: settings without canonical bytes are refused here.
            about = {"seed_": seed, **shape_attributes(X, held.rows.X.shape[1:])}
            about |= self._remember_settings()
            with self._training():
                change = self._train(held, seed, callback)
            found = self._replace_all(change, about)
        warn_all(found)
        return self

    def forget(
        self, ids: Any, *, digest: bool = False, callback: Callback | None = None
    ) -> Receipt:
        """Remove every row of these people; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget.
        digest : bool, default=False
            Also record the digests before and after.
        callback : callable, optional
            Called with a `Progress` after every epoch of training that the request takes.

        Returns
        -------
        Receipt
            What was done: numbers, never the ids.
        """
        return self._answer_request(ids, digest, partial(self._prepare, callback=callback))

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels still held, sorted."""
        require_fitted(self)
        return self.nets_.classes

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest label of every row.

        The first answer of a model that was loaded waits for nets in training in other threads.
        """
        nets, shares = self._answer(X)
        labels: NDArray[Any] = nets.classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        return self._answer(X)[1]

    def to_modules(self) -> list[torch.nn.Module]:
        """Return copies of the trained nets, as modules in evaluation mode on the CPU."""
        require_fitted(self)
        nets = self.nets_
        return [copy.deepcopy(net).cpu() for net in nets.modules(self._template_of, self._device())]

    @abstractmethod
    def _train(self, held: TrainingRows, seed: int, callback: Callback | None) -> Change:
        """Train from scratch. The change sets `nets_`, `cache_` and the family's own attributes."""

    @abstractmethod
    def _remove(self, removal: Removal, callback: Callback | None) -> Any:
        """Prepare a removal after which every class still has rows; `_without` completes it.

        Returns what the family's `_commit` takes; here a `Change`.
        """

    def _aggregate(self, shares: Floats) -> Floats:
        """Return one answer per row from those of all nets, shape (W, k, n_classes)."""
        answer: Floats = shares.mean(axis=0)
        return answer

    def _check_settings(self) -> None:
        """Raise ValueError or TypeError for the first parameter that makes no sense."""
        module, loss, optimizer = self.module, self.loss, self.optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            name = type(optimizer).__name__
            raise ValueError(
                f"optimizer is an object of {name}; expected one of {OPTIMIZERS}, or what makes "
                f"one for parameters, such as functools.partial(torch.optim.{name}, lr=0.01)"
            )
        validate_parameters(self)
        if callable(optimizer) and self.schedule != "constant":
            raise ValueError(
                f"schedule={self.schedule!r} needs an optimizer by name, one of {OPTIMIZERS}: an "
                "optimiser of your own has its own learning rate"
            )
        if isinstance(loss, nn.Module):
            raise ValueError(
                f"loss is a module ({type(loss).__name__}); expected a function, such as those of "
                "torch.nn.functional"
            )
        if isinstance(module, nn.Module):
            raise ValueError(f"module is a net ({type(module).__name__}); expected {_FACTORY}")
        if isinstance(module, type) and module.__module__.startswith("torch."):
            raise ValueError(f"module is a layer of torch ({module.__name__}); expected {_FACTORY}")
        resolve_device(self.device)

    def _device(self) -> torch.device:
        return resolve_device(self.device)

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Context of all training: repeatable; running out of a GPU's memory is a MemoryError."""
        try:
            with repeatable(self._device(), deterministic=bool(self.deterministic)):
                yield
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"the GPU has no memory left, so nothing was changed: {error}. Use a smaller "
                "batch_size or fewer nets at once, or device='cpu'"
            ) from error

    def _hold(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        require_target(self, y)
        rows = hold_rows(self, X)
        self._warn_if_scaled_twice(rows)
        labels = self._hold_labels(y, rows)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class only ({classes[0]!r}); a classifier needs at least two classes"
            )
        slots = SlotRows(rows, codes.astype(np.int64), row_ids(ids, len(rows)))
        return TrainingRows(slots, classes, np.bincount(codes))

    def _hold_labels(self, y: Any, rows: NDArray[Any]) -> NDArray[Any]:
        labels = hold_labels(y, name=type(self).__name__, regressor="a regressor of scikit-learn")
        check_consistent_length(rows, labels)
        return labels

    def _warn_if_scaled_twice(self, rows: NDArray[Any]) -> None:
        scale = getattr(self._factory, "scale", None)
        is_small = rows.dtype != np.uint8 and bool(np.abs(rows).max(initial=0.0) <= 1.0)
        if is_small and isinstance(scale, float) and scale <= 1 / 255:
            warn_caller(
                f"rows lie between -1 and 1, and module multiplies them by {scale:.3g}, which is "
                "meant for bytes; give scale=1.0 to the module",
                LetheonWarning,
            )

    def _new_workshop(self, held: TrainingRows, seed: int) -> Workshop:
        """Return a workshop for rows that are about to be trained on."""
        assert held.classes is not None
        template = Template(self._factory, held.rows.X.shape[1:], len(held.classes), seed)
        if template.has_batch_norm and self.batch_size < 2:
            raise ValueError(
                f"batch_size={self.batch_size}, and the net has BatchNorm, which needs 2 or more"
            )
        return self._furnished(held.rows, template, seed)

    def _furnished(self, rows: SlotRows, template: Template, seed: int) -> Workshop:
        limit = int(self.calibration_rows)
        return Workshop(rows, template, loop_settings(self), seed, self._device(), limit)

    def _workshop(self) -> Workshop:
        """Return the workshop of the rows held, made again after a load or a compaction."""
        workshop = self.cache_.content
        if workshop is not None and workshop.serves(self.rows_, self._device()):
            return workshop
        workshop = self._furnished(self.rows_, self._template_of(self.nets_), self.seed_)
        self.cache_.content = workshop
        return workshop

    @property
    def _factory(self) -> Any:
        return MLP() if self.module is None else self.module

    def _template_of(self, nets: Nets) -> Template:
        return Template(self._factory, self.shape_, len(nets.classes), self.seed_, nets.constants)

    def _nets(
        self, workshop: Workshop, flat: Tensor, owned: Sequence[Positions | None], classes: Any
    ) -> Nets:
        """Return nets that can answer; `owned` are the rows of each, None those that it had.

        A net without any rows does not answer.
        """
        parts = list[tuple[Statistics, bool]]()
        for number, (line, rows) in enumerate(zip(flat, owned, strict=True)):
            if rows is None:
                parts.append((self.nets_.statistics[number], self.nets_.answers[number]))
            else:
                parts.append((workshop.statistics(line, rows), len(rows) > 0))
        statistics, answers = zip(*parts, strict=True)
        constants = {name: part.clone() for name, part in workshop.template.constants.items()}
        return Nets(flat, statistics, answers, classes, constants, workshop.template)

    def _trained(
        self,
        held: TrainingRows,
        workshop: Workshop,
        nets: Nets,
        rebuilt: Mapping[str, int] = {},
        **own: Any,
    ) -> Change:
        """Return the change of a training from scratch; `own` are attributes of the family."""
        attributes = {
            "rows_": held.rows,
            "counts_": held.counts,
            "nets_": nets,
            "shape_": held.rows.X.shape[1:],
            "cache_": Cache(workshop),
        }
        return Change(attributes | own, Outcome(1.0, rebuilt))

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        """Put a fit in place of what was there, in one call for concurrent readers."""
        vars(self).update(change.attributes | about)
        for stale in {"tuning_", "feature_names_in_"} - about.keys():
            vars(self).pop(stale, None)
        return change.outcome.warnings

    def _prepare(self, removal: Removal, callback: Callback | None = None) -> Any:
        counts = self._counts_without(removal.where)
        with self._training():
            if counts is not None and 0 in counts:
                return self._retrain(removal.where, callback)
            return self._remove(removal, callback)

    def _retrain(self, positions: Positions, callback: Callback | None) -> Change:
        """Prepare a fit from scratch on the remaining rows."""
        held = TrainingRows(self.rows_, self.nets_.classes, self.counts_).without(positions)
        change = self._train(held, self.seed_, callback)
        outcome = change.outcome._replace(work=1.0, rebuilt={"retrains": 1})
        return Change(change.attributes, outcome, (partial(self.rows_.wipe, positions),))

    def _without(self, removal: Removal, attributes: dict[str, Any], outcome: Outcome) -> Change:
        """Return the change that also removes the rows, on the host and on the device."""
        positions: Positions = removal.where
        attributes = {"counts_": self._counts_without(positions), **attributes}
        writes = partial(self._workshop().wipe, positions), partial(self.rows_.wipe, positions)
        return Change(attributes, outcome, writes)

    def _answer(self, X: Any) -> tuple[Nets, Floats]:
        require_fitted(self)
        rows = ask_rows(self, X, self.shape_)
        nets, device = self.nets_, self._device()  # read once: a commit may replace them meanwhile
        modules, parts = nets.modules(self._template_of, device), []
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for begin in range(0, len(rows), _ANSWER_BATCH):
                x = torch.from_numpy(rows[begin : begin + _ANSWER_BATCH]).to(device)
                batch = x.to(torch.float32)
                shares = [torch.softmax(module(batch).double(), dim=1) for module in modules]
                parts.append(torch.stack(shares).cpu().numpy())
        return nets, self._aggregate(np.concatenate(parts, axis=1))

    def _describe_environment(self) -> dict[str, str]:
        kernels = "fixed" if self.deterministic else "free"
        return (
            super()._describe_environment() | describe_device(self._device()) | {"kernels": kernels}
        )

    def _in_place_attributes(self) -> tuple[str, ...]:
        """Names of attributes whose memory a request writes into."""
        return ("rows_", "cache_")

    def __sklearn_tags__(self) -> Tags:
        """Dense numbers; two fits are the same unless kernels may add in any order."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.non_deterministic = not self.deterministic
        return tags
