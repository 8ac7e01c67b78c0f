"""`convert`: the forgetting equivalent of a scikit-learn estimator, with a report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from typing import Any, Literal, overload

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, ParameterSampler, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from letheon import state
from letheon.base import ForgetMixin
from letheon.compose import DataIndependent, ForgetPipeline, is_data_independent
from letheon.conversion._parts import (
    DENSE,
    SCALERS,
    ConvertedPart,
    Place,
    add_note,
    explain_dense,
    explain_output,
    look_behind,
    make_forgetting,
    prefix_with,
    returns_terms,
    takes_sparse,
)
from letheon.conversion._report import ConversionReport, ConversionRow, Similarity
from letheon.conversion._rule import ConversionRule, NotCarriedError
from letheon.conversion._rules import find_rule
from letheon.exceptions import (
    CannotForgetError,
    ConversionWarning,
    UnsupportedStateError,
    warn_caller,
)
from letheon.guarantee import KINDS
from letheon.inner_estimator import find_learner
from letheon.naive import NaiveUnlearner
from letheon.preprocessing import ForgetColumnTransformer, KeyedSample
from letheon.search import ForgetSearchCV
from letheon.sharded import SISAClassifier, SISARegressor
from letheon.steps import passes_through

N_SHARDS = 5
# Transformers of which every removal changes the output of all rows.
_CHANGES_ALWAYS = frozenset({"PCA"})


@overload
def convert(
    estimator: Any,
    *,
    strict: bool = False,
    return_report: Literal[False] = False,
    random_state: Any = None,
) -> Any: ...


@overload
def convert(
    estimator: Any,
    *,
    strict: bool = False,
    return_report: Literal[True],
    random_state: Any = None,
) -> tuple[Any, ConversionReport]: ...


def convert(
    estimator: Any, *, strict: bool = False, return_report: bool = False, random_state: Any = None
) -> Any:
    """Convert a scikit-learn estimator to one that forgets.

    Pipelines, column transformers and grid searches are converted part by part. Transformers with
    an equivalent in `letheon.preprocessing` and models with an equivalent in `letheon.sums` become
    that. Forests become `DaREForestClassifier` or `DaREForestRegressor`, gradient boosting (also of
    LightGBM and XGBoost) becomes `BoostingClassifier` or `BoostingRegressor`, and logistic
    regression becomes `InfluenceClassifier`. Any other transformer is wrapped in `KeyedSample`, and
    any other model in `SISAClassifier` or `SISARegressor` with 5 shards. Scalers directly in front
    of trees are dropped. Estimators that forget already stay.

    Parameters
    ----------
    estimator : estimator of scikit-learn
        A model, a transformer, a `Pipeline`, `ColumnTransformer`, `FeatureUnion`, `GridSearchCV` or
        `RandomizedSearchCV`. It is not changed.
    strict : bool, default=False
        Raise an error if a part would have no exact guarantee, or if a parameter that affects the
        model cannot be carried over.
    return_report : bool, default=False
        Whether to return the report, too. Without it, a warning lists the parts that are not the
        same.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all converted parts; parts that forget already keep theirs. None: the seeds of the
        original, and new ones where it has none.

    Returns
    -------
    model : forgetting estimator
        Not fitted; `fit` takes the id of each row.
    report : ConversionReport
        Only with ``return_report=True``.

    Raises
    ------
    CannotForgetError
        A part cannot be converted; the message says what to do.

    Warns
    -----
    ConversionWarning
        Some parts are not the same, or the estimator was fitted.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import letheon
    >>> pipeline = make_pipeline(StandardScaler(), RandomForestClassifier(n_estimators=10))
    >>> model, report = letheon.convert(pipeline, return_report=True, random_state=0)
    >>> for row in report:
    ...     print(row.source, "->", row.target)
    Pipeline -> ForgetPipeline
    StandardScaler -> nothing
    RandomForestClassifier -> DaREForestClassifier
    """
    if _is_fitted(estimator):
        warn_caller(
            "the estimator is fitted, but the converted one is not: fit it again, with ids",
            ConversionWarning,
        )
    converted = _Converter(strict, random_state).convert_part(estimator, Place(is_last=True))
    report = ConversionReport(converted.rows)
    if return_report:
        return converted.estimator, report
    changes = [_describe_change(row) for row in report if not row.is_faithful]
    if changes:
        warn_caller(
            f"{len(changes)} of {len(report)} parts are not the same: {'; '.join(changes)}. "
            "See letheon.convert(estimator, return_report=True)",
            ConversionWarning,
        )
    return converted.estimator


def _describe_change(row: ConversionRow) -> str:
    guarantee = ", certified" if row.guarantee == "certified" else ""
    lost = f", without {', '.join(row.lost)}" if row.lost else ""
    step = f"{row.step}: " if row.step else ""
    return f"{step}{row.source} became {row.target} ({row.kind}{guarantee}{lost})"


def _is_fitted(estimator: Any) -> bool:
    if isinstance(estimator, ForgetMixin | type) or not hasattr(estimator, "__sklearn_tags__"):
        return False
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return bool(get_tags(estimator).requires_fit)


@dataclass(frozen=True)
class _Converter:
    """Conversion of an estimator and of the estimators in it."""

    strict: bool
    random_state: Any

    def convert_part(self, part: Any, place: Place) -> ConvertedPart:
        """Convert an estimator at some place in a pipeline."""
        if isinstance(part, ForgetMixin):
            return self._keep(part, place, part.facts.certificate)
        if not hasattr(part, "__sklearn_tags__") or isinstance(part, type):
            hint = f". Pass an instance: {part.__name__}()" if isinstance(part, type) else ""
            raise CannotForgetError(
                f"{place.describe(repr(part))} is no estimator of scikit-learn; expected a model, "
                f"a transformer, a Pipeline, a ColumnTransformer or a search{hint}"
            )
        handlers: dict[type, Callable[[Any, Place], ConvertedPart]] = {
            GridSearchCV: self._convert_search,
            RandomizedSearchCV: self._convert_search,
            Pipeline: self._convert_pipeline,
            ColumnTransformer: self._convert_columns,
            FeatureUnion: self._convert_union,
            FunctionTransformer: self._convert_function,
        }
        for kind, handler in handlers.items():
            if isinstance(part, kind):
                return handler(part, place)
        if is_data_independent(part):
            return self._keep(part, place, "")
        if place.is_last and _is_model(part):
            return self._convert_model(part, place)
        return self._convert_transformer(part, place)

    def _keep(self, part: Any, place: Place, guarantee: str) -> ConvertedPart:
        """Return a part that forgets already, or that learns nothing from rows."""
        self._require_exact(part, place, guarantee)
        name = type(part).__name__
        cost = "" if guarantee else "none: it learns nothing from rows"
        row = ConversionRow(place.step, name, name, "unchanged", guarantee, cost)
        model = clone(part) if place.step else part
        return ConvertedPart(model, (row,), lambda key, value: {key: value})

    def _convert_function(self, part: Any, place: Place) -> ConvertedPart:
        if not (part.func is None or (isinstance(part.func, np.ufunc) and part.func.nin == 1)):
            raise CannotForgetError(
                f"{place.describe(part)} calls a function that letheon does not know. If each "
                "output row depends on the same input row only, use "
                "letheon.DataIndependent(FunctionTransformer(...))"
            )
        function = clone(part)
        if function.feature_names_out is None:
            function.set_params(feature_names_out="one-to-one")
        return self._declare_independent(function, place)

    def _declare_independent(self, part: Any, place: Place) -> ConvertedPart:
        """Return a transformer that learns nothing from rows, declared as such."""
        name = type(part).__name__
        target = f"DataIndependent({name})"
        cost = "none: it learns nothing from rows"
        row = ConversionRow(place.step, name, target, "exact equivalent", "", cost)
        return ConvertedPart(DataIndependent(part), (row,), prefix_with("transformer"))

    def _convert_transformer(self, part: Any, place: Place) -> ConvertedPart:
        name, dense = type(part).__name__, {}
        if place.for_trees and name in SCALERS:
            note = "trees do not depend on the scale of a column"
            row = ConversionRow(place.step, name, "nothing", "dropped", notes=(note,))
            return ConvertedPart("passthrough", (row,), lambda key, value: {})  # noqa: ARG005
        if place.dense:
            dense = {k: v for k, v in DENSE.get(name, {}).items() if getattr(part, k) != v}
        rule = find_rule(part)
        reason = "" if rule is None else rule.find_obstacle(part)
        if rule is not None and name in _CHANGES_ALWAYS and not place.is_last:
            reason = f"with {rule.class_name}, each removal would change all later steps"
        if rule is not None and not reason:
            return self._apply_rule(rule, part, place, dense)
        if rule is None and type(part).__module__.startswith("sklearn.") and not find_learner(part):
            seed = self._choose_seed(type(part), getattr(part, "random_state", None))
            return self._declare_independent(clone(part).set_params(**seed), place)
        return self._wrap_sample(part, place, dense, reason)

    def _wrap_sample(
        self, part: Any, place: Place, dense: Mapping[str, Any], reason: str
    ) -> ConvertedPart:
        self._require_supported(part, place)
        cost = "none outside the sample of n_people=5000; a person in it refits the transformer"
        notes = ("it is fitted on a sample of people and applied to all", reason)
        model = KeyedSample(clone(part).set_params(**dense), random_state=self.random_state)
        return self._describe_wrapper(
            model, part, place, "sample of people", cost, (*notes, *explain_dense(dense, place))
        )

    def _convert_model(self, part: Any, place: Place) -> ConvertedPart:
        rule = find_rule(part)
        if rule is None:
            return self._wrap_model(part, place, "")
        reason = rule.find_obstacle(part)
        target = _load_class(rule.target)
        if place.gets_terms and not takes_sparse(target()):
            reason = f"{target.__name__} takes no sparse matrices of terms"
        if reason:
            return self._wrap_model(part, place, reason)
        return self._apply_rule(rule, part, place, {})

    def _wrap_model(self, part: Any, place: Place, reason: str) -> ConvertedPart:
        self._require_supported(part, place)
        if not (is_classifier(part) or is_regressor(part)):
            model: Any = NaiveUnlearner(clone(part), random_state=self.random_state)
            cost = "a refit on all remaining rows"
            return self._describe_wrapper(model, part, place, "refit", cost, (reason,))
        kind = SISAClassifier if is_classifier(part) else SISARegressor
        seed = self._choose_seed(kind, getattr(part, "random_state", None))
        model = kind(clone(part), n_shards=N_SHARDS, **seed)
        cost = f"one of {N_SHARDS} models is trained again; n_shards sets their number"
        notes = (f"each of {N_SHARDS} models is trained on its share of people", reason)
        return self._describe_wrapper(model, part, place, "ensemble of shards", cost, notes)

    def _describe_wrapper(
        self,
        model: Any,
        part: Any,
        place: Place,
        kind: Similarity,
        cost: str,
        notes: Iterable[str],
    ) -> ConvertedPart:
        source = type(part).__name__
        target = f"{type(model).__name__}({source})"
        trust = "" if _is_listed(part) else f"to load it from a file, pass trusted=[{source}]"
        notes = tuple(filter(None, (*notes, trust)))
        row = ConversionRow(place.step, source, target, kind, "exact", cost, notes)
        inner = "transformer" if kind == "sample of people" else "estimator"
        return ConvertedPart(model, (row,), prefix_with(inner))

    def _apply_rule(
        self, rule: ConversionRule, part: Any, place: Place, dense: Mapping[str, Any]
    ) -> ConvertedPart:
        target = _load_class(rule.target)
        guarantee = target.facts.certificate
        self._require_exact(part, place, guarantee)
        parameters, unused, lost = rule.carry_parameters(part)
        self._require_nothing_lost(part, place, lost)
        seed = self._choose_seed(target, getattr(part, "random_state", None))
        model = target(**{**parameters, **dense, **seed})
        notes = [*rule.notes, *explain_dense(dense, place), *explain_output(part, unused)]
        row = ConversionRow(
            place.step,
            type(part).__name__,
            _display_name(target),
            rule.kind,
            guarantee,
            rule.cost,
            tuple(notes),
            tuple(lost),
        )
        return ConvertedPart(model, (row,), rule.translate)

    def _choose_seed(self, target: type, own: Any) -> dict[str, Any]:
        if "random_state" not in signature(target).parameters:
            return {}
        given = None if isinstance(own, str) else own  # "deprecated"
        return {"random_state": given if self.random_state is None else self.random_state}

    def _convert_pipeline(self, part: Any, place: Place) -> ConvertedPart:
        steps = [(name, step) for name, step in part.steps if not passes_through(step)]
        children: dict[str, ConvertedPart] = {}
        places: dict[str, Place] = {}
        inner = replace(place, is_last=False)
        for number in reversed(range(len(steps))):
            name, step = steps[number]
            is_model = place.is_last and number == len(steps) - 1
            gets_terms = returns_terms(step for _, step in steps[:number])
            places[name] = inner.enter(name, is_last=is_model, gets_terms=gets_terms)
            children[name] = self.convert_part(step, places[name])
            inner = look_behind(step, children[name].estimator, inner)
        children = {name: children[name] for name, _ in steps}
        kept = [name for name in children if not passes_through(children[name].estimator)]
        if kept:
            children[kept[-1]] = make_forgetting(kept[-1], children[kept[-1]])
        unused = [] if part.memory is None else [f"memory={part.memory!r}"]
        model: Any = ForgetPipeline([(name, children[name].estimator) for name in kept])
        return self._join(part, model if kept else "passthrough", place, children, places, unused)

    def _join(
        self,
        part: Any,
        model: Any,
        place: Place,
        children: Mapping[str, ConvertedPart],
        places: Mapping[str, Place],
        unused: Sequence[str] = (),
    ) -> ConvertedPart:
        """Return a converted estimator that is made of named steps."""

        def translate(key: str, value: Any) -> Mapping[str, Any]:
            name, _, rest = key.partition("__")
            if name not in children:
                raise NotCarriedError(f"{type(part).__name__} has no step {name!r} that is kept")
            if rest:
                renamed = children[name].translate(rest, value)
                return {f"{name}__{inner}": setting for inner, setting in renamed.items()}
            step = value
            if hasattr(value, "get_params"):
                step = self.convert_part(value, places[name]).estimator
            if not passes_through(children[name].estimator):
                return {name: step}
            if passes_through(step):
                return {}
            raise NotCarriedError(f"step {name!r} is dropped")

        target = model if isinstance(model, str) else type(model).__name__
        rows = [row for child in children.values() for row in child.rows]
        claims: list[Any] = [row.guarantee for row in rows if row.guarantee]
        row = ConversionRow(
            place.step,
            type(part).__name__,
            target,
            "container",
            max(claims, key=KINDS.index, default="exact"),
            notes=tuple(explain_output(part, unused)),
        )
        return ConvertedPart(model, (row, *rows), translate)

    def _convert_columns(self, part: Any, place: Place) -> ConvertedPart:
        return self._convert_groups(part, part.transformers, part.remainder, place)

    def _convert_groups(
        self, part: Any, transformers: Any, remainder: Any, place: Place
    ) -> ConvertedPart:
        if part.transformer_weights is not None:
            raise CannotForgetError(
                f"{place.describe(part)} has transformer_weights, which have no equivalent; scale "
                "the output in the transformers, or remove the weights"
            )
        children: dict[str, ConvertedPart] = {}
        places: dict[str, Place] = {}
        named = [(name, step) for name, step, _ in transformers]
        for name, step in [*named, ("remainder", remainder)]:
            if not isinstance(step, str):
                places[name] = place.enter(name, is_last=False)
                children[name] = self.convert_part(step, places[name])
        model = ForgetColumnTransformer(
            [(n, children[n].estimator if n in children else t, c) for n, t, c in transformers],
            remainder=children["remainder"].estimator if "remainder" in children else remainder,
            sparse_threshold=0.0 if place.dense else getattr(part, "sparse_threshold", 0.3),
            verbose_feature_names_out=bool(part.verbose_feature_names_out),
        )
        converted = self._join(part, model, place, children, places)
        if not isinstance(part.verbose_feature_names_out, bool):
            note = "names of output columns start with the name of the transformer"
            converted = add_note(converted, note)
        return converted

    def _convert_union(self, part: Any, place: Place) -> ConvertedPart:
        if returns_terms(step for _, step in part.transformer_list):
            raise CannotForgetError(
                f"{place.describe(part)} has a vectoriser. Put the texts into a column of a data "
                "frame and use a ColumnTransformer, such as ColumnTransformer([('words', "
                "TfidfVectorizer(), 'text'), ('letters', TfidfVectorizer(analyzer='char'), "
                "'text')])"
            )
        every = slice(None)
        transformers = [(name, step, every) for name, step in part.transformer_list]
        return self._convert_groups(part, transformers, "drop", place)

    def _convert_search(self, part: Any, place: Place) -> ConvertedPart:
        inner = self.convert_part(part.estimator, place.enter("estimator", is_last=True))
        if isinstance(part, GridSearchCV):
            grids = part.param_grid
            grids = [grids] if isinstance(grids, Mapping) else list(grids)
        else:
            seed = part.random_state if self.random_state is None else self.random_state
            draws = ParameterSampler(part.param_distributions, part.n_iter, random_state=seed)
            grids = [{name: [value] for name, value in draw.items()} for draw in draws]
        notes: list[str] = []
        grids = [self._translate_grid(grid, inner, place, notes) for grid in grids]
        model = ForgetSearchCV(
            inner.estimator,
            grids[0] if len(grids) == 1 else grids,
            cv=_count_folds(part, place, notes),
            scoring=_choose_scoring(part, place),
            random_state=self.random_state,
            verbose=part.verbose,
        )
        notes += [] if part.refit else ["the best candidate is always trained on all rows"]
        cost = "none outside the sample of n_people=5000; for a person in it, the search runs again"
        guarantee = inner.rows[0].guarantee
        row = ConversionRow(
            place.step,
            type(part).__name__,
            "ForgetSearchCV",
            "container",
            guarantee,
            cost,
            ("candidates are compared on a sample of people; folds separate people", *notes),
        )

        def translate(key: str, value: Any) -> Mapping[str, Any]:
            if not key.startswith("estimator__"):
                raise NotCarriedError("only parameters of the estimator can be carried over")
            renamed = inner.translate(key.removeprefix("estimator__"), value)
            return {f"estimator__{name}": setting for name, setting in renamed.items()}

        return ConvertedPart(model, (row, *inner.rows), translate)

    def _translate_grid(
        self, grid: Mapping[str, Any], inner: ConvertedPart, place: Place, notes: list[str]
    ) -> dict[str, list[Any]]:
        """Return a grid with the parameters of the converted estimator."""
        translated: dict[str, list[Any]] = {}
        for name, values in grid.items():
            try:
                settings = [inner.translate(name, value) for value in values]
            except NotCarriedError as error:
                raise CannotForgetError(
                    f"{place.step or 'the search'} varies {name!r}, which cannot be carried over: "
                    f"{error}. Remove it from the grid, or choose other values"
                ) from error
            if not all(settings):
                notes.append(f"{name!r} is not in the grid: it has no effect")
            for setting in settings:
                for new, value in setting.items():
                    translated.setdefault(new, []).append(value)
        return translated

    def _require_exact(self, part: Any, place: Place, guarantee: str) -> None:
        if self.strict and guarantee not in ("exact", ""):
            name = type(part).__name__
            raise CannotForgetError(
                f"{place.describe(part)} has no equivalent that forgets exactly, only one with a "
                f"{guarantee} guarantee. Use SISAClassifier({name}(...)), another model, or "
                "strict=False"
            )

    def _require_nothing_lost(self, part: Any, place: Place, lost: list[str]) -> None:
        if self.strict and lost:
            raise CannotForgetError(
                f"{place.describe(part)} has parameters that cannot be carried over: "
                f"{', '.join(lost)}. Use their defaults, or strict=False"
            )

    def _require_supported(self, part: Any, place: Place) -> None:
        inner = (part, *part.get_params(deep=True).values())
        if any(isinstance(value, FrozenEstimator) for value in inner):
            raise CannotForgetError(
                f"{place.describe(part)} is frozen, so it keeps what it learned from rows; pass "
                "the estimator that is not fitted"
            )
        try:
            state.ensure_supported(clone(part))
        except UnsupportedStateError as error:
            raise CannotForgetError(
                f"{place.describe(part)} cannot be converted: {error}. Use an estimator of "
                "scikit-learn or of letheon"
            ) from error


def _is_model(part: Any) -> bool:
    """Return whether an estimator predicts; some have `predict` only after `fit`."""
    if is_classifier(part) or is_regressor(part):
        return True
    return hasattr(part, "predict") or not hasattr(part, "transform")


def _is_listed(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] in ("sklearn", "letheon")


def _load_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _display_name(target: type) -> str:
    """Return the name of a class, with its package if scikit-learn has one of the same name."""
    package = target.__module__.split(".")[1]
    return (
        f"{package}.{target.__name__}" if package in ("preprocessing", "sums") else target.__name__
    )


def _count_folds(search: Any, place: Place, notes: list[str]) -> int:
    if search.cv is None or isinstance(search.cv, int):
        return search.cv or 5
    folds = getattr(search.cv, "n_splits", None)
    if not isinstance(folds, int):
        raise CannotForgetError(
            f"{place.describe(search)} has cv={search.cv!r}; expected a number of folds"
        )
    notes.append(f"cv={search.cv!r} became cv={folds}")
    return folds


def _choose_scoring(search: Any, place: Place) -> Any:
    scoring, refit = search.scoring, search.refit
    if scoring is None or isinstance(scoring, str) or callable(scoring):
        return scoring
    if isinstance(refit, str) and refit in scoring:
        return scoring[refit] if isinstance(scoring, Mapping) else refit
    raise CannotForgetError(
        f"{place.describe(search)} has several scores; expected one, or refit with the name of one"
    )
