r"""V4: the model, trained again from the remaining rows, byte for byte.

An exact method promises ``U(A(D), D, D_u) = A(D \ D_u)`` with the same seed (survey, Definition 2).
So one fresh fit on the rows that remain and one comparison of bytes decide, whatever the history
of requests was. The bytes are those of the file, not those of the digest: an attribute that is no
part of the digest must not hide anything either.

Other libraries than those here explain a difference only as far as `letheon.audit._tolerance`
derives it for the method; they never turn a difference into a pass.

Noise, and what an approximate removal leaves, make numbers differ between two fits. Their names,
dtypes and shapes do not differ, nor do the rows that the model holds. So a fresh fit also shows
whether something was put into the file beside the model; what the numbers are, it does not show.

Settings that change what is learned show in every byte that is learned. Those that do not (threads,
talk) could carry anything, so each may have a few plain values only. A fresh fit runs with one
thread and in silence. What the model says instead is taken over where it was declared, as a
parameter of the model or of an estimator in its parameters. A fitted copy of an estimator, one of a
thousand shards perhaps, must say what was declared for its class: otherwise a thousand copies with
a small number each could carry a row.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context, get_config

from letheon import state
from letheon.audit._bundle import LevelResult
from letheon.audit._tolerance import Difference, differences, join_places, judge_differences
from letheon.base import ForgetMixin, neutral_parameters
from letheon.compose import clone_unfitted
from letheon.data import Rows
from letheon.exceptions import LetheonError
from letheon.inner_estimator import iter_estimators
from letheon.ledger.certificates.claims import counted_part
from letheon.ledger.certificates.facts import replay_of
from letheon.linear import fingerprint_rows
from letheon.parallel import one_thread
from letheon.state import Instance, Items, Record, Scalar, to_bytes

_SHOWN = 3
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,5}){0,3}([a-z]{1,4}[0-9]{0,3})?")
_NAME = re.compile(r"[0-9A-Za-z._:+,/() -]{1,120}")
_VERSIONED = ("python", "numpy", "scipy", "scikit-learn")
# The last bits of features depend on the batch that they were computed in.
FEATURES = 1e-3
_ROWS = re.compile(r"\brows_\.(X|y|ids)\b")
_MOST_JOBS = 1024
_MOST_TALK = 100
_MOST_MEMORY = 2**20
_MOST_BYTES = 2**48
_MOST_ROWS = 2**32
_WORDS = frozenset({"default", "pandas", "polars", "diagram", "text", "spmatrix", "sparray"})
# Neutral settings and the values that each may have, whatever the fresh fit was run with.
_DEVICE = re.compile("auto|cpu|mps|cuda(:[0-9]{1,2})?")
# Fitted steps of a pipeline keep the seed that each was given, which may be none.
_STEPS = ("fitted_", "steps")


class CannotRederiveError(LetheonError, ValueError):
    """The model cannot be trained again here; the text says why."""


def rederive(model: Any, rows: Rows) -> Any:
    """Train a model anew on rows, with the settings and the seed of a fitted one.

    Parameters
    ----------
    model : fitted estimator of an exact method
        Only its class, its parameters and its seeds are used.
    rows : Rows
        The remaining rows, in held order; ``rows.extra`` goes to `fit` by name.

    Returns
    -------
    estimator
        What an honest model is, up to settings that say how the work is done.

    Raises
    ------
    CannotRederiveError
        Its settings are no plain values, or it keeps states outside its file.
    """
    wrong = wrong_settings(model)
    if wrong:
        raise CannotRederiveError(
            f"settings that are no part of what is learned have values that could carry anything: "
            f"{', '.join(wrong[:_SHOWN])}"
        )
    if model._parameters() != vars(model).get("parameters_"):
        raise CannotRederiveError("parameters are not those that it says it was trained with")
    config = config_of(model)
    if config is None:
        raise CannotRederiveError("config_ is not a set of scikit-learn's settings")
    fresh = clone_unfitted(model)
    for part in list(iter_estimators(fresh)):
        part.estimator.set_params(**_quiet(part.params))
    X, y = rows.part(0, len(rows))
    with config_context(**config), one_thread():
        fresh.fit(X, y, ids=rows.ids.to_array(), **rows.extra)
    return fresh


def _quiet(params: dict[str, Any]) -> dict[str, Any]:
    """Return how a fresh fit works, whatever the model says: settings that change no result."""
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
        The file that the model was decoded from. It must be exactly what the model encodes to, so
        that no byte in it goes unseen.
    name : str
        Of the model, for the result.
    same_place : bool, default=False
        The certificate says that the model was made with the libraries and the kernel that are
        here. A model that says otherwise is a failure then.

    Returns
    -------
    LevelResult
        "pass": equal in every byte, apart from settings that say how the work is done, which have
        plain values, and from the names of libraries. "fail": not equal, and nothing explains the
        difference. "skipped": not equal, made with other libraries or another CPU kernel, and the
        difference is within the tolerance of the method, or no tolerance is known for it.
    """
    if content is not None and state.encode(model) != content:
        return LevelResult("V4", name, "fail", "the file holds bytes that the model does not")
    tree = state.to_tree(model)
    expected, content = with_neutral(tree, state.to_tree(rederived)), to_bytes(tree)
    size = {"bytes": len(content), "parameters": vars(model).get("parameters_", "")}
    if content == to_bytes(expected):
        reason = "equal, byte for byte, to a fresh fit on the remaining rows"
        return LevelResult("V4", name, "pass", reason, size)
    other = _environments(model, rederived)
    is_elsewhere = not same_place and names_another_environment(model, rederived)
    if is_elsewhere:
        expected = with_environment(expected, _environment_of(model))
    elif other or _environment_of(rederived).get("kernels") != "free":
        return _unequal(name, differences(tree, expected))
    if content == to_bytes(expected):
        reason = (
            "equal to a fresh fit on the remaining rows in every byte that was learned; the file "
            f"names {_in_words(other)}"
        )
        return LevelResult("V4", name, "pass", reason, size | {"environment": other})
    if replay_of(model) == "bitwise":
        why = "; no library explains that of this method"
        return _unequal(name, differences(tree, expected), why)
    other = other or {"kernels": ["free", "free"]}
    return _judge_elsewhere(model, rederived, name, other, differences(tree, expected, None))


def check_rederivation(
    model: Any,
    rows: Rows,
    *,
    content: bytes | None = None,
    name: str = "",
    same_place: bool = False,
) -> tuple[LevelResult, Any]:
    """Re-derive a model and compare; return the verdict and the re-derived model, or None.

    Whatever goes wrong in a fresh fit is a failure of the model: it was trained on more than these
    rows, or on others. Only a library that is not installed here is not its fault.
    """
    try:
        rederived = rederive(model, rows)
    except CannotRederiveError as error:
        return LevelResult("V4", name, "fail", str(error)), None
    except ImportError as error:
        reason = f"a library that the model needs is not here: {error.name or 'unknown'}"
        return LevelResult("V4", name, "skipped", reason), None
    except Exception as error:  # noqa: BLE001 (an untrusted model may raise anything)
        reason = f"a fresh fit on the remaining rows raises {type(error).__name__}"
        return LevelResult("V4", name, "fail", reason), None
    compared = compare(model, rederived, content=content, name=name, same_place=same_place)
    return compared, rederived


def _unequal(name: str, places: list[Difference], why: str = "") -> LevelResult:
    return LevelResult(
        "V4",
        name,
        "fail",
        "not what a fresh fit on the remaining rows gives: it differs at "
        f"{join_places([place.place for place in places])}{why}",
        {"places": [place.place for place in places]},
    )


def _in_words(other: dict[str, list[str]]) -> str:
    return ", ".join(f"{key} {was} (here {now})" for key, (was, now) in other.items())


def _judge_elsewhere(
    model: Any, rederived: Any, name: str, other: dict[str, list[str]], places: list[Difference]
) -> LevelResult:
    """Judge a model that was made with other libraries or kernels and differs: never a pass."""
    beyond, unknown, _ = judge_differences(model, rederived, places)
    largest = max((place.gap for place in places if place.gap is not None), default=0.0)
    details = {"environment": other, "rounding": not beyond and not unknown}
    details |= {"gap": f"{largest:.3g}"}
    made = f"made with {_in_words(other)}"
    if beyond:
        reason = (
            "not what a fresh fit on the remaining rows gives: it differs by more than the "
            f"tolerance of its method at {join_places(beyond)}; it says that it was {made}, which "
            "does not explain that"
        )
        return LevelResult("V4", name, "fail", reason, details | {"places": beyond[:64]})
    how = "it differs from a fresh fit here, within the tolerance of its method"
    if unknown:
        how = f"no tolerance is known for what differs at {join_places(unknown)}"
    reason = f"{made}, so bytes need not agree; {how}. Repeat the audit with these libraries"
    return LevelResult("V4", name, "skipped", reason, details)


def with_environment(node: Any, environment: dict[str, str], key: str = "") -> Any:
    """Return a tree whose parts all say that they were made with these libraries."""
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


def _environment_of(model: Any) -> dict[str, str]:
    found = vars(model).get("environment_")
    return found if type(found) is dict else {}


def _environments(model: Any, rederived: Any) -> dict[str, list[str]]:
    """Return what affects results and is not the same: what the model says, and what is here."""
    was, now = _environment_of(model), _environment_of(rederived)
    keys = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    return {str(key)[:40]: [str(was.get(key))[:120], str(now.get(key))[:120]] for key in keys}


def names_another_environment(model: Any, rederived: Any) -> bool:
    """Whether a model says, plausibly, that it was made with something else than is here."""
    other = _environments(model, rederived)
    return bool(other) and _is_environment(vars(model).get("environment_"), rederived)


def _is_environment(environment: Any, rederived: Any) -> bool:
    """Whether it names the same things as here, each as a version or a short name.

    The format of letheon is never another one: its name is no place to write something.
    """
    here = _environment_of(rederived)
    if type(environment) is not dict or environment.keys() != here.keys():
        return False
    if environment.get("letheon") != here.get("letheon"):
        return False
    return all(
        type(text) is str and (_VERSION if key in _VERSIONED else _NAME).fullmatch(text)
        for key, text in environment.items()
    )


class Beside(NamedTuple):
    """What is wrong with a file, and what cannot be decided here; None where there is nothing."""

    wrong: str | None = None
    undecided: str | None = None


def beside_the_model(
    model: Any, rows: Rows, *, content: bytes | None = None, same_place: bool = False
) -> Beside:
    """Return what is in a file of a method that is not exact beside the numbers of a fit.

    Parameters
    ----------
    model : fitted estimator
        The model under audit.
    rows : Rows
        The remaining rows, in held order.
    content : bytes, optional
        The file that the model was decoded from.
    same_place : bool, default=False
        The certificate names the libraries and the kernel that are here.
    """
    if content is not None and state.encode(model) != content:
        return Beside("the file holds bytes that the model does not")
    try:
        fresh = rederive(model, rows)
    except CannotRederiveError as error:
        return Beside(str(error))
    _rekey(fresh, model, rows)
    tree = state.to_tree(model)
    expected = with_neutral(tree, state.to_tree(fresh))
    is_elsewhere = not same_place and names_another_environment(model, fresh)
    if is_elsewhere:
        expected = with_environment(expected, model.environment_)
    is_bounded = model.guarantee_.kind == "certified"
    rule = _Rule(counted=_counted_place(model), is_bounded=is_bounded)
    strange = [one for one in differences(tree, expected, None) if not rule.permits(one)]
    wrong, undecided = [one.place for one in strange], list[str]()
    if is_elsewhere:
        beyond, unknown, within = judge_differences(model, fresh, strange)
        wrong, undecided = beyond, unknown + within
    if wrong:
        return Beside(f"a fresh fit has not what the file has at {join_places(wrong)}")
    if undecided:
        return Beside(
            undecided=f"made with other libraries, and it differs at {join_places(undecided)}, "
            "where rounding may be the cause. Repeat the audit with these libraries"
        )
    return Beside()


@dataclass(frozen=True)
class _Rule:
    """Where noise or an approximation may make numbers differ."""

    counted: str
    is_bounded: bool

    def permits(self, difference: Difference) -> bool:
        place, gap = difference.place, difference.gap
        if difference.numbers == "seed":
            return place.rpartition(".")[2] == "seed_"
        if _ROWS.search(place):
            return self.counted == "head_" and gap is not None and gap <= FEATURES
        return place.startswith(self.counted) and self._is_number(difference)

    def _is_number(self, difference: Difference) -> bool:
        """Whether only numbers differ; where a bound is claimed, none beside the rows."""
        if not self.is_bounded:
            return difference.numbers != "other"
        return difference.numbers in ("float", "count") and "rows_" not in difference.place


def _rekey(fresh: Any, model: Any, rows: Rows) -> None:
    """Give a fresh fit the model's salt and key, so that what is not random can be compared."""
    given = vars(counted_part(model))
    key, salt = given.get("fingerprint_key_"), given.get("release_salt_")
    inner, seen = unwrapped(fresh, rows)
    if _is_key(salt) and _is_key(vars(inner).get("release_salt_")):
        inner.release_salt_ = salt
    if _is_key(key) and vars(inner).get("fingerprint_key_") is not None:
        X, target = inner._build_design().build_rows(seen.X), inner._encode_target(seen.y)
        inner.rows_.extra["fingerprint"] = fingerprint_rows(X, target, key)
        inner.fingerprint_key_ = key


def _is_key(text: Any) -> bool:
    return type(text) is str and re.fullmatch("[0-9a-f]{64}", text) is not None


def unwrapped(model: Any, rows: Rows) -> tuple[Any, Rows]:
    """Return the convex part of a model, and what it sees of the rows."""
    if hasattr(model, "head_"):
        features = np.asarray(model._training_features(rows.X))
        return model.head_, Rows(features, rows.y, rows.ids)
    if hasattr(model, "steps_"):
        table = model.fitted_.transform(rows.X)
        return unwrapped(model.steps_[-1][1], Rows(table, rows.y, rows.ids))
    return model, rows


def _counted_place(model: Any) -> str:
    """Return where the part lies that noise or an approximation changes; "" for the whole model."""
    if hasattr(model, "head_"):
        return "head_"
    if hasattr(model, "steps_"):
        last = len(model.steps_) - 1
        return f"fitted_.steps[{last}][1].{_counted_place(model.steps_[-1][1])}".rstrip(".")
    return ""


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and -most <= value <= most


def _is_size(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= _MOST_BYTES


TAKEN_OVER: dict[str, Callable[[Any], bool]] = {
    "n_jobs": lambda value: value is None or _is_whole(value, _MOST_JOBS),
    "verbose": lambda value: type(value) is bool or _is_whole(value, _MOST_TALK),
    "rebuild": lambda value: value in ("lazy", "eager"),
}


# Neutral settings that a fresh fit takes from the model; no certificate has them.
_COPIED: dict[str, Callable[[Any], bool]] = {
    "checkpoint_dir": lambda value: value is None,
    "device": lambda value: (
        value is None or (type(value) is str and bool(_DEVICE.fullmatch(value)))
    ),
    "max_memory": lambda value: value is None or _is_size(value),
    "batch_size": lambda value: value is None or _is_whole(value, _MOST_ROWS),
}


def wrong_settings(model: Any) -> list[str]:
    """Return the settings of a model, nested ones included, that no re-derivation can vouch for.

    A setting that changes nothing is in no certificate, so one that is not known here is refused.
    """
    return [
        f"{part.path}{name}"
        for part in iter_estimators(model)
        for name, value in part.params.items()
        if not _is_vouched_for(part.estimator, name, value)
    ]


def _is_vouched_for(estimator: Any, name: str, value: Any) -> bool:
    if name == "random_state":
        # A seed has no more room than a seed: the state of a generator has.
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        bits = 128 if isinstance(estimator, ForgetMixin) else 32
        return value is None or (is_whole and 0 <= int(value) < 2**bits)
    if name in TAKEN_OVER:
        return TAKEN_OVER[name](value)
    is_neutral = name in neutral_parameters(estimator)
    return not is_neutral or (name in _COPIED and _COPIED[name](value))


def config_of(model: Any) -> dict[str, Any] | None:
    """Return scikit-learn's settings of the model's fit, or None if they are not plausible ones.

    A model that does not keep them is fitted with those of this process.
    """
    here = get_config()
    config = vars(model).get("config_", here)
    if type(config) is not dict or config.keys() != here.keys():
        return None
    return config if all(_is_plain(value) for value in config.values()) else None


def _is_plain(value: Any) -> bool:
    if value is None or type(value) is bool:
        return True
    return _is_whole(value, _MOST_MEMORY) or (type(value) is str and value in _WORDS)


def with_neutral(found: Any, fresh: Any) -> Any:
    """Return the tree of a fresh fit with the neutral settings that the other tree has."""
    return _Merge(frozenset(_declared(found))).node(found, fresh, ())


def _is_declared(path: tuple[str, ...]) -> bool:
    """Whether a path leads through parameters only: fitted attributes end with an underscore."""
    return not any(name.endswith("_") or name.startswith("_") for name in path)


def _declared(node: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield class, name and value of every neutral setting among the parameters of a model."""
    if type(node) is Instance:
        for key, value in node.state.items:
            if key in TAKEN_OVER and TAKEN_OVER[key](value):
                yield node.name, key, value
            elif _is_declared((key,)):
                yield from _declared(value)
    elif type(node) is Items:
        for value in node.items:
            yield from _declared(value)


@dataclass(frozen=True)
class _Merge:
    declared: frozenset[tuple[str, str, Any]]

    def node(self, found: Any, fresh: Any, path: tuple[str, ...]) -> Any:
        if type(found) is not type(fresh):
            return fresh
        if type(found) is Instance and found.name == fresh.name:
            return fresh._replace(state=self.record(found.state, fresh.state, path, found.name))
        if type(found) is Record:
            return self.record(found, fresh, path, None)
        if type(found) is Items and len(found.items) == len(fresh.items):
            pairs = zip(found.items, fresh.items, strict=True)
            return fresh._replace(items=tuple([self.node(*pair, path) for pair in pairs]))
        return fresh

    def record(
        self, found: Record, fresh: Record, path: tuple[str, ...], owner: str | None
    ) -> Record:
        mine = dict(found.items)
        return Record(
            tuple(
                [
                    (key, self.value(owner, key, mine[key], value, path) if key in mine else value)
                    for key, value in fresh.items
                ]
            )
        )

    def value(
        self, owner: str | None, key: str, found: Any, fresh: Any, path: tuple[str, ...]
    ) -> Any:
        """Return the value of an attribute of the expected tree."""
        if owner is not None and key == "random_state":
            return found if _may_be(found, fresh, path) else fresh
        if owner is not None and key in TAKEN_OVER:
            plain = TAKEN_OVER[key](found)
            return found if plain and (owner, key, found) in self.declared else fresh
        return self.node(found, fresh, (*path, key))


def _may_be(found: Any, fresh: Any, path: tuple[str, ...]) -> bool:
    """Whether a seed was not given, or is the one of the fit as a NumPy number.

    What was drawn then is `seed_`, which the fresh fit was given.
    """
    if found is None:
        return _is_declared(path) or path == _STEPS
    return type(found) is Scalar and _is_declared(path) and _whole(found) == fresh


def _whole(node: Scalar) -> int | None:
    array: Any = node.value
    kind = np.dtype(array.dtype)
    return int(np.frombuffer(array.data, kind)[0]) if kind.kind in "iu" else None
