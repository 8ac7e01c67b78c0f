"""What an audit found: one result per level and model, and the report of all of them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:
    from rich.table import Table as RichTable

from letheon.verifier import overall

Verdict = Literal["pass", "fail", "skipped"]
ReportVerdict = Literal["passed", "failed", "incomplete"]
_KINDS = {"pass": "good", "fail": "bad", "skipped": "open"}
_PASSED: dict[str, bool | None] = {"pass": True, "fail": False, "skipped": None}

# What each level shows, and what it cannot show.
LEVELS: dict[str, tuple[str, str]] = {
    "V0": ("signature, schema, chain", "that the work was done"),
    "V1": ("log", "private copies, requests that nobody recorded"),
    "V2": ("data transition", "what the erased leaves were, and whose"),
    "V3": ("residue", "stores that nobody listed"),
    "V4": ("re-derivation", "that an old copy is gone"),
    "V5": ("bound", "assumptions that cannot be checked, noise that was used twice"),
    "V6": ("canaries", "anything against a dishonest operator"),
    "own": ("measures of the auditor", "what the auditor did not measure"),
}


@dataclass(frozen=True)
class LevelResult:
    """The verdict of one level, about one model or about the whole bundle.

    Attributes
    ----------
    level : str
        ``"V0"`` to ``"V6"``, or ``"own"`` for a measure that the auditor brought.
    model : str
        Whom it is about; empty for the whole ledger.
    verdict : {"pass", "fail", "skipped"}
        "skipped" is no pass: something that the level needs was not there, and `reason` says what.
    reason : str
        One sentence for people.
    details : mapping of str to plain values
        Numbers behind it.
    promised : bool
        Whether the tier of the bundle or the auditor's own choice asks for this result. A promised
        result that was skipped makes the report incomplete.
    """

    level: str
    model: str
    verdict: Verdict
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
    promised: bool = True

    def __post_init__(self) -> None:
        """Refuse words that nobody knows."""
        if self.level not in LEVELS:
            raise ValueError(f"level={self.level!r} is not one of {tuple(LEVELS)}")
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict={self.verdict!r} is not one of {get_args(Verdict)}")

    @property
    def name(self) -> str:
        """What the level shows, in a few words."""
        return LEVELS[self.level][0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**vars(self), "name": self.name, "details": dict(self.details)}


@dataclass(frozen=True)
class AuditReport:
    """Every verdict of one audit.

    Attributes
    ----------
    results : tuple of LevelResult
        In the order of the levels.
    ledger : str
        Name of the ledger, as its certificates say.
    key : str
        The public key that the auditor trusts, as hexadecimal text.
    subjects : tuple of dict
        The newest certificate of every model: what was claimed, and what was not.
    scope : str
        What the verdict is about: the tier of the bundle, the levels and the models.
    """

    results: tuple[LevelResult, ...]
    ledger: str = ""
    key: str = ""
    subjects: tuple[Mapping[str, Any], ...] = ()
    audited_at: str = field(
        default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    scope: str = ""

    def __iter__(self) -> Iterator[LevelResult]:
        """Iterate over the results."""
        return iter(self.results)

    @property
    def verdict(self) -> ReportVerdict:
        """The verdict on what `scope` says.

        *failed*: a level failed. *passed*: none failed, and none was skipped that the tier of the
        bundle promises or that the auditor asked for. *incomplete*: something is left open.
        """
        found: Any = overall((_PASSED[one.verdict], one.promised) for one in self.results)
        return cast("ReportVerdict", found)

    @property
    def passed(self) -> bool:
        """Whether the verdict is "passed"."""
        return self.verdict == "passed"

    @property
    def open_results(self) -> tuple[LevelResult, ...]:
        """Skipped results that keep the report from passing."""
        return tuple(result for result in self.skipped if result.promised)

    @property
    def failures(self) -> tuple[LevelResult, ...]:
        """Results that are failures."""
        return tuple(result for result in self.results if result.verdict == "fail")

    @property
    def skipped(self) -> tuple[LevelResult, ...]:
        """Results of levels that could not be looked at."""
        return tuple(result for result in self.results if result.verdict == "skipped")

    def of(self, level: str) -> tuple[LevelResult, ...]:
        """Return the results of one level."""
        return tuple(result for result in self.results if result.level == level)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "verdict": self.verdict,
            "passed": self.passed,
            "scope": self.scope,
            "ledger": self.ledger,
            "key": self.key,
            "auditedAt": self.audited_at,
            "results": [result.to_dict() for result in self.results],
            "subjects": [dict(subject) for subject in self.subjects],
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    def to_page(self) -> str:
        """Return the report as one page that opens without a network; every text is escaped."""
        from letheon.evaluation.report import render_page

        to_json = partial(json.dumps, indent=1, sort_keys=True, default=str, ensure_ascii=False)
        limits = {result.level: LEVELS[result.level] for result in self.results}
        return render_page(
            "letheon.audit",
            "audit.html",
            title=f"Audit of {self.ledger or 'a ledger'}",
            report=self,
            limits=limits,
            to_json=to_json,
        )

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one page that opens without a network; return the file."""
        from letheon.evaluation.report import write_page

        return write_page(path, self.to_page())

    def __rich__(self) -> "RichTable":
        """One line per verdict; what a report says is text, never markup."""
        from letheon.evaluation.report import Cell, Table

        words = {"passed": "passed", "failed": "FAILED", "incomplete": "INCOMPLETE"}
        title = f"Audit of {self.ledger or 'a ledger'}: {words[self.verdict]}"
        rows = [
            (
                one.level,
                one.name,
                one.model or "all",
                Cell(one.verdict, kind=_KINDS[one.verdict]),
                one.reason,
            )
            for one in self.results
        ]
        table = Table(title, ("level", "shows", "model", "verdict", "reason"), rows, self.scope)
        return table.to_rich(no_wrap=("level", "verdict"))
