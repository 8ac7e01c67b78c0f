from collections.abc import Iterator
from typing import Any

import pytest

from tests.evaluation.stubs import Planted


@pytest.fixture(autouse=True)
def diary() -> Iterator[list[tuple[str, Any]]]:
    Planted.diary.clear()
    yield Planted.diary
    Planted.diary.clear()
