"""The schema interpreter against `jsonschema`, and the schemas against the published file."""

import copy
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.verifier import (
    INDEX,
    PURGE,
    REVOCATION,
    ROTATION,
    SCHEMAS,
    UNLEARNING,
    UNLEARNING_V1,
    VerificationError,
    check_schema,
)
from tests.verifier import maker

Draft202012Validator: Any = importlib.import_module("jsonschema").Draft202012Validator
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = {
    UNLEARNING_V1: maker.example(),
    UNLEARNING: maker.example(UNLEARNING),
    PURGE: maker.purge_of(maker.certificates(maker.honest_bundle())[0], 2),
    ROTATION: maker.rotation(maker.ROOT, maker.SECOND, 3),
    REVOCATION: maker.revocation(maker.ROOT, 3),
    INDEX: json.loads(maker.payload_of(maker.index_of({"a": b""})["index.signed.json"])),
}
VALIDATORS = {kind: Draft202012Validator(schema) for kind, schema in SCHEMAS.items()}
ODD: list[Any] = [None, True, -1, "Ab c", "genesis", "1e-6", "a\n", []]


def accepted(statement: Any) -> bool:
    try:
        check_schema(statement)
    except VerificationError:
        return False
    return True


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        yield (*at, name)
        if isinstance(inner, dict | list):
            yield from places(inner, (*at, name))


def variants(statement: Any) -> Iterator[Any]:
    """Each place removed, doubled, given a neighbour, or replaced by something odd."""
    for *outer, name in places(statement):
        for change in [*ODD, "remove", "beside", "longer"]:
            altered = copy.deepcopy(statement)
            inner = altered
            for step in outer:
                inner = inner[step]
            if change == "remove":
                del inner[name]
            elif change == "beside" and isinstance(inner, dict):
                inner["surname"] = inner[name]
            elif change == "longer" and isinstance(inner[name], str):
                inner[name] += "0" * 128
            else:
                inner[name] = copy.deepcopy(change)
            yield altered


def ends_in_a_line_break(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(ends_in_a_line_break, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value.endswith("\n")


def test_published_schema_is_the_one_in_use() -> None:
    files = {UNLEARNING_V1: "certificate.v1.schema.json", UNLEARNING: "certificate.schema.json"}
    for kind, name in files.items():
        assert json.loads((DOCS / name).read_text()) == SCHEMAS[kind]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_is_a_json_schema_and_takes_its_example(kind: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[kind])
    assert VALIDATORS[kind].is_valid(EXAMPLES[kind])
    assert accepted(EXAMPLES[kind])


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (UNLEARNING_V1, 900),
        (UNLEARNING, 910),
        (PURGE, 300),
        (ROTATION, 100),
        (REVOCATION, 80),
        (INDEX, 80),
    ],
)
def test_variants_are_judged_as_by_jsonschema(kind: str, least: int) -> None:
    refused = 0
    for variant in variants(EXAMPLES[kind]):
        ours = accepted(variant)
        # Python's `$` lets a line break through; ours must not.
        theirs = VALIDATORS[kind].is_valid(variant) and not ends_in_a_line_break(variant)
        assert ours == theirs, variant
        refused += not ours
    assert refused >= least


@given(st.data())
def test_two_changes_at_once_are_judged_as_by_jsonschema(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(SCHEMAS)))
    altered = copy.deepcopy(EXAMPLES[kind])
    for _ in range(2):
        *outer, name = data.draw(st.sampled_from(list(places(altered))))
        inner: Any = altered
        for step in outer:
            inner = inner[step]
        texts = st.from_regex(r"[0-9a-z.:@-]{1,4}|-?[0-9]{1,3}(\.[0-9])?", fullmatch=True)
        inner[name] = data.draw(texts | st.integers(-1, 3) | st.sampled_from(ODD).map(copy.copy))
    if altered.get("predicateType") == kind:
        theirs = VALIDATORS[kind].is_valid(altered) and not ends_in_a_line_break(altered)
        assert accepted(altered) == theirs


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("predicate.ledger.sequence", 0, r"statement\.predicate\.ledger\.sequence: .*minimum"),
        ("predicate.ledger.note", "x", r"statement\.predicate\.ledger: unknown key 'note'"),
        ("predicate.model.blinded", 1, r"statement\.predicate\.model\.blinded: .*const"),
        ("predicate.notClaimed", [], r"statement\.predicate\.notClaimed: .*minItems"),
        ("predicate.method.noise", "some", r"statement\.predicate\.method\.noise: .*anyOf"),
        ("predicateType", "urn:other", "unknown predicate type"),
    ],
)
def test_reason_names_the_place(place: str, value: Any, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check_schema(maker.changed(maker.example(), place, value))


def test_certified_needs_epsilon_and_exact_does_not() -> None:
    altered = maker.example()
    del altered["predicate"]["guarantee"]["epsilon"]
    assert not accepted(altered)
    altered["predicate"]["guarantee"]["kind"] = "exact"
    assert accepted(altered)


@pytest.mark.parametrize("statement", [None, [], "x", {}, {"predicateType": ["x"]}])
def test_what_is_no_statement_is_refused(statement: Any) -> None:
    assert not accepted(statement)
