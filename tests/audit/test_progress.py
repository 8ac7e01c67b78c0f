"""`progress`: every result is told as soon as it is there, and only once."""

from pathlib import Path

import pytest

from letheon.audit import AuditReport, LevelResult, audit
from letheon.ledger import Ledger
from tests.audit.bundles import copied, erase, ledger_of


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("progress")
    with ledger_of(folder / "home", "naive", "sisa") as ledger:
        erase(ledger, "naive", 3)
        erase(ledger, "sisa", 5)
        return _exported(ledger, folder / "bundle")


def _exported(ledger: Ledger, folder: Path) -> tuple[Path, str]:
    return ledger.export(folder, tier="auditor"), ledger.public_key


def _told(bundle: Path, key: str, **options: object) -> tuple[list[LevelResult], AuditReport]:
    heard: list[LevelResult] = []
    return heard, audit(bundle, key=key, progress=heard.append, **options)  # type: ignore[arg-type]


def test_what_is_told_is_what_the_report_holds(exported: tuple[Path, str]) -> None:
    heard, report = _told(*exported)
    assert len(heard) > 6
    assert sorted(heard, key=repr) == sorted(report, key=repr)


def test_who_listens_changes_nothing(exported: tuple[Path, str]) -> None:
    bundle, key = exported
    assert audit(bundle, key=key).results == _told(bundle, key)[1].results


@pytest.mark.parametrize("level", ["V0", "V1", "V2", "V4"])
def test_only_what_was_asked_for_is_told(exported: tuple[Path, str], level: str) -> None:
    heard, _ = _told(*exported, levels=[level])
    assert {one.level for one in heard} == {level}


def test_a_failure_that_ends_the_audit_is_told(exported: tuple[Path, str], tmp_path: Path) -> None:
    bundle, key = exported
    broken = copied(bundle, "broken")
    path = sorted((broken / "certificates").iterdir())[-1]
    path.write_bytes(path.read_bytes().replace(b"payload", b"paYload", 1))
    heard, report = _told(broken, key)
    assert [one.verdict for one in heard if one.level == "V0"] == ["fail"]
    assert tuple(heard) == report.results


def test_results_come_while_the_audit_runs(exported: tuple[Path, str]) -> None:
    class EnoughError(Exception):
        pass

    heard: list[LevelResult] = []

    def stop(result: LevelResult) -> None:
        heard.append(result)
        if len(heard) == 2:
            raise EnoughError

    bundle, key = exported
    with pytest.raises(EnoughError):
        audit(bundle, key=key, progress=stop)
    assert len(heard) == 2
