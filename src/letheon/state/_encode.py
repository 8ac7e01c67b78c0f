"""From Python objects to the tree of nodes."""

import types
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from letheon.exceptions import UnsupportedStateError
from letheon.state._arrays import array_node, dtype_node, scalar_node
from letheon.state._canonical import to_bytes
from letheon.state._nodes import (
    MAX_DEPTH,
    Array,
    Coded,
    Instance,
    Items,
    Name,
    Node,
    Pairs,
    Record,
    Ref,
    Triple,
)
from letheon.state._plans import Plan, codec_of, importable_name, plan_of, without_neutral
from letheon.state._tags import tag_of

View = Literal["file", "digest"]

# Memory addresses; scikit-learn's text vectorizers work without.
_ADDRESSES = frozenset({"_stop_words_id"})
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_BUILT_IN_TYPES = frozenset({bool, int, float, complex, str, bytes, object})
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    np.ufunc,
    type(np.mean),
)


class Encoder:
    """Turns one value into one tree.

    In the file view an array or object that occurs twice within one foreign estimator stays one
    (`Ref`): scikit-learn updates some arrays in place under two names. The digest view, and
    everything outside such an estimator, looks at values only.
    """

    def __init__(self, view: View) -> None:
        self.digest = view == "digest"
        self.depth = 0
        self.path: list[str] = []
        self.open: set[int] = set()
        self.seen: dict[int, int] | None = None
        # Keeps everything numbered in `seen` alive, so that no identity is used twice.
        self.alive: list[Any] = []
        self.names: dict[Any, None] = {}

    def node(self, value: Any) -> Any:
        """Return the node of any supported value."""
        cls = type(value)
        if cls in _ATOMS:
            return value
        if self.seen is not None:
            number = self.seen.get(id(value))
            if number is not None:
                return Ref(number)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._refusal(f"more than {MAX_DEPTH} values inside each other")
        method = _METHODS.get(cls)
        node = self._other(value) if method is None else method(self, value)
        self.depth -= 1
        return node

    def _refusal(self, reason: str) -> UnsupportedStateError:
        where = f" (at {'.'.join(self.path)})" if self.path else ""
        return UnsupportedStateError(f"{reason}{where}")

    def _keep(self, value: Any, node: Any) -> Any:
        if self.seen is not None:
            self.seen[id(value)] = len(self.alive)
            self.alive.append(value)
        return node

    def _enter(self, value: Any) -> None:
        if id(value) in self.open:
            raise self._refusal(f"a {type(value).__name__} contains itself")
        self.open.add(id(value))

    def _list(self, value: Any) -> Items:
        self._enter(value)
        items = tuple([self.node(item) for item in value])
        self.open.discard(id(value))
        return Items(type(value).__name__, items)

    def _set(self, value: Any) -> Items:
        items = self._sorted(value)
        return Items(type(value).__name__, tuple([node for _, node, _ in items]))

    def _sorted(self, values: Any) -> list[tuple[bytes, Any, Any]]:
        """Return (canonical bytes, node, value) of hashable values, sorted by the bytes."""
        # Without numbers: the order in which a set is walked is not a property of the set.
        scope, self.seen = (self.seen, self.alive), None
        nodes = [(self.node(value), value) for value in values]
        self.seen, self.alive = scope
        items = sorted([(to_bytes(node), node, value) for node, value in nodes], key=_first)
        if any(a[0] == b[0] for a, b in pairwise(items)):
            raise self._refusal("two keys with the same canonical bytes (two NaN?)")
        return items

    def _dict(self, value: dict[Any, Any]) -> Record | Pairs:
        self._enter(value)
        node = self._record(value) if all(type(k) is str for k in value) else self._pairs(value)
        self.open.discard(id(value))
        return node

    def _record(self, value: dict[str, Any]) -> Record:
        items = []
        for key in sorted(value):
            self.path.append(key)
            items.append((key, self.node(value[key])))
            self.path.pop()
        return Record(tuple(items))

    def _pairs(self, value: dict[Any, Any]) -> Pairs:
        keys = self._sorted(value)
        return Pairs(tuple([(node, self.node(value[key])) for _, node, key in keys]))

    def _array(self, value: Any) -> Any:
        if value.dtype.kind == "O":
            self._enter(value)
            node = array_node(value, self.node)
            self.open.discard(id(value))
        else:
            try:
                node = array_node(value, self.node)
            except UnsupportedStateError as error:
                raise self._refusal(str(error)) from None
        if self.digest and type(node) is Array and node.fortran:
            node = node._replace(fortran=False)
        return self._keep(value, node)

    def _slice(self, value: Any) -> Triple:
        parts = [self.node(part) for part in (value.start, value.stop, value.step)]
        return Triple(type(value).__name__, *parts)

    def _type(self, value: type) -> Name:
        if value in _BUILT_IN_TYPES or issubclass(value, np.generic):
            return Name(tag_of(value))
        return self._named(value, "class")

    def _function(self, value: Any) -> Name:
        return self._named(value, "function")

    def _named(self, value: Any, kind: str) -> Name:
        name = importable_name(value)
        if name is None:
            name = getattr(value, "__qualname__", value.__name__)
            called = "a lambda" if value.__name__ == "<lambda>" else f"the {kind} {name!r}"
            raise self._refusal(
                f"{called} has no name by which it can be found again; "
                f"use a {kind} defined at the top level of a .py file"
            )
        if not isinstance(value, np.ufunc):
            self.names[value] = None
        return Name(name)

    def _other(self, value: Any) -> Any:
        """Encode what no table lists by exact type."""
        if isinstance(value, np.dtype):
            return dtype_node(value)
        if isinstance(value, np.generic):
            return scalar_node(value)
        if isinstance(value, np.memmap):
            return self._array(np.asarray(value))
        if isinstance(value, type):
            return self._type(value)
        if isinstance(value, _FUNCTIONS):
            return self._function(value)
        return self._object(value)

    def _object(self, value: Any) -> Any:
        cls: type = type(value)
        try:
            plan = plan_of(cls, codec_of(cls))
        except UnsupportedStateError as error:
            raise self._refusal(str(error)) from None
        self._enter(value)
        self.names[cls] = None
        outermost = self.seen is None and not self.digest and not plan.is_ours
        if outermost:
            self.seen, self.alive = {}, []
        node = self._keep(value, self._content(value, plan))
        if outermost:
            self.seen = None
        self.open.discard(id(value))
        return node

    def _content(self, value: Any, plan: Plan) -> Node:
        if plan.codec is not None:
            return Coded(plan.name, self.node(plan.codec.encode(value)))
        state = self._state(value, plan)
        if plan.is_estimator and state.get("memory") is not None:
            raise self._refusal(
                f"{plan.name} has memory={state['memory']!r}, a cache on disk that would keep "
                "forgotten rows; set memory=None"
            )
        if self.digest:
            state = without_neutral(state, plan)
        if not all(type(key) is str for key in state):
            raise self._refusal(f"{plan.name} has attributes whose names are no str")
        return Instance(plan.name, self._record(state))

    def _state(self, value: Any, plan: Plan) -> dict[str, Any]:
        state: dict[str, Any]
        if self.digest and plan.digest_state:
            state = value._digest_state()
        elif plan.own_state:
            state = value._to_state()
        elif plan.fields is not None:
            state = {name: getattr(value, name) for name in plan.fields}
        else:
            state = vars(value)
            if not _ADDRESSES.isdisjoint(state):
                state = {key: item for key, item in state.items() if key not in _ADDRESSES}
        return state


def _first(item: tuple[bytes, Any, Any]) -> bytes:
    return item[0]


_METHODS: dict[type, Any] = {
    list: Encoder._list,
    tuple: Encoder._list,
    set: Encoder._set,
    frozenset: Encoder._set,
    dict: Encoder._dict,
    np.ndarray: Encoder._array,
    slice: Encoder._slice,
    range: Encoder._slice,
    **{
        scalar: lambda _, value: scalar_node(value)
        for scalar in (np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_, np.str_)
    },
}


def to_tree(value: Any, *, view: View = "file") -> Node:
    """Turn a value into a tree of plain nodes.

    Parameters
    ----------
    value : object
        A plain value, an array, a sparse matrix, a frame, or an object of a known or ordinary
        class.
    view : {"file", "digest"}, default="file"
        ``"digest"`` leaves out settings that do not affect the result.

    Returns
    -------
    Node
        The tree. Big arrays in it are views: do not change the value while it is in use.

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


def encode_tree(value: Any, view: View) -> tuple[Node, frozenset[Any]]:
    """Return the tree of a value and the classes and functions met on the way."""
    encoder = Encoder(view)
    try:
        tree: Node = encoder.node(value)
    except RecursionError:
        raise UnsupportedStateError("a value is nested too deeply") from None
    return tree, frozenset(encoder.names)


def classes_of(value: Any) -> frozenset[Any]:
    """Return every class and named function that the canonical bytes of `value` mention.

    A live model can decode its own checkpoints with it: ``decode(blob,
    trusted=classes_of(model))`` trusts exactly what the model already holds.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from letheon.state import classes_of
    >>> sorted(cls.__name__ for cls in classes_of([Ridge()]))
    ['Ridge']
    """
    return encode_tree(value, "file")[1]


def ensure_supported(estimator: Any) -> None:
    """Raise unless an estimator, fitted or not, can have canonical bytes.

    Parameters
    ----------
    estimator : object
        What a wrapper is going to train.

    Raises
    ------
    UnsupportedStateError
        With the reason and what to do instead.
    """
    encode_tree(estimator, "file")
