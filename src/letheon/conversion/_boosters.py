"""Rules for gradient boosting: scikit-learn, LightGBM and XGBoost."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from letheon.conversion._rule import (
    Change,
    ConversionRule,
    NotCarriedError,
    Parameters,
    is_missing,
    is_none,
    is_number,
    is_one_of,
    require_count,
)

_MOST_LEAVES = 64
_MOST_BINS = 254


def _rename(name: str) -> Change:
    """Return a change of the name only; None is the default of the original, and of ours."""
    return lambda value: {} if value is None else {name: value}


def _limit_rate(value: Any) -> Parameters:
    if value is not None and not (is_number(value) and 0 < value <= 1):
        raise NotCarriedError("expected at most 1")
    return {} if value is None else {"learning_rate": value}


def _limit_leaves(value: Any) -> Parameters:
    if not value:  # None and 0: no limit
        return {}
    if not 2 <= value <= _MOST_LEAVES:
        raise NotCarriedError(f"a tree has at most {_MOST_LEAVES} leaves")
    return {"max_leaves": value}


def _count_leaves(depth: Any) -> Parameters:
    """Return the number of leaves of a complete tree of this depth."""
    if depth is None or depth <= 0:
        return {}
    return _limit_leaves(2 ** min(depth, _MOST_LEAVES))


def _refuse_depth(depth: Any) -> Parameters:
    if depth is not None and depth > 0:
        raise NotCarriedError("max_leaves limits the trees, not their depth")
    return {}


def _limit_bins(value: Any) -> Parameters:
    return {} if value is None else {"max_bins": min(value, _MOST_BINS)}


def _share_columns(value: Any) -> Parameters:
    if value is None:
        return {}
    if not isinstance(value, float):
        raise NotCarriedError("expected a share of the columns")
    return {"colsample": value}


def _refuse_stopping(value: Any) -> Parameters:
    if value is True or (is_number(value) and not isinstance(value, bool)):
        raise NotCarriedError("the number of rounds is fixed")
    return {}


def _choose_loss(objective: Any) -> Parameters:
    return {"loss": "poisson"} if objective in ("poisson", "count:poisson") else {}


_STOPPING = "no early stopping: all rounds are trained"
_CLASSES = is_one_of(
    None, "binary", "multiclass", "binary:logistic", "multi:softprob", "multi:softmax"
)
_NUMBERS = is_one_of(
    None, "regression", "regression_l2", "poisson", "reg:squarederror", "count:poisson"
)
_HISTOGRAMS = ConversionRule(
    "letheon.boosting.BoostingClassifier",
    "other algorithm",
    "integer sums are updated; sometimes later values, or the trees of a chain, are renewed",
    same="loss l2_regularization min_samples_leaf categorical_features",
    changed={
        "max_iter": _rename("n_estimators"),
        "learning_rate": _limit_rate,
        "max_leaf_nodes": _limit_leaves,
        "max_depth": _refuse_depth,
        "max_features": _share_columns,
        "max_bins": _limit_bins,
        "early_stopping": _refuse_stopping,
    },
    accepted={
        "loss": is_one_of("log_loss"),
        "class_weight": is_none,
        "monotonic_cst": is_none,
        "interaction_cst": is_none,
    },
    unused="validation_fraction n_iter_no_change tol scoring verbose warm_start",
    notes=(
        "splits come from a sample of people (skeleton_people), leaf values from all",
        _STOPPING,
    ),
)
_GRADIENT = replace(
    _HISTOGRAMS,
    same="loss n_estimators",
    changed={
        "learning_rate": _limit_rate,
        "max_depth": _count_leaves,
        "max_leaf_nodes": _limit_leaves,
        "min_samples_leaf": require_count("min_samples_leaf"),
        "max_features": _share_columns,
        "n_iter_no_change": _refuse_stopping,
    },
    accepted={"loss": is_one_of("log_loss"), "init": is_none},
    unused="validation_fraction tol verbose warm_start criterion",
)
_LIGHTGBM = replace(
    _HISTOGRAMS,
    same="n_estimators n_jobs",
    changed={
        "learning_rate": _limit_rate,
        "num_leaves": _limit_leaves,
        "max_depth": _refuse_depth,
        "min_child_samples": _rename("min_samples_leaf"),
        "colsample_bytree": _share_columns,
        "reg_lambda": _rename("l2_regularization"),
        "max_bin": _limit_bins,
        "objective": _choose_loss,
        "early_stopping_round": _refuse_stopping,
        "early_stopping_rounds": _refuse_stopping,
    },
    accepted={
        "boosting_type": is_one_of("gbdt"),
        "objective": _CLASSES,
        "class_weight": is_none,
    },
    unused="subsample_for_bin importance_type verbose verbosity deterministic force_row_wise "
    "force_col_wise",
)
_XGBOOST = replace(
    _LIGHTGBM,
    same="",
    changed={
        "n_estimators": _rename("n_estimators"),
        "n_jobs": _rename("n_jobs"),
        "learning_rate": _limit_rate,
        "max_depth": _count_leaves,
        "max_leaves": _limit_leaves,
        "colsample_bytree": _share_columns,
        "reg_lambda": _rename("l2_regularization"),
        "max_bin": _limit_bins,
        "objective": _choose_loss,
        "early_stopping_rounds": _refuse_stopping,
    },
    accepted={
        "booster": is_one_of(None, "gbtree"),
        "objective": _CLASSES,
        "missing": is_missing,
        "scale_pos_weight": is_one_of(None, 1),
        "num_parallel_tree": is_one_of(None, 1),
        "monotone_constraints": is_none,
        "interaction_constraints": is_none,
        "enable_categorical": is_one_of(False, True),
        "feature_types": is_none,
    },
    unused="tree_method device eval_metric importance_type max_cat_threshold "
    "max_cat_to_onehot validate_parameters verbosity",
)


def _for_regression(rule: ConversionRule) -> ConversionRule:
    accepted = dict(rule.accepted)
    for name in ("loss", "objective"):
        if name in accepted:
            accepted[name] = _NUMBERS if name == "objective" else is_one_of("squared_error")
    unused = f"{rule.unused} alpha quantile"
    return replace(
        rule, target="letheon.boosting.BoostingRegressor", accepted=accepted, unused=unused
    )


_HISTOGRAM_REGRESSION = replace(
    _for_regression(_HISTOGRAMS),
    accepted=dict(_HISTOGRAMS.accepted) | {"loss": is_one_of("squared_error", "poisson")},
)

BOOSTER_RULES: Mapping[str, ConversionRule] = {
    "sklearn.ensemble.HistGradientBoostingClassifier": _HISTOGRAMS,
    "sklearn.ensemble.HistGradientBoostingRegressor": _HISTOGRAM_REGRESSION,
    "sklearn.ensemble.GradientBoostingClassifier": _GRADIENT,
    "sklearn.ensemble.GradientBoostingRegressor": _for_regression(_GRADIENT),
    "lightgbm.sklearn.LGBMClassifier": _LIGHTGBM,
    "lightgbm.sklearn.LGBMRegressor": _for_regression(_LIGHTGBM),
    "xgboost.sklearn.XGBClassifier": _XGBOOST,
    "xgboost.sklearn.XGBRegressor": _for_regression(_XGBOOST),
}
