"""What the desk's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import _ledger_template, postgres_server, postgres_url
from tests.service.desks import Desk, make_desk

__all__ = ["_ledger_template", "postgres_server", "postgres_url"]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk of this test's own."""
    made = make_desk(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk that the tests of one file share; they must not mind each other's requests."""
    made = make_desk(tmp_path_factory.mktemp("desk"))
    yield made
    made.close()
