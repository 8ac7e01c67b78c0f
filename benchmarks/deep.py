"""Benchmarks of networks: time, agreement, backdoors, stacked shards, memory.

Run ``python benchmarks/deep.py`` (about 20 minutes on one core), ``--device cuda`` on a machine
with a GPU (about 8 minutes on an H200), or, for a first look, ``--quick`` (under a minute); only
some sections: ``--only naive,obliviate``. Results go to ``benchmarks/results``. Needs torch.
``PYTHONPATH=src`` is enough: the compiled core is not used.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import threadpoolctl
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks import _deep_adapters as adapters
from benchmarks import _deep_approximate as approximate
from benchmarks import _deep_backdoor as backdoors
from benchmarks import _deep_cifar as cifar
from benchmarks import _deep_fresh as fresh
from benchmarks import _deep_lanes as lanes
from benchmarks import _deep_naive as yardsticks
from benchmarks import _deep_obliviate as obliviates
from benchmarks import _deep_sisa as shards
from benchmarks import _deep_sizes as budget
from benchmarks import _deep_yardstick as by_hand
from benchmarks._deep_models import (
    ImageSet,
    Yardstick,
    agreement,
    copy_model,
    load_images,
    make_fisher,
    make_naive,
    make_obliviate,
    make_sisa,
    time_on_device,
)
from benchmarks._deep_sizes import CPU, GPU, QUICK, NetSize
from benchmarks._report import BenchmarkReport, Table, TargetCheck
from letheon.bench import describe_machine

RESULTS = Path(__file__).resolve().parent / "results"
RULES = tuple(obliviates.Rule(stop, eps) for stop in ("robust", "paper") for eps in (0.1, 0.05))
JUDGED = RULES[0]
LIMITS = {"cpu": 1200.0, "cuda": 400.0}
SIGMAS = {0.25: (1e-3, 3e-3), 0.5: (1e-3, 3e-3)}


Made = TypeVar("Made")


@dataclass(kw_only=True)
class DeepReport(BenchmarkReport):
    """A report with the numbers of its plots."""

    curves: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return super().to_dict() | {"curves": self.curves}


class Bench:
    """One run: size, report, and data that several sections use, made on first use."""

    def __init__(self, size: NetSize, report: DeepReport, device: str, deadline: float) -> None:
        self.size, self.report, self.device, self.deadline = size, report, device, deadline
        self.made: dict[str, Any] = {}
        self.planted: list[backdoors.Planted] = []

    def has_time(self) -> bool:
        """Whether the deadline allows another section."""
        return time.perf_counter() < self.deadline

    @property
    def data(self) -> ImageSet:
        """MNIST, as much of it as the run's size allows."""
        size = self.size
        return self._once("mnist", lambda: load_images("mnist").head(size.n_rows, size.n_test))

    @property
    def yardstick(self) -> Yardstick:
        """The tuned naive retraining."""
        return self._tuned[0]

    @property
    def _tuned(self) -> tuple[Yardstick, list[Yardstick]]:
        recipes = yardsticks.RECIPES[self.device]
        return self._once(
            "naive",
            lambda: yardsticks.tune_recipe(self.data, recipes, self.device, self.size.repeats),
        )

    @property
    def blocked(self) -> obliviates.Blocked:
        """The block model."""
        model = make_obliviate(self.device, n_blocks=self.size.n_blocks)
        return self._once("blocks", lambda: obliviates.Blocked(model, self.yardstick))

    @property
    def places(self) -> range:
        """Evenly spaced blocks."""
        step = self.size.n_blocks // self.size.n_places
        return range(step // 2, self.size.n_blocks, step)

    def _once(self, name: str, make: Callable[[], Made]) -> Made:
        if name not in self.made:
            self.made[name] = make()
        product: Made = self.made[name]
        return product

    def measure_naive(self) -> None:
        """Tune naive retraining."""
        chosen, candidates = self._tuned
        self.report.add(yardsticks.make_naive_table(self.data, chosen, candidates, self.device))

    def measure_obliviate(self) -> None:
        """Measure removals from all blocks under all rules."""
        blocked, places, size = self.blocked, self.places, self.size
        runs = obliviates.measure_removals(blocked, RULES, places, size.crowds, size.crowded)
        other = make_naive(self.yardstick.recipe, self.device, random_state=1)
        answers = other.fit(self.data.X, self.data.y).predict(self.data.X_test)
        verdicts = obliviates.check_obliviate(blocked, runs, JUDGED)
        self.report.add(obliviates.make_obliviate_table(blocked, runs, answers), verdicts)
        self.report.add(obliviates.make_block_table(blocked, runs, JUDGED))
        table, series = obliviates.make_residual_table(blocked, places)
        self.report.add(table)
        curves = self.report.curves
        curves.setdefault("residuals", {})[f"{self.data.name}, {blocked.n_blocks} blocks"] = {
            str(block): values for block, values in series.items()
        }
        curves["floor"] = agreement(answers, self.yardstick.answers)
        points = obliviates.list_points(blocked, runs)
        curves["trade off"] = [*curves.get("trade off", []), *points]

    def measure_sisa(self) -> None:
        """Measure removals from shards."""
        size, ensembles = self.size, list[shards.Sharded]()
        widths = (None, 1) if self.device == "cuda" else (None,)
        for shape, width in product(size.shapes, widths):
            if self.has_time():
                ensembles += shards.measure_shards(
                    self._shards(shape, width),
                    self.yardstick,
                    size.shard_crowds,
                    size.singles,
                    compare=shape in size.compared,
                )
        table = shards.make_sisa_table(ensembles, self.yardstick, size.singles)
        compared = [each for each in ensembles if each.same is not None]
        self.report.add(table, [shards.check_sisa(compared)] if compared else [])
        points = shards.list_points(ensembles, self.yardstick)
        curves = self.report.curves
        curves["trade off"] = [*curves.get("trade off", []), *points]

    def _shards(self, shape: tuple[int, int], width: int | None = None) -> shards.Fitted:
        def fit() -> shards.Fitted:
            return shards.fit_shards(self.data, self.device, shape, lane_width=width)

        return self._once(f"shards {shape} {width}", fit)

    def measure_lanes(self) -> None:
        """Compare stacked shards with shards trained one by one."""
        size, races = self.size, []
        for recipe in size.lane_recipes:
            for n_shards in size.lane_shards:
                if self.has_time():
                    data = self.data.head(size.lane_rows, size.n_test)
                    races.append(lanes.measure_lanes(data, recipe, n_shards, self.device))
        verdicts = lanes.check_lanes(races, self.device)
        self.report.add(lanes.make_lane_table(races, self.device), verdicts)
        self.report.add(lanes.make_floor_table(races, lanes.Ceilings(self.device)))

    def measure_loop(self) -> None:
        """Compare the loop with a hand-written one."""
        size, races = self.size, []
        data, recipe = self.data.head(size.lane_rows, size.n_test), size.lane_recipes[0]
        for width in (by_hand.N_SHARDS, 1):
            races += by_hand.measure_race(data, recipe, width, self.device)
        table = by_hand.make_race_table(races, data, recipe)
        self.report.add(table, by_hand.check_races(races))

    def measure_adapters(self) -> None:
        """Compare adapters of shards with one adapter for all rows."""
        is_large = self.device == "cuda"
        data = self.data.head(None if is_large else self.size.lane_rows, self.size.n_test)
        size = {"layers": 4, "width": 128} if is_large else {"layers": 2, "width": 32}
        race = adapters.measure_adapters(data, self.device, **size, epochs=(10, 5))
        self.report.add(adapters.make_adapter_table(race, data), adapters.check_adapters(race))

    def measure_cifar(self) -> None:
        """Measure a residual network on CIFAR-10."""
        run = cifar.Cifar(
            load_images("cifar10"), self.size.cifar, self.device, self.report, self.has_time
        )
        run.run()
        if run.curves:
            title = f"cifar10, {run.plan.n_blocks} blocks"
            self.report.curves.setdefault("residuals", {})[title] = run.curves

    def measure_backdoors(self) -> None:
        """Plant patterns and remove their owners."""
        size, device = self.size, self.device
        models: dict[str, Callable[[], Any]] = {
            "DeepObliviate": lambda: make_obliviate(device, n_blocks=size.n_blocks),
            "SISA": lambda: make_sisa(shards.SHARD_RECIPE, device, **self._equal_shards),
            "Fisher": lambda: make_fisher(
                self.yardstick.recipe, device, labels="sampled", fisher_rows=size.fisher_rows[-1]
            ),
        }
        rules = {"DeepObliviate": (JUDGED, RULES[1])}
        for case in size.cases:
            if self.has_time():
                self.planted += backdoors.measure_backdoors(
                    self.yardstick, case, models, rules, size.n_blocks
                )
        table = backdoors.make_backdoor_table(
            self.planted, self.yardstick, size.n_blocks, self.data.note
        )
        self.report.add(table)

    @property
    def _equal_shards(self) -> dict[str, int]:
        """Return shards and slices with as many checkpoints as there are blocks."""
        return {"n_shards": self.size.n_blocks // 5, "n_slices": 5}

    def measure_budget(self) -> None:
        """Compare methods at equal numbers of checkpoints."""
        yardstick, size = self.yardstick, self.size
        shape = (self._equal_shards["n_shards"], self._equal_shards["n_slices"])
        model, fit = self._shards(shape)
        held = set(model.ids_)
        people = [self._choose_person(block, held) for block in self.places]
        title = f"SISA, S={shape[0]}, R={shape[1]}"
        contenders = [
            budget.measure_contender(title, model, yardstick, fit, shape[0] * shape[1], people)
        ]
        blocked = self.blocked
        for rule in (JUDGED, RULES[2]):
            mine = copy_model(blocked.model, **rule._asdict())
            title = f"DeepObliviate {rule}, B={size.n_blocks}"
            states = size.n_blocks + 1
            contenders.append(
                budget.measure_contender(title, mine, yardstick, blocked.fit.wall, states, people)
            )
        n_rows = size.cases[0].n_rows
        self.report.add(budget.make_budget_table(contenders, yardstick, self.planted, n_rows))

    def _choose_person(self, block: int, held: set[int]) -> int:
        """Return a person of a block who is also in the shards."""
        candidates = (self.blocked.person(block, skip) for skip in range(2, len(held)))
        return next(person for person in candidates if person in held)

    def measure_fisher(self) -> None:
        """Measure Fisher scrubbing."""
        tried = approximate.list_scrubs(self.size.fisher_rows, SIGMAS, newton=self.size.newton)
        self.report.add(approximate.make_fisher_table(self.yardstick, tried))

    def measure_deltagrad(self) -> None:
        """Measure DeltaGrad."""
        size = self.size
        data = self.data.head(size.replay_rows, size.n_test)
        wide = self.device == "cuda"
        replay = approximate.measure_replays(
            data, self.yardstick, size.replay_epochs, size.replay_crowds, wide=wide
        )
        self.report.add(approximate.make_deltagrad_table(replay, self.yardstick))

    def measure_memory(self) -> None:
        """Measure memory with many checkpoints, with and without a limit."""
        data, n_blocks = self.data.head(self.size.memory_rows, 100), self.size.memory_blocks
        limit = n_blocks * 100_000
        memories = fresh.measure_memories(data, n_blocks, limit, self.device)
        verdicts = fresh.check_memory(memories, n_blocks)
        self.report.add(fresh.make_memory_table(memories, data, n_blocks), verdicts)

    def measure_determinism(self) -> None:
        """Check that two fits are equal, and that a removal equals a fresh fit."""
        data = self.data.head(self.size.equal_rows, 100)
        rows, held = [], []
        makers: dict[str, Callable[[], Any]] = {
            "SISA, S=4, R=2": lambda: make_sisa(
                shards.SHARD_RECIPE, self.device, n_shards=4, n_slices=2
            ),
            "DeepObliviate, B=10": lambda: make_obliviate(self.device, n_blocks=10),
            "naive": lambda: make_naive(self.yardstick.recipe, self.device),
        }
        for name, make in makers.items():
            digests = [make().fit(data.X, data.y).digest() for _ in range(2)]
            held.append(digests[0] == digests[1])
            rows.append((name, digests[0][:12], "equal" if held[-1] else "DIFFERENT"))
        verdict = TargetCheck(
            f"two fits on one {self.device} device have equal digests",
            f"{sum(held)} of {len(held)}",
            "all",
            all(held),
        )
        note = f"{data.describe()}. deterministic=True; two new models each."
        table = Table("Determinism", ("model", "digest", "second fit"), rows, note)
        self.report.add(table, [verdict])

    def draw(self) -> None:
        """Draw plots if matplotlib is installed."""
        draw_plots(self.report.curves, self.report.file)


def draw_plots(curves: dict[str, Any], file: Path) -> None:
    """Draw the plots of a run from its JSON file."""
    try:
        from benchmarks import _deep_pictures as pictures
    except ImportError as error:
        print(f"no pictures: {error}; make them later with --draw")
        return
    if "residuals" in curves:
        pictures.draw_residuals(curves["residuals"], file.with_name(f"{file.name}_residuals.png"))
    if "trade off" in curves:
        points = [(name, ratio, agrees) for name, ratio, agrees in curves["trade off"]]
        picture = file.with_name(f"{file.name}_tradeoff.png")
        pictures.draw_trade_off(points, curves.get("floor"), picture)


def list_sections(bench: Bench) -> dict[str, Callable[[], None]]:
    """Return the sections of a run, the most important first."""
    return {
        "naive": bench.measure_naive,
        "obliviate": bench.measure_obliviate,
        "sisa": bench.measure_sisa,
        "lanes": bench.measure_lanes,
        "by_hand": bench.measure_loop,
        "adapters": bench.measure_adapters,
        "backdoor": bench.measure_backdoors,
        "equal_budget": bench.measure_budget,
        "determinism": bench.measure_determinism,
        "fisher": bench.measure_fisher,
        "deltagrad": bench.measure_deltagrad,
        "memory": bench.measure_memory,
        "cifar": bench.measure_cifar,
    }


def describe_device(device: str) -> dict[str, Any]:
    """Describe the machine without naming it."""
    description = describe_machine(device)
    if device == "cuda":
        description["cuda"] = str(torch.version.cuda)
    else:
        description["cpu kernels"] = torch.backends.cpu.get_cpu_capability()
    return description | {"torch": str(torch.__version__), "torch threads": torch.get_num_threads()}


def run(bench: Bench, chosen: list[str]) -> None:
    """Run the chosen sections, or all sections of the device."""
    every, begun = list_sections(bench), time.perf_counter()
    if unknown := set(chosen) - set(every):
        raise SystemExit(f"unknown: {sorted(unknown)}; known: {list(every)}")
    wanted = chosen or [name for name in every if name != "cifar" or bench.device == "cuda"]
    left_out, took = [], {}
    for name in (name for name in every if name in wanted):
        if not bench.has_time():
            left_out.append(name)
            continue
        seconds = time_on_device(every[name], bench.device)[1]
        gc.collect()
        took[name] = f"{seconds.wall:.0f} ({seconds.cpu:.0f} of the processor)"
        print(f"\n== {name}: {took[name]} s", flush=True)
        settings = {"seconds": round(time.perf_counter() - begun), "seconds of sections": took}
        bench.report.settings |= settings
        if left_out:
            bench.report.settings["left out for time"] = left_out
        bench.report.write()
    bench.report.settings["left out for time"] = left_out or "nothing"
    bench.draw()
    bench.report.write()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Benchmarks of nets that forget.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="small sizes: indicative only")
    parser.add_argument("--only", default="", help="sections to run, separated by commas")
    parser.add_argument(
        "--limit", type=float, default=0.0, help="start no section after this many seconds"
    )
    parser.add_argument("--into", default="", help="name of the results file")
    parser.add_argument("--draw", action="store_true", help="only draw the plots of --into")
    return parser.parse_args()


def main() -> int:
    """Run the benchmarks; return 1 if a target is missed."""
    given = parse_arguments()
    device = given.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = [name.strip() for name in given.only.split(",") if name.strip()]
    # A partial run must not replace the results of a complete one.
    whole = {"cpu": "deep_cpu", "cuda": "deep_gpu"}[device]
    file = RESULTS / (given.into or ("deep_quick" if given.quick or chosen else whole))
    if given.draw:
        draw_plots(
            json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["curves"], file
        )
        return 0
    torch.set_num_threads(1)
    settings = {"quick": given.quick, "only": given.only or "everything", "device": device}
    report = DeepReport(
        "Benchmarks of nets that forget", settings, file=file, machine=describe_device(device)
    )
    size = QUICK if given.quick else {"cpu": CPU, "cuda": GPU}[device]
    with threadpoolctl.threadpool_limits(1):
        limit = given.limit or LIMITS[device]
        run(Bench(size, report, device, time.perf_counter() + limit), chosen)
    held = sum(verdict.passed for verdict in report.verdicts)
    print(f"\n{held} of {len(report.verdicts)} hold; {report.settings.get('seconds')} s")
    return 0 if given.quick or report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
