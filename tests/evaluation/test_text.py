"""Results print readable text: `print`, `repr` and notebooks."""

from functools import cache
from io import StringIO
from typing import Any

import pytest

from letheon.evaluation.report import Report, Table
from letheon.measures import TextRepr, efficiency, strength
from letheon.measures.attacks import AttackResult, auc
from letheon.select import Need, Tolerances, choose, tune_efficiency
from tests.evaluation.stubs import SIMPLE, StubModel, X, Y, evaluate


class PrettyPrinter:
    """The part of IPython's printer that a result uses."""

    def __init__(self) -> None:
        self.output = StringIO()

    def text(self, text: str) -> None:
        """Write a text."""
        self.output.write(text)


@cache
def make_results() -> dict[str, Any]:
    """Return one object of every result class."""
    area = auc([0.9, 0.8, 0.4, 0.7], [1, 1, 0, 0])
    attack = AttackResult(
        attack="rmia", about="forgotten", n_models=4, measures={"AUC": area}, floor={"AUC": area}
    )
    evaluation = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=1, **SIMPLE)
    table = Table("Speed", ("method", "speed-up"), [("SISA", efficiency(9, 3))], "One run.")
    report = Report("Benchmark", {"seeds": [1, 2]}, {"cores": 2}, table, notes=["Few rows."])
    comparison = choose(
        (X, Y),
        need=Need(),
        candidates=[StubModel()],
        tolerances=Tolerances(certifiability=None),
        requests=2,
        ordinary=SIMPLE["ordinary"],
        canaries=False,
    )
    tuning = tune_efficiency({1: 0.9, 2: 0.8}.__getitem__, "n_shards", (1, 2), 0.85)
    result = comparison.tried[0]
    results = [area, strength([1.0] * 20), attack, evaluation, evaluation.trials[0], table, report]
    results += [comparison, result, result.checks[0], result.cost, tuning]
    return {type(each).__name__: each for each in results}


NAMES = "Measure Strength AttackResult Evaluation Trial Table Report Comparison CandidateResult"


@pytest.mark.parametrize("name", [*NAMES.split(), "Check", "Cost", "Tuning"])
def test_results_print_as_text_and_not_as_a_dataclass(name: str) -> None:
    result = make_results()[name]
    assert isinstance(result, TextRepr)
    assert str(result).strip()
    assert not str(result).startswith((f"{name}(", f"<{name}"))
    assert "\n" not in repr(result)
    assert len(repr(result)) < 300
    printer = PrettyPrinter()
    result._repr_pretty_(printer, False)
    assert printer.output.getvalue() == str(result)


def test_a_report_prints_title_settings_tables_and_notes() -> None:
    assert str(make_results()["Report"]).splitlines() == [
        "Benchmark",
        "",
        "seeds: 1, 2",
        "cores: 2",
        "",
        "Speed",
        "method  speed-up",
        "SISA    3x",
        "One run.",
        "",
        "- Few rows.",
    ]
    assert repr(make_results()["Report"]) == "<Report: Benchmark>"


def test_one_line_says_the_essentials() -> None:
    results = make_results()
    assert str(results["Trial"]).startswith("seed 0: 2 people in 2 request(s) of ")
    assert repr(results["Evaluation"]).startswith("<Evaluation: StubModel on data: 2 of 440 people")
    assert str(results["CandidateResult"]).startswith("StubModel: ")
    assert "s with plain retraining, for 1,000 call(s) of forget" in str(results["Cost"])
