"""The table of conversions: class of scikit-learn, our class, and what happens to its parameters.

Classes are paths, so that nothing is imported before it is needed.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

from letheon.conversion._boosters import BOOSTER_RULES
from letheon.conversion._rule import (
    ConversionRule,
    NotCarriedError,
    Parameters,
    is_false,
    is_missing,
    is_none,
    is_number,
    is_one_of,
    require_count,
)


def find_rule(part: Any) -> ConversionRule | None:
    """Return the rule for the class and the parameters of an estimator, or None."""
    kind = type(part)
    modules = takewhile(lambda name: not name.startswith("_"), kind.__module__.split("."))
    rule = RULES.get(".".join([*modules, kind.__name__]))
    return rule if rule is None or rule.refine is None else rule.refine(rule, part)


def _invert_strength(strength: float) -> Parameters:
    # scikit-learn minimises C * losses + |w|^2 / 2, ours losses + (l2 / 2)|w|^2.
    return {"l2": 1.0 / strength}


def _choose_multi_class(value: str) -> Parameters:
    return {"multi_class": "ovr"} if value in ("ovr", "liblinear") else {}


def _choose_criterion(value: str) -> Parameters:
    return {"criterion": "entropy" if value == "log_loss" else value}


def _distinct_share(share: float) -> float:
    """Return the expected share of distinct rows in a bootstrap sample of ``share * n`` rows."""
    return round(1.0 - math.exp(-share), 3)


def _choose_subsample(bootstrap: bool) -> Parameters:
    return {"subsample": _distinct_share(1.0) if bootstrap else 1.0}


def _limit_subsample(max_samples: Any) -> Parameters:
    if max_samples is None:
        return {}
    if not isinstance(max_samples, float):
        raise NotCarriedError("expected a share of the rows, not a number of them")
    return {"subsample": _distinct_share(max_samples)}


_SUBTRACT = "integer sums are updated, and a small linear system is solved"
_COUNTS = "integer counts are updated"
_FEW = "integer sums are updated; the output changes with probability about"


def _refine_imputer(rule: ConversionRule, part: Any) -> ConversionRule:
    is_rounded = part.strategy in ("mean", "median")
    return rule if is_rounded else replace(rule, kind="exact equivalent", cost=_COUNTS)


def _refine_tfidf(rule: ConversionRule, part: Any) -> ConversionRule:
    return rule if part.use_idf else replace(rule, kind="exact equivalent", notes=())


_ENCODER = ConversionRule(
    "letheon.preprocessing.OneHotEncoder",
    "exact equivalent",
    f"{_COUNTS}; a category without rows leaves the list",
    same="categories handle_unknown",
    unused="dtype",
)
_LOGISTIC = ConversionRule(
    "letheon.linear.InfluenceClassifier",
    "other algorithm",
    "one Newton step; with little regularisation (a large C) often a pass over all rows",
    same="fit_intercept",
    changed={
        "C": _invert_strength,
        "solver": _choose_multi_class,
        "multi_class": _choose_multi_class,
    },
    accepted={
        "C": lambda value: is_number(value) and 0 < value < math.inf,
        "penalty": is_one_of("l2", "deprecated"),
        "l1_ratio": is_one_of(None, 0.0),
        "class_weight": is_none,
    },
    unused="dual tol intercept_scaling max_iter verbose warm_start n_jobs",
    fixed={"reg": "total", "multi_class": "softmax"},
    notes=(
        "certified (epsilon=1, delta=1e-4), not exact: coefficients contain noise of scale 0.01",
        "scale the columns before it: with unscaled columns, the noise can cost much of the score",
        "the intercept is regularised too",
    ),
)
_TREES = ConversionRule(
    "letheon.forest.DaREForestClassifier",
    "other algorithm",
    "counts on the paths of the rows are updated; subtrees with another best split grow again",
    same="max_depth max_features",
    changed={
        "criterion": _choose_criterion,
        "min_samples_split": require_count("min_samples_split"),
        "min_samples_leaf": require_count("min_samples_leaf"),
    },
    accepted={
        "criterion": is_one_of("gini", "entropy", "log_loss"),
        "class_weight": is_none,
        "monotonic_cst": is_none,
    },
    unused="verbose warm_start",
)
_FOREST = replace(
    _TREES,
    same="n_estimators max_depth max_features n_jobs",
    changed=dict(_TREES.changed)
    | {"bootstrap": _choose_subsample, "max_samples": _limit_subsample},
    notes=("each node compares 25 thresholds per column; subsets of people replace the bootstrap",),
)
_EXTRA = replace(
    _FOREST, fixed={"n_thresholds": 1}, notes=("thresholds are values of rows, drawn at random",)
)
_TREE = replace(
    _TREES,
    accepted=dict(_TREES.accepted) | {"splitter": is_one_of("best")},
    fixed={"n_estimators": 1, "n_thresholds": None, "subsample": 1.0},
    notes=("a forest of one tree that compares all thresholds",),
)


def _for_regression(rule: ConversionRule) -> ConversionRule:
    accepted = dict(rule.accepted) | {"criterion": is_one_of("squared_error")}
    return replace(rule, target="letheon.forest.DaREForestRegressor", accepted=accepted)


_RIDGE = ConversionRule(
    "letheon.sums.Ridge",
    "exact equivalent",
    _SUBTRACT,
    same="alpha fit_intercept",
    accepted={"alpha": is_number, "positive": is_false, "class_weight": is_none},
    unused="copy_X max_iter tol solver random_state n_jobs",
)
_BAYES = ConversionRule(
    "letheon.sums.MultinomialNB",
    "exact equivalent",
    _COUNTS,
    same="alpha force_alpha fit_prior class_prior",
)
_DISCRIMINANT = ConversionRule(
    "letheon.sums.LinearDiscriminantAnalysis",
    "exact equivalent",
    _SUBTRACT,
    same="solver shrinkage priors n_components",
    accepted={
        "shrinkage": lambda value: value is None or is_number(value),
        "covariance_estimator": is_none,
    },
    unused="tol store_covariance",
)
_TEXT = ConversionRule(
    "letheon.preprocessing.CountVectorizer",
    "exact equivalent",
    f"{_COUNTS}; a term that crosses min_df or max_df joins or leaves the vocabulary",
    same="strip_accents lowercase stop_words token_pattern ngram_range analyzer max_df min_df "
    "max_features vocabulary binary",
    accepted={
        "input": is_one_of("content"),
        "preprocessor": is_none,
        "tokenizer": is_none,
        "analyzer": is_one_of("word", "char", "char_wb"),
    },
    unused="encoding decode_error dtype",
)

RULES: Mapping[str, ConversionRule] = {
    "sklearn.preprocessing.StandardScaler": ConversionRule(
        "letheon.preprocessing.StandardScaler",
        "rounded statistics",
        f"{_FEW} 1.5 / n per column",
        same="with_mean with_std",
        unused="copy",
    ),
    "sklearn.preprocessing.RobustScaler": ConversionRule(
        "letheon.preprocessing.RobustScaler",
        "rounded statistics",
        "counts on a grid are updated; the output changes with probability about 64 / n per column",
        same="with_centering with_scaling quantile_range",
        accepted={"unit_variance": is_false},
        unused="copy",
    ),
    "sklearn.impute.SimpleImputer": ConversionRule(
        "letheon.preprocessing.SimpleImputer",
        "rounded statistics",
        f"{_FEW} 8 / n per column",
        same="missing_values strategy fill_value add_indicator keep_empty_features",
        accepted={
            "missing_values": is_missing,
            "strategy": is_one_of("mean", "median", "most_frequent", "constant"),
        },
        unused="copy verbose",
        refine=_refine_imputer,
    ),
    "sklearn.preprocessing.OneHotEncoder": replace(
        _ENCODER,
        same="categories handle_unknown drop sparse_output min_frequency max_categories",
        accepted={
            "drop": is_one_of(None, "first", "if_binary"),
            "handle_unknown": is_one_of("error", "ignore", "infrequent_if_exist"),
            "feature_name_combiner": is_one_of("concat"),
        },
    ),
    "sklearn.preprocessing.OrdinalEncoder": replace(
        _ENCODER,
        target="letheon.preprocessing.OrdinalEncoder",
        same="categories handle_unknown unknown_value encoded_missing_value",
        accepted={"min_frequency": is_none, "max_categories": is_none},
    ),
    "sklearn.preprocessing.TargetEncoder": ConversionRule(
        "letheon.preprocessing.TargetEncoder",
        "rounded statistics",
        f"{_FEW} 64 / m for the m rows of the same category",
        same="target_type smooth cv",
        accepted={"categories": is_one_of("auto"), "cv": lambda value: isinstance(value, int)},
        unused="shuffle",
        notes=("folds separate people; smooth='auto' adds one row with the mean target",),
    ),
    "sklearn.feature_extraction.text.CountVectorizer": _TEXT,
    "sklearn.feature_extraction.text.TfidfVectorizer": replace(
        _TEXT,
        target="letheon.preprocessing.TfidfVectorizer",
        kind="rounded statistics",
        same=f"{_TEXT.same} norm use_idf smooth_idf sublinear_tf",
        notes=("idf values are rounded to halves",),
        refine=_refine_tfidf,
    ),
    "sklearn.linear_model.LogisticRegression": _LOGISTIC,
    "sklearn.linear_model.Ridge": _RIDGE,
    "sklearn.linear_model.RidgeClassifier": replace(_RIDGE, target="letheon.sums.RidgeClassifier"),
    "sklearn.linear_model.LinearRegression": replace(
        _RIDGE, same="fit_intercept", accepted={"positive": is_false}, fixed={"alpha": 0.0}
    ),
    "sklearn.discriminant_analysis.LinearDiscriminantAnalysis": _DISCRIMINANT,
    "sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis": replace(
        _DISCRIMINANT,
        target="letheon.sums.QuadraticDiscriminantAnalysis",
        same="priors reg_param store_covariance",
        accepted={"shrinkage": is_none, "covariance_estimator": is_none},
        unused="tol solver",
    ),
    "sklearn.naive_bayes.GaussianNB": replace(
        _DISCRIMINANT, target="letheon.sums.GaussianNB", same="priors var_smoothing", accepted={}
    ),
    "sklearn.decomposition.PCA": ConversionRule(
        "letheon.sums.PCA",
        "exact equivalent",
        "integer sums are updated, and all components are computed again",
        same="n_components whiten",
        accepted={"n_components": lambda value: value is None or is_number(value)},
        unused="copy svd_solver tol iterated_power n_oversamples power_iteration_normalizer",
    ),
    "sklearn.kernel_approximation.RBFSampler": ConversionRule(
        "letheon.sums.RandomFeatures",
        "rounded statistics",
        "none: it learns nothing from rows",
        same="gamma n_components",
        accepted={"gamma": is_number},
        notes=("other random features of the same kernel; inputs are rounded to 2**-16",),
    ),
    "sklearn.neighbors.NearestCentroid": ConversionRule(
        "letheon.centroid.NearestCentroid",
        "exact equivalent",
        "the means of the classes of the rows are computed again",
        accepted={
            "metric": is_one_of("euclidean"),
            "shrink_threshold": is_none,
            "priors": is_one_of("uniform"),
        },
    ),
    "sklearn.naive_bayes.MultinomialNB": _BAYES,
    "sklearn.naive_bayes.ComplementNB": replace(
        _BAYES, target="letheon.sums.ComplementNB", same=f"{_BAYES.same} norm"
    ),
    "sklearn.naive_bayes.BernoulliNB": replace(
        _BAYES, target="letheon.sums.BernoulliNB", same=f"{_BAYES.same} binarize"
    ),
    "sklearn.naive_bayes.CategoricalNB": replace(
        _BAYES, target="letheon.sums.CategoricalNB", same=f"{_BAYES.same} min_categories"
    ),
    "sklearn.ensemble.RandomForestClassifier": _FOREST,
    "sklearn.ensemble.RandomForestRegressor": _for_regression(_FOREST),
    "sklearn.ensemble.ExtraTreesClassifier": _EXTRA,
    "sklearn.ensemble.ExtraTreesRegressor": _for_regression(_EXTRA),
    "sklearn.tree.DecisionTreeClassifier": _TREE,
    "sklearn.tree.DecisionTreeRegressor": _for_regression(_TREE),
    **BOOSTER_RULES,
}
