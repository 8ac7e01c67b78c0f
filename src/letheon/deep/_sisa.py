"""The estimators of SISA for networks (Bourtoule et al., 2021)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from letheon.deep._base import Floats
from letheon.deep._optim import LoopSettings
from letheon.deep._sharded import SISANet
from letheon.deep._tasks import NetClassifierMixin, NetRegressorMixin
from letheon.validation import Interval, OneOf, Rules


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetClassifier(NetClassifierMixin, SISANet):
    """Any PyTorch module, trained in shards and slices, so that forgetting is fast and exact.

    Ids are distributed over `n_shards` shards by a keyed hash. Every shard trains its own network,
    slice by slice: stage k uses slices 1..k. To forget rows, only their shards are trained again,
    each from its first slice with such rows; the state before that slice is stored. On a GPU the
    networks of all shards are trained at once as one stacked network. With ``n_shards=1`` and
    ``n_slices=1`` this is naive retraining.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None means `MLP()`.
    n_shards : int, default=5
        Number of shards. With more shards removals are faster, but predictions are worse, because
        each network is trained on fewer rows.
    n_slices : int, default=1
        Number of slices per shard, at most ``2 epochs - 1``, so that every stage has at least one
        epoch. Every slice except the last needs one saved state per shard.
    epochs : int, default=20
        Number of passes over the rows of a shard. With slices, this work is distributed over the
        stages.
    aggregation : {"mean", "vote"}, default="mean"
        How probabilities are predicted: the mean of the networks' probabilities, or the share of
        networks that vote for each class.
    lane_width : int or None, default=None
        Number of networks trained at once. It affects the last bits of a network, so a retraining
        keeps empty lanes for unaffected shards. None means 1 on a CPU and `n_shards` on a GPU.
    optimizer : {"adam", "sgd", "adamw"} or callable, default="adam"
        A name, or a factory that takes parameters and returns a `torch.optim.Optimizer`. The
        optimizer is reset at the start of every stage.
    learning_rate, momentum, weight_decay : float, default=0.005, 0.9, 0.0
        For named optimizers; momentum is used by "sgd" only.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate changes within a stage.
    loss : "cross_entropy" or callable, default="cross_entropy"
        A callable takes logits and class codes and returns one loss per row. A function with a
        parameter `reduction`, such as the PyTorch losses, is called with ``reduction="none"``.
    batch_size : int, default=64
        Number of slots in a batch; at least 2 with BatchNorm. With BatchNorm or many lanes a batch
        costs as much as `batch_size` rows, even if it has fewer.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Precision of the forward pass; parameters are float32.
    calibration_rows : int, default=4096
        Number of rows of a shard from which BatchNorm's running statistics are computed after
        training.
    checkpoint_dir : path or None, default=None
        Directory for the states; None keeps them in memory.
    augment : str, callable or list of these, default=None
        Random changes of the rows in training, in this order. "flip" mirrors images, "crop4" moves
        them by up to 4 pixels (or another number), "cutout" erases a square of half their side
        ("cutout8": of 8 pixels), "mixup" mixes each row with another of its batch. A callable takes
        a batch and a `RowGenerator` and returns the changed batch.
    label_smoothing : float, default=0.0
        As in `torch.nn.CrossEntropyLoss`.
    warm_up : float, default=0.0
        Share of the steps of a stage in which the learning rate rises linearly to its value.
    max_grad_norm : float or None, default=None
        Largest norm of the gradient of a network, as in `torch.nn.utils.clip_grad_norm_`.
    accumulation_steps : int, default=1
        Number of batches whose gradients are added up for one step of the optimizer. The step is
        that of one batch with all their rows, except for BatchNorm and "mixup".
    test_time_flip : bool, default=False
        Whether a prediction is the mean over each image and its mirror image.
    validation_fraction : float, default=0.0
        Share of the people, chosen by a keyed hash, whose rows are not trained on but decide when
        the training of their shard stops: it keeps the parameters of the epoch with the lowest loss
        on them.
    n_iter_no_change : int, default=5
        Number of epochs without a lower loss on the held-out rows after which a stage stops.
    row_dtype : {"float32", "int64"}, default="float32"
        "int64" stores whole numbers, such as tokens, and passes them to the module as int64.
    verbose : int, default=0
        Whether a progress bar shows the loss and the remaining time.
    max_memory : int or None, default=None
        If the states need more bytes, they are stored in an unnamed temporary file. A forked
        process cannot use that file: its first removal trains everything again.
    device : str, default="auto"
        "auto" uses a GPU if there is one.
    deterministic : bool, default=True
        Use kernels that add in a fixed order, and one thread on a CPU. Otherwise two fits differ
        in their last bits.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random numbers. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted. When the last row of a class is removed, all shards
        are trained again: the networks lose a logit.
    nets_ : Nets
        The trained networks; `to_modules` returns them as modules.
    rows_, vault_
        Remaining rows and saved states. A saved model is personal data.
    seed_, ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. With ``deterministic=True``, after any sequence of `forget` and `learn` the
    model has the bytes of a fresh `fit` on the remaining rows in their order, with the same seed,
    libraries, kind of device and `lane_width`.

    References
    ----------
    Bourtoule et al., Machine Unlearning, IEEE S&P 2021. Gupta et al., Adaptive Machine
    Unlearning, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import SISANetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SISANetClassifier(n_shards=3, epochs=5, device="cpu", random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> fresh = SISANetClassifier(n_shards=3, epochs=5, device="cpu", random_state=0)
    >>> fresh.fit(X[2:], y[2:], ids=range(2, 150)).digest() == model.digest()
    True
    """

    _parameter_rules: ClassVar[Rules] = {
        "aggregation": OneOf(("mean", "vote")),
        "label_smoothing": Interval(0, 1, closed="left"),
    }

    aggregation: str = "mean"
    label_smoothing: float = 0.0

    def _aggregate(self, predictions: Floats) -> Floats:
        if self.aggregation == "vote":
            predictions = np.eye(predictions.shape[2])[predictions.argmax(axis=2)]
        return super()._aggregate(predictions)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.label_smoothing and callable(self.loss):
            raise ValueError(
                f"label_smoothing={self.label_smoothing} needs loss='cross_entropy'; with a custom "
                "loss, smooth the labels in the loss"
            )

    def _loop_settings(self, shape: tuple[int, ...]) -> LoopSettings:
        smoothing = float(self.label_smoothing)
        return replace(super()._loop_settings(shape), label_smoothing=smoothing)


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetRegressor(NetRegressorMixin, SISANet):
    """Any PyTorch module that predicts numbers, in shards and slices; forgetting is fast and exact.

    Like `SISANetClassifier`, but the module has one output per target, and the predictions of the
    networks are averaged. The targets are not scaled: a mean of the training rows would have to be
    forgotten too. Scale large targets with constants.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: takes the shape of a row and the number of targets (or nothing) and
        returns a `torch.nn.Module` with one output per target. None means `MLP()`.
    loss : "squared_error" or callable, default="squared_error"
        A callable takes outputs and targets, both of shape (n_rows, n_targets), and returns one
        loss per row or per target. The losses of the targets of a row are averaged.
    aggregation : {"mean", "median"}, default="mean"
        Mean or median of the predictions of the networks.
    n_shards, n_slices, epochs, lane_width, optimizer, learning_rate, momentum, weight_decay
        As in `SISANetClassifier`.
    schedule, batch_size, precision, calibration_rows, augment, warm_up, max_grad_norm
        As in `SISANetClassifier`.
    accumulation_steps, test_time_flip, validation_fraction, n_iter_no_change, row_dtype, verbose
        As in `SISANetClassifier`.
    checkpoint_dir, max_memory, device, deterministic, random_state
        As in `SISANetClassifier`.

    Attributes
    ----------
    nets_, rows_, vault_, seed_, ids_, guarantee_, n_rows_
        As in `SISANetClassifier`.

    Notes
    -----
    Guarantee: exact, as in `SISANetClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from letheon import SISANetRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = SISANetRegressor(n_shards=3, epochs=5, device="cpu", random_state=0)
    >>> model.fit(X, y / 100).forget([7]).rebuilt
    {'shards': 1, 'stages': 1}
    """

    _parameter_rules: ClassVar[Rules] = {"aggregation": OneOf(("mean", "median"))}

    aggregation: str = "mean"
    loss: Any = "squared_error"

    def _aggregate(self, predictions: Floats) -> Floats:
        if self.aggregation == "median":
            median: Floats = np.median(predictions, axis=0)
            return median
        return super()._aggregate(predictions)
