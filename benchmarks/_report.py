"""Benchmark reports: machine, checked targets and tables, as JSON and Markdown."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from letheon.bench import describe_machine
from letheon.evaluation import report
from letheon.evaluation.report import Table

__all__ = [
    "BenchmarkReport",
    "Seconds",
    "Table",
    "TargetCheck",
    "compute_mean_interval",
    "time_call",
]


class Seconds(NamedTuple):
    """Wall-clock time and processor time of one call in this process."""

    wall: float
    cpu: float


def time_call(call: Callable[[], Any]) -> tuple[Any, Seconds]:
    """Return the result of a call and its time."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def compute_mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of Student's 95 % interval."""
    from scipy.special import stdtrit

    sample = np.asarray(values, float)
    spread = sample.std(ddof=1) / np.sqrt(sample.size) if sample.size > 1 else np.nan
    return float(sample.mean()), float(stdtrit(max(sample.size - 1, 1), 0.975) * spread)


@dataclass(frozen=True)
class TargetCheck:
    """A target, the value reached, and whether the target is met."""

    what: str
    reached: str
    required: str
    passed: bool

    def __str__(self) -> str:
        """Return the check as one line of text."""
        word = "PASS" if self.passed else "FAIL"
        return f"{word}  {self.what}: {self.reached} (required: {self.required})"


@dataclass(kw_only=True)
class BenchmarkReport(report.Report):
    """A report with checked targets that is printed and written after each table."""

    file: Path
    machine: dict[str, Any] = field(default_factory=describe_machine)
    verdicts: list[TargetCheck] = field(default_factory=list)

    def add(self, table: Table, verdicts: Iterable[TargetCheck] = ()) -> None:
        """Add a table and its checks, print both, and write the files."""
        self.tables.append(table)
        print("", *table.lines(), sep="\n", flush=True)
        for verdict in verdicts:
            self.verdicts.append(verdict)
            print(verdict, flush=True)
        self.write()

    @property
    def passed(self) -> bool:
        """Whether all targets are met."""
        return all(verdict.passed for verdict in self.verdicts)

    def write(self) -> None:
        """Write the report as JSON and as Markdown, with the current load of the machine."""
        self.settings["load at end"] = f"{os.getloadavg()[0]:.2f}"
        rows = [
            ("PASS" if v.passed else "**FAIL**", v.what, v.reached, v.required)
            for v in self.verdicts
        ]
        self.table = Table("Must hold", ("", "what", "reached", "required"), rows)
        text = json.dumps(self.to_dict(), indent=1, default=_convert_number)
        report.write_page(self.file.with_suffix(".json"), text + "\n")
        report.write_page(self.file.with_suffix(".md"), self.to_markdown())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "title": self.title,
            "machine": self.machine,
            "settings": self.settings,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "tables": [table.to_dict() for table in self.tables],
        }


def _convert_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}")
