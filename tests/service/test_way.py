"""How many modules one request passes: what a newcomer reads to follow it."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import letheon
from letheon.audit import audit
from tests.service.desks import Desk, person

ROOT = str(Path(letheon.__file__).parent)


@contextmanager
def passed_modules() -> Iterator[set[str]]:
    """Collect the modules of letheon in which a function is called, in every thread."""
    modules: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(ROOT) and frame.f_code.co_name != "<module>":
            modules.add(file.removeprefix(ROOT))

    before: Callable[..., Any] | None = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def post(desk: Desk, number: int) -> None:
    body = {"ids": [person(number)], "model": "risk", "verified": True}
    answer = desk.client().post("/api/v1/requests", json=body)
    assert answer.status_code == 201, answer.text


def test_a_request_and_its_story_pass_few_modules(desk: Desk, tmp_path: Path) -> None:
    post(desk, 1)  # what is made once per process is made now
    with passed_modules() as modules:
        post(desk, 2)
        assert len(modules) <= 20, sorted(modules)
        desk.work()
        bundle = desk.ledger.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=desk.ledger.public_key)
        assert report.verdict == "passed"
    assert len(modules) <= 70, sorted(modules)
