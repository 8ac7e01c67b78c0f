"""Check the settings of every object in a tree against the rules, before anything is imported."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from letheon.exceptions import UntrustedClassError
from letheon.state import _nodes as nodes
from letheon.state._allowed import CLASS_VALUES, FUNCTIONS, TYPES
from letheon.state._settings_table import KINDS, OUR_RULES, PATTERNS, RULES
from letheon.state._tags import codec_named, dataclass_fields, is_ours, tag_of

_MOST_JOBS = 128
_MOST_THREADS = 1024
_MOST_SIZE = 10**9
_MOST_VIOLATIONS = 20
_LONGEST_TEXT = 200
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN_WORD = re.compile(r"[\w .+*-]{0,24}")
_PARTIAL, _PATH = "functools.partial", "pathlib.Path"


class SettingRule(NamedTuple):
    """The values that one attribute may have."""

    kinds: frozenset[str]
    words: frozenset[str] = frozenset()
    pattern: str = ""

    def allows(self, *kinds: str) -> bool:
        """Return whether at least one of these kinds of values is allowed."""
        return not self.kinds.isdisjoint(kinds)

    def allows_text(self, text: str) -> bool:
        """Return whether a text is allowed."""
        if "TEXT" in self.kinds or text in self.words:
            return True
        pattern = PATTERNS.get(self.pattern)
        is_candidate = pattern is not None and len(text) <= _LONGEST_TEXT
        return is_candidate and re.fullmatch(pattern or "", text) is not None

    def allows_number(self, number: complex) -> bool:
        """Return whether a number or bool is allowed."""
        if self.allows("NONE", "OFF", "ON"):
            return type(number) is bool and self.allows("ON" if number else "OFF")
        if self.allows("JOBS"):
            return type(number) is int and abs(number) <= _MOST_JOBS
        if self.allows("THREADS"):
            return type(number) is int and 1 <= number <= _MOST_THREADS
        is_infinite = isinstance(number, float) and not math.isfinite(number)
        return not self.allows("SIZE") or is_infinite or abs(number) <= _MOST_SIZE

    def describe(self) -> str:
        """Return the allowed values as a text, for error messages."""
        if self.allows("OFF"):
            return "None, False"
        if self.allows("ON"):
            return "None, True"
        if self.allows("NONE", "NOTHING"):
            return "None" if self.allows("NONE") else "nothing: the class has no such setting"
        kinds = [text for kind, text in _DESCRIPTIONS.items() if kind in self.kinds]
        words = [repr(word) for word in sorted(self.words)]
        if len(words) > 8:
            words[8:] = [f"{len(words) - 8} other words"]
        named = [_DESCRIPTIONS[self.pattern]] if self.pattern else []
        numbers = [] if words or named else ["numbers"]
        return ", ".join(["None", *numbers, *kinds, *words, *named])


_DESCRIPTIONS = {
    "ARRAYS": "arrays and lists",
    "CLASSES": "known networks and optimisers",
    "FUNCTIONS": "known functions",
    "JOBS": f"from -{_MOST_JOBS} to {_MOST_JOBS}",
    "GRID": "a dict of lists of allowed settings",
    "KEYWORDS": "a dict of plain values",
    "OBJECTS": "known objects",
    "SIZE": "up to 10^9",
    "TEXT": "texts",
    "THREADS": f"from 1 to {_MOST_THREADS}",
    "TYPES": "types",
    "<device>": "'auto', 'cpu', 'mps', 'cuda' or 'cuda:1'",
    "<dtype>": "names of dtypes",
    "<format>": "a text with {feature_name} and {transformer_name}",
    "<importance>": "'auto' or a path that ends in coef_ or feature_importances_",
    "<name>": "a plain name",
    "<regex>": "a regular expression that repeats its last character only",
    "<scaled>": "'mean', 'median' or a multiple such as '1.5*mean'",
}
# Values of a trusted class, or outside any object. The names in them are audited separately.
_ANYTHING = SettingRule(
    frozenset({"ARRAYS", "CLASSES", "FUNCTIONS", "OBJECTS", "PATHS", "TEXT", "TYPES"})
)
# Fitted attributes.
_FITTED = SettingRule(frozenset({"ARRAYS", "OBJECTS", "TEXT", "TYPES"}))
_UNKNOWN = SettingRule(frozenset({"NOTHING"}))
_NUMBERS = SettingRule(frozenset({"ARRAYS"}))
_KEYWORDS = SettingRule(frozenset({"ARRAYS", "KEYWORDS"}))
# Whole steps in a grid of parameters.
_STEPS = SettingRule(frozenset({"ARRAYS", "OBJECTS"}), frozenset({"drop", "passthrough"}))


@lru_cache(maxsize=1024)
def _parse_rule(text: str) -> SettingRule:
    tokens = frozenset(text.split())
    patterns = tokens & PATTERNS.keys()
    words = frozenset(word.replace("~", " ") for word in tokens - KINDS - patterns)
    kinds = tokens & KINDS
    if kinds & {"LABELS", "KEYWORDS", "GRID"}:
        kinds |= {"ARRAYS"}
    return SettingRule(kinds, words, next(iter(patterns), ""))


def rule_of(class_name: str, attribute: str) -> SettingRule | None:
    """Return the rule of an attribute; None if the class has no attribute with this name.

    Parameters
    ----------
    class_name : str
        Qualified name of a class that is on the allow-list.
    attribute : str
        Name of the attribute.
    """
    short = class_name.rpartition(".")[2]
    if is_ours(class_name):
        text = OUR_RULES.get(f"{short}.{attribute}", OUR_RULES.get(attribute))
        return _FITTED if text is None else _parse_rule(text)
    text = RULES.get(f"{short}.{attribute}", RULES.get(attribute))
    if text is not None:
        return _parse_rule(text)
    is_fitted = attribute.endswith("_") or attribute.startswith("_")
    return _FITTED if is_fitted and not attribute.startswith("__") else None


class RuleViolation(NamedTuple):
    """A setting in a file that its rule does not allow."""

    class_name: str
    attribute: str
    value: str
    allowed: str

    def __str__(self) -> str:
        short = self.class_name.rpartition(".")[2]
        return f"{short}.{self.attribute} is {self.value} (allowed: {self.allowed})"


def find_violations(tree: nodes.Node, trusted: Mapping[str, Any]) -> list[RuleViolation]:
    """Return the settings in a tree that break their rule; skip those of trusted classes."""
    checker = _Checker(trusted)
    checker.check_node(tree, _ANYTHING)
    return list(dict.fromkeys(checker.violations))


class _Checker:
    """A checker of the settings in a tree.

    It visits nodes in the same order as `_Builder`, so that it can follow references.
    """

    def __init__(self, trusted: Mapping[str, Any]) -> None:
        self.trusted = trusted
        self.violations: list[RuleViolation] = []
        self.place = ("", "")
        self.numbered: list[Any] | None = None

    def check_node(self, node: Any, rule: SettingRule) -> None:
        """Check a node and everything below it."""
        kind = type(node)
        if kind is str or kind is bytes:
            text = node if kind is str else repr(node)
            self._require_rule(rule.allows_text(text), node, rule)
        elif kind in _CHECKS:
            if kind in _CONTAINERS:
                self._require_rule(rule.allows("ARRAYS"), node, rule)
            _CHECKS[kind](self, node, rule)
        elif node is not None:
            self._require_rule(rule.allows_number(node), node, rule)

    def _require_rule(self, condition: bool, node: Any, rule: SettingRule) -> None:
        # Outside an object there are no settings; the builder rejects malformed values there.
        if not condition and self.place[0] and len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(
                RuleViolation(*self.place, _describe_value(node), rule.describe())
            )

    def _number_node(self, node: Any) -> None:
        if self.numbered is not None:
            self.numbered.append(node)

    def _check_items(self, node: nodes.Items | nodes.Objects, rule: SettingRule) -> None:
        numbered = self.numbered
        if type(node) is nodes.Items and node.kind in {"set", "frozenset"}:
            self.numbered = None
        inside = _inner_rule(rule)
        is_free = inside.allows("TEXT") and not inside.allows("SIZE")
        for item in node.items:
            if not (is_free and type(item) in _ATOMS):
                self.check_node(item, inside)
        self.numbered = numbered
        if type(node) is nodes.Objects:
            self._number_node(node)

    def _check_grid(self, node: nodes.Record) -> None:
        for key, options in node.items:
            name = key.rpartition("__")[2]
            text = RULES.get(name, OUR_RULES.get(name))
            rule = _STEPS if text is None else _parse_rule(text)
            for option in options.items if type(options) is nodes.Items else (options,):
                self.check_node(option, rule)

    def _check_record(self, node: nodes.Record, rule: SettingRule) -> None:
        if rule.allows("GRID"):
            self._check_grid(node)
            return
        inside = _inner_rule(rule)
        for key, item in node.items:
            text = RULES.get(key, OUR_RULES.get(key)) if rule.allows("KEYWORDS") else None
            self.check_node(item, inside if text is None else _parse_rule(text))

    def _check_pairs(self, node: nodes.Pairs, rule: SettingRule) -> None:
        numbered, self.numbered = self.numbered, None
        for key, _ in node.items:
            self.check_node(key, rule._replace(kinds=rule.kinds | _FITTED.kinds))
        self.numbered = numbered
        for _, item in node.items:
            self.check_node(item, _inner_rule(rule))

    def _check_array(self, node: Any, rule: SettingRule) -> None:
        columns = node.columns if type(node) is nodes.Fields else ()
        is_plain = all(type(column) in _ARRAYS for column in columns)
        self._require_rule(is_plain and _allows_array(node, rule), node, rule)
        self._number_node(node)

    def _check_scalar(self, node: nodes.Scalar, rule: SettingRule) -> None:
        value: Any = node.value
        kind = type(value)
        if kind is nodes.Array and value.dtype[1:2] in ("i", "u") and not value.shape:
            number = int.from_bytes(value.data, "little", signed=value.dtype[1:2] == "i")
            self.check_node(number, rule)
        elif kind in {int, str, bytes}:
            self.check_node(value, rule)
        else:
            is_plain = kind is nodes.Array or (kind is nodes.Fields and rule.allows("ARRAYS"))
            is_free = not rule.allows("JOBS", "NONE", "OFF", "ON", "THREADS")
            self._require_rule(is_plain and is_free, node, rule)

    def _check_triple(self, node: nodes.Triple, rule: SettingRule) -> None:
        for part in node[1:]:
            self.check_node(part, _inner_rule(rule))

    def _check_dtype(self, node: nodes.Dtype, rule: SettingRule) -> None:
        self._require_rule(rule.allows("TYPES"), node, rule)

    def _check_name(self, node: nodes.Name, rule: SettingRule) -> None:
        self._require_rule(self._allows_name(node.name, rule), node, rule)

    def _allows_name(self, name: str, rule: SettingRule) -> bool:
        # A name that no table lists is trusted by the caller, or rejected by the audit of names.
        kinds = {kind for kind, names in _NAMES.items() if name in names}
        return not kinds or rule.allows(*kinds) or name in self.trusted

    def _check_object(self, node: nodes.Instance | nodes.Coded, rule: SettingRule) -> None:
        is_outermost = self.numbered is None and not is_ours(node.name)
        if is_outermost:
            self.numbered = []
        if node.name == _PARTIAL and isinstance(node, nodes.Coded):
            self._check_partial(node, rule)
        else:
            self._require_rule(self._allows_object(node, rule), node, rule)
            self._check_parts(node)
        self._number_node(node)
        if is_outermost:
            self.numbered = None

    def _allows_object(self, node: nodes.Instance | nodes.Coded, rule: SettingRule) -> bool:
        if isinstance(node, nodes.Instance):
            return rule.allows("OBJECTS") or node.name in self.trusted
        return rule.allows("PATHS") if node.name == _PATH else rule.allows("ARRAYS", "OBJECTS")

    def _check_parts(self, node: nodes.Instance | nodes.Coded) -> None:
        if isinstance(node, nodes.Coded):
            codec = codec_named(node.name)
            is_registered = codec is not None and codec[1] is not None
            self.check_node(node.payload, _ANYTHING if is_registered else _FITTED)
            return
        place = self.place
        for key, item in node.state.items:
            self.place = node.name, key
            rule = _ANYTHING if node.name in self.trusted else rule_of(node.name, key)
            if rule is None:
                self._require_rule(False, item, _UNKNOWN)
            self.check_node(item, rule or _ANYTHING)
        self.place = place

    def _check_partial(self, node: nodes.Coded, rule: SettingRule) -> None:
        """Check that a functools.partial has an allowed function and plain arguments."""
        payload: Any = node.payload
        parts = payload.items if type(payload) is nodes.Record else ()
        func = dict(parts).get("func")
        name = func.name if type(func) is nodes.Name and func.name not in TYPES else ""
        self._require_rule(bool(name) and self._allows_name(name, rule), node, rule)
        is_free = rule is _ANYTHING or name in self.trusted
        for key, item in parts:
            inside = _KEYWORDS if key == "keywords" else _NUMBERS
            self.check_node(item, _ANYTHING if is_free or key == "func" else inside)

    def _check_ref(self, node: nodes.Ref, rule: SettingRule) -> None:
        if self.numbered is None or node.number >= len(self.numbered):
            return  # no target: the builder rejects it
        target = self.numbered[node.number]
        if type(target) is nodes.Coded and target.name == _PARTIAL:
            is_allowed = rule.allows("CLASSES", "FUNCTIONS")
        elif isinstance(target, nodes.Instance | nodes.Coded):
            is_allowed = self._allows_object(target, rule)
        else:
            is_allowed = _allows_array(target, rule)
        self._require_rule(is_allowed, target, rule)


def _inner_rule(rule: SettingRule) -> SettingRule:
    """Return the rule for the items of a container."""
    if "LABELS" in rule.kinds:
        return rule._replace(kinds=rule.kinds | {"TEXT"})
    return rule._replace(kinds=rule.kinds - {"KEYWORDS"}) if "KEYWORDS" in rule.kinds else rule


def _allows_array(node: Any, rule: SettingRule) -> bool:
    return _inner_rule(rule).allows("TEXT" if _holds_text(node) else "ARRAYS")


def _holds_text(node: Any) -> bool:
    if type(node) is nodes.Fields:
        return any(_holds_text(column) for column in node.columns)
    is_bytes = type(node) is nodes.Array and node.dtype[1:2] in ("S", "V")
    return is_bytes or type(node) in {nodes.Strings, nodes.Objects}


def _describe_value(node: Any) -> str:
    """Describe a value of a file for an error message; quote only short plain words."""
    if isinstance(node, str):
        is_short = _PLAIN_WORD.fullmatch(node) is not None
        return repr(node) if is_short else f"a text of {len(node)} characters"
    if type(node) in _NAMED:
        return f"the {_NAMED[type(node)]} {node.name.rpartition('.')[2][:40]!r}"
    if isinstance(node, int) and abs(node) < 10**15:
        return repr(node)
    return f"a value of kind {getattr(node, 'kind', type(node).__name__).lower()}"


_NAMES = {"TYPES": TYPES, "FUNCTIONS": FUNCTIONS, "CLASSES": CLASS_VALUES}
_NAMED = {nodes.Name: "function or class", nodes.Instance: "object", nodes.Coded: "value"}
_ARRAYS = frozenset({nodes.Array, nodes.Strings, nodes.Fields})
_CONTAINERS = frozenset({nodes.Items, nodes.Objects, nodes.Record, nodes.Pairs, nodes.Triple})
_CHECKS: dict[type, Callable[[_Checker, Any, SettingRule], None]] = {
    nodes.Items: _Checker._check_items,
    nodes.Objects: _Checker._check_items,
    nodes.Record: _Checker._check_record,
    nodes.Pairs: _Checker._check_pairs,
    **dict.fromkeys(_ARRAYS, _Checker._check_array),
    nodes.Scalar: _Checker._check_scalar,
    nodes.Triple: _Checker._check_triple,
    nodes.Dtype: _Checker._check_dtype,
    nodes.Name: _Checker._check_name,
    nodes.Instance: _Checker._check_object,
    nodes.Coded: _Checker._check_object,
    nodes.Ref: _Checker._check_ref,
}


def require_no_shadows(cls: type, node: nodes.Instance) -> None:
    """Reject attributes that would replace a method or constant of the class."""
    builds_itself = hasattr(cls, "_from_state") and not hasattr(cls, "get_params")
    if builds_itself or dataclass_fields(cls) is not None:
        return
    # A dataclass has the defaults of its parameters as class attributes.
    parameters = {field.name for field in fields(cls)} if is_dataclass(cls) else frozenset()
    for name, _ in node.state.items:
        defaults = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
        is_plain = not any(callable(value) or hasattr(value, "__get__") for value in defaults)
        if defaults and not (is_plain and (name in RULES or name in parameters)):
            raise UntrustedClassError(
                f"the file gives an object of {cls.__qualname__} an attribute {name!r}, which "
                "would hide a method or constant of the class; if you know where the file "
                f"comes from, pass trusted=[{tag_of(cls)!r}]"
            )
