"""A frozen backbone with a head made of exact sums: exact removal for deep networks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from letheon.deep._base import net_facts
from letheon.deep._head import HeadClassifier, add_assumption
from letheon.guarantee import Guarantee, MethodFacts
from letheon.seeds import seed_from
from letheon.sums import (
    FourierWeights,
    GaussianNB,
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
    RidgeClassifier,
)
from letheon.validation import POSITIVE, Interval, OrNone, Rules, Whole

_NAMED: dict[str, Any] = {"ridge": RidgeClassifier, "lda": LinearDiscriminantAnalysis}
_HEADS = (*_NAMED.values(), GaussianNB, QuadraticDiscriminantAnalysis)
_SAME_KERNEL = "same-libraries-and-cpu-kernel"


class ExactHeadClassifier(HeadClassifier):
    """A frozen network with a head made of exact sums; the head forgets exactly.

    The backbone turns every row x into features phi(x). The head is a ridge classifier or a
    discriminant analysis of the features. A removal subtracts the products of the features of one
    row, and solves the head again when it is used. The condition: **phi must not depend on rows
    that may be forgotten**. Train the backbone on public data or on data that is never erased.

    Parameters
    ----------
    backbone : Backbone
        The frozen feature extractor; ``Backbone(factory, module.state_dict())``.
    head : {"ridge", "lda"} or classifier of letheon.sums, default="ridge"
        A clone of a classifier is fitted: `RidgeClassifier`, `LinearDiscriminantAnalysis`,
        `QuadraticDiscriminantAnalysis` or `GaussianNB`. "lda" shrinks the covariance a little,
        because features may be constant or collinear.
    n_components : int or None, default=None
        Number of random Fourier features of the RBF kernel that the head gets in addition to the
        features. They are often worth it: with 256 or 512 the head is about as accurate as
        fine-tuning the network. Solving the head costs the cube of the number of all features.
    gamma : float, default=1.0
        Parameter of that kernel, for features of length 1.
    alpha : float, default=1.0
        Penalty of ``head="ridge"``.
    shrinkage : float, default=0.001
        Shrinkage of ``head="lda"``, 0 to 1.
    batch_size : int, default=1024
        Rows per forward pass of the backbone in predictions. In `fit` and `learn` every row is its
        own batch, so its features depend on no other row.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of the backbone. The head runs on the CPU.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the random features and of the head. None uses the seed of a head that has one.

    Attributes
    ----------
    backbone_ : Backbone
        The backbone of the fit; predictions use it even if the parameter has changed.
    expansion_ : FourierWeights or None
        The random features.
    head_ : estimator
        The fitted head. It stores features, which can reveal as much as rows.
    classes_, coef_, intercept_ : ndarray
        Attributes of the head.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    CertifiedHeadClassifier : The same with a certified head; it may publish every version.

    Notes
    -----
    Guarantee: exact, with the additional assumption ``backbone-never-saw-the-rows``, which only the
    caller can check. `predict_proba` exists if the head has it; a ridge classifier has none.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import load_digits
    >>> from letheon.deep import MLP, Backbone, ExactHeadClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> _ = torch.manual_seed(0)
    >>> untrained = Backbone(MLP(widths=(64,), scale=1 / 16), arguments=((64,), 128))
    >>> model = ExactHeadClassifier(untrained, "lda", random_state=0).fit(X, y)
    >>> model.forget([3, 17]).guarantee.kind
    'exact'
    >>> model.guarantee_.assumptions[-1]
    'backbone-never-saw-the-rows'
    """

    facts: ClassVar[MethodFacts] = net_facts(
        "exact-head",
        applicability="any torch module as a frozen backbone, with a head made of sums",
        exact=True,
        efficiency_parameters=("head",),
        needs=("frozen-backbone",),
    )
    _parameter_rules: ClassVar[Rules] = {
        "n_components": OrNone(Whole(1)),
        "gamma": POSITIVE,
        "alpha": Interval(0.0),
        "shrinkage": Interval(0.0, 1.0),
    }

    def __init__(
        self,
        backbone: Any,
        head: Any = "ridge",
        *,
        n_components: int | None = None,
        gamma: float = 1.0,
        alpha: float = 1.0,
        shrinkage: float = 1e-3,
        batch_size: int = 1024,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.n_components = n_components
        self.gamma = gamma
        self.alpha = alpha
        self.shrinkage = shrinkage
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def _find_parameter(self) -> Any:
        return _NAMED.get(self.head) if isinstance(self.head, str) else self.head

    def _make_head(self) -> Any:
        state = self.random_state
        if state is None:
            state = getattr(self.head, "random_state", None)
        return self._choose_head().set_params(random_state=seed_from(state))

    def _choose_head(self) -> Any:
        if self.head == "ridge":
            return RidgeClassifier(alpha=self.alpha)
        if self.head == "lda":
            return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=self.shrinkage)
        return clone(self.head)

    def _make_expansion(self, head: Any, n_features: int) -> dict[str, Any]:
        if self.n_components is None:
            return {"expansion_": None}
        shape = (n_features, self.n_components)
        return {"expansion_": FourierWeights.draw(head.random_state, self.gamma, shape)}

    def _expand(self, features: NDArray[Any], fitted: Mapping[str, Any]) -> NDArray[Any]:
        expansion: FourierWeights | None = fitted["expansion_"]
        if expansion is None:
            return features
        values = features.astype(np.float64)
        lengths = np.sqrt((values * values).sum(axis=1, keepdims=True))
        units = values / np.where(lengths > 0, lengths, 1.0)
        return np.hstack([values, expansion.compute_features(units)])

    def _check_head(self) -> None:
        if not (isinstance(self.head, _HEADS) or self.head in _NAMED):
            raise TypeError(
                f"head is {self.head!r}; expected 'ridge', 'lda' or a classifier of letheon.sums: "
                + ", ".join(sorted(kind.__name__ for kind in _HEADS))
            )

    def _make_guarantee(self) -> Guarantee:
        claim: Guarantee = self.head_.guarantee_
        return add_assumption(replace(claim, assumptions=(*claim.assumptions, _SAME_KERNEL)))
