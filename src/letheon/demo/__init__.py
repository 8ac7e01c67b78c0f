"""Demo (`letheon demo`): the main use cases from end to end, as a list of small steps.

To add a step, write a function that takes a `DemoContext` and add a line to `STEPS`. Steps verify
their claims with `DemoContext.check`; the demo fails if a claim is false.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from letheon.demo import _models, _trees, _trust
from letheon.demo._context import DemoContext, make_context
from letheon.terminal import PlainConsole

__all__ = ["STEPS", "DemoStep", "run_demo"]


class DemoStep(NamedTuple):
    """Step of the demo, with its title and function."""

    title: str
    run: Callable[[DemoContext], None]


def run_demo(seed: int = 0, console: Console | None = None) -> bool:
    """Run all steps of the demo and print their output.

    Parameters
    ----------
    seed : int, default=0
        Seed of the models.
    console : rich.console.Console, optional
        Console to print to; by default standard output.

    Returns
    -------
    bool
        Whether all claims of the demo were true.
    """
    begin = time.perf_counter()
    demo = make_context(console or PlainConsole(), seed)
    for number, step in enumerate(STEPS, start=1):
        demo.console.print(f"\n[bold]{number}. {step.title}[/bold]")
        step.run(demo)
    for claim in demo.failures:
        demo.console.print(f"\n[bold red]NOT TRUE:[/bold red] {claim}")
    demo.console.print(f"\nDone in {time.perf_counter() - begin:.1f} s.")
    return not demo.failures


STEPS: tuple[DemoStep, ...] = (
    DemoStep("People and their rows", _models.show_data),
    DemoStep("Train", _models.train_models),
    DemoStep("Forget six people, one after the other", _models.forget_people),
    DemoStep("Check: is the result the same as without these people?", _models.compare_with_refit),
    DemoStep("Save, load, forget again", _models.save_and_load),
    DemoStep("An invalid request", _models.refuse_unknown_id),
    DemoStep("A random forest: forget now, rebuild later", _trees.forget_in_forest),
    DemoStep("Gradient boosting: few people decide the splits", _trees.forget_in_boosting),
    DemoStep("A whole pipeline on a table with gaps and categories", _trees.forget_in_pipeline),
    DemoStep("A logistic regression: a Newton step and secret noise", _models.forget_in_regression),
    DemoStep("Neural networks: exact or approximate", _models.forget_in_networks),
    DemoStep("Choose a method", _models.choose_method),
    DemoStep("Measure a method", _models.measure_forest),
    DemoStep("Attack a model", _models.attack_models),
    DemoStep("Monitor a model", _models.monitor_model),
    DemoStep("Write a report", _models.write_report),
    DemoStep("What the guarantees mean", _models.explain_guarantees),
    DemoStep("An erasure request from start to audit", _trust.run_erasure),
    DemoStep("The web service", _models.show_service),
    DemoStep("An untrusted model file", _trust.load_untrusted_file),
)
