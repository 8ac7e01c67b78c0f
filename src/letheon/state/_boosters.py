"""Estimators of XGBoost and LightGBM: codecs, settings that make fits repeatable, and trial loads.

A booster in a file is checked by letheon, and then loaded in a sandboxed process that also makes a
prediction. Only if this process survives, the booster is loaded here.
"""

import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from letheon.exceptions import CannotForgetError, CorruptFileError, UnsupportedStateError
from letheon.state import _lightgbm, _xgboost
from letheon.state._encode import to_tree
from letheon.state._nodes import array_bytes, require_valid
from letheon.state._settings_rules import find_violations
from letheon.state._settings_table import BOOSTER_PARAMETERS
from letheon.state._tags import Codec, tag_of

_TRIAL_SECONDS = 60.0
_MOST_CLASSES = 1 << 16


class _Library(NamedTuple):
    """A library of boosters: its classes, versions that were tested, and its fixed settings.

    `extras` is the attribute for parameters that are not in the signature.
    """

    title: str
    base: str
    booster: str
    extras: str
    first: tuple[int, int]
    last: tuple[int, int]
    fixed: dict[str, Any]


_LIBRARIES = {
    "xgboost": _Library(
        "XGBoost",
        "xgboost.sklearn.XGBModel",
        "xgboost.core.Booster",
        "kwargs",
        (3, 2),
        (3, 2),
        {"n_jobs": 1, "tree_method": "hist"},
    ),
    "lightgbm": _Library(
        "LightGBM",
        "lightgbm.sklearn.LGBMModel",
        "lightgbm.basic.Booster",
        "_other_params",
        (4, 6),
        (4, 7),
        {"n_jobs": 1, "deterministic": True, "force_col_wise": True},
    ),
}


def _library_of(estimator: Any) -> _Library | None:
    for cls in type(estimator).__mro__:
        library = _LIBRARIES.get(cls.__module__.partition(".")[0])
        if library is not None and tag_of(cls) == library.base:
            return library
    return None


def fix_settings(estimator: Any) -> None:
    """Set the parameters of a booster that make its fits repeatable; leave other estimators.

    XGBoost trains with ``n_jobs=1`` and ``tree_method="hist"``, LightGBM with ``n_jobs=1``,
    ``deterministic=True`` and ``force_col_wise=True`` (unless ``force_row_wise=True`` is set).

    Parameters
    ----------
    estimator : estimator
        It is changed in place.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import fix_settings
    >>> fix_settings(GaussianNB())
    """
    library = _library_of(estimator)
    if library is not None:
        is_row_wise = estimator.get_params(deep=False).get("force_row_wise")
        fixed = library.fixed.items()
        estimator.set_params(
            **{key: value for key, value in fixed if not (is_row_wise and key == "force_col_wise")}
        )


def require_repeatable(estimator: Any) -> None:
    """Raise `CannotForgetError` if fits of a booster may differ, or if it cannot be saved.

    Estimators that are not from XGBoost or LightGBM are accepted.

    Parameters
    ----------
    estimator : estimator
        The estimator that a wrapper is going to train.

    Raises
    ------
    CannotForgetError
        The booster, its version or one of its settings is not supported.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import require_repeatable
    >>> require_repeatable(GaussianNB())
    """
    library = _library_of(estimator)
    if library is None:
        return
    name = type(estimator).__name__
    allowed = BOOSTER_PARAMETERS.get(tag_of(type(estimator)))
    if allowed is None:
        names = ", ".join(sorted(tag.rpartition(".")[2] for tag in BOOSTER_PARAMETERS))
        raise CannotForgetError(f"{name} cannot be inside an exact method; expected one of {names}")
    _require_version(library, estimator)
    params = estimator.get_params(deep=False)
    unknown = sorted(set(params) - allowed)
    if unknown:
        raise CannotForgetError(
            f"letheon does not know whether {name} is repeatable with the parameter(s) "
            f"{', '.join(unknown)}; remove them, or use the names of scikit-learn's interface"
        )
    functions = sorted(key for key, value in params.items() if callable(value))
    if functions:
        raise CannotForgetError(
            f"{name}.{functions[0]} is a function, and letheon cannot know whether its results are "
            "repeatable; use the name of a built-in function of the library"
        )
    violations = find_violations(to_tree(estimator), {})
    if violations:
        raise CannotForgetError(
            f"{'; '.join(map(str, violations[:3]))}. Two fits of {name} with other values may "
            "differ, or the model cannot be saved"
        )


def _require_version(library: _Library, estimator: Any) -> None:
    package = import_module(type(estimator).__module__.partition(".")[0])
    version = str(package.__version__)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not library.first <= release <= library.last:
        first, last = (".".join(map(str, part)) for part in (library.first, library.last))
        raise CannotForgetError(
            f"{library.title} {version} was not tested with letheon, so its fits may differ or its "
            f"models may have other parts; install a version from {first} to {last}"
        )


def _encode_with(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an encoder whose errors are about a model in memory, not about a file."""

    def encode_booster(booster: Any) -> Any:
        try:
            return encode(booster)
        except CorruptFileError as error:
            raise UnsupportedStateError(
                f"letheon cannot save this booster, so it could have no digest: {error}"
            ) from error

    return encode_booster


def _try_loading(cls: type, plain: Any) -> None:
    """Load a booster in a sandboxed process; raise CorruptFileError if this process fails."""
    # The sandbox imports this package, so it is imported when it is used.
    sandbox = import_module("letheon.sandbox")
    if sandbox.is_inside():
        return
    limits = sandbox.Limits.for_input(array_bytes(plain), seconds=_TRIAL_SECONDS)
    try:
        sandbox.call(_load_and_predict, (tag_of(cls), plain), limits=limits)
    except sandbox.SandboxError as error:
        title = _LIBRARIES[cls.__module__.partition(".")[0]].title
        raise CorruptFileError(
            f"{title} could not load the model in a separate process ({error}), so it was not "
            "loaded here; restore the file from a copy"
        ) from None


def _load_and_predict(argument: tuple[str, Any], _: Any) -> Any:
    name, plain = argument
    module, _, kind = name.rpartition(".")
    booster = CODECS[name].decode(getattr(import_module(module), kind), plain)
    n_features = booster.num_features() if name.startswith("x") else booster.num_feature()
    rows = np.zeros((2, n_features), np.float32)
    rows[1] = np.nan
    if name.startswith("x"):
        return np.ravel(booster.inplace_predict(rows, validate_features=False)).tolist()
    return np.ravel(booster.predict(rows)).tolist()


def _empty_plain(value: Any) -> None:
    if value:
        raise UnsupportedStateError(
            "a defaultdict cannot be saved, because it calls a function for missing keys; use a "
            "dict"
        )


def _empty_from(_: type, plain: Any) -> Any:
    require_valid(plain is None, "defaultdict")
    return defaultdict(OrderedDict)


CODECS: dict[str, Codec] = {
    **{
        name: Codec(
            _encode_with(module.encode_booster),
            module.decode_booster,
            cost=module.check_booster,
            trial=_try_loading,
        )
        for name, module in (
            (_LIBRARIES["xgboost"].booster, _xgboost),
            (_LIBRARIES["lightgbm"].booster, _lightgbm),
        )
    },
    # Scores of validation rows in an estimator of LightGBM: empty, because there are no such rows.
    "collections.defaultdict": Codec(_empty_plain, _empty_from),
}


def _check_estimator(value: Any, state: dict[str, Any]) -> None:
    """Check an estimator from a file: names of parameters, number of classes, kind of booster.

    Raises
    ------
    CorruptFileError
        If a part is not valid.
    """
    library, name = _library_of(value), type(value).__name__
    assert library is not None
    extras = state.get(library.extras, [])
    allowed = BOOSTER_PARAMETERS[tag_of(type(value))]
    is_known = type(extras) in {dict, list} and set(extras) <= allowed
    require_valid(is_known, f"{name}: {library.extras}")
    if library.extras in state and type(extras) is list:
        setattr(value, library.extras, {name: state[name] for name in extras})
    booster = state.get("_Booster")
    is_booster = booster is None or tag_of(type(booster)) == library.booster
    require_valid(is_booster, f"{name}: _Booster")
    for key in ("n_classes_", "_n_classes"):
        count = state.get(key, 0)
        is_count = isinstance(count, int | np.integer) and count <= _MOST_CLASSES
        require_valid(is_count, f"{name}: {key}")


CHECKS = {library.base: ("", _check_estimator) for library in _LIBRARIES.values()}
