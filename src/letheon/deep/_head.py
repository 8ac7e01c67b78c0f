"""A frozen backbone with a convex head: the route to certified removal for deep nets."""

import copy
from collections.abc import Iterator
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
from letheon.deep._backbone import Backbone
from letheon.deep._base import net_facts
from letheon.deep._device import (
    ask_rows,
    describe_device,
    hold_rows,
    resolve_device,
    shape_attributes,
)
from letheon.exceptions import IdsTypeError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import available_from
from letheon.linear import InfluenceClassifier, LinearClassifier, PublishedModel
from letheon.receipt import Receipt
from letheon.validation import Rules, Whole, validate_parameters

FROZEN = "backbone-never-saw-the-rows"


def default_head() -> InfluenceClassifier:
    """Return the head of ``head=None``: features of length 1, and a certificate that lasts."""
    return InfluenceClassifier(l2=1e-3, rows="normalize", row_norm=1.0)


def _head(model: "CertifiedHeadClassifier") -> Any:
    """The head, fitted if there is one."""
    given = InfluenceClassifier if model.head is None else model.head
    return vars(model).get("head_", given)


class _HeadFacts:
    """Facts of the route in general; of one model, limited by those of its head."""

    def __init__(self, general: MethodFacts) -> None:
        self._general = general

    def __get__(self, model: Any, owner: type) -> MethodFacts:
        facts = None if model is None else getattr(_head(model), "facts", None)
        if not isinstance(facts, MethodFacts):
            return self._general
        names = ("strength", "requests", "releases", "exact", "certificate", "batches")
        own: dict[str, Any] = {name: getattr(facts, name) for name in names}
        for name in ("efficiency_parameters", "certifiability_parameters"):
            own[name] = tuple(f"head__{parameter}" for parameter in getattr(facts, name))
        return replace(self._general, **own, needs=("frozen-backbone", *facts.needs))


def _of_head(name: str, doc: str) -> property:
    """Return a property that is the head's."""

    def read(model: "CertifiedHeadClassifier") -> NDArray[Any]:
        require_fitted(model)
        value: NDArray[Any] = getattr(model.head_, name)
        return value

    return property(read, doc=doc)


def _with_assumption(claim: Guarantee) -> Guarantee:
    return replace(claim, assumptions=(*claim.assumptions, FROZEN))


class CertifiedHeadClassifier(
    KeywordScoreMixin, ForgetMixin, MetaEstimatorMixin, ClassifierMixin, BaseEstimator
):
    """A net that is never trained again, and a linear head on it that forgets with a certificate.

    The backbone turns every row x into features phi(x); the head, a convex method of letheon,
    is trained on (phi(x), y) and forgets there. For a fixed phi this is the head's own problem,
    so that its whole theory holds, (epsilon, delta) included. It holds as long as **phi does
    not depend on anybody who may leave**: train the backbone on public data, on data that is never
    erased, or take a published one. If it was trained on the rows that are given to `fit`, it
    remembers people after they were forgotten, and nothing is certified at all.

    Parameters
    ----------
    backbone : Backbone
        The frozen feature extractor; ``Backbone(factory, module.state_dict())``.
    head : classifier of letheon.linear or None, default=None
        `InfluenceClassifier`, `FisherClassifier`, `DescentToDeleteClassifier` or
        `DeltaGradClassifier` (which certifies nothing). A clone is fitted. None is
        ``InfluenceClassifier(l2=1e-3, rows="normalize", row_norm=1.0)``. Lengths of features
        differ widely: let the head clip or normalize them. A scaler would learn from the rows.
    batch_size : int, default=1024
        Rows that go through the backbone at a time in answers. Rows of `fit` and `learn` go
        through alone, so that their features depend on nothing else.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where the backbone runs. The head runs on the CPU.

    Attributes
    ----------
    backbone_ : Backbone
        The backbone of the fit; it answers even when the parameter is another one now.
    head_ : estimator
        The fitted head. It holds features and not rows; features can tell as much as rows, so a
        saved model is personal data.
    classes_, coef_, intercept_ : ndarray
        Those of the head.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: that of the head, with the further assumption ``backbone-never-saw-the-rows``, which
    only the caller can know. The certificate says nothing about what the backbone reveals of the
    rows that it was trained on.

    A module that changes its parameters or buffers in evaluation mode, or whose features of a row
    depend on other rows, is refused with `TrainingError`.

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
    _parameter_rules: ClassVar[Rules] = {"batch_size": Whole(1)}
    # The size of batches matters to answers only. Features are held as they came out, so that
    # another device changes the last bits of later ones at most.
    _neutral_parameters: ClassVar[frozenset[str]] = frozenset({"batch_size", "device"})

    backbone_: Backbone
    head_: Any
    shape_: tuple[int, ...]
    seed_: int
    n_features_in_: int

    def __init__(
        self, backbone: Any, head: Any = None, *, batch_size: int = 1024, device: str = "auto"
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Compute the features of all rows and fit the head on them.

        Parameters
        ----------
        X : array-like of shape (n_rows, ...)
            Rows as the backbone takes them: a table, or images and the like. float32 and uint8 stay
            as they are, other numbers become float32.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            Whose row each is; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._check_settings()
            rows, backbone = hold_rows(self, X), self.backbone
            head = default_head() if self.head is None else clone(self.head)
            backbone.require_row_by_row(rows, batch_size=self.batch_size, device=self.device)
            features = backbone.of_single_rows(rows, device=self.device)
            head.fit(features, y, ids=ids)
            for stale in ("tuning_", "feature_names_in_"):
                vars(self).pop(stale, None)
            # One call, so that a concurrent predict never sees half of it.
            vars(self).update(
                backbone_=backbone,
                head_=head,
                shape_=rows.shape[1:],
                **shape_attributes(X, rows.shape[1:]),
                seed_=head.seed_,
                **self._remember_settings(),
            )
        return self

    def forget(self, ids: Any, *, digest: bool = False, **options: Any) -> Receipt:
        """Let the head forget these people; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget.
        digest : bool, default=False
            Also record the digests before and after.
        **options
            What the `forget` of the head takes besides, such as `batch_size`.

        Returns
        -------
        Receipt
            The head's, with the guarantee of the whole.
        """
        with self._unchanged() as head:
            before = self.digest() if digest else None
            receipt: Receipt = head.forget(ids, **options)
            return replace(
                receipt,
                method=self.facts.method,
                guarantee=self.guarantee_,
                digest_before=before,
                digest_after=self.digest() if digest else None,
            )

    @available_from(_head)
    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows, where the head can; see `DescentToDeleteClassifier.learn`."""
        require_fitted(self)
        if ids is None:
            raise IdsTypeError("learn got ids=None; say whose rows they are, one id per row")
        with self._unchanged() as head:
            head.learn(self._training_features(X), y, ids=ids)
        return self

    @available_from(_head)
    def settle(self) -> Self:
        """Let the head replace what earlier removals left in its state, where it can."""
        with self._unchanged() as head:
            head.settle()
        return self

    def publish(self) -> PublishedModel:
        """Return the head to give away: parameters and claim, without features, noise or account.

        It takes features: ``model.publish().predict(model.features(X))``. The backbone is no
        secret of this model; give it away as you got it.
        """
        with self._unchanged() as head:
            published: PublishedModel = head.publish()
            return replace(published, guarantee=_with_assumption(published.guarantee))

    @contextmanager
    def _unchanged(self) -> Iterator[Any]:
        """Hold the lock of a fitted model with the parameters of the fit; yield the head."""
        require_fitted(self)
        with lock_model(self):
            self._require_same_parameters()
            yield self.head_

    def features(self, X: Any) -> NDArray[Any]:
        """Return what the backbone makes of rows, shape (n_rows, n_features)."""
        return self._ask_head(X, None)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest label of every row."""
        return self._ask_head(X, "predict")

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities, in the order of `classes_`."""
        return self._ask_head(X, "predict_proba")

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`."""
        return self._ask_head(X, "predict_log_proba")

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: one per row for two classes, else one per row and class."""
        return self._ask_head(X, "decision_function")

    classes_ = _of_head("classes_", "Labels still held, sorted.")
    coef_ = _of_head("coef_", "Coefficients of the features, one line per score.")
    intercept_ = _of_head("intercept_", "Intercepts, one per score.")

    @property
    def n_rows_(self) -> int:
        """Number of rows whose features are still held."""
        require_fitted(self)
        return int(self.head_.n_rows_)

    @property
    def guarantee_(self) -> Guarantee:
        """What is claimed about the model as it is now: the head's claim, for a frozen backbone.

        Raises `ChangedParametersError` after `set_params`: the claim is that of the fit.
        """
        require_fitted(self)
        self._require_same_parameters()
        return super().guarantee_

    def _check_settings(self) -> None:
        if not isinstance(self.backbone, Backbone):
            raise TypeError(
                f"backbone is {type(self.backbone).__name__}; expected a Backbone: "
                "Backbone(factory, module.state_dict()), where factory() builds the module. A "
                "module alone could not be saved with the model"
            )
        if self.head is not None and not isinstance(self.head, LinearClassifier):
            raise TypeError(
                f"head is {type(self.head).__name__}; expected a classifier of letheon.linear "
                "(InfluenceClassifier, FisherClassifier, DescentToDeleteClassifier, "
                "DeltaGradClassifier) or None"
            )
        if getattr(self.head, "data_free", False):
            raise ValueError(
                "head has data_free=True, which compares features bit by bit when rows leave; they "
                "differ in their last bits on another device or with other libraries. Use "
                "data_free=False"
            )
        validate_parameters(self)
        resolve_device(self.device)

    def _training_features(self, X: Any) -> NDArray[Any]:
        """Return features as `fit` computes them: row by row, a function of the row alone.

        An audit computes them again.
        """
        rows = ask_rows(self, X, self.shape_)
        return self.backbone_.of_single_rows(rows, device=self.device)

    def _ask_head(self, X: Any, method: str | None) -> NDArray[Any]:
        """Return the features of rows, or what a method of the head makes of them."""
        require_fitted(self)
        held = vars(self).copy()  # one reading: a fit may replace all of it meanwhile
        rows = ask_rows(self, X, held["shape_"])
        features: NDArray[Any] = held["backbone_"].of_rows(
            rows, batch_size=self.batch_size, device=self.device
        )
        return features if method is None else getattr(held["head_"], method)(features)

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | describe_device(resolve_device(self.device))

    def _get_ids(self) -> Ids:
        ids: Ids = self.head_._get_ids()
        return ids

    def _make_guarantee(self) -> Guarantee:
        return _with_assumption(self.head_.guarantee_)

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
        """Return the attributes; a backbone that is the parameter still is written once."""
        state = dict(vars(self))
        given = getattr(self.backbone, "fingerprint", None)
        if "backbone_" in state and self.backbone_.fingerprint == given:
            state["backbone_"] = None
        return state

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        model = cls.__new__(cls)
        vars(model).update(state)
        if "backbone_" in state:
            model.backbone_ = state["backbone_"] or state["backbone"]
            if not isinstance(model.backbone_, Backbone):
                raise ValueError("a fitted model needs its backbone")
        return model

    def __copy__(self) -> Self:
        """Return a copy with a head of its own: its rows change in place."""
        twin = type(self).__new__(type(self))
        with lock_model(self):
            vars(twin).update(vars(self))
            if "head_" in vars(self):
                vars(twin)["head_"] = copy.copy(self.head_)
        return twin

    def __sklearn_tags__(self) -> Tags:
        """Dense rows of any shape; noise of the head makes two fits differ."""
        tags = super().__sklearn_tags__()
        head = default_head() if self.head is None else self.head
        if hasattr(head, "__sklearn_tags__"):
            tags.non_deterministic = get_tags(head).non_deterministic
        return tags
