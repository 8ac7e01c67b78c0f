"""schemathesis over the whole API, with a token: no server error, no break of the document.

Bodies, queries and paths are made from the OpenAPI document, valid ones and invalid ones; paths
name things that exist every other time. Not used: `positive_data_acceptance` (a value of the right
form may still be refused: a person who is not in the model) and `ignored_auth` (it sends the token
all the same where headers are given by hand; the matrix tries every route without one).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.service.desks import QUICK, Desk, make_desk
from tests.service.test_matrix import HOOK, make_things

CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]
PARTS = 4
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
# Cases per operation and mode; operations without a parameter have few different ones.
IN_TEST, IN_SOAK = 4, 800


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, dict[str, str]]]:
    hooks = ({"host": HOOK, "internal": True},)
    desk = make_desk(
        tmp_path_factory.mktemp("schema"), settings=replace(QUICK, webhook_hosts=hooks)
    )
    yield desk, make_things(desk, "default", "risk")
    desk.close()


def try_operations(desk: Desk, things: dict[str, str], who: str, part: int, examples: int) -> int:
    """Try every operation of a part; return the number of cases."""
    headers = {"Authorization": f"Bearer {desk.tokens[who].text}", "Host": "localhost"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", desk.app, headers=headers)
    results: list[Any] = list(schema.get_all_operations())
    operations = [result.ok() for result in results]
    cases = 0
    for operation in sorted(operations, key=lambda item: str(item.label))[part::PARTS]:
        for mode in MODES:
            cases += _try(operation, mode, things, headers, examples)
    return cases


def _try(
    operation: Any, mode: Any, things: dict[str, str], headers: dict[str, str], examples: int
) -> int:
    cases = 0
    strategy = operation.as_strategy(generation_mode=mode)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy, is_there=st.booleans())
    def one(case: Any, is_there: bool) -> None:
        nonlocal cases
        cases += 1
        if is_there and mode is GenerationMode.POSITIVE:
            case.path_parameters |= {
                name: things[name] for name in case.path_parameters if name in things
            }
        response = case.call(headers=headers)
        # It does not know that a body may also be refused for its size.
        is_judged = _is_wrong_body(case) and response.status_code != 413
        checks = [*CHECKS, negative_data_rejection] if is_judged else CHECKS
        case.validate_response(response, checks=checks, headers=headers)

    if mode is GenerationMode.NEGATIVE:
        # Of an operation without a parameter nothing can be made wrong.
        with contextlib.suppress(schemathesis.errors.SchemathesisError, Unsatisfiable):
            one()
    else:
        one()
    return cases


def _is_wrong_body(case: Any) -> bool:
    """Whether the body breaks the document; a wrong query may become right on its way as text."""
    body = case.meta.components.get(ParameterLocation.BODY)
    return body is not None and body.mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize("part", range(PARTS))
def test_the_api_keeps_its_document(filled: tuple[Desk, dict[str, str]], part: int) -> None:
    desk, things = filled
    assert try_operations(desk, things, "admin", part, IN_TEST) >= 100


def test_a_requester_breaks_nothing_either(filled: tuple[Desk, dict[str, str]]) -> None:
    desk, things = filled
    cases = sum(try_operations(desk, things, "requester", part, 1) for part in range(PARTS))
    assert cases >= 100


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_the_api_keeps_its_document_at_length(
    filled: tuple[Desk, dict[str, str]], part: int
) -> None:
    desk, things = filled
    assert try_operations(desk, things, "admin", part, IN_SOAK) >= 25_000
