"""CIFAR-10 with a residual network: naive, SISA, DeepObliviate and a backdoor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks import _deep_backdoor as backdoors
from benchmarks import _deep_naive as yardsticks
from benchmarks import _deep_obliviate as obliviates
from benchmarks._deep_models import (
    LOSSY,
    ImageSet,
    Recipe,
    Yardstick,
    agreement,
    make_naive,
    make_obliviate,
    make_sisa,
    percent,
    points,
    score_accuracy,
    time_on_device,
    times,
)
from benchmarks._report import BenchmarkReport, Table
from letheon.deep import ResNet

__all__ = ["Cifar", "CifarPlan"]

RULES = (obliviates.Rule("robust", 0.1), obliviates.Rule("paper", 0.1))
PLAIN = f"No augmentation; {LOSSY}."
SISA_COLUMNS = (
    "S", "lanes", "fit s (first call)", "one leaves: again s", "x naive", "share of work",
    "accuracy", "accuracy - naive", "agrees: naive",
)  # fmt: skip
SISA_NOTE = (
    "{recipe} per shard, one slice. *lanes*: nets trained at once; for the same bits a request "
    "fills the lanes of untouched shards with nothing, so that it costs as much as a fit where the "
    "GPU is full. *one leaves*: with everything loaded. {plain}"
)


class CifarPlan(NamedTuple):
    """Sizes and repetitions of the CIFAR-10 run."""

    n_rows: int | None
    n_test: int | None
    width: int
    epochs: int
    shards: tuple[tuple[int, int | None], ...]
    n_blocks: int
    block_epochs: int
    n_places: int
    precision: str
    convs: tuple[str, ...] = ("cudnn", "matmul")


class Cifar:
    """One run on CIFAR-10; parts are skipped after the deadline."""

    def __init__(
        self,
        data: ImageSet,
        plan: CifarPlan,
        device: str,
        report: BenchmarkReport,
        has_time: Callable[[], bool],
    ) -> None:
        self.data = data.head(plan.n_rows, plan.n_test)
        self.plan, self.device, self.report, self.has_time = plan, device, report, has_time
        self.curves: dict[str, list[float]] = {}

    def run(self) -> None:
        """Run the parts in the order of their importance."""
        yardstick = self._naive()
        parts = (self._obliviate, self._sisa, self._backdoor)
        for part in parts:
            if self.has_time():
                part(yardstick)

    def _recipe(self, conv: str, epochs: int, batch_size: int, rate: float) -> Recipe:
        net = ResNet(depth=9, width=self.plan.width, norm="batch", conv=conv)
        return Recipe(epochs, batch_size, rate, self.plan.precision, net, 5e-4)

    def _naive(self) -> Yardstick:
        recipes = [self._recipe(conv, self.plan.epochs, 512, 0.4) for conv in self.plan.convs]
        chosen, candidates = yardsticks.tune_recipe(self.data, recipes, self.device, 1)
        table = yardsticks.make_naive_table(self.data, chosen, candidates, self.device)
        self.report.add(_add_note(table))
        return chosen

    def _blocks(self, yardstick: Yardstick) -> Any:
        """Return a new block model: plain descent, small batches, several passes."""
        return make_obliviate(
            self.device,
            module=yardstick.recipe.module,
            n_blocks=self.plan.n_blocks,
            epochs=self.plan.block_epochs,
            batch_size=100,
            learning_rate=0.1,
            precision=self.plan.precision,
        )

    def _obliviate(self, yardstick: Yardstick) -> None:
        plan = self.plan
        blocked = obliviates.Blocked(self._blocks(yardstick), yardstick)
        step = plan.n_blocks // plan.n_places
        places = range(step // 2, plan.n_blocks, step)
        runs = obliviates.measure_removals(blocked, RULES, places, (), 0)
        other = make_naive(yardstick.recipe, self.device, random_state=1).fit(
            self.data.X, self.data.y
        )
        answers = other.predict(self.data.X_test)
        tables = [
            obliviates.make_obliviate_table(blocked, runs, answers),
            obliviates.make_block_table(blocked, runs, RULES[0]),
        ]
        residuals, series = obliviates.make_residual_table(blocked, places)
        self.curves = {str(block): values for block, values in series.items()}
        for table in (*tables, residuals):
            self.report.add(_add_note(table))

    def _sisa(self, yardstick: Yardstick) -> None:
        rows, recipe = [], self._recipe("auto", self.plan.epochs, 128, 0.2)
        for n_shards, width in self.plan.shards:
            if not self.has_time():
                break
            model = make_sisa(recipe, self.device, n_shards=n_shards, n_slices=1, lane_width=width)
            rows.append(self._shards(model, yardstick))
        note = SISA_NOTE.format(recipe=recipe, plain=PLAIN)
        if rows:
            self.report.add(Table(f"SISA: {self.data.describe()}", SISA_COLUMNS, rows, note))

    def _shards(self, model: Any, yardstick: Yardstick) -> tuple[Any, ...]:
        data, device = self.data, self.device
        fit = time_on_device(lambda: model.fit(data.X, data.y), device)[1].wall
        receipt, seconds = time_on_device(lambda: model.forget([7]), device)
        right = score_accuracy(model, data)
        agrees = agreement(model.predict(data.X_test), yardstick.answers)
        lanes = model.lane_width or (model.n_shards if device == "cuda" else 1)
        return (
            model.n_shards, lanes, fit, seconds.wall,
            times(yardstick.seconds.wall / seconds.wall), percent(100 * receipt.work),
            percent(right), points(right - yardstick.accuracy), percent(agrees),
        )  # fmt: skip

    def _backdoor(self, yardstick: Yardstick) -> None:
        n_blocks = self.plan.n_blocks
        case = backdoors.Case(min(500, len(self.data.y) // 20), 1, 0.5)
        models = {"DeepObliviate": lambda: self._blocks(yardstick)}
        attacks = backdoors.measure_backdoors(
            yardstick, case, models, {"DeepObliviate": RULES}, n_blocks
        )
        self.report.add(backdoors.make_backdoor_table(attacks, yardstick, n_blocks, LOSSY))


def _add_note(table: Table) -> Table:
    """Add a note on the images to the table."""
    return replace(table, note=f"{table.note} {PLAIN}")
