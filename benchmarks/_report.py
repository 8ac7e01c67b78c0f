"""What a benchmark leaves behind: the machine, verdicts, tables, JSON and Markdown."""

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

__all__ = ["BenchmarkReport", "Seconds", "Table", "TargetCheck", "mean_interval", "timed"]


class Seconds(NamedTuple):
    """Time of one call: on the clock, and of the processor for this process."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> tuple[Any, Seconds]:
    """Return what the call returns and how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of Student's 95 % interval."""
    from scipy.special import stdtrit

    sample = np.asarray(values, float)
    spread = sample.std(ddof=1) / np.sqrt(sample.size) if sample.size > 1 else np.nan
    return float(sample.mean()), float(stdtrit(max(sample.size - 1, 1), 0.975) * spread)


@dataclass(frozen=True)
class TargetCheck:
    """One thing that must hold, the number reached and whether it held."""

    what: str
    reached: str
    required: str
    passed: bool

    def __str__(self) -> str:
        """One line for people."""
        word = "PASS" if self.passed else "FAIL"
        return f"{word}  {self.what}: {self.reached} (required: {self.required})"


@dataclass(kw_only=True)
class BenchmarkReport(report.Report):
    """A report with verdicts that is printed and written as it grows."""

    file: Path
    machine: dict[str, Any] = field(default_factory=describe_machine)
    verdicts: list[TargetCheck] = field(default_factory=list)

    def add(self, table: Table, verdicts: Iterable[TargetCheck] = ()) -> None:
        """Take a table and its verdicts, print both, and write the files as far as they go."""
        self.tables.append(table)
        print("", *table.lines(), sep="\n", flush=True)
        for verdict in verdicts:
            self.verdicts.append(verdict)
            print(verdict, flush=True)
        self.write()

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return all(verdict.passed for verdict in self.verdicts)

    def write(self) -> None:
        """Write the report as JSON and as Markdown, with the load of the machine as it is now."""
        self.settings["load at end"] = f"{os.getloadavg()[0]:.2f}"
        rows = [
            ("PASS" if v.passed else "**FAIL**", v.what, v.reached, v.required)
            for v in self.verdicts
        ]
        self.table = Table("Must hold", ("", "what", "reached", "required"), rows)
        text = json.dumps(self.to_dict(), indent=1, default=_plain)
        report.write_page(self.file.with_suffix(".json"), text + "\n")
        report.write_page(self.file.with_suffix(".md"), self.to_markdown())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "title": self.title,
            "machine": self.machine,
            "settings": self.settings,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "tables": [table.to_dict() for table in self.tables],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}")
