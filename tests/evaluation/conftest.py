from collections.abc import Iterator
from typing import Any

import pytest

from tests.evaluation.stubs import StubUnlearner


@pytest.fixture(autouse=True)
def diary() -> Iterator[list[tuple[str, Any]]]:
    StubUnlearner.diary.clear()
    yield StubUnlearner.diary
    StubUnlearner.diary.clear()
