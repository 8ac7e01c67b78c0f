from collections.abc import Iterator
from typing import Any

import pytest

from tests.evaluation.stubs import StubModel


@pytest.fixture(autouse=True)
def diary() -> Iterator[list[tuple[str, Any]]]:
    StubModel.diary.clear()
    yield StubModel.diary
    StubModel.diary.clear()
