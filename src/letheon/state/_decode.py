"""From the tree of nodes back to Python objects, in two phases: audit, then construct.

The audit looks at names only and imports nothing. Construction calls no constructor that a file
names: an object is ``object.__new__(cls)`` with its attributes put in place, except where a codec
of this package, of the caller, or a letheon class's own ``_from_state`` builds it from plain values
that it validates.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from letheon.exceptions import CorruptFileError, NewerFormatError, StateError, UntrustedClassError
from letheon.state import _nodes as nodes
from letheon.state import _tags as tags
from letheon.state._allowed import CLASS_VALUES, FUNCTIONS, TYPES
from letheon.state._arrays import array_from, dtype_from, scalar_from
from letheon.state._bytes import from_bytes
from letheon.state._encode import MAGIC, encode_tree
from letheon.state._nodes import Coded, Instance, MemoryBudget, Name, Node, names_in
from letheon.state._settings_rules import find_refusals, require_no_shadows
from letheon.state._sklearn import check_estimator_arrays

Trusted = Iterable[Any]

# How often `_from_state` of these copies its arrays: into tensors, or to factorise a matrix.
_COPIES = {"letheon.deep.": 1, "letheon.convex._data_free.": 2}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def trusted_names(trusted: Trusted) -> dict[str, Any]:
    """Return qualified name -> class, function or None for what a caller trusts.

    Parameters
    ----------
    trusted : iterable of class, function or str
        A str is a qualified name; it is imported only if the file uses it.

    Raises
    ------
    TypeError
        If something else is in it, such as a whole module.
    """
    if isinstance(trusted, str | type):
        trusted = (trusted,)
    return dict(
        (item, None) if isinstance(item, str) else (_name_of(item), item) for item in trusted
    )


def _name_of(thing: Any) -> str:
    """Return the name that `Encoder` gives a class or function, local classes included."""
    if isinstance(thing, ModuleType):
        name = thing.__name__
        raise TypeError(
            f"trusted holds the whole module {name}; name the classes and functions of it that the "
            f"file may use, such as {name}.Net"
        )
    if not (hasattr(thing, "__module__") and hasattr(thing, "__qualname__")):
        raise TypeError(
            f"trusted holds {thing!r}; expected classes, functions or their qualified names"
        )
    return tags.importable_name(thing) or tags.tag_of(thing)


def audit(tree: Node, trusted: Mapping[str, Any]) -> None:
    """Check every name and every setting in a tree against the allow-lists; import nothing.

    Raises
    ------
    UntrustedClassError
        Names all that is neither allowed nor trusted.
    """
    wrong = {name: kind for kind, name in names_in(tree) if not _is_allowed(kind, name, trusted)}
    if wrong:
        raise UntrustedClassError(
            f"the file names {_listed(wrong)}, which letheon does not know; if you know where the "
            f"file comes from, {_ways_to_trust(wrong)}{_about_main(wrong)}"
        )
    refusals = find_refusals(tree, trusted)
    if refusals:
        shown = "; ".join(map(str, refusals[:3]))
        more = f"; and {len(refusals) - 3} more" if len(refusals) > 3 else ""
        classes = {refusal.class_name: Instance for refusal in refusals}
        raise UntrustedClassError(
            f"the file has settings that letheon does not take from files: {shown}{more}. If you "
            f"know where the file comes from, {_ways_to_trust(classes)}"
        )


def require_trust(tree: Node, trusted: Trusted = ()) -> None:
    """Raise `UntrustedClassError` if a decoder would refuse a name or a setting in a tree."""
    audit(tree, trusted_names(trusted))


def trust_of(value: Any) -> frozenset[Any]:
    """Return the classes and functions that `decode` must trust to read a value back.

    These are the ones that are not on the allow-list, and listed classes with a setting that is not
    taken from files. A model that came from a file without trust needs none, so states that came
    with it are held to the same rules.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from letheon.state import trust_of
    >>> trust_of([CountVectorizer()])
    frozenset()
    >>> [cls.__name__ for cls in trust_of([CountVectorizer(input="filename")])]
    ['CountVectorizer']
    """
    tree, things = encode_tree(value, "file")
    needed = {name for kind, name in names_in(tree) if not _is_allowed(kind, name, {})}
    needed |= {refusal.class_name for refusal in find_refusals(tree, {})}
    return frozenset(thing for thing in things if _name_of(thing) in needed)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names)))


def _ways_to_trust(wrong: Mapping[str, type]) -> str:
    coded = [name for name, kind in wrong.items() if kind is Coded]
    named = [name for name in wrong if name not in coded]
    ways = [f"pass trusted=[{_listed(named)}]"] if named else []
    ways += [f"teach it {_listed(coded)} with letheon.state.register_codec"] if coded else []
    return " and ".join(ways)


def _about_main(names: Iterable[str]) -> str:
    """Say what to do about names that only one script or notebook knows."""
    if not any(name.startswith("__main__.") for name in names):
        return ""
    return (
        ". __main__ is the script or notebook that fitted the model: define it again in the one "
        "that loads, or move it into a .py file before fit"
    )


def _is_allowed(kind: type, name: str, trusted: Mapping[str, Any]) -> bool:
    if kind is Coded:
        return tags.codec_named(name) is not None
    if name in trusted:
        return True
    if kind is Name:
        return _is_class_value(name) or name in FUNCTIONS
    return tags.is_listed_class(name)


def _is_class_value(name: str) -> bool:
    """Say whether a class may be a value, and so be called, without being trusted."""
    return name in TYPES or name in CLASS_VALUES


def has_listed_classes(value: Any) -> bool:
    """Say whether all classes in a value are on the allow-list or have a codec; no functions.

    Estimators of such classes hold nothing but values with canonical bytes once they are fitted
    on such values.
    """
    return all(
        isinstance(thing, type)
        and (tags.is_listed_class(tags.tag_of(thing)) or tags.codec_of(thing) is not None)
        for thing in encode_tree(value, "file")[1]
    )


def construct(tree: Node, trusted: Mapping[str, Any], budget: MemoryBudget) -> Any:
    """Build the value of an audited tree in memory that the budget has."""
    try:
        return _Builder(trusted, budget).value(tree)
    except (StateError, ImportError):
        raise
    except Exception as error:  # whatever libraries say about values that make no sense
        raise CorruptFileError(f"the state makes no sense: {error!r}") from error


class _Builder:
    """Builds values; mirrors `Encoder`."""

    def __init__(self, trusted: Mapping[str, Any], budget: MemoryBudget) -> None:
        self.trusted = trusted
        self.budget = budget
        self.resolved: dict[str, Any] = {}
        # What a `Ref` may point to, and what another use of it counts.
        self.kept: list[tuple[Any, int]] | None = None
        self.n_built = 0

    def value(self, node: Any) -> Any:
        self.n_built += 1
        build = _BUILDERS.get(type(node))
        return node if build is None else build(self, node)

    def _spent(self) -> int:
        return self.budget.used + nodes.INSTANCE * self.n_built

    def _keep(self, value: Any, before: int) -> Any:
        if self.kept is not None:
            self.kept.append((value, self._spent() - before))
        return value

    def _items(self, node: nodes.Items) -> Any:
        if node.kind in {"set", "frozenset"}:
            values = self._unnumbered(node.items)
            nodes.require_distinct_hashes(values)
        else:
            values = [self.value(item) for item in node.items]
        return values if node.kind == "list" else _CONTAINERS[node.kind](values)

    def _unnumbered(self, parts: Iterable[Any]) -> list[Any]:
        kept, self.kept = self.kept, None
        values = [self.value(part) for part in parts]
        self.kept = kept
        return values

    def _record(self, node: nodes.Record) -> dict[str, Any]:
        return {key: self.value(item) for key, item in node.items}

    def _pairs(self, node: nodes.Pairs) -> dict[Any, Any]:
        keys = self._unnumbered(key for key, _ in node.items)
        nodes.require_distinct_hashes(keys)
        values = [self.value(item) for _, item in node.items]
        return dict(zip(keys, values, strict=True))

    def _array(self, node: Any) -> Any:
        before = self._spent()
        return self._keep(array_from(node, self.value, self.budget), before)

    def _triple(self, node: nodes.Triple) -> Any:
        parts = [self.value(part) for part in node[1:]]
        if node.kind == "slice":
            return slice(*parts)
        numbers = range(*parts)
        # Libraries make arrays of it.
        self.budget.take(nodes.ATOM * len(numbers), "a range")
        return numbers

    def _name(self, node: Name) -> Any:
        self._require_allowed(Name, node.name)
        thing = self._resolve(node.name)
        is_as_listed = isinstance(thing, type) == _is_class_value(node.name)
        if not is_as_listed and node.name not in self.trusted:
            raise UntrustedClassError(f"{node.name!r} is not what the allow-list says")
        return thing

    def _ref(self, node: nodes.Ref) -> Any:
        if self.kept is None or node.number >= len(self.kept):
            raise CorruptFileError("a reference points nowhere")
        # Every use counts: a digest or a copy follows all of them, however they branch.
        value, cost = self.kept[node.number]
        self.budget.take(cost, "a reference")
        return value

    def _object(self, node: Instance | Coded) -> Any:
        is_outermost = self.kept is None and not tags.is_ours(node.name)
        if is_outermost:
            self.kept = []
        before = self._spent()
        value = self._instance(node) if isinstance(node, Instance) else self._coded(node)
        self._keep(value, before)
        if is_outermost:
            self.kept = None
        return value

    def _coded(self, node: Coded) -> Any:
        named = tags.codec_named(node.name)
        if named is None:
            raise UntrustedClassError(f"nobody registered a codec for {node.name!r}")
        codec, registered = named
        cls = registered or self._resolve(node.name)
        plain = self.value(node.payload)
        if codec.cost is not None:
            self.budget.take(codec.cost(cls, plain), node.name)
        return codec.decode(cls, plain)

    def _instance(self, node: Instance) -> Any:
        cls = self._class(node.name)
        if node.name not in self.trusted:
            require_no_shadows(cls, node)
        state = self._record(node.state)
        if hasattr(cls, "_from_state"):
            self._take_for_state(cls, node.name, state)
            return cls._from_state(state)
        value = object.__new__(cls)
        fields = tags.dataclass_fields(cls)
        if fields is None:
            vars(value).update(state)
        else:
            for field in fields:
                object.__setattr__(value, field, state[field])
        check_estimator_arrays(value)
        return value

    def _take_for_state(self, cls: Any, name: str, state: dict[str, Any]) -> None:
        """Count what `_from_state` takes beside the arrays that are there already."""
        if hasattr(cls, "_native_cost"):
            n_bytes, n_steps = cls._native_cost(state)
            self.budget.take_native(n_bytes, n_steps, name)
        copies = next((n for prefix, n in _COPIES.items() if name.startswith(prefix)), 0)
        if copies:
            self.budget.take(copies * nodes.array_bytes(state), name)

    def _class(self, name: str) -> Any:
        self._require_allowed(Instance, name)
        cls = self._resolve(name)
        if not isinstance(cls, type) or tags.tag_of(cls) != name:
            raise UntrustedClassError(f"{name!r} is not a class of that name")
        builds_itself = hasattr(cls, "_from_state")
        if name in self.trusted or not tags.is_ours(name):
            if not builds_itself:
                tags.require_plain_attributes(cls)
        elif tags.dataclass_fields(cls) is None and not (
            builds_itself or hasattr(cls, "get_params")
        ):
            raise UntrustedClassError(f"{name!r} is not a class that models are made of")
        return cls

    def _require_allowed(self, kind: type, name: str) -> None:
        """Refuse again what the audit refuses, so that nothing it overlooks is imported."""
        if not _is_allowed(kind, name, self.trusted):
            raise UntrustedClassError(f"{name!r} is not on the allow-list")

    def _resolve(self, name: str) -> Any:
        if name not in self.resolved:
            known = self.trusted.get(name)
            self.resolved[name] = import_name(name) if known is None else known
        return self.resolved[name]


def import_name(name: str) -> Any:
    """Return what an audited qualified name stands for."""
    module, _, rest = tags.import_path(name).rpartition(".")
    while module:
        try:
            thing: Any = import_module(module)
        except ImportError:
            module, _, head = module.rpartition(".")
            rest = f"{head}.{rest}"
            continue
        for part in rest.split("."):
            thing = getattr(thing, part, None)
        if thing is not None:
            return thing
        break
    raise UntrustedClassError(
        f"{name!r} cannot be imported here"
        + (_about_main([name]) or "; is the package that defines it installed?")
    )


_BUILDERS: dict[type, Callable[[_Builder, Any], Any]] = {
    nodes.Items: _Builder._items,
    nodes.Record: _Builder._record,
    nodes.Pairs: _Builder._pairs,
    **dict.fromkeys((nodes.Array, nodes.Strings, nodes.Objects, nodes.Fields), _Builder._array),
    nodes.Scalar: lambda builder, node: scalar_from(node, builder.value, builder.budget),
    nodes.Triple: _Builder._triple,
    nodes.Dtype: lambda _, node: dtype_from(node.descr),
    Name: _Builder._name,
    Instance: _Builder._object,
    Coded: _Builder._object,
    nodes.Ref: _Builder._ref,
}


def decode(data: nodes.Buffer, *, trusted: Trusted = (), max_memory: int | None = None) -> Any:
    """Return the value that `encode` wrote.

    Parameters
    ----------
    data : bytes or memoryview
        What `encode` returned.
    trusted : iterable of class, function or str
        Classes and functions, or their qualified names, that may be used besides letheon's own
        and scikit-learn's.
    max_memory : int, optional
        Bytes that decoding may take. By default 64 MiB and 4 times the size of `data`, and
        64 MiB and 16 times the size for the compiled forest.

    Raises
    ------
    CorruptFileError
        If a byte was changed or is missing.
    MemoryLimitError
        If decoding would take more memory than that; it was not allocated.
    NewerFormatError
        If a later letheon wrote the bytes.
    UntrustedClassError
        If the bytes name a class that nobody allowed; nothing was imported then.

    Examples
    --------
    >>> from letheon.state import decode, encode
    >>> decode(encode({"weights": [0.5, -0.0]}))
    {'weights': [0.5, -0.0]}
    """
    names = trusted_names(trusted)
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, max_memory)
    tree = from_bytes(_verified_body(view), budget)
    audit(tree, names)
    return construct(tree, names, budget)


def decode_plain(data: nodes.Buffer) -> Any:
    """Return the value that `encode` wrote if it is plain: no class and no function is named.

    Raises
    ------
    CorruptFileError
        If the bytes are damaged, or hold more than numbers, texts, bytes, arrays and containers.
    """
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, None)
    tree = from_bytes(_verified_body(view), budget)
    if nodes.names_of(tree):
        raise CorruptFileError("expected plain values, and the bytes name classes or functions")
    return construct(tree, {}, budget)


def _verified_body(data: memoryview) -> memoryview:
    head = re.match(rb"letheon-state-v(\d{1,9})\0", data[:32])
    if head is None:
        raise CorruptFileError("these bytes are no letheon state")
    if head[0] != MAGIC:
        raise NewerFormatError(
            f"the state has the format v{int(head[1])}, this letheon reads v1; "
            "install a newer letheon"
        )
    body = data[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != bytes(data[len(MAGIC) : len(MAGIC) + 32]):
        raise CorruptFileError("the state is truncated or altered: its SHA-256 differs")
    return body
