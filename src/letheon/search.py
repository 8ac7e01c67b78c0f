"""`ForgetSearchCV`: hyper-parameters chosen on a keyed sample of people, and chosen again.

A parameter that was tuned on rows remembers them. Here the search is part of the training
algorithm: it uses the rows of a keyed sample of people, and it runs again when one of them is
removed. A person outside the sample has no influence on the choice.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterGrid
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from letheon.base import (
    ForgetMixin,
    Outcome,
    Removal,
    join_samples,
    locate_in,
    lock_model,
    require_fitted,
)
from letheon.data import (
    Frame,
    Ids,
    SlotRows,
    as_ids,
    as_table,
    hold_target,
    list_orders,
    row_ids,
    table_length,
    to_native,
)
from letheon.delta import Block, RowSource, take_block
from letheon.exceptions import CannotForgetError, CheckpointWarning, warn_caller
from letheon.guarantee import Guarantee
from letheon.inner_estimator import (
    available_from,
    fix_environment,
    fresh_copy,
    inherit_tags,
    inner_training,
    refuse_impossible_removals,
    remember_features,
    require_features,
    versions_of,
)
from letheon.predictor import EstimatorPredictor, Predictor
from letheon.seeds import Purpose, library_seed, seed_from
from letheon.steps import InnerFacts, join_blocks, learn_block
from letheon.sums import FOLDS, SAMPLE_SIZE, draw_sample, sample_border
from letheon.terminal import progress_bar
from letheon.validation import Rules, validate_parameters

TUNING = "inside"


@dataclass(frozen=True)
class SearchScores:
    """Scores of a search.

    Attributes
    ----------
    scores : ndarray of shape (n_candidates, n_folds)
        Score of each candidate on each fold that has rows.
    best : int
        Number of the best candidate; the first one among equals.
    n_sampled : int
        Number of people in the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.search import SearchScores
    >>> SearchScores(np.array([[0.8, 0.9], [0.7, 0.6]]), best=0, n_sampled=50).best
    0
    """

    scores: NDArray[np.float64]
    best: int
    n_sampled: int


class _SearchChange(NamedTuple):
    """What a commit will do.

    Attributes
    ----------
    search : SearchScores or None
        New scores, if the search ran again.
    inner : object
        The plan of the model, or None.
    retrained : object
        Another model, or None.
    removed : ndarray or None
        Slots of rows to wipe.
    rows : SlotRows or None
        The old and the new rows together.
    work : float
        Work done, as a share of a fresh fit.
    """

    search: SearchScores | None
    inner: Any
    retrained: Any
    removed: Any
    rows: SlotRows | None
    work: float


def _inner(search: Any) -> Any:
    """Return the estimator: the fitted one after `fit`."""
    return vars(search).get("model_", search.estimator)


class ForgetSearchCV(ForgetMixin, MetaEstimatorMixin, BaseEstimator):
    """Grid search whose choice of hyper-parameters forgets.

    Candidates are compared by cross-validation on the rows of a keyed sample of people; the folds
    separate people. The best candidate is then trained on all rows. When a person in the sample is
    removed, the search runs again; if the choice is the same, nothing else is retrained.

    Parameters
    ----------
    estimator : forgetting estimator
        A model of letheon, such as a `ForgetPipeline`.
    param_grid : dict or list of dict
        Parameters and the values to try, as in scikit-learn's `GridSearchCV`.
    n_people : int, default=5000
        Expected number of people in the sample. With fewer people in total, all are in it.
    cv : int, default=5
        Number of folds.
    scoring : str or callable, optional
        Measure to maximise; by default `score` of the estimator.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the sample and of the folds.
    verbose : bool or int, default=0
        Whether to show a progress bar on standard error while candidates are compared.

    Attributes
    ----------
    best_estimator_ : forgetting estimator
        The model with the best parameters, trained on all remaining rows.
    best_params_ : dict
        The chosen parameters.
    best_score_ : float
        Its mean score over the folds.
    search_ : SearchScores
        All scores. Scores of earlier searches are not kept.

    Notes
    -----
    Guarantee: that of the estimator, with ``tuning="inside"``: hyper-parameters are what a search
    on the remaining rows gives. It assumes that grid, scoring, folds and `n_people` were chosen
    without these rows. Time, `work` and `rebuilt` of a receipt reveal whether a person was in the
    sample; `Receipt.for_requester` omits them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import DaREForestClassifier, ForgetSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = DaREForestClassifier(n_estimators=5, random_state=0)
    >>> search = ForgetSearchCV(forest, {"max_depth": [1, 4]}, n_people=60, random_state=0)
    >>> search.fit(X, y).best_params_
    {'max_depth': 4}
    >>> search.forget([7]).n_rows
    1
    >>> search.guarantee_.tuning
    'inside'
    """

    facts: ClassVar[Any] = InnerFacts(
        lambda model: [model.estimator] if isinstance(model.estimator, ForgetMixin) else [],
        method="forget-search",
        applicability="any forgetting estimator",
        exact=True,
        strength="not stated",
        definition_name="forget-search",
        families=("any",),
        tasks=("classification", "regression"),
        batches=True,
    )

    _parameter_rules: ClassVar[Rules] = {"n_people": SAMPLE_SIZE, "cv": FOLDS}
    # Models of earlier versions do not have it.
    _later_parameters: ClassVar[dict[str, Any]] = {"verbose": 0}

    rows_: SlotRows
    model_: Any
    search_: SearchScores
    seed_: int
    config_: dict[str, Any]

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        n_people: int = 5000,
        cv: int = 5,
        scoring: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.n_people = n_people
        self.cv = cv
        self.scoring = scoring
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Search on the sample, then fit the best candidate on all rows.

        Parameters
        ----------
        X : array-like, sparse matrix, pandas or polars frame, or texts
            Training rows.
        y : array-like
            Labels or targets.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._check_parameters()
            seed, config = seed_from(self.random_state), get_config()
            rows = self._collect_rows(X, y, ids)
            source = RowSource(rows)
            search = self._run_search(source, seed, config)
            model = self._fit_best(search, source, seed, config)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            messages = self._destroy_files()
            vars(self).update(
                rows_=rows,
                search_=search,
                model_=model,
                seed_=seed,
                config_=config,
                **self._remember_settings(),
            )
        for message in messages:
            warn_caller(message, CheckpointWarning)
        return self

    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows; the search runs again if one of the new people is in the sample.

        Parameters
        ----------
        X, y
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of each new row.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids))

    def is_sampled(self, ids: Any) -> NDArray[np.bool_]:
        """Return for each id whether its rows are in the sample on which the search runs."""
        require_fitted(self)
        return self._draw(as_ids(ids), self.rows_.n_people)

    @available_from(_inner)
    def predict(self, X: Any) -> Any:
        """Return the predictions of the best model."""
        check_is_fitted(self)
        return self.model_.predict(X)

    @available_from(_inner)
    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the best model."""
        check_is_fitted(self)
        return self.model_.predict_proba(X)

    @available_from(_inner)
    def decision_function(self, X: Any) -> Any:
        """Return the decision values of the best model."""
        check_is_fitted(self)
        return self.model_.decision_function(X)

    @available_from(_inner)
    def settle(self) -> Any:
        """Let the best model finish the work that it postponed."""
        check_is_fitted(self)
        return self.model_.settle()

    @available_from(_inner)
    def publish(self, *args: Any, **options: Any) -> Any:
        """Publish the best model; see its `publish`."""
        check_is_fitted(self)
        return self.model_.publish(*args, **options)

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        return EstimatorPredictor.of(self.model_, claim)

    def score(self, X: Any, y: Any) -> float:
        """Return the score of the best model, by `scoring`."""
        check_is_fitted(self)
        return float(check_scoring(self.model_, self.scoring)(self.model_, X, y))

    @property
    def best_estimator_(self) -> Any:
        """The model with the best parameters, trained on all remaining rows."""
        check_is_fitted(self)
        return self.model_

    @property
    def best_params_(self) -> dict[str, Any]:
        """The chosen parameters."""
        check_is_fitted(self)
        return dict(self._candidates()[self.search_.best])

    @property
    def best_score_(self) -> float:
        """Mean score of the chosen parameters over the folds."""
        check_is_fitted(self)
        return float(self.search_.scores[self.search_.best].mean())

    @property
    def account_(self) -> Any:
        """Privacy account of the best model."""
        check_is_fitted(self)
        return self.model_.account_

    @property
    def classes_(self) -> Any:
        """Remaining labels, sorted."""
        check_is_fitted(self)
        return self.model_.classes_

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        return len(self.rows_)

    def _candidates(self) -> list[dict[str, Any]]:
        return list(ParameterGrid(self.param_grid))

    def _check_parameters(self) -> None:
        if not isinstance(self.estimator, ForgetMixin):
            raise CannotForgetError(
                f"estimator={self.estimator!r} cannot forget; expected a model of letheon, for "
                "example letheon.convert(estimator)"
            )
        validate_parameters(self)
        known = self.estimator.get_params()  # type: ignore[attr-defined]
        for candidate in self._candidates():
            unknown = [name for name in candidate if name not in known]
            if unknown:
                raise ValueError(
                    f"param_grid contains {unknown}, which are not parameters of the estimator; "
                    "see estimator.get_params()"
                )

    def _collect_rows(self, X: Any, y: Any, ids: Any) -> SlotRows:
        table = as_table(X)
        if y is None:
            raise ValueError("ForgetSearchCV requires y to be passed, but the target y is None")
        target = hold_target(y, as_float=is_regressor(self.estimator))
        return SlotRows(table, target, row_ids(ids, table_length(table)))

    def _draw(self, ids: Ids, n_total: int, seed: int | None = None) -> NDArray[np.bool_]:
        key = self.seed_ if seed is None else seed
        return draw_sample(ids, key, Purpose.SEARCH_SAMPLE, self.n_people, n_total)

    def _find_sampled(self, ids: Ids) -> NDArray[np.bool_] | None:
        return join_samples(self._draw(ids, self.rows_.n_people), self.model_._find_sampled(ids))

    def _run_search(self, source: RowSource, seed: int, config: dict[str, Any]) -> SearchScores:
        """Return the scores of all candidates on the sample."""
        sample = self._take_sample(source, seed)
        folds = sample.ids.hashes(seed, Purpose.SEARCH_FOLD) % np.uint64(self.cv)
        splits = [folds == fold for fold in range(self.cv)]
        splits = [is_test for is_test in splits if is_test.any() and not is_test.all()]
        if not splits:
            raise ValueError(
                f"the sample of {len(sample.ids.distinct())} people cannot be split into {self.cv} "
                "folds; expected at least two people. Increase n_people"
            )
        n_candidates, n_folds = len(self._candidates()), len(splits)
        scores = np.empty((n_candidates, n_folds))
        title = f"{n_candidates} candidates, {n_folds} folds"
        with progress_bar(title, scores.size, is_shown=bool(self.verbose)) as note:
            for k, fold in np.ndindex(scores.shape):
                scores[k, fold] = self._score_candidate(k, sample, splits[fold], seed, config)
                note()
        means = np.nan_to_num(scores.mean(axis=1), nan=-np.inf)  # argmax prefers NaN
        return SearchScores(scores, int(means.argmax()), len(sample.ids.distinct()))

    def _take_sample(self, source: RowSource, seed: int) -> Block:
        n_total, parts = source.n_people, []
        for block in source.blocks():
            chosen = np.flatnonzero(self._draw(block.ids, n_total, seed))
            if len(chosen):
                parts.append(_take(block, chosen))
        if not parts:
            raise ValueError(f"no person is in the sample of n_people={self.n_people}; increase it")
        return join_blocks(parts)

    def _make_candidate(self, number: int, seed: int) -> Any:
        """Return an unfitted model with the parameters of a candidate and seeds of this search."""
        model = clone(self.estimator).set_params(**self._candidates()[number])
        return fresh_copy(model, seed)

    def _score_candidate(
        self,
        number: int,
        sample: Block,
        is_test: NDArray[np.bool_],
        seed: int,
        config: dict[str, Any],
    ) -> float:
        trial = self._make_candidate(number, seed)
        noise = [name for name in trial.get_params() if name.rpartition("__")[2] == "noise_seed"]
        # Noise of a trial must be repeatable; the model itself draws secret noise.
        trial.set_params(**dict.fromkeys(noise, library_seed(seed, Purpose.SEARCH_FIT)))
        train, test = _take(sample, ~is_test), _take(sample, is_test)
        environment = fix_environment(config, library_seed(seed, Purpose.SEARCH_FIT))
        with environment, inner_training(f"candidate {number}"):
            trial.fit(to_native(train.X), train.y, ids=train.ids.to_array())
            return float(check_scoring(trial, self.scoring)(trial, to_native(test.X), test.y))

    def _fit_best(
        self, search: SearchScores, source: RowSource, seed: int, config: dict[str, Any]
    ) -> Any:
        """Return the best candidate, fitted on all rows."""
        model = self._make_candidate(search.best, seed)
        rows = join_blocks(list(source.blocks()))
        environment = fix_environment(config, library_seed(seed, Purpose.SEARCH_FIT))
        with environment, inner_training("the best candidate"):
            return model.fit(to_native(rows.X), rows.y, ids=rows.ids.to_array())

    def _needs_search(self, changed: Ids, n_before: int, n_after: int) -> bool:
        """Return whether a change of these people can change the sample."""
        has_moved = sample_border(self.n_people, n_before) != sample_border(self.n_people, n_after)
        return has_moved or bool(self._draw(changed, n_after).any())

    def _prepare(self, removal: Removal) -> _SearchChange:
        rows, slots = self.rows_, removal.where
        people = rows.ids_at(slots).distinct()
        source, search = RowSource(rows, slots), None
        with refuse_impossible_removals():
            if self._needs_search(people, rows.n_people, rows.n_people - removal.n_ids):
                search = self._run_search(source, self.seed_, self.config_)
                if search.best != self.search_.best:
                    model = self._fit_best(search, source, self.seed_, self.config_)
                    return _SearchChange(search, None, model, slots, None, 1.0)
        plan = self.model_._prepare(self.model_._locate_rows(people))
        return _SearchChange(search, plan, None, slots, None, self._search_share(search, source))

    def _search_share(self, search: SearchScores | None, source: RowSource) -> float:
        """Return the work of a search as a share of a search and a fit."""
        if search is None:
            return 0.0
        size = search.n_sampled / source.n_people * search.scores.size
        return size / (size + 1.0)

    def _prepare_learn(self, X: Any, y: Any, ids: Any) -> _SearchChange:
        require_features(self, X)
        new, rows = self._collect_rows(X, y, ids), self.rows_
        joined = rows.join(new.X, new.y, new.ids, orders=list_orders(X))
        added = take_block(joined, slice(len(rows), None))  # in the dtypes of the rows
        source, search = RowSource(rows, added=added), None
        if self._needs_search(new.ids, rows.n_people, source.n_people):
            search = self._run_search(source, self.seed_, self.config_)
            if search.best != self.search_.best:
                model = self._fit_best(search, source, self.seed_, self.config_)
                return _SearchChange(search, None, model, None, joined, 1.0)
        # The last thing that can fail. It is atomic, and the commit follows at once.
        learn_block(self.model_, added)
        return _SearchChange(search, None, None, None, joined, self._search_share(search, source))

    def _commit(self, change: _SearchChange) -> Outcome:
        outcome, messages = Outcome(0.0), []
        rebuilt = {} if change.search is None else {"searches": 1}
        if change.retrained is not None:
            messages = self._destroy_files()
            self.model_ = change.retrained
            rebuilt["models"] = 1
        elif change.inner is not None:
            outcome = self.model_._commit(change.inner)
        if change.search is not None:
            self.search_ = change.search
        if change.rows is not None:
            self.rows_ = change.rows
        if change.removed is not None:
            self.rows_.wipe(change.removed)
        warnings = (*outcome.warnings, *map(CheckpointWarning, messages))
        work = max(outcome.work, change.work)
        return Outcome(work, dict(outcome.rebuilt) | rebuilt, warnings, outcome.estimates)

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        self.model_._require_same_parameters()

    def _make_guarantee(self) -> Guarantee:
        claim: Guarantee = self.model_.guarantee_
        assumptions = (*claim.assumptions, "grid-independent-of-rows")
        return replace(claim, assumptions=assumptions, tuning=TUNING)

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | versions_of(self.estimator)

    def _destroy_files(self) -> list[str]:
        return self.model_._destroy_files() if "model_" in vars(self) else []

    def _finish_pending(self) -> None:
        self.model_._finish_pending()

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _locate_rows(self, ids: Ids) -> Removal:
        return locate_in(self.rows_, ids)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the estimator."""
        tags = inherit_tags(super().__sklearn_tags__(), self.estimator)
        tags.estimator_type = get_tags(self.estimator).estimator_type
        return tags


def _take(block: Block, chosen: NDArray[Any]) -> Block:
    places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    X = block.X.take(places) if isinstance(block.X, Frame) else block.X[places]
    return Block(X, None if block.y is None else block.y[places], block.ids.take(places))
