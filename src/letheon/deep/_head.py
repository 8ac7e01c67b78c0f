"""A frozen backbone with a convex head: certified removal for deep networks."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags, get_tags

from letheon.base import (
    ForgetMixin,
    KeywordScoreMixin,
    Outcome,
    Removal,
    lock_model,
    require_fitted,
)
from letheon.data import Ids
from letheon.deep._backbone import FROZEN, Backbone
from letheon.deep._base import net_facts
from letheon.deep._device import (
    check_query_rows,
    copy_rows,
    describe_device,
    resolve_device,
    shape_attributes,
)
from letheon.exceptions import IdsTypeError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import available_from
from letheon.linear import InfluenceClassifier, LinearClassifier, PublishedModel
from letheon.receipt import Receipt
from letheon.validation import Rules, Whole, validate_parameters


def default_head() -> InfluenceClassifier:
    """Return the head that ``head=None`` means; it normalises features to length 1."""
    return InfluenceClassifier(l2=1e-3, rows="normalize", row_norm=1.0)


def _get_head(model: "HeadClassifier") -> Any:
    """Return the fitted head; before `fit`, what the parameters describe."""
    return vars(model)["head_"] if "head_" in vars(model) else model._find_parameter()


class _HeadFacts:
    """Descriptor of the facts: of the class in general, or of the head of an instance."""

    def __init__(self, general: MethodFacts) -> None:
        self._general = general

    def __get__(self, model: Any, owner: type) -> MethodFacts:
        facts = None if model is None else getattr(_get_head(model), "facts", None)
        if not isinstance(facts, MethodFacts):
            return self._general
        names = ("strength", "requests", "releases", "exact", "certificate", "batches")
        own: dict[str, Any] = {name: getattr(facts, name) for name in names}
        for name in ("efficiency_parameters", "certifiability_parameters"):
            own[name] = tuple(f"head__{parameter}" for parameter in getattr(facts, name))
        return replace(self._general, **own, needs=("frozen-backbone", *facts.needs))


def _head_property(name: str, doc: str) -> property:
    """Return a property that reads an attribute of the head."""

    def read(model: "HeadClassifier") -> NDArray[Any]:
        require_fitted(model)
        value: NDArray[Any] = getattr(model.head_, name)
        return value

    return property(read, doc=doc)


def add_assumption(claim: Guarantee) -> Guarantee:
    """Return the guarantee with the assumption that the backbone never saw the rows."""
    return replace(claim, assumptions=(*claim.assumptions, FROZEN))


class HeadClassifier(
    KeywordScoreMixin, ForgetMixin, MetaEstimatorMixin, ClassifierMixin, BaseEstimator
):
    """Base class: a frozen backbone, and a head that is fitted on its features.

    A subclass implements `_find_parameter`, `_make_head` and `_check_head`.
    """

    _parameter_rules: ClassVar[Rules] = {"batch_size": Whole(1)}
    # batch_size affects predictions only. Training features are stored, so another device changes
    # at most the last bits of later features.
    _neutral_parameters: ClassVar[frozenset[str]] = frozenset({"batch_size", "device"})

    backbone_: Backbone
    head_: Any
    shape_: tuple[int, ...]
    seed_: int
    n_features_in_: int

    backbone: Any
    batch_size: int
    device: str

    def _find_parameter(self) -> Any:
        """Return the parameter that describes the head: an estimator or its class."""
        raise NotImplementedError(f"{type(self).__name__} must describe its head")

    def _make_head(self) -> Any:
        """Return an unfitted head."""
        raise NotImplementedError(f"{type(self).__name__} must make its head")

    def _make_expansion(self, head: Any, n_features: int) -> dict[str, Any]:  # noqa: ARG002
        """Return attributes of the fitted model that `_expand` needs."""
        return {}

    def _expand(self, features: NDArray[Any], fitted: Mapping[str, Any]) -> NDArray[Any]:  # noqa: ARG002
        """Return the features that the head gets, as a function of each row alone."""
        return features

    def _check_head(self) -> None:
        """Raise for a parameter that describes no valid head."""

    def _check_settings(self) -> None:
        if not isinstance(self.backbone, Backbone):
            raise TypeError(
                f"backbone is {type(self.backbone).__name__}; expected a Backbone: "
                "Backbone(factory, module.state_dict()), where factory() builds the module. A "
                "module cannot be saved with the model"
            )
        self._check_head()
        validate_parameters(self)
        resolve_device(self.device)

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Compute the features of all rows and fit the head on them.

        Parameters
        ----------
        X : array-like of shape (n_rows, ...)
            Rows in the format of the backbone: a table, or images and other rows with more axes.
            float32 and uint8 are not converted; other numbers become float32.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            The id of each row; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._check_settings()
            rows, backbone = copy_rows(self, X), self.backbone
            head = self._make_head()
            backbone.require_row_by_row(rows, batch_size=self.batch_size, device=self.device)
            features = backbone.compute_row_features(rows, device=self.device)
            expansion = self._make_expansion(head, features.shape[1])
            head.fit(self._expand(features, expansion), y, ids=ids)
            for stale in ("tuning_", "feature_names_in_"):
                vars(self).pop(stale, None)
            # One call, so a concurrent predict sees either the old or the new model.
            vars(self).update(
                backbone_=backbone,
                head_=head,
                **expansion,
                shape_=rows.shape[1:],
                **shape_attributes(X, rows.shape[1:]),
                seed_=head.seed_,
                **self._remember_settings(),
            )
        return self

    def forget(self, ids: Any, *, digest: bool = False, **options: Any) -> Receipt:
        """Remove every row with these ids from the head; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget.
        digest : bool, default=False
            Also record the digests before and after.
        **options
            Further parameters of the head's `forget`, such as `batch_size`.

        Returns
        -------
        Receipt
            The receipt of the head, with the guarantee of this model.
        """
        with self._lock_head() as head:
            before = self.digest() if digest else None
            receipt: Receipt = head.forget(ids, **options)
            return replace(
                receipt,
                method=self.facts.method,
                guarantee=self.guarantee_,
                digest_before=before,
                digest_after=self.digest() if digest else None,
            )

    @available_from(_get_head)
    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows to the model, if the head supports it; see `DescentToDeleteClassifier.learn`."""
        require_fitted(self)
        if ids is None:
            raise IdsTypeError("learn got ids=None; expected one id per row")
        with self._lock_head() as head:
            head.learn(self._training_features(X), y, ids=ids)
        return self

    @available_from(_get_head)
    def settle(self) -> Self:
        """Remove traces of earlier removals from the state of the head, if it supports it."""
        with self._lock_head() as head:
            head.settle()
        return self

    @contextmanager
    def _lock_head(self) -> Iterator[Any]:
        """Lock the model and yield the head; raise if not fitted or if parameters have changed."""
        require_fitted(self)
        with lock_model(self):
            self._require_same_parameters()
            yield self.head_

    def features(self, X: Any) -> NDArray[Any]:
        """Return the features of rows, shape (n_rows, n_features)."""
        return self._ask_head(X, None)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row."""
        return self._ask_head(X, "predict")

    @available_from(_get_head)
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities, in the order of `classes_`."""
        return self._ask_head(X, "predict_proba")

    @available_from(_get_head)
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`."""
        return self._ask_head(X, "predict_log_proba")

    @available_from(_get_head)
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: one per row for two classes, else one per row and class."""
        return self._ask_head(X, "decision_function")

    classes_ = _head_property("classes_", "Labels of the remaining rows, sorted.")
    coef_ = _head_property("coef_", "Coefficients of the features, one row per score.")
    intercept_ = _head_property("intercept_", "Intercepts, one per score.")

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        return int(self.head_.n_rows_)

    @property
    def guarantee_(self) -> Guarantee:
        """Guarantee of the head, with the assumption that the backbone is frozen.

        Raise `ChangedParametersError` after `set_params`, because the guarantee is about the
        parameters of the fit.
        """
        require_fitted(self)
        self._require_same_parameters()
        return super().guarantee_

    def _training_features(self, X: Any) -> NDArray[Any]:
        """Return the features of X as `fit` computes them, row by row; audits also use them."""
        rows = check_query_rows(self, X, self.shape_)
        features = self.backbone_.compute_row_features(rows, device=self.device)
        return self._expand(features, vars(self))

    def _ask_head(self, X: Any, method: str | None) -> NDArray[Any]:
        """Return the features of X, or the result of a method of the head for these features."""
        require_fitted(self)
        fitted = vars(self).copy()  # read once: a concurrent fit may replace the attributes
        rows = check_query_rows(self, X, fitted["shape_"])
        features: NDArray[Any] = fitted["backbone_"].compute_features(
            rows, batch_size=self.batch_size, device=self.device
        )
        features = self._expand(features, fitted)
        return features if method is None else getattr(fitted["head_"], method)(features)

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | describe_device(resolve_device(self.device))

    def _get_ids(self) -> Ids:
        ids: Ids = self.head_._get_ids()
        return ids

    def _make_guarantee(self) -> Guarantee:
        return add_assumption(self.head_.guarantee_)

    def _locate_rows(self, wanted: Ids) -> Removal:
        removal: Removal = self.head_._locate_rows(wanted)
        return removal

    def _prepare(self, removal: Removal) -> Any:
        self.head_._require_same_parameters()
        return self.head_._prepare(removal)

    def _finish_pending(self) -> None:
        self.head_._finish_pending()

    def _commit(self, plan: Any) -> Outcome:
        outcome: Outcome = self.head_._commit(plan)
        return outcome

    def _to_state(self) -> dict[str, Any]:
        """Return the attributes to save.

        If `backbone_` equals the parameter `backbone`, it is saved only once.
        """
        state = dict(vars(self))
        fingerprint = getattr(self.backbone, "fingerprint", None)
        if "backbone_" in state and self.backbone_.fingerprint == fingerprint:
            state["backbone_"] = None
        return state

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        model = cls.__new__(cls)
        vars(model).update(state)
        if "backbone_" in state:
            model.backbone_ = state["backbone_"] or state["backbone"]
            if not isinstance(model.backbone_, Backbone):
                raise ValueError("the state of the model is not valid: the backbone is missing")
        return model

    def __copy__(self) -> Self:
        """Return a copy with its own copy of the head, whose rows change in place."""
        duplicate = type(self).__new__(type(self))
        with lock_model(self):
            vars(duplicate).update(vars(self))
            if "head_" in vars(self):
                vars(duplicate)["head_"] = copy.copy(self.head_)
        return duplicate


class CertifiedHeadClassifier(HeadClassifier):
    """A frozen network with a linear head; the head forgets with a certified guarantee.

    The backbone turns every row x into features phi(x). The head, a convex method of letheon, is
    trained on (phi(x), y) and forgets there. For a fixed phi, the whole theory of the head holds,
    including (epsilon, delta). The condition is: **phi must not depend on rows that may be
    forgotten**. Train the backbone on public data or on data that is never erased, or use a
    published backbone. If the backbone was trained on rows that are passed to `fit`, it keeps
    information about forgotten rows, and the guarantee is void.

    Parameters
    ----------
    backbone : Backbone
        The frozen feature extractor, for example ``Backbone(factory, module.state_dict())``.
    head : classifier of letheon.linear or None, default=None
        `InfluenceClassifier`, `FisherClassifier`, `DescentToDeleteClassifier` or
        `DeltaGradClassifier` (whose guarantee is empirical). A clone is fitted. None is
        ``InfluenceClassifier(l2=1e-3, rows="normalize", row_norm=1.0)``. The lengths of feature
        vectors differ widely, so let the head clip or normalize them. Do not use a scaler, which
        would learn from the rows.
    batch_size : int, default=1024
        Rows per forward pass of the backbone in predictions. In `fit` and `learn`, every row is a
        batch of its own, so its features do not depend on other rows.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of the backbone. The head runs on the CPU.

    Attributes
    ----------
    backbone_ : Backbone
        The backbone of the fit; predictions use it even if the parameter has changed.
    head_ : estimator
        The fitted head. It stores features instead of rows; features can reveal as much as rows,
        so a saved model is personal data.
    classes_, coef_, intercept_ : ndarray
        Attributes of the head.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: that of the head, with the additional assumption ``backbone-never-saw-the-rows``,
    which only the caller can check. The guarantee does not cover what the backbone reveals about
    the rows that it was trained on.

    A module that changes its parameters or buffers in evaluation mode, or whose features of a row
    depend on other rows, raises `TrainingError`.

    References
    ----------
    Guo, Goldstein, Hannun and van der Maaten, "Certified data removal from machine learning
    models", ICML 2020 (section 4.2: a linear model on features that are not private). Golatkar et
    al., "Mixed-privacy forgetting in deep networks", CVPR 2021.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import load_digits
    >>> from letheon.deep import MLP, Backbone, CertifiedHeadClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> _ = torch.manual_seed(0)
    >>> untrained = Backbone(MLP(widths=(64,), scale=1 / 16), arguments=((64,), 128))
    >>> model = CertifiedHeadClassifier(untrained).fit(X, y)
    >>> model.forget([3, 17]).guarantee.kind
    'certified'
    >>> model.guarantee_.assumptions[-1]
    'backbone-never-saw-the-rows'
    """

    facts: ClassVar[Any] = _HeadFacts(
        net_facts(
            "certified-head",
            applicability="any torch module as a frozen backbone, with a convex head",
            efficiency_parameters=("head",),
            certifiability_parameters=("head",),
            requests="adaptive",
            needs=("frozen-backbone", "strongly-convex", "smooth"),
            certificate="certified",
        )
    )

    def __init__(
        self, backbone: Any, head: Any = None, *, batch_size: int = 1024, device: str = "auto"
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.batch_size = batch_size
        self.device = device

    def publish(self) -> PublishedModel:
        """Return the part of the head that may be published: parameters and guarantee.

        The result contains neither stored features nor noise. It predicts from features:
        ``model.publish().predict(model.features(X))``. The backbone does not depend on the training
        rows, so you may publish it as well.
        """
        with self._lock_head() as head:
            published: PublishedModel = head.publish()
            return PublishedModel(published.linear, add_assumption(published.guarantee))

    def _find_parameter(self) -> Any:
        return InfluenceClassifier if self.head is None else self.head

    def _make_head(self) -> Any:
        return default_head() if self.head is None else clone(self.head)

    def _check_head(self) -> None:
        if self.head is not None and not isinstance(self.head, LinearClassifier):
            raise TypeError(
                f"head is {type(self.head).__name__}; expected a classifier of letheon.linear "
                "(InfluenceClassifier, FisherClassifier, DescentToDeleteClassifier, "
                "DeltaGradClassifier) or None"
            )
        if getattr(self.head, "data_free", False):
            raise ValueError(
                "head has data_free=True, so a removal would compare features bit by bit, but "
                "their last bits differ on another device or with other libraries. Use "
                "data_free=False"
            )

    def __sklearn_tags__(self) -> Tags:
        """Return the scikit-learn tags; non-deterministic if the head is."""
        tags = super().__sklearn_tags__()
        head = default_head() if self.head is None else self.head
        if hasattr(head, "__sklearn_tags__"):
            tags.non_deterministic = get_tags(head).non_deterministic
        return tags
