"""Turn Python objects into a tree of nodes, and the tree into digests and encoded bytes.

An encoded value is ``letheon-state-v1`` and a NUL byte, then the SHA-256 of the rest, then the
canonical bytes of the tree in the file view.
"""

import hashlib
import sys
import types
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_info

from letheon.exceptions import UnsupportedStateError
from letheon.state import _nodes as nodes
from letheon.state._arrays import array_node, dtype_descr, scalar_node
from letheon.state._bytes import iter_chunks, to_bytes
from letheon.state._settings_table import BOOSTER_PARAMETERS
from letheon.state._tags import EncodingPlan, codec_of, importable_name, plan_of, tag_of

FORMAT = "letheon-v1"
MAGIC = b"letheon-state-v1\0"

View = Literal["file", "digest"]

# Attributes that do not affect results: an address in memory of scikit-learn's vectorizers, and
# requests of metadata routing, which refer to the estimator itself.
_OMITTED = frozenset({"_stop_words_id", "_metadata_request"})
# A dict in which LightGBM stores parameters a second time; only their names are encoded.
_REPEATED = "_other_params"
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_BUILT_IN_TYPES = frozenset({bool, int, float, complex, str, bytes, object})
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, np.ufunc, type(np.mean))


class Encoder:
    """An encoder that turns one value into one tree.

    In the file view, an array or object that occurs twice within an estimator of another library is
    written once, and a `Ref` refers to it. This is needed because scikit-learn updates some arrays
    in place under two names. In the digest view, and outside such estimators, it is written twice.
    """

    def __init__(self, view: View) -> None:
        self.digest = view == "digest"
        self.depth = 0
        self.path: list[str] = []
        self.open: set[int] = set()
        self.numbers: dict[int, int] | None = None
        # Keeps everything in `numbers` alive, so that no id() is reused.
        self.alive: list[Any] = []
        self.names: dict[Any, None] = {}

    def encode(self, value: Any) -> Any:
        """Convert a supported value to a node."""
        cls = type(value)
        if cls in _ATOMS:
            return value
        if self.numbers is not None:
            number = self.numbers.get(id(value))
            if number is not None:
                return nodes.Ref(number)
        self.depth += 1
        if self.depth > nodes.MAX_DEPTH:
            raise self._make_error(f"values are nested deeper than {nodes.MAX_DEPTH} levels")
        method = _METHODS.get(cls)
        node = self._encode_other(value) if method is None else method(self, value)
        self.depth -= 1
        return node

    def _make_error(self, reason: str) -> UnsupportedStateError:
        where = f" (at {'.'.join(self.path)})" if self.path else ""
        return UnsupportedStateError(f"{reason}{where}")

    def _number_value(self, value: Any, node: Any) -> Any:
        if self.numbers is not None:
            self.numbers[id(value)] = len(self.alive)
            self.alive.append(value)
        return node

    def _enter_value(self, value: Any) -> None:
        if id(value) in self.open:
            raise self._make_error(
                f"a {type(value).__name__} contains itself, so it cannot be saved"
            )
        self.open.add(id(value))

    def _encode_list(self, value: Any) -> nodes.Items:
        self._enter_value(value)
        items = tuple([self.encode(item) for item in value])
        self.open.discard(id(value))
        return nodes.Items(type(value).__name__, items)

    def _encode_set(self, value: Any) -> nodes.Items:
        items = self._sort_by_bytes(value)
        return nodes.Items(type(value).__name__, tuple([node for _, node, _ in items]))

    def _sort_by_bytes(self, values: Any) -> list[tuple[bytes, Any, Any]]:
        """Return tuples (canonical bytes, node, value) of hashable values, sorted by the bytes."""
        # Without numbers: the iteration order of a set is not a property of the set.
        scope, self.numbers = (self.numbers, self.alive), None
        pairs = [(self.encode(value), value) for value in values]
        self.numbers, self.alive = scope
        items = sorted([(to_bytes(node), node, value) for node, value in pairs], key=itemgetter(0))
        if any(a[0] == b[0] for a, b in pairwise(items)):
            raise self._make_error("two keys have the same canonical bytes, for example two NaN")
        return items

    def _encode_dict(self, value: dict[Any, Any]) -> nodes.Record | nodes.Pairs:
        self._enter_value(value)
        node = (
            self._encode_record(value)
            if all(type(k) is str for k in value)
            else self._encode_pairs(value)
        )
        self.open.discard(id(value))
        return node

    def _encode_record(self, value: dict[str, Any]) -> nodes.Record:
        items = []
        for key in sorted(value):
            self.path.append(key)
            items.append((key, self.encode(value[key])))
            self.path.pop()
        return nodes.Record(tuple(items))

    def _encode_pairs(self, value: dict[Any, Any]) -> nodes.Pairs:
        keys = self._sort_by_bytes(value)
        return nodes.Pairs(tuple([(node, self.encode(value[key])) for _, node, key in keys]))

    def _encode_array(self, value: Any) -> Any:
        if value.dtype.kind == "O":
            self._enter_value(value)
            node = array_node(value, self.encode)
            self.open.discard(id(value))
        else:
            try:
                node = array_node(value, self.encode)
            except UnsupportedStateError as error:
                raise self._make_error(str(error)) from None
        if self.digest and type(node) is nodes.Array and node.fortran:
            node = node._replace(fortran=False)
        return self._number_value(value, node)

    def _encode_slice(self, value: Any) -> nodes.Triple:
        parts = [self.encode(part) for part in (value.start, value.stop, value.step)]
        return nodes.Triple(type(value).__name__, *parts)

    def _encode_name(self, value: Any) -> nodes.Name:
        is_class = isinstance(value, type)
        if is_class and (value in _BUILT_IN_TYPES or issubclass(value, np.generic)):
            return nodes.Name(tag_of(value))
        name = importable_name(value)
        if name is None:
            kind = "class" if is_class else "function"
            name = getattr(value, "__qualname__", value.__name__)
            label = "a lambda" if value.__name__ == "<lambda>" else f"the {kind} {name!r}"
            raise self._make_error(
                f"{label} cannot be imported by name; "
                f"use a {kind} defined at the top level of a .py file"
            )
        if not isinstance(value, np.ufunc):
            self.names[value] = None
        return nodes.Name(name)

    def _encode_other(self, value: Any) -> Any:
        """Convert a value whose exact type is not in the table `_METHODS`."""
        if isinstance(value, np.dtype):
            return nodes.Dtype(dtype_descr(value))
        if isinstance(value, np.generic):
            return scalar_node(value)
        if isinstance(value, np.memmap):
            return self._encode_array(np.asarray(value))
        return self._encode_name(value) if isinstance(value, _NAMED) else self._encode_object(value)

    def _encode_object(self, value: Any) -> Any:
        cls: type = type(value)
        try:
            plan = plan_of(cls, codec_of(cls))
        except UnsupportedStateError as error:
            raise self._make_error(str(error)) from None
        self._enter_value(value)
        self.names[cls] = None
        outermost = self.numbers is None and not self.digest and not plan.is_ours
        if outermost:
            self.numbers, self.alive = {}, []
        node = self._number_value(value, self._encode_content(value, plan))
        if outermost:
            self.numbers = None
        self.open.discard(id(value))
        return node

    def _encode_content(self, value: Any, plan: EncodingPlan) -> nodes.Node:
        if plan.codec is not None:
            return nodes.Coded(plan.name, self.encode(plan.codec.encode(value)))
        state = self._get_state(value, plan)
        if plan.is_estimator and state.get("memory") is not None:
            raise self._make_error(
                f"{plan.name} has memory={state['memory']!r}, a cache on disk that would keep "
                "forgotten rows; set memory=None"
            )
        if self.digest:
            skipped = plan.neutral
            if plan.is_ours and "seed_" in state:
                skipped = skipped | {"random_state"}
            state = {key: item for key, item in state.items() if key not in skipped}
        if not all(type(key) is str for key in state):
            raise self._make_error(f"{plan.name} has an attribute whose name is not a str")
        return nodes.Instance(plan.name, self._encode_record(state))

    def _get_state(self, value: Any, plan: EncodingPlan) -> dict[str, Any]:
        if self.digest and plan.has_digest_state:
            return value._digest_state()  # type: ignore[no-any-return]
        if plan.has_own_state:
            return value._to_state()  # type: ignore[no-any-return]
        if plan.fields is not None:
            return {name: getattr(value, name) for name in plan.fields}
        state = {key: item for key, item in vars(value).items() if key not in _OMITTED}
        if plan.name in BOOSTER_PARAMETERS and _REPEATED in state:
            names = self._name_repeated(state)
            state[_REPEATED] = sorted(names - set(value._get_param_names()))
        return state

    def _name_repeated(self, state: dict[str, Any]) -> set[str]:
        repeated = state[_REPEATED]
        for key, item in repeated.items():
            if key not in state or to_tree(item) != to_tree(state[key]):
                raise self._make_error(
                    f"{key!r} has two values in an estimator of LightGBM; change parameters with "
                    "set_params only"
                )
        return set(repeated)


_METHODS: dict[type, Any] = {
    list: Encoder._encode_list,
    tuple: Encoder._encode_list,
    set: Encoder._encode_set,
    frozenset: Encoder._encode_set,
    dict: Encoder._encode_dict,
    np.ndarray: Encoder._encode_array,
    slice: Encoder._encode_slice,
    range: Encoder._encode_slice,
}


def to_tree(value: Any, *, view: View = "file") -> nodes.Node:
    """Turn a value into a tree of plain nodes.

    Parameters
    ----------
    value : object
        A plain value, an array, a sparse matrix, a frame, or an object of a known or ordinary
        class.
    view : {"file", "digest"}, default="file"
        ``"digest"`` omits settings that do not affect the result.

    Returns
    -------
    Node
        The tree. Large arrays in it are views, so do not change the value while you use the tree.

    Raises
    ------
    UnsupportedStateError
        If something in the value has no canonical bytes.

    Examples
    --------
    >>> from letheon.state import to_tree
    >>> to_tree({"b": [1], "a": None})
    Record(items=(('a', None), ('b', Items(kind='list', items=(1,)))))
    """
    return encode_tree(value, view)[0]


def encode_tree(value: Any, view: View) -> tuple[nodes.Node, frozenset[Any]]:
    """Return the tree of a value, and the classes and functions that it names."""
    encoder = Encoder(view)
    try:
        tree: nodes.Node = encoder.encode(value)
    except RecursionError:
        raise UnsupportedStateError("a value is nested too deeply") from None
    return tree, frozenset(encoder.names)


def classes_of(value: Any) -> frozenset[Any]:
    """Return every class and named function that the canonical bytes of `value` mention.

    With it, a model in memory can decode its own checkpoints: ``decode(blob,
    trusted=classes_of(model))`` trusts exactly the classes that the model already contains.

    Parameters
    ----------
    value : object
        A model, or any value with canonical bytes.

    Returns
    -------
    frozenset

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from letheon.state import classes_of
    >>> sorted(cls.__name__ for cls in classes_of([Ridge()]))
    ['Ridge']
    """
    return encode_tree(value, "file")[1]


def ensure_supported(estimator: Any) -> None:
    """Raise an error if an estimator, fitted or not, cannot have canonical bytes.

    Parameters
    ----------
    estimator : object
        The estimator that a wrapper is going to train.

    Raises
    ------
    UnsupportedStateError
        Something has no canonical bytes; the text says what to do instead.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import ensure_supported
    >>> ensure_supported(GaussianNB())
    """
    encode_tree(estimator, "file")


@cache
def _collect_versions() -> dict[str, str]:
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **{name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
        "letheon": FORMAT,
        "blas": _describe_blas(),
    }


def _describe_blas() -> str:
    """Return the BLAS builds of NumPy and SciPy, each with its kernel for this processor.

    Kernels round differently: with three kernels of one OpenBLAS, a ridge regression has three
    different digests.
    """
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS)

    builds = [library for library in threadpool_info() if library["user_api"] == "blas"]
    # Other packages may load their own BLAS; models are not trained with it.
    own = [lib for lib in builds if "numpy" in lib["filepath"] or "scipy" in lib["filepath"]]
    names = {
        f"{lib['internal_api']} {lib['version']} {lib.get('architecture', '')}".strip()
        for lib in own or builds
    }
    return ", ".join(sorted(names)) or "none found"


def environment() -> dict[str, str]:
    """Return the versions and builds on which results depend besides data, settings and seed.

    Returns
    -------
    dict
        Versions of Python (major.minor), numpy, scipy and scikit-learn; ``"letheon"`` is the
        format, and ``"blas"`` the builds of BLAS with their kernels for this processor.

    Examples
    --------
    >>> from letheon.state import environment
    >>> environment()["letheon"]
    'letheon-v1'
    """
    return dict(_collect_versions())


def digest(value: Any) -> str:
    r"""Return the SHA-256 of a value's canonical bytes, as a hexadecimal string.

    The digest is ``SHA-256(b"letheon-v1\0" + canonical bytes of the digest tree)``. It omits
    settings that do not affect the result (`n_jobs`, `verbose`, `rebuild`, `checkpoint_dir`, and
    `random_state` of a model that has `seed_`).

    Parameters
    ----------
    value : object
        A model, fitted or not, or any value that has canonical bytes.

    Guarantee
    ---------
    Values with equal digests have equal canonical bytes, unless SHA-256 is broken.

    Examples
    --------
    >>> from letheon.state import digest
    >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest((1, 2))
    (True, False)
    """
    hasher = hashlib.sha256(b"letheon-v1\0")
    for chunk in iter_chunks(to_tree(value, view="digest")):
        hasher.update(chunk)
    return hasher.hexdigest()


def encode(value: Any) -> bytes:
    """Return a value as bytes that `decode` can read, for example a checkpoint in memory.

    Parameters
    ----------
    value : object
        Anything that has canonical bytes.

    Returns
    -------
    bytes

    Raises
    ------
    UnsupportedStateError
        If something in the value has no canonical bytes.

    Examples
    --------
    >>> from letheon.state import decode, encode
    >>> encode({"b": 2, "a": 1}) == encode({"a": 1, "b": 2})
    True
    >>> decode(encode((1, "two")))
    (1, 'two')
    """
    body = to_bytes(to_tree(value))
    return b"".join((MAGIC, hashlib.sha256(body).digest(), body))
