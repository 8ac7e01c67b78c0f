r"""V4: train the model again on the remaining rows and compare the bytes.

An exact method promises ``U(A(D), D, D_u) = A(D \ D_u)`` with the same seed (survey, Definition 2).
So one fresh fit on the remaining rows and one comparison of bytes are sufficient, whatever requests
came before. The bytes of the file are compared, not the digests, because data could be hidden in an
attribute that the digest omits.

If the model was made with other libraries, a difference is excused only within the tolerance that
`letheon.audit._tolerance` derives for the method. A different library never turns a difference into
a pass.

With noise or an approximate removal, two fits have different numbers. Names, dtypes and shapes, and
the rows in the model, still agree. So a fresh fit shows whether the file contains anything in
addition to the model. The numbers themselves are not checked.

Settings that change what is learned are visible in the learned bytes. Other settings (`n_jobs`,
`verbose`) could hide data, so only a few plain values are allowed for each. A fresh fit runs with
one thread and without output. A different value in the model is accepted only if it was declared as
a parameter of the model or of a nested estimator. A fitted copy of an estimator, such as a shard,
must have the value declared for its class. Otherwise many copies with a small number each could
encode a row.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context, get_config

from letheon import state
from letheon.audit._bundle import LevelResult
from letheon.audit._merge import MERGED_SETTINGS, is_whole, merge_neutral_settings
from letheon.audit._tolerance import Difference, join_places, judge_differences, list_differences
from letheon.base import ForgetMixin, neutral_parameters
from letheon.compose import clone_unfitted
from letheon.data import Rows
from letheon.exceptions import LetheonError
from letheon.inner_estimator import iter_estimators
from letheon.ledger.certificates.claims import get_accounted_part
from letheon.ledger.certificates.facts import replay_of
from letheon.linear import fingerprint_rows
from letheon.parallel import one_thread
from letheon.search import ForgetSearchCV
from letheon.state import Instance, Items, Record, to_bytes

_SHOWN = 3
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,5}){0,3}([a-z]{1,4}[0-9]{0,3})?")
_NAME = re.compile(r"[0-9A-Za-z._:+,/() -]{1,120}")
_VERSIONED = ("python", "numpy", "scipy", "scikit-learn")
# The last bits of features depend on the batch in which they were computed.
FEATURES = 1e-3
_ROWS = re.compile(r"\brows_\.(X|y|ids)\b")
_MOST_MEMORY = 2**20
_MOST_BYTES = 2**48
_MOST_ROWS = 2**32
_WORDS = frozenset({"default", "pandas", "polars", "diagram", "text", "spmatrix", "sparray"})
_DEVICE = re.compile("auto|cpu|mps|cuda(:[0-9]{1,2})?")


class CannotRederiveError(LetheonError, ValueError):
    """Error: the model cannot be trained again here; the message says why."""


def rederive(model: Any, rows: Rows) -> Any:
    """Train a new model on `rows`, with the settings and the seed of a fitted model.

    Parameters
    ----------
    model : fitted estimator of an exact method
        Only its class, its parameters and its seeds are used.
    rows : Rows
        The remaining rows, in the model's order; ``rows.extra`` is passed to `fit` by name.

    Returns
    -------
    estimator
        The result of a correct removal, except for settings such as `n_jobs`.

    Raises
    ------
    CannotRederiveError
        The settings are not plain values, or the model keeps state outside its file.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.audit import rederive
    >>> from letheon.data import Rows, as_ids, hold_table, hold_target
    >>> rows = Rows(hold_table([[0.0], [1.0]]), hold_target(["a", "b"]), as_ids([7, 8]))
    >>> model = NearestCentroid().fit([[0.0], [1.0], [5.0]], ["a", "b", "b"], ids=[7, 8, 9])
    >>> _ = model.forget([9])
    >>> rederive(model, rows).digest() == model.digest()
    True
    """
    wrong = find_unsafe_settings(model)
    if wrong:
        raise CannotRederiveError(
            "settings that do not affect learning must have plain values, because other values "
            "could hide data: "
            f"{', '.join(wrong[:_SHOWN])}"
        )
    if model._digest_parameters() != vars(model).get("parameters_"):
        raise CannotRederiveError("the parameters differ from those recorded at training")
    config = read_sklearn_config(model)
    if config is None:
        raise CannotRederiveError(
            "the attribute config_ of the model is not a valid scikit-learn configuration"
        )
    fresh = clone_unfitted(model)
    for part in list(iter_estimators(fresh)):
        part.estimator.set_params(**_get_quiet_settings(part.params))
    X, y = rows.slice(0, len(rows))
    with config_context(**config), one_thread():
        fresh.fit(X, y, ids=rows.ids.to_array(), **rows.extra)
    return fresh


def _get_quiet_settings(params: dict[str, Any]) -> dict[str, Any]:
    """Return settings that turn off threads and output; they do not affect the result."""
    settings: dict[str, Any] = {"n_jobs": None} if "n_jobs" in params else {}
    if "verbose" in params:
        settings["verbose"] = False if isinstance(params["verbose"], bool) else 0
    return settings


def compare(
    model: Any,
    rederived: Any,
    *,
    content: bytes | None = None,
    name: str = "",
    same_place: bool = False,
) -> LevelResult:
    """Compare a model with its re-derivation, byte for byte.

    Parameters
    ----------
    model : fitted estimator
        The model under audit.
    rederived : fitted estimator
        What `rederive` returned for it.
    content : bytes, optional
        The file that the model was decoded from. It must equal the encoded model, so that every
        byte of it is checked.
    name : str
        Name of the model, for the result.
    same_place : bool, default=False
        Whether the certificate names the libraries and the CPU kernel of this machine. If True, a
        model that names other libraries fails.

    Returns
    -------
    LevelResult
        "pass": all bytes are equal, except for plain values of settings such as `n_jobs`, and the
        names of libraries. "fail": bytes differ, and other libraries do not explain it. "skipped":
        bytes differ, but the model was made with other libraries or another CPU kernel, and the
        difference is within the tolerance of the method, or no tolerance is known for it.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.audit import compare
    >>> model = NearestCentroid().fit([[0.0], [1.0]], ["a", "b"])
    >>> other = NearestCentroid().fit([[0.0], [2.0]], ["a", "b"])
    >>> compare(model, model).verdict, compare(model, other).verdict
    ('pass', 'fail')
    """
    if content is not None and state.encode(model) != content:
        return LevelResult("V4", name, "fail", "the file contains bytes that the model does not")
    tree = state.to_tree(model)
    expected = merge_neutral_settings(model, tree, state.to_tree(rederived))
    content = to_bytes(tree)
    size = {"bytes": len(content), "parameters": vars(model).get("parameters_", "")}
    if content == to_bytes(expected):
        reason = "byte-for-byte equal to a fresh fit on the remaining rows"
        return LevelResult("V4", name, "pass", reason, size)
    other = _compare_environments(model, rederived)
    is_elsewhere = not same_place and names_another_environment(model, rederived)
    if is_elsewhere:
        expected = with_environment(expected, _get_environment(model))
    elif other or _get_environment(rederived).get("kernels") != "free":
        return _report_difference(name, list_differences(tree, expected))
    if content == to_bytes(expected):
        reason = (
            "all learned bytes are equal to a fresh fit on the remaining rows; the file was "
            f"written with {_describe_environments(other)}"
        )
        return LevelResult("V4", name, "pass", reason, size | {"environment": other})
    if replay_of(model) == "bitwise":
        why = "; for this method, different libraries do not explain a difference"
        return _report_difference(name, list_differences(tree, expected), why)
    other = other or {"kernels": ["free", "free"]}
    return _judge_elsewhere(model, rederived, name, other, list_differences(tree, expected, None))


def check_rederivation(
    model: Any,
    rows: Rows,
    *,
    content: bytes | None = None,
    name: str = "",
    same_place: bool = False,
) -> tuple[LevelResult, Any]:
    """Re-derive a model and compare the two.

    Parameters
    ----------
    model, content, name, same_place
        As for `compare`.
    rows : Rows
        As for `rederive`.

    Returns
    -------
    LevelResult, estimator or None
        The result of V4, and the re-derived model; None if it could not be trained. If the fresh
        fit raises, the result is "fail", because the model cannot have been trained on these rows.
        It is "skipped" only if a library is not installed here.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.audit import check_rederivation
    >>> from letheon.data import Rows, as_ids, hold_table, hold_target
    >>> rows = Rows(hold_table([[0.0], [1.0]]), hold_target(["a", "b"]), as_ids([7, 8]))
    >>> model = NearestCentroid().fit(rows.X, rows.y, ids=[7, 8])
    >>> check_rederivation(model, rows)[0].verdict
    'pass'
    """
    try:
        rederived = rederive(model, rows)
    except CannotRederiveError as error:
        return LevelResult("V4", name, "fail", str(error)), None
    except ImportError as error:
        reason = f"a library that the model needs is not installed: {error.name or 'unknown'}"
        return LevelResult("V4", name, "skipped", reason), None
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        reason = f"a fresh fit on the remaining rows raises {type(error).__name__}"
        return LevelResult("V4", name, "fail", reason), None
    compared = compare(model, rederived, content=content, name=name, same_place=same_place)
    return compared, rederived


def _report_difference(name: str, places: list[Difference], why: str = "") -> LevelResult:
    return LevelResult(
        "V4",
        name,
        "fail",
        "different from a fresh fit on the remaining rows, at "
        f"{join_places([place.place for place in places])}{why}",
        {"places": [place.place for place in places]},
    )


def _describe_environments(other: dict[str, list[str]]) -> str:
    return ", ".join(f"{key} {was} (here {now})" for key, (was, now) in other.items())


def _judge_elsewhere(
    model: Any, rederived: Any, name: str, other: dict[str, list[str]], places: list[Difference]
) -> LevelResult:
    """Return the result for a model that was made with other libraries and has other bytes.

    The verdict is "fail" or "skipped", never "pass".
    """
    beyond, unknown, _ = judge_differences(model, rederived, places)
    largest = max((place.gap for place in places if place.gap is not None), default=0.0)
    details = {"environment": other, "rounding": not beyond and not unknown}
    details |= {"gap": f"{largest:.3g}"}
    made = f"made with {_describe_environments(other)}"
    if beyond:
        reason = (
            "different from a fresh fit on the remaining rows, by more than the tolerance of its "
            f"method, at {join_places(beyond)}; the file says that it was {made}, which does not "
            "explain the difference"
        )
        return LevelResult("V4", name, "fail", reason, details | {"places": beyond[:64]})
    how = "it differs from a fresh fit here, within the tolerance of its method"
    if unknown:
        how = f"no tolerance is known for what differs at {join_places(unknown)}"
    reason = f"{made}, so the bytes may differ; {how}. Repeat the audit with these libraries"
    return LevelResult("V4", name, "skipped", reason, details)


def with_environment(node: Any, environment: dict[str, str], key: str = "") -> Any:
    """Return the state tree with `environment` as the recorded libraries of every part."""
    if type(node) is Instance:
        return node._replace(state=with_environment(node.state, environment))
    if type(node) is Items:
        return node._replace(items=tuple([with_environment(x, environment) for x in node.items]))
    if type(node) is not Record:
        return node
    if key == "environment_":
        return Record(tuple([(name, environment.get(name, text)) for name, text in node.items]))
    items = [(name, with_environment(value, environment, name)) for name, value in node.items]
    return Record(tuple(items))


def _get_environment(model: Any) -> dict[str, str]:
    environment = vars(model).get("environment_")
    return environment if type(environment) is dict else {}


def _compare_environments(model: Any, rederived: Any) -> dict[str, list[str]]:
    """Return the environment entries that differ, with the model's value and the value here."""
    was, now = _get_environment(model), _get_environment(rederived)
    keys = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    return {str(key)[:40]: [str(was.get(key))[:120], str(now.get(key))[:120]] for key in keys}


def names_another_environment(model: Any, rederived: Any) -> bool:
    """Return whether a model records a valid environment that differs from the one here.

    Such an environment has, for example, other library versions.
    """
    other = _compare_environments(model, rederived)
    return bool(other) and _is_environment(vars(model).get("environment_"), rederived)


def _is_environment(environment: Any, rederived: Any) -> bool:
    """Return whether an environment has the expected keys, each with a version or a short name.

    The value for letheon must equal that of this machine, so that it cannot hide data.
    """
    own = _get_environment(rederived)
    if type(environment) is not dict or environment.keys() != own.keys():
        return False
    if environment.get("letheon") != own.get("letheon"):
        return False
    return all(
        type(text) is str and (_VERSION if key in _VERSIONED else _NAME).fullmatch(text)
        for key, text in environment.items()
    )


class FileFindings(NamedTuple):
    """Errors in a file, and differences that cannot be decided on this machine."""

    wrong: str | None = None
    undecided: str | None = None


def check_file_content(
    model: Any, rows: Rows, *, content: bytes | None = None, same_place: bool = False
) -> FileFindings:
    """Return what a file contains in addition to the model, for a method that is not exact.

    Parameters
    ----------
    model : fitted estimator
        The model under audit.
    rows : Rows
        The remaining rows, in the model's order.
    content : bytes, optional
        The file that the model was decoded from.
    same_place : bool, default=False
        Whether the certificate names the libraries and the CPU kernel of this machine.
    """
    if content is not None and state.encode(model) != content:
        return FileFindings("the file contains bytes that the model does not")
    try:
        fresh = rederive(model, rows)
    except CannotRederiveError as error:
        return FileFindings(str(error))
    _copy_keys(fresh, model, rows)
    tree = state.to_tree(model)
    expected = merge_neutral_settings(model, tree, state.to_tree(fresh))
    is_elsewhere = not same_place and names_another_environment(model, fresh)
    if is_elsewhere:
        expected = with_environment(expected, model.environment_)
    is_bounded = model.guarantee_.kind == "certified"
    rule = _NoiseRule(noisy_part=_find_noisy_part(model), is_bounded=is_bounded)
    every = list_differences(tree, expected, None)
    unexpected = [difference for difference in every if not rule.permits_difference(difference)]
    wrong, undecided = [difference.place for difference in unexpected], list[str]()
    if is_elsewhere:
        beyond, unknown, within = judge_differences(model, fresh, unexpected)
        wrong, undecided = beyond, unknown + within
    if wrong:
        return FileFindings(f"a fresh fit does not have what the file has at {join_places(wrong)}")
    if undecided:
        return FileFindings(
            undecided="the file was made with other libraries and differs at "
            f"{join_places(undecided)}; rounding may be the cause. Repeat the audit with these "
            "libraries"
        )
    return FileFindings()


@dataclass(frozen=True)
class _NoiseRule:
    """Where numbers may differ because of noise or an approximation."""

    noisy_part: str
    is_bounded: bool

    def permits_difference(self, difference: Difference) -> bool:
        place, gap = difference.place, difference.gap
        if difference.numbers == "seed":
            return place.rpartition(".")[2] == "seed_"
        if _ROWS.search(place):
            return self.noisy_part == "head_" and gap is not None and gap <= FEATURES
        return place.startswith(self.noisy_part) and self._is_number(difference)

    def _is_number(self, difference: Difference) -> bool:
        """Return whether a difference is only between numbers.

        If the model claims a bound, differences in rows and seeds do not count as such.
        """
        if not self.is_bounded:
            return difference.numbers != "other"
        return difference.numbers in ("float", "count") and "rows_" not in difference.place


def _copy_keys(fresh: Any, model: Any, rows: Rows) -> None:
    """Copy the random salt and key of the model to a fresh fit.

    Then the values that are derived from them can be compared.
    """
    fitted = vars(get_accounted_part(model))
    key, salt = fitted.get("fingerprint_key_"), fitted.get("release_salt_")
    inner, seen = unwrap_model(fresh, rows)
    if _is_key(salt) and _is_key(vars(inner).get("release_salt_")):
        inner.release_salt_ = salt
    if _is_key(key) and vars(inner).get("fingerprint_key_") is not None:
        X, target = inner._build_design().build_rows(seen.X), inner._encode_target(seen.y)
        inner.rows_.extra["fingerprint"] = fingerprint_rows(X, target, key)
        inner.fingerprint_key_ = key


def _is_key(text: Any) -> bool:
    return type(text) is str and re.fullmatch("[0-9a-f]{64}", text) is not None


def unwrap_model(model: Any, rows: Rows) -> tuple[Any, Rows]:
    """Return the convex part of a model, and the rows as that part receives them."""
    if hasattr(model, "head_"):
        features = np.asarray(model._training_features(rows.X))
        return model.head_, Rows(features, rows.y, rows.ids)
    if isinstance(model, ForgetSearchCV):
        return unwrap_model(model.model_, rows)
    if hasattr(model, "steps_"):
        table = model.fitted_.transform(rows.X)
        return unwrap_model(model.steps_[-1][1], Rows(table, rows.y, rows.ids))
    return model, rows


def _find_noisy_part(model: Any) -> str:
    """Return the path of the part that noise or an approximation changes; "" is the whole model."""
    if hasattr(model, "head_"):
        return "head_"
    if isinstance(model, ForgetSearchCV):
        return f"model_.{_find_noisy_part(model.model_)}".rstrip(".")
    if hasattr(model, "steps_"):
        last = len(model.steps_) - 1
        return f"fitted_.steps[{last}][1].{_find_noisy_part(model.steps_[-1][1])}".rstrip(".")
    return ""


def _is_size(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= _MOST_BYTES


# Neutral settings that a fresh fit copies from the model; they are in no certificate.
_COPIED_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "checkpoint_dir": lambda value: value is None,
    "device": lambda value: (
        value is None or (type(value) is str and bool(_DEVICE.fullmatch(value)))
    ),
    "max_memory": lambda value: value is None or _is_size(value),
    "batch_size": lambda value: value is None or is_whole(value, _MOST_ROWS),
}


def find_unsafe_settings(model: Any) -> list[str]:
    """Return the names of settings, including nested ones, that a re-derivation cannot check.

    Certificates do not contain neutral settings (those that do not affect the result), so an
    unknown neutral setting counts as unsafe.
    """
    return [
        f"{part.path}{name}"
        for part in iter_estimators(model)
        for name, value in part.params.items()
        if not _is_checked_setting(part.estimator, name, value)
    ]


def _is_checked_setting(estimator: Any, name: str, value: Any) -> bool:
    if name == "random_state":
        # An integer seed has few bits; the state of a generator could hide data.
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        bits = 128 if isinstance(estimator, ForgetMixin) else 32
        return value is None or (is_whole and 0 <= int(value) < 2**bits)
    if name in MERGED_SETTINGS:
        return MERGED_SETTINGS[name](value)
    is_neutral = name in neutral_parameters(estimator)
    return not is_neutral or (name in _COPIED_SETTINGS and _COPIED_SETTINGS[name](value))


def read_sklearn_config(model: Any) -> dict[str, Any] | None:
    """Return the scikit-learn configuration of the model's fit, or None if it is not plausible.

    For a model that has no recorded configuration, the configuration of this process is returned.
    """
    own = get_config()
    config = vars(model).get("config_", own)
    if type(config) is not dict or config.keys() != own.keys():
        return None
    return config if all(_is_plain(value) for value in config.values()) else None


def _is_plain(value: Any) -> bool:
    if value is None or type(value) is bool:
        return True
    return is_whole(value, _MOST_MEMORY) or (type(value) is str and value in _WORDS)
