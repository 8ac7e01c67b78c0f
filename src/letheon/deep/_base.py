"""Base class of the networks: parameters, training data, predictions, retraining."""

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
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length
from torch import Tensor, nn

from letheon.base import (
    ForgetMixin,
    Outcome,
    Removal,
    lock_for_change,
    require_fitted,
    warn_all,
)
from letheon.data import SlotRows
from letheon.deep._device import (
    check_query_rows,
    copy_rows,
    describe_device,
    reproducible_run,
    resolve_device,
    row_dtype,
    shape_attributes,
    to_batch,
)
from letheon.deep._loop import Callback, DeviceData, Loop
from letheon.deep._module import Nets, Statistics, Template
from letheon.deep._nets import MLP
from letheon.deep._optim import OPTIMIZERS, PRECISIONS, SCHEDULES, LoopSettings
from letheon.deep._slots import (
    Positions,
    compute_row_keys,
    sample_calibration_rows,
)
from letheon.exceptions import LetheonWarning, warn_caller
from letheon.guarantee import MethodFacts
from letheon.receipt import Receipt
from letheon.removal import Cache, Change, Opaque, RowsMixin, TrainingRows
from letheon.seeds import seed_from
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

Floats = NDArray[np.float64]

_ANSWER_BATCH = 4096
_CALIBRATION_BATCH = 256
_CALIBRATION_ROWS = 4096
_FACTORY = "a factory that takes the shape of a row and the number of classes, and returns a module"


def loop_settings(model: Any) -> LoopSettings:
    """Return the settings of the training loop from the parameters of a model.

    A loss function with a parameter `reduction` is called with "none".
    """
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
class TrainingContext(Opaque):
    """What training needs: rows on the device, the architecture, and reusable training loops.

    On a CPU the rows share the memory of `SlotRows`. On a GPU they are a copy; `wipe` removes rows
    from it.

    Parameters
    ----------
    rows : SlotRows
        The remaining rows. The rows on the device are in the same slots.
    template : Template
        The architecture.
    settings : LoopSettings
        Settings of the training loop.
    seed : int
        Seed of the model.
    device : torch.device
        Device of the training.
    calibration_rows : int
        Largest number of rows to compute BatchNorm's running statistics from.
    """

    rows: SlotRows
    template: Template
    settings: LoopSettings
    seed: int
    device: torch.device
    calibration_rows: int = _CALIBRATION_ROWS

    def __post_init__(self) -> None:
        self._X, self._y = self.rows.X, self.rows.y
        y = torch.from_numpy(self._y)
        if y.is_floating_point():
            y = y.to(torch.float32).view(len(y), -1)
        keys = None
        if self.settings.augmentation.is_used:
            keys = torch.from_numpy(compute_row_keys(self.rows, self.seed)).to(self.device)
        X = torch.from_numpy(self._X)
        self.data = DeviceData(X.to(self.device), y.to(self.device), keys)
        self._loops: dict[tuple[tuple[int, ...], int], Loop] = {}

    def get_loop(self, lanes: tuple[int, ...] = (0,), group: int = 0) -> Loop:
        """Return the training loop of these lanes; it is created at the first call."""
        key = lanes, group
        if key not in self._loops:
            self._loops[key] = Loop(
                self.template, self.settings, self.data, seed=self.seed, lanes=lanes, group=group
            )
        return self._loops[key]

    def is_valid_for(self, rows: SlotRows, device: torch.device) -> bool:
        """Return whether the data on the device still matches these rows."""
        return rows.X is self._X and rows.y is self._y and device == self.device

    def wipe(self, positions: Positions) -> None:
        """Overwrite rows with zeros in all copies of the memory of `SlotRows`."""
        where = torch.from_numpy(positions).to(self.device)
        of_host = (self._X.ctypes.data, self._y.ctypes.data)
        for part in self.data:
            if part is not None and (self.device.type != "cpu" or part.data_ptr() not in of_host):
                part[where] = 0

    def compute_statistics(self, flat: Tensor, positions: Positions) -> Statistics:
        """Return BatchNorm's running statistics of one network, from a sample of its rows."""
        if not self.template.has_batch_norm or not len(positions):
            return {}
        sample = sample_calibration_rows(self.rows, positions, self.seed, self.calibration_rows)
        if len(sample) == 1:
            sample = np.repeat(sample, 2)  # BatchNorm needs two rows
        parts = np.array_split(sample, -(-len(sample) // _CALIBRATION_BATCH))
        return self.template.running_statistics(flat, map(self.load_rows, parts))

    def load_rows(self, positions: Positions) -> Tensor:
        """Return the rows at these positions on the device, as a module gets them."""
        where = torch.from_numpy(positions).to(self.device)
        return to_batch(self.data.X.index_select(0, where))

    def mean_loss(self, flat: Tensor, positions: Positions, trained: Positions) -> Tensor:
        """Return the mean loss of rows for one network that was trained on other rows.

        The network is in evaluation mode. The result is NaN without rows.
        """
        module = self.template.make_module(flat, self.compute_statistics(flat, trained))
        losses = []
        with torch.no_grad():
            for part in np.array_split(positions, -(-len(positions) // _ANSWER_BATCH) or 1):
                y = self.data.y[torch.from_numpy(part).to(self.device)]
                losses.append(self.settings.row_losses(module(self.load_rows(part)).float(), y))
        return torch.cat(losses).mean()


def count_outputs(classes: NDArray[Any] | None, y: NDArray[Any]) -> int:
    """Return the number of outputs of a network: one per class, or one per target of a row."""
    if classes is not None:
        return len(classes)
    return 1 if y.ndim == 1 else int(y.shape[1])


def net_facts(method: str, **own: Any) -> MethodFacts:
    """Return the facts of a method for networks; `own` overrides the common values."""
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
    """Parameters that all network classifiers have, with their defaults."""

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


class NetBase(NetParameters, RowsMixin, BaseEstimator):
    """One or more networks with the same architecture, and their rows.

    A subclass implements `_train_all` (train from scratch) and `_prepare_removal` (a removal after
    which every class still has rows). Both return a `Change` to be committed. A mixin of
    `_tasks.py` makes it a classifier or a regressor.
    """

    counts_: Any
    nets_: Nets
    shape_: tuple[int, ...]
    _is_classifier: ClassVar[bool]
    cache_: Cache[TrainingContext]
    environment_: dict[str, str]
    seed_: int
    n_features_in_: int

    # `environment_` has the device; the location of checkpoints does not affect the result.
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
        "module": OrNone(AnyCallable(), "a small MLP"),
        "deterministic": Boolean(),
    }
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | {"cache_"}

    def fit(self, X: Any, y: Any, *, ids: Any = None, callback: Callback | None = None) -> Self:
        """Train on all rows and store them.

        Parameters
        ----------
        X : array-like, Tensor, pandas or polars frame, of shape (n_rows, ...)
            Training rows: a table, or images and other rows with more axes. uint8 is stored as
            uint8, everything else as float32. A batch is always converted to float32.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            The id of each row; may repeat. Default ``0..n-1``.
        callback : callable, optional
            Called with a `Progress` after every epoch. It may use this model, but not change it.

        Returns
        -------
        self
        """
        with lock_for_change(self):
            self._check_settings()
            seed = seed_from(self.random_state)
            data = self._check_training_data(X, y, ids)
            # Before training: parameters that cannot be saved are rejected here.
            about = {"seed_": seed, **shape_attributes(X, data.rows.X.shape[1:])}
            about |= self._remember_settings()
            with self._training_run():
                change = self._train_all(data, seed, callback)
            warnings = self._replace_all(change, about)
        warn_all(warnings)
        return self

    def forget(
        self, ids: Any, *, digest: bool = False, callback: Callback | None = None
    ) -> Receipt:
        """Remove every row with these ids; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget.
        digest : bool, default=False
            Also record the digests before and after.
        callback : callable, optional
            Called with a `Progress` after every epoch of training that the removal needs.

        Returns
        -------
        Receipt
            Numbers of ids and rows, cost and guarantee; never the ids.
        """
        return self._answer_request(ids, digest, partial(self._prepare, callback=callback))

    def to_modules(self) -> list[torch.nn.Module]:
        """Return copies of the trained networks, as modules in evaluation mode on the CPU."""
        require_fitted(self)
        nets = self.nets_
        return [
            copy.deepcopy(net).cpu()
            for net in nets.make_modules(self._make_template, self._torch_device())
        ]

    @abstractmethod
    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        """Train from scratch; return a change that sets `nets_`, `cache_` and other attributes."""

    @abstractmethod
    def _prepare_removal(self, removal: Removal, callback: Callback | None) -> Any:
        """Prepare a removal after which every class still has rows.

        Return the argument of `_commit`: a `Change` from `_removal_change`, unless a subclass
        overrides `_commit`.
        """

    @abstractmethod
    def _hold_targets(self, y: Any) -> NDArray[Any]:
        """Return y as an array in canonical form; raise an error for targets of the wrong kind."""

    @abstractmethod
    def _make_training_rows(
        self, rows: NDArray[Any], targets: NDArray[Any], ids: Any
    ) -> TrainingRows:
        """Return rows, targets and ids together; for a classifier with its classes."""

    @abstractmethod
    def _link_outputs(self, outputs: Tensor) -> Tensor:
        """Return the predictions of one network, such as probabilities, from its outputs."""

    def _aggregate(self, predictions: Floats) -> Floats:
        """Return the predictions of the model: the mean over its networks (the first axis)."""
        answer: Floats = predictions.mean(axis=0)
        return answer

    def _loop_settings(self, shape: tuple[int, ...]) -> LoopSettings:  # noqa: ARG002
        """Return the settings of the training loop for rows of this shape."""
        return loop_settings(self)

    def _check_settings(self) -> None:
        """Raise ValueError or TypeError for the first invalid parameter."""
        module, loss, optimizer = self.module, self.loss, self.optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            name = type(optimizer).__name__
            raise ValueError(
                f"optimizer is an instance of {name}; expected one of {OPTIMIZERS} or a factory "
                f"that takes parameters, such as functools.partial(torch.optim.{name}, lr=0.01)"
            )
        validate_parameters(self)
        if callable(optimizer) and self.schedule != "constant":
            raise ValueError(
                f"schedule={self.schedule!r} needs an optimizer that is given by name, one of "
                f"{OPTIMIZERS}; a custom optimizer has its own learning rate"
            )
        if isinstance(loss, nn.Module):
            raise ValueError(
                f"loss is a module ({type(loss).__name__}); expected a function, such as "
                f"torch.nn.functional.cross_entropy"
            )
        if isinstance(module, nn.Module):
            raise ValueError(
                f"module is an instance ({type(module).__name__}); expected {_FACTORY}"
            )
        if isinstance(module, type) and module.__module__.startswith("torch."):
            raise ValueError(f"module is a torch layer ({module.__name__}); expected {_FACTORY}")
        resolve_device(self.device)

    def _torch_device(self) -> torch.device:
        return resolve_device(self.device)

    @contextmanager
    def _training_run(self) -> Iterator[None]:
        """Run the block reproducibly; raise MemoryError if the GPU runs out of memory."""
        try:
            with reproducible_run(self._torch_device(), deterministic=bool(self.deterministic)):
                yield
        except torch.OutOfMemoryError as error:
            raise MemoryError(
                f"the GPU ran out of memory ({error}); the model was not changed. Use a smaller "
                f"batch_size, fewer networks at once, or device='cpu'"
            ) from error

    def _check_training_data(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        require_target(self, y)
        rows = copy_rows(self, X)
        self._warn_if_scaled_twice(rows)
        return self._make_training_rows(rows, self._copy_targets(y, rows), ids)

    def _copy_targets(self, y: Any, rows: NDArray[Any]) -> NDArray[Any]:
        targets = self._hold_targets(y)
        check_consistent_length(rows, targets)
        return targets

    def _warn_if_scaled_twice(self, rows: NDArray[Any]) -> None:
        scale = getattr(self._module_factory, "scale", None)
        is_small = rows.dtype != np.uint8 and bool(np.abs(rows).max(initial=0.0) <= 1.0)
        if is_small and isinstance(scale, float) and scale <= 1 / 255:
            warn_caller(
                f"all values are between -1 and 1, and module multiplies them by {scale:.3g}, a "
                "factor for bytes (0 to 255); pass scale=1.0 to the module",
                LetheonWarning,
            )

    def _new_context(self, data: TrainingRows, seed: int) -> TrainingContext:
        """Return a new training context for rows that are about to be trained on."""
        template = self._build_template(
            data.rows.X.shape[1:], count_outputs(data.classes, data.rows.y), seed
        )
        if template.has_batch_norm and self.batch_size < 2:
            raise ValueError(
                f"batch_size={self.batch_size} is too small; BatchNorm needs at least 2"
            )
        return self._make_context(data.rows, template, seed)

    def _make_context(self, rows: SlotRows, template: Template, seed: int) -> TrainingContext:
        limit = int(self.calibration_rows)
        return TrainingContext(
            rows, template, self._loop_settings(template.shape), seed, self._torch_device(), limit
        )

    def _current_context(self) -> TrainingContext:
        """Return the training context of the remaining rows.

        The context is rebuilt after the model was loaded or its rows were compacted.
        """
        context = self.cache_.content
        if context is not None and context.is_valid_for(self.rows_, self._torch_device()):
            return context
        context = self._make_context(self.rows_, self._make_template(self.nets_), self.seed_)
        self.cache_.content = context
        return context

    @property
    def _module_factory(self) -> Any:
        return MLP() if self.module is None else self.module

    def _make_template(self, nets: Nets) -> Template:
        n_outputs = count_outputs(nets.classes, self.rows_.y)
        return self._build_template(self.shape_, n_outputs, self.seed_, nets.constants)

    def _build_template(
        self, shape: tuple[int, ...], n_outputs: int, seed: int, constants: Any = None
    ) -> Template:
        is_classifier, dtype = self._is_classifier, getattr(torch, row_dtype(self))
        return Template(
            self._module_factory,
            shape,
            n_outputs,
            seed,
            constants,
            dtype=dtype,
            is_classifier=is_classifier,
        )

    def _make_nets(
        self,
        context: TrainingContext,
        flat: Tensor,
        owned: Sequence[Positions | None],
        classes: Any,
    ) -> Nets:
        """Return the networks with parameters `flat`, and their BatchNorm statistics.

        `owned` has the positions of the rows of each network, or None if they did not change.

        A network without rows is not used for predictions.
        """
        parts = list[tuple[Statistics, bool]]()
        for number, (line, rows) in enumerate(zip(flat, owned, strict=True)):
            if rows is None:
                parts.append((self.nets_.statistics[number], self.nets_.answers[number]))
            else:
                parts.append((context.compute_statistics(line, rows), len(rows) > 0))
        statistics, answers = zip(*parts, strict=True)
        constants = {name: part.clone() for name, part in context.template.constants.items()}
        return Nets(flat, statistics, answers, classes, constants, context.template)

    def _fit_change(
        self,
        data: TrainingRows,
        context: TrainingContext,
        nets: Nets,
        rebuilt: Mapping[str, int] = {},
        **own: Any,
    ) -> Change:
        """Return the change for a training from scratch; `own` has attributes of the subclass."""
        attributes = {
            "rows_": data.rows,
            "counts_": data.counts,
            "nets_": nets,
            "shape_": data.rows.X.shape[1:],
            "cache_": Cache(context),
        }
        return Change(attributes | own, Outcome(1.0, rebuilt))

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        """Replace all fitted attributes in one step, so that concurrent readers see no mixture."""
        vars(self).update(change.attributes | about)
        for stale in {"tuning_", "feature_names_in_"} - about.keys():
            vars(self).pop(stale, None)
        return change.outcome.warnings

    def _prepare(self, removal: Removal, callback: Callback | None = None) -> Any:
        counts = self._counts_without(removal.where)
        with self._training_run():
            if counts is not None and 0 in counts:
                return self._prepare_retrain(removal.where, callback)
            return self._prepare_removal(removal, callback)

    def _prepare_retrain(self, positions: Positions, callback: Callback | None) -> Change:
        """Prepare a fit from scratch on the remaining rows."""
        data = TrainingRows(self.rows_, self.nets_.classes, self.counts_).without(positions)
        change = self._train_all(data, self.seed_, callback)
        outcome = change.outcome._replace(work=1.0, rebuilt={"retrains": 1})
        return Change(change.attributes, outcome, (partial(self.rows_.wipe, positions),))

    def _removal_change(
        self, removal: Removal, attributes: dict[str, Any], outcome: Outcome
    ) -> Change:
        """Return a change that also removes the rows, on the host and on the device."""
        positions: Positions = removal.where
        attributes = {"counts_": self._counts_without(positions), **attributes}
        writes = (
            partial(self._current_context().wipe, positions),
            partial(self.rows_.wipe, positions),
        )
        return Change(attributes, outcome, writes)

    def _predict_outputs(self, X: Any) -> tuple[Nets, Floats]:
        """Return the networks and the combined predictions of all networks."""
        require_fitted(self)
        rows = check_query_rows(self, X, self.shape_)
        nets, device = (
            self.nets_,
            self._torch_device(),
        )  # read once: a concurrent commit may replace them
        modules, parts = nets.make_modules(self._make_template, device), []
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for begin in range(0, len(rows), _ANSWER_BATCH):
                x = torch.from_numpy(rows[begin : begin + _ANSWER_BATCH]).to(device)
                answers = [self._predict_with(module, to_batch(x)) for module in modules]
                parts.append(torch.stack(answers).cpu().numpy())
        return nets, self._aggregate(np.concatenate(parts, axis=1))

    def _predict_with(self, module: nn.Module, batch: Tensor) -> Tensor:
        """Return the predictions of one network for a batch."""
        return self._link_outputs(module(batch).double())

    def _describe_environment(self) -> dict[str, str]:
        kernels = "fixed" if self.deterministic else "free"
        return (
            super()._describe_environment()
            | describe_device(self._torch_device())
            | {"kernels": kernels}
        )

    def _in_place_attributes(self) -> tuple[str, ...]:
        """Return the names of attributes whose memory a removal overwrites."""
        return ("rows_", "cache_")

    def __sklearn_tags__(self) -> Tags:
        """Return the scikit-learn tags; non-deterministic unless `deterministic` is set."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.non_deterministic = not self.deterministic
        return tags
