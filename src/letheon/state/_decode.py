"""Turn a tree of nodes back into Python objects, in two phases: audit, then construct.

The audit reads only names and settings, and imports nothing. Construction calls no constructor that
a file names: an object is created with ``object.__new__(cls)``, and its attributes are set. The
exceptions are codecs of this package or the caller, and ``_from_state`` of letheon classes. They
build objects from plain values, which they validate.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from letheon.exceptions import CorruptFileError, NewerFormatError, StateError, UntrustedClassError
from letheon.state import _nodes as nodes
from letheon.state import _tags as tags
from letheon.state._allowed import CLASS_VALUES, FUNCTIONS, TYPES
from letheon.state._arrays import array_from, dtype_from, scalar_from
from letheon.state._boosters import CHECKS as BOOSTER_CHECKS
from letheon.state._bytes import from_bytes
from letheon.state._encode import MAGIC, encode_tree
from letheon.state._nodes import Coded, Instance, MemoryBudget, Name, Node, names_in
from letheon.state._settings_rules import find_violations, require_no_shadows
from letheon.state._settings_table import BOOSTER_PARAMETERS
from letheon.state._sklearn import CHECKS, Check

Trusted = Iterable[Any]

# How often `_from_state` of these copies its arrays: into tensors, or to factorise a matrix.
_COPIES = {"letheon.deep.": 1, "letheon.convex._data_free.": 2}
# More columns than any hashing vectoriser returns by default.
_MOST_FEATURES = 1 << 24
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def names_of_trusted(trusted: Trusted) -> dict[str, Any]:
    """Return the classes and functions that a caller trusts, by qualified name.

    The value is None for a name whose class or function has not been imported yet.

    Parameters
    ----------
    trusted : iterable of class, function or str
        What the caller trusts. A str is a qualified name; it is imported only if the file uses it.

    Raises
    ------
    TypeError
        If `trusted` contains anything else, for example a whole module.
    """
    if isinstance(trusted, str | type):
        trusted = (trusted,)
    return dict(
        (item, None) if isinstance(item, str) else (_name_of(item), item) for item in trusted
    )


def _name_of(item: Any) -> str:
    """Return the name that `Encoder` writes for a class or function, even for a local class."""
    if isinstance(item, ModuleType):
        name = item.__name__
        raise TypeError(
            f"trusted contains the whole module {name}; list the classes and functions that the "
            f"file may use, for example {name}.Net"
        )
    if not (hasattr(item, "__module__") and hasattr(item, "__qualname__")):
        raise TypeError(
            f"trusted contains {item!r}; expected classes, functions or their qualified names"
        )
    return tags.importable_name(item) or tags.tag_of(item)


def audit(tree: Node, trusted: Mapping[str, Any]) -> None:
    """Check every name and every setting in a tree against the allow-lists; import nothing.

    Raises
    ------
    UntrustedClassError
        Some names or settings are neither allowed nor trusted; the text lists all of them.
    """
    wrong = {name: kind for kind, name in names_in(tree) if not _is_allowed(kind, name, trusted)}
    if wrong:
        raise UntrustedClassError(
            f"the file names {_list_names(wrong)}, which letheon does not know; if you know where "
            f"the file comes from, {_advise_on_trust(wrong)}{_advise_on_main(wrong)}"
        )
    violations = find_violations(tree, trusted)
    if violations:
        shown = "; ".join(map(str, violations[:3]))
        more = f"; and {len(violations) - 3} more" if len(violations) > 3 else ""
        classes = {violation.class_name: Instance for violation in violations}
        raise UntrustedClassError(
            f"the file has settings that letheon does not accept from files: {shown}{more}. If you "
            f"know where the file comes from, {_advise_on_trust(classes)}"
        )


def require_trust(tree: Node, trusted: Trusted = ()) -> None:
    """Raise UntrustedClassError if decoding a tree would reject one of its names or settings.

    Parameters
    ----------
    tree : Node
        The tree of a value, as in `Contents`.
    trusted : iterable of class, function or str
        Names to allow in addition to those of letheon and scikit-learn.

    Raises
    ------
    UntrustedClassError
        A name or a setting is not allowed.

    Examples
    --------
    >>> from letheon.state import require_trust, to_tree
    >>> require_trust(to_tree({"a": 1}))
    """
    audit(tree, names_of_trusted(trusted))


def trust_of(value: Any) -> frozenset[Any]:
    """Return the classes and functions that `decode` must trust to read a value back.

    These are the classes and functions that are not on the allow-list, and listed classes with a
    setting that files must not contain. The result is empty for a model that was loaded without
    trust, so its saved states cannot use untrusted classes either.

    Parameters
    ----------
    value : object
        A model, or any value with canonical bytes.

    Returns
    -------
    frozenset

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from letheon.state import trust_of
    >>> trust_of([CountVectorizer()])
    frozenset()
    >>> [cls.__name__ for cls in trust_of([CountVectorizer(input="filename")])]
    ['CountVectorizer']
    """
    tree, items = encode_tree(value, "file")
    needed = {name for kind, name in names_in(tree) if not _is_allowed(kind, name, {})}
    needed |= {violation.class_name for violation in find_violations(tree, {})}
    return frozenset(item for item in items if _name_of(item) in needed)


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names)))


def _advise_on_trust(wrong: Mapping[str, type]) -> str:
    coded = [name for name, kind in wrong.items() if kind is Coded]
    named = [name for name in wrong if name not in coded]
    advice = [f"pass trusted=[{_list_names(named)}]"] if named else []
    advice += [f"register {_list_names(coded)} with letheon.state.register_codec"] if coded else []
    return " and ".join(advice)


def _advise_on_main(names: Iterable[str]) -> str:
    """Return advice on names that a script or notebook defines; an empty string for others."""
    if not any(name.startswith("__main__.") for name in names):
        return ""
    return (
        ". __main__ is the script or notebook that fitted the model: define the name again in the "
        "script that loads the file, or move it into a .py file before fit"
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
    """Return whether an untrusted file may contain a class as a value, which may be called."""
    return name in TYPES or name in CLASS_VALUES


def has_listed_classes(value: Any) -> bool:
    """Return whether all classes in a value are on the allow-list or have a codec.

    The result is False if the value contains functions, or estimators of XGBoost or LightGBM, whose
    boosters are checked only when they are encoded. If it is True for an estimator and for the
    data it is fitted on, then everything in the fitted estimator has canonical bytes.

    Parameters
    ----------
    value : object
        An estimator, or anything with canonical bytes.

    Returns
    -------
    bool

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import has_listed_classes
    >>> has_listed_classes(GaussianNB())
    True
    """
    return all(
        isinstance(item, type)
        and tags.tag_of(item) not in BOOSTER_PARAMETERS
        and (tags.is_listed_class(tags.tag_of(item)) or tags.codec_of(item) is not None)
        for item in encode_tree(value, "file")[1]
    )


def construct(tree: Node, trusted: Mapping[str, Any], budget: MemoryBudget) -> Any:
    """Build the value of an audited tree; raise MemoryLimitError at the limit of the budget."""
    try:
        return _Builder(trusted, budget).build(tree)
    except (StateError, ImportError):
        raise
    except Exception as error:  # errors of libraries about invalid values
        raise CorruptFileError(f"the values in the file are not valid: {error!r}") from error


class _Builder:
    """A builder of values from nodes, the inverse of `Encoder`."""

    def __init__(self, trusted: Mapping[str, Any], budget: MemoryBudget) -> None:
        self.trusted = trusted
        self.budget = budget
        self.resolved: dict[str, Any] = {}
        # Targets of `Ref` nodes, and the cost of each further use.
        self.numbered: list[tuple[Any, int]] | None = None
        self.n_built = 0

    def build(self, node: Any) -> Any:
        self.n_built += 1
        build = _BUILDERS.get(type(node))
        return node if build is None else build(self, node)

    def _cost_so_far(self) -> int:
        return self.budget.used + nodes.INSTANCE * self.n_built

    def _number_value(self, value: Any, before: int) -> Any:
        if self.numbered is not None:
            self.numbered.append((value, self._cost_so_far() - before))
        return value

    def _build_items(self, node: nodes.Items) -> Any:
        if node.kind in {"set", "frozenset"}:
            values = self._build_unnumbered(node.items)
            nodes.require_distinct_hashes(values)
        else:
            values = [self.build(item) for item in node.items]
        return values if node.kind == "list" else _CONTAINERS[node.kind](values)

    def _build_unnumbered(self, parts: Iterable[Any]) -> list[Any]:
        numbered, self.numbered = self.numbered, None
        values = [self.build(part) for part in parts]
        self.numbered = numbered
        return values

    def _build_record(self, node: nodes.Record) -> dict[str, Any]:
        return {key: self.build(item) for key, item in node.items}

    def _build_pairs(self, node: nodes.Pairs) -> dict[Any, Any]:
        keys = self._build_unnumbered(key for key, _ in node.items)
        nodes.require_distinct_hashes(keys)
        values = [self.build(item) for _, item in node.items]
        return dict(zip(keys, values, strict=True))

    def _build_array(self, node: Any) -> Any:
        before = self._cost_so_far()
        return self._number_value(array_from(node, self.build, self.budget), before)

    def _build_triple(self, node: nodes.Triple) -> Any:
        parts = [self.build(part) for part in node[1:]]
        if node.kind == "slice":
            return slice(*parts)
        numbers = range(*parts)
        # Libraries turn ranges into arrays.
        self.budget.take(nodes.ATOM * len(numbers), "a range")
        return numbers

    def _build_name(self, node: Name) -> Any:
        self._require_allowed(Name, node.name)
        item = self._resolve_name(node.name)
        is_as_listed = isinstance(item, type) == _is_class_value(node.name)
        if not is_as_listed and node.name not in self.trusted:
            raise UntrustedClassError(
                f"{node.name!r} is not of the kind (class or function) that the allow-list states"
            )
        return item

    def _build_ref(self, node: nodes.Ref) -> Any:
        if self.numbered is None or node.number >= len(self.numbered):
            raise CorruptFileError("a reference in the file has no target")
        # Every use counts, because a digest or a copy follows all of them.
        value, cost = self.numbered[node.number]
        self.budget.take(cost, "a reference")
        return value

    def _build_object(self, node: Instance | Coded) -> Any:
        is_outermost = self.numbered is None and not tags.is_ours(node.name)
        if is_outermost:
            self.numbered = []
        before = self._cost_so_far()
        value = (
            self._build_instance(node) if isinstance(node, Instance) else self._build_coded(node)
        )
        self._number_value(value, before)
        if is_outermost:
            self.numbered = None
        return value

    def _build_coded(self, node: Coded) -> Any:
        named = tags.codec_named(node.name)
        if named is None:
            raise UntrustedClassError(
                f"no codec is registered for {node.name!r}; use letheon.state.register_codec"
            )
        codec, registered = named
        cls = registered or self._resolve_name(node.name)
        plain = self.build(node.payload)
        if codec.cost is not None:
            self.budget.take(codec.cost(cls, plain), node.name)
        if codec.trial is not None and node.name not in self.trusted:
            codec.trial(cls, plain)
        return codec.decode(cls, plain)

    def _build_instance(self, node: Instance) -> Any:
        cls = self._require_class(node.name)
        if node.name not in self.trusted:
            require_no_shadows(cls, node)
        state = self._build_record(node.state)
        # Names of columns are made from this number.
        n_features = state.get("n_features_in_", 0)
        is_count = isinstance(n_features, int | np.integer) and n_features <= _MOST_FEATURES
        nodes.require_valid(is_count, f"{node.name}: n_features_in_")
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
        for attribute, check in _checks_of(cls):
            if not attribute or attribute in state:
                check(value, state)
        if tags.is_ours(node.name) and hasattr(cls, "_require_valid"):
            value._require_valid()
        return value

    def _take_for_state(self, cls: Any, name: str, state: dict[str, Any]) -> None:
        """Count the memory that `_from_state` of a class takes in addition to its arguments."""
        if hasattr(cls, "_native_cost"):
            n_bytes, n_steps = cls._native_cost(state)
            self.budget.take_native(n_bytes, n_steps, name)
        copies = next((n for prefix, n in _COPIES.items() if name.startswith(prefix)), 0)
        if copies:
            self.budget.take(copies * nodes.array_bytes(state), name)

    def _require_class(self, name: str) -> Any:
        self._require_allowed(Instance, name)
        cls = self._resolve_name(name)
        if not isinstance(cls, type) or tags.tag_of(cls) != name:
            raise UntrustedClassError(f"{name!r} does not refer to a class with this name")
        builds_itself = hasattr(cls, "_from_state")
        if name in self.trusted or not tags.is_ours(name):
            if not builds_itself:
                tags.require_plain_attributes(cls)
        elif tags.dataclass_fields(cls) is None and not (
            builds_itself or hasattr(cls, "get_params")
        ):
            raise UntrustedClassError(f"{name!r} is not a class that a model may contain")
        return cls

    def _require_allowed(self, kind: type, name: str) -> None:
        """Repeat the check of the audit, so that a bug in the audit does not import anything."""
        if not _is_allowed(kind, name, self.trusted):
            raise UntrustedClassError(f"{name!r} is not on the allow-list")

    def _resolve_name(self, name: str) -> Any:
        if name not in self.resolved:
            known = self.trusted.get(name)
            self.resolved[name] = import_name(name) if known is None else known
        return self.resolved[name]


@lru_cache(maxsize=4096)
def _checks_of(cls: type) -> tuple[tuple[str, Check], ...]:
    """Return the checks that keep compiled code from reading outside the arrays of a class.

    Each check comes with the attribute that it needs; an empty name means that it always runs.
    """
    names = [tags.tag_of(base) for base in cls.__mro__]
    checks = CHECKS | BOOSTER_CHECKS
    return tuple(checks[name] for name in names if name in checks)


def import_name(name: str) -> Any:
    """Import and return the class or function with an audited qualified name."""
    module, _, rest = tags.import_path(name).rpartition(".")
    while module:
        try:
            item: Any = import_module(module)
        except ImportError:
            module, _, head = module.rpartition(".")
            rest = f"{head}.{rest}"
            continue
        for part in rest.split("."):
            item = getattr(item, part, None)
        if item is not None:
            return item
        break
    raise UntrustedClassError(
        f"{name!r} cannot be imported here"
        + (_advise_on_main([name]) or "; is the package that defines it installed?")
    )


_BUILDERS: dict[type, Callable[[_Builder, Any], Any]] = {
    nodes.Items: _Builder._build_items,
    nodes.Record: _Builder._build_record,
    nodes.Pairs: _Builder._build_pairs,
    **dict.fromkeys(
        (nodes.Array, nodes.Strings, nodes.Objects, nodes.Fields), _Builder._build_array
    ),
    nodes.Scalar: lambda builder, node: scalar_from(node, builder.build, builder.budget),
    nodes.Triple: _Builder._build_triple,
    nodes.Dtype: lambda _, node: dtype_from(node.descr),
    Name: _Builder._build_name,
    Instance: _Builder._build_object,
    Coded: _Builder._build_object,
    nodes.Ref: _Builder._build_ref,
}


def decode(data: nodes.Buffer, *, trusted: Trusted = (), max_memory: int | None = None) -> Any:
    """Return the value that `encode` wrote.

    Parameters
    ----------
    data : bytes or memoryview
        The result of `encode`.
    trusted : iterable of class, function or str
        Classes and functions, or their qualified names, that may be used in addition to those of
        letheon and scikit-learn.
    max_memory : int, optional
        Limit on the memory for decoding, in bytes. By default 64 MiB plus 4 times the size of
        `data`, or plus 16 times the size for the compiled forest.

    Returns
    -------
    object

    Raises
    ------
    CorruptFileError
        If a byte is changed or missing.
    MemoryLimitError
        If decoding would take more memory than `max_memory`; nothing was allocated.
    NewerFormatError
        If a later version of letheon wrote the bytes.
    UntrustedClassError
        If the bytes name a class that is not allowed; nothing was imported.

    Examples
    --------
    >>> from letheon.state import decode, encode
    >>> decode(encode({"weights": [0.5, -0.0]}))
    {'weights': [0.5, -0.0]}
    """
    names = names_of_trusted(trusted)
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, max_memory)
    tree = from_bytes(verify_body(view), budget)
    audit(tree, names)
    return construct(tree, names, budget)


def decode_plain(data: nodes.Buffer) -> Any:
    """Return the value that `encode` wrote, if its bytes name no class and no function.

    Parameters
    ----------
    data : bytes
        What `encode` returned.

    Returns
    -------
    object

    Raises
    ------
    CorruptFileError
        If the bytes are damaged, or contain more than numbers, texts, bytes, arrays and containers.

    Examples
    --------
    >>> from letheon.state import decode_plain, encode
    >>> decode_plain(encode({"a": [1, 2.5, None]}))
    {'a': [1, 2.5, None]}
    """
    view = memoryview(data)
    budget = MemoryBudget(view.nbytes, None)
    tree = from_bytes(verify_body(view), budget)
    if nodes.names_of(tree):
        raise CorruptFileError("expected plain values, but the bytes name classes or functions")
    return construct(tree, {}, budget)


def verify_body(data: memoryview) -> memoryview:
    head = re.match(rb"letheon-state-v(\d{1,9})\0", data[:32])
    if head is None:
        raise CorruptFileError("these bytes are not a letheon state")
    if head[0] != MAGIC:
        raise NewerFormatError(
            f"the state has the format v{int(head[1])}, but this version of letheon reads "
            "only v1; install a newer version of letheon"
        )
    body = data[len(MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != bytes(data[len(MAGIC) : len(MAGIC) + 32]):
        raise CorruptFileError("the state is truncated or altered: its SHA-256 does not match")
    return body
