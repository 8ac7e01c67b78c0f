"""Tuned naive retraining: the baseline of all comparisons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks._deep_models import SMALL_CNN, ImageSet, Recipe, Yardstick, percent
from benchmarks._report import Table

__all__ = ["RECIPES", "make_naive_table", "tune_recipe"]

# The fastest recipe within this many points of the best one is chosen.
AS_GOOD = 0.15
RECIPES: dict[str, tuple[Recipe, ...]] = {
    "cpu": (Recipe(1, 64, 0.1), Recipe(2, 128, 0.15), Recipe(2, 256, 0.25)),
    "cuda": (
        Recipe(2, 64, 0.1),
        Recipe(2, 128, 0.15),
        Recipe(3, 256, 0.2),
        Recipe(5, 512, 0.3),
        Recipe(5, 512, 0.3, "tf32"),
        Recipe(5, 512, 0.3, module=replace(SMALL_CNN, conv="matmul")),
        Recipe(8, 1024, 0.4),
    ),
}
COLUMNS = ("recipe", "accuracy", "first call s", "again s", "cpu s", "rows per second", "")
NOTE = (
    "One net, all rows, SGD with momentum 0.9, one cycle of the learning rate. *first call*: a fit "
    "in this process, with everything that is loaded, compiled and captured then. *again*: a "
    "request of one person, answered by training from scratch with all that in place{graphs}. All "
    "ratios in this report are against *again* of the chosen recipe: the quickest within "
    f"{AS_GOOD} points of the best. Recipes were compared on the test images, which flatters the "
    "yardstick if anything."
)


def tune_recipe(
    data: ImageSet, recipes: Sequence[Recipe], device: str, repeats: int
) -> tuple[Yardstick, list[Yardstick]]:
    """Try all recipes; return the chosen one, timed more often, and all of them."""
    # On a CPU there is nothing to capture, so the fit counts as a timing.
    looks = 1 if device == "cuda" else 0
    candidates = [Yardstick.of(data, recipe, device, looks) for recipe in recipes]
    best = max(each.accuracy for each in candidates)
    good = [each for each in candidates if each.accuracy >= best - AS_GOOD]
    chosen = min(good, key=lambda each: each.seconds.wall)
    for _ in range(repeats - looks):
        chosen.look()
    return chosen, candidates


def make_naive_table(
    data: ImageSet, chosen: Yardstick, candidates: list[Yardstick], device: str
) -> Table:
    """Return the table of all recipes."""
    graphs = " (one CUDA graph per step, replayed)" if device == "cuda" else ""
    rows: list[tuple[Any, ...]] = []
    for each in candidates:
        seconds, n_visits = each.seconds, each.recipe.epochs * len(data.y)
        mark = "chosen" if each is chosen else ""
        rows.append(
            (
                str(each.recipe),
                percent(each.accuracy),
                each.first.wall,
                seconds.wall,
                seconds.cpu,
                f"{n_visits / seconds.wall:,.0f}",
                mark,
            )
        )
    net = f"{type(chosen.recipe.module).__name__}, {chosen.model.nets_.flat.shape[1]:,} parameters"
    title = f"Naive retraining: {data.describe()}; {net}"
    return Table(title, COLUMNS, rows, NOTE.format(graphs=graphs))
