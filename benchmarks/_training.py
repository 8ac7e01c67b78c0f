"""Costs of shards and slices: planned, counted and timed."""

import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier

from benchmarks._report import Seconds, Table, TargetCheck, time_call
from letheon import Measure, NaiveUnlearner, Receipt, SISAClassifier, state
from letheon.measures import efficiency
from letheon.parallel import one_thread
from letheon.seeds import Purpose, library_seed
from letheon.sharded import Plan, plan

TOLERANCE = 0.10
COLUMNS = (
    "S", "R", "people", "removals", "speed-up by formula", "counted", "counted, all people",
    "time", "time low", "time high", "processor time", "time over naive", "sampling error %",
)  # fmt: skip


NOTE = """Learner: SGD logistic regression; data: {data}.
Formula: 3RS / (2R + 1) for one person, and its batch form. *counted*: row visits in the receipts,
against a refit of the same ensemble; *counted, all people*: the same for every person or
batch, so without sampling error. *time*: mean seconds of `fit` of the same ensemble (on all rows
before the removals, on the remaining rows after them) over mean seconds of `forget`, with Fieller's
95 % interval, which ignores that the sample is stratified and so is too wide. *processor
time*: the same in processor time of this process, which other load on the machine hardly
changes. *time over naive*: against NaiveUnlearner of the plain learner with the same epochs, which
makes one long call where slices make many short ones. *sampling error*: how far the work of the
sample differs from that of all people, as a share of it; all work is counted, so it is known."""


class Setting(NamedTuple):
    """Shards, slices and epochs of one model under test."""

    n_shards: int
    n_slices: int
    epochs: int

    def __str__(self) -> str:
        """Return shards and slices as text."""
        return f"(S,R)=({self.n_shards},{self.n_slices})"

    @property
    def stage_epochs(self) -> int | None:
        """The `epochs` parameter of SISA; None without slices, where the learner has its own."""
        return None if self.n_slices == 1 else self.epochs

    def learner(self) -> Any:
        """Return the inner estimator: logistic regression with a fixed number of epochs."""
        return SGDClassifier(loss="log_loss", max_iter=self.epochs, tol=None)

    def model(self, seed: int) -> SISAClassifier:
        """Return the unfitted model."""
        return SISAClassifier(
            self.learner(),
            n_shards=self.n_shards,
            n_slices=self.n_slices,
            epochs=self.stage_epochs,
            n_jobs=1,
            random_state=seed,
        )

    def plan(self, n_rows: int, people: int = 1) -> Plan:
        """Return the planned cost of removing a batch of people."""
        return plan(
            n_rows,
            people,
            n_shards=self.n_shards,
            n_slices=self.n_slices,
            epochs=self.epochs,
        )


class Cells(NamedTuple):
    """Shard and slice of each person, and the cost of training a shard from each slice on."""

    people: NDArray[Any]
    shard: NDArray[np.int64]
    slice: NDArray[np.int64]
    visits_from: NDArray[np.float64]

    @classmethod
    def of(cls, model: SISAClassifier, schedule: tuple[int, ...]) -> "Cells":
        """Read the cells of a fitted model in which every person owns one row."""
        shards = model.ensemble_.shards
        slices = [shard.rows.extra["slice"] for shard in shards]
        counts = [np.bincount(s, minlength=len(schedule)) for s in slices]
        stages = np.cumsum(counts, axis=1) * np.asarray(schedule, float)
        return cls(
            np.concatenate([shard.rows.ids.to_array() for shard in shards]),
            np.repeat(np.arange(len(shards)), [len(s) for s in slices]),
            np.concatenate(slices).astype(np.int64),
            np.cumsum(stages[:, ::-1], axis=1)[:, ::-1],
        )

    def share(self, batch: NDArray[np.int64]) -> float:
        """Return the work of forgetting these positions, as a share of training all shards."""
        first: dict[int, int] = {}
        for shard, piece in zip(
            self.shard[batch].tolist(), self.slice[batch].tolist(), strict=True
        ):
            first[shard] = min(piece, first.get(shard, piece))
        work = sum(self.visits_from[shard, piece] for shard, piece in first.items())
        return float(work / self.visits_from[:, 0].sum())


class Sample(NamedTuple):
    """Batches to forget, in random order, and the counted work of all batches."""

    batches: list[list[Any]]
    all_people: float
    error: float


def draw_sample(cells: Cells, people: int, n_batches: int, rng: np.random.Generator) -> Sample:
    """Split the people at random into batches and choose some, spread evenly over their work.

    Batches are sorted by the work they will cause and every k-th is taken, from the start that
    represents all of them best. Work is counted here from the cells alone, not with the library's
    own count, so that wrong receipts are detected. `error` is how far the sample's mean is
    from that of all batches, as a share of it. Batches are disjoint.
    """
    total = len(cells.people) // people
    batches = rng.permutation(len(cells.people))[: total * people].reshape(total, people)
    shares = np.array([cells.share(batch) for batch in batches])
    order = np.argsort(shares, kind="stable")
    step = total // n_batches
    means = shares[order[: step * n_batches]].reshape(n_batches, step).mean(axis=0)
    start = np.abs(means - shares.mean()).argmin()
    taken = rng.permutation(order[start + step * np.arange(n_batches)])
    lists = [cells.people[batches[i]].tolist() for i in taken]
    return Sample(lists, float(shares.mean()), float(means[start] / shares.mean() - 1))


@dataclass(frozen=True)
class SettingCost:
    """Sampled removals of one setting and batch size, with the values to compare them with."""

    setting: Setting
    people: int
    plan: Plan
    sample: Sample
    receipts: list[Receipt]
    seconds: list[Seconds]
    naive: list[float]

    @property
    def formula(self) -> float:
        """Planned speed-up over training the same ensemble again."""
        left = 1 - self.people / self.plan.n_rows
        return self.plan.fit_visits * left / self.plan.visits

    @property
    def counted(self) -> float:
        """Speed-up in row visits: one over the mean share of the receipts."""
        return 1 / float(np.mean([receipt.work for receipt in self.receipts]))

    def row(self, refits: list[Seconds]) -> tuple[Any, ...]:
        """Return the row of the table."""
        walls, speed = [s.wall for s in self.seconds], self._speed(refits)
        cpu = self._processor_speed(refits)
        return (
            *self.setting[:2], self.people, len(walls), self.formula, self.counted,
            1 / self.sample.all_people, speed.value, speed.low, speed.high, cpu.value,
            efficiency(self.naive, walls).value, 100 * self.sample.error,
        )  # fmt: skip

    def _speed(self, refits: list[Seconds]) -> Measure:
        return efficiency([s.wall for s in refits], [s.wall for s in self.seconds])

    def _processor_speed(self, refits: list[Seconds]) -> Measure:
        return efficiency([s.cpu for s in refits], [s.cpu for s in self.seconds])

    def verdicts(self, refits: list[Seconds]) -> list[TargetCheck]:
        """Compare counted work and times with the formula."""
        what = f"{self.setting}, {self.people} leaving"
        return [
            _check_cost(f"counted cost, {what}", self.counted, self.formula),
            _check_cost(f"time on the clock, {what}", self._speed(refits).value, self.formula),
            _check_cost(
                f"processor time, {what}", self._processor_speed(refits).value, self.formula
            ),
        ]


def _check_cost(what: str, reached: float, formula: float) -> TargetCheck:
    # The target refers to the mean cost, which is one over the speed-up.
    off = formula / reached - 1
    text = f"{reached:.3f}x, formula {formula:.3f}x, cost {off:+.1%}"
    return TargetCheck(what, text, "within 10 %", abs(off) <= TOLERANCE)


def measure_removals(
    setting: Setting,
    model: SISAClassifier,
    naive: list[float],
    people: int,
    n_batches: int,
    rng: np.random.Generator,
) -> SettingCost:
    """Forget sampled batches one after the other and keep the receipts.

    The model loses about one row in a hundred over all batches; receipts count work as a share of
    the remaining rows, so the ratios do not change.
    """
    planned = setting.plan(model.n_rows_, people)
    sample = draw_sample(Cells.of(model, planned.schedule), people, n_batches, rng)
    timings = [time_call(partial(model.forget, batch)) for batch in sample.batches]
    receipts, seconds = [t[0] for t in timings], [t[1] for t in timings]
    return SettingCost(setting, people, planned, sample, receipts, seconds, naive)


def compare_with_refit(
    setting: Setting, model: SISAClassifier, X: Any, y: Any
) -> tuple[Seconds, TargetCheck]:
    """Train the same ensemble on the remaining rows, and compare the digests."""
    rows = np.sort(model.ids_)
    ids = rows.tolist()
    fresh, seconds = time_call(lambda: setting.model(model.seed_).fit(X[rows], y[rows], ids=ids))
    same = fresh.digest() == model.digest()
    what = f"after all removals the digest is that of a fresh fit, {setting}"
    return seconds, TargetCheck(what, "equal" if same else "differs", "equal", same)


def time_naive(setting: Setting, X: Any, y: Any, seed: int) -> list[float]:
    """Time naive retraining of the plain learner with the same epochs: a fit and a forget."""
    model = NaiveUnlearner(setting.learner(), random_state=seed)
    _, first = time_call(lambda: model.fit(X, y))
    return [first.wall, model.forget([0]).seconds]


def make_cost_table(
    costs: list[SettingCost], refits: dict[Setting, list[Seconds]], data: str
) -> Table:
    """Return the table of single removals and batches."""
    return Table(
        "1-2. Cost of forgetting, as speed-ups",
        COLUMNS,
        [cost.row(refits[cost.setting]) for cost in costs],
        note=NOTE.format(data=data),
    )


MOST_OVERHEAD = 0.05
MOST_IMPORT_SECONDS = 0.3

# The functions of each part of a call.
PARTS = {
    "find rows": ("_locate_rows",),
    "copy rows": ("without", "_split_by_shard", "_prepare_rows", "change_rows"),
    "inner training": ("partial_fit", "fit"),
    "save states": ("_save_state", "keep_state"),
    "seeds": ("fill",),
}


class ConvolutionBlock(NamedTuple):
    """Rows of one shard as the inner learner sees them, and the seeds of all its calls."""

    X: Any
    y: Any
    ends: list[int]
    seeds: list[list[int]]


class Race(NamedTuple):
    """Repeated times of SISA's `fit` and of the bare loop, and the model that was fitted last."""

    setting: Setting
    model: SISAClassifier
    sisa: list[Seconds]
    bare: list[Seconds]
    same_models: bool
    saving: float
    outside: float

    @property
    def overhead(self) -> float:
        """Overhead by the shortest times: other load on the machine only adds time."""
        return min(t.wall for t in self.sisa) / min(t.wall for t in self.bare) - 1

    @property
    def processor_overhead(self) -> float:
        """The same in processor time."""
        return min(t.cpu for t in self.sisa) / min(t.cpu for t in self.bare) - 1

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        ratios = [a.wall / b.wall for a, b in zip(self.sisa, self.bare, strict=True)]
        return (
            *self.setting, min(t.wall for t in self.sisa), min(t.wall for t in self.bare),
            100 * self.overhead, 100 * (float(np.median(ratios)) - 1),
            100 * self.processor_overhead,
            100 * self.outside,
            100 * self.saving, "yes" if self.same_models else "NO",
        )  # fmt: skip

    def verdicts(self) -> list[TargetCheck]:
        """Check the overhead, and that both trained the same models."""
        return [
            _check_overhead(f"overhead of training on the clock, {self.setting}", self.overhead),
            _check_overhead(f"time outside the learner's own calls, {self.setting}", self.outside),
            TargetCheck(
                f"bare loop trains the same models, {self.setting}",
                "bytes equal" if self.same_models else "differ",
                "bytes equal",
                self.same_models,
            ),
        ]


def _check_overhead(what: str, overhead: float) -> TargetCheck:
    return TargetCheck(what, f"{overhead:+.1%}", "<= 5 %", overhead <= MOST_OVERHEAD)


def prepare_blocks(model: SISAClassifier, setting: Setting) -> list[ConvolutionBlock]:
    """Return the inputs of the bare loop, prepared before timing starts."""
    blocks = []
    for shard in model.ensemble_.shards:
        rows, stages = shard.rows, setting.plan(model.n_rows_).schedule
        ends = np.searchsorted(rows.extra["slice"], np.arange(setting.n_slices), side="right")
        passes = stages if setting.stage_epochs else (1,)
        seeds = [
            [_make_seed(model, shard.number, stage, epoch) for epoch in range(count)]
            for stage, count in enumerate(passes)
        ]
        blocks.append(ConvolutionBlock(rows.X, rows.y, ends.tolist(), seeds))
    return blocks


def _make_seed(model: SISAClassifier, shard: int, stage: int, epoch: int) -> int:
    return library_seed(model.seed_, Purpose.STAGE, shard, stage, epoch, "random_state")


def run_bare_loop(setting: Setting, blocks: list[ConvolutionBlock]) -> list[Any]:
    """Train all shards in a plain loop, without states or hashes."""
    learner = setting.learner()
    with one_thread():
        if setting.stage_epochs is None:
            return [
                clone(learner).set_params(random_state=block.seeds[0][0]).fit(block.X, block.y)
                for block in blocks
            ]
        return [_train_bare_stages(clone(learner), block) for block in blocks]


def _train_bare_stages(model: Any, block: ConvolutionBlock) -> Any:
    classes = np.unique(block.y)
    for end, seeds in zip(block.ends, block.seeds, strict=True):
        for seed in seeds if end else ():
            model.random_state = seed
            model.partial_fit(block.X[:end], block.y[:end], classes=classes)
    return model


def measure_race(setting: Setting, X: Any, y: Any, seed: int, repeats: int) -> Race:
    """Time SISA and the bare loop in turn, so that load on the machine affects both."""
    sisa, bare, outside = [], [], []
    for _ in range(repeats):
        with collect_learning_time() as inside:
            model, seconds = time_call(lambda: setting.model(seed).fit(X, y))
        sisa.append(seconds)
        outside.append(seconds.cpu / sum(inside) - 1)
        loose, seconds = time_call(partial(run_bare_loop, setting, prepare_blocks(model, setting)))
        bare.append(seconds)
    pairs = zip(model.estimators_, loose, strict=True)
    same = all(a.coef_.tobytes() == b.coef_.tobytes() for a, b in pairs)
    saving = _estimate_saving_seconds(model) / min(t.wall for t in sisa)
    return Race(setting, model, sisa, bare, same, saving, min(outside))


@contextmanager
def collect_learning_time() -> Iterator[list[float]]:
    """Collect the processor seconds that are spent inside the learner's own calls.

    The same calls make up the bare loop, so what is left of the same run is the overhead, free of
    the noise between two runs.
    """
    inside: list[float] = []
    real = {name: getattr(SGDClassifier, name) for name in ("fit", "partial_fit")}

    def clocked(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                inside.append(time.process_time() - start)

        return call

    for name, method in real.items():
        setattr(SGDClassifier, name, clocked(method))
    try:
        yield inside
    finally:
        for name, method in real.items():
            setattr(SGDClassifier, name, method)


def _estimate_saving_seconds(model: SISAClassifier) -> float:
    """Estimate the seconds that `fit` spends on states: one round trip times their number."""
    n_states = sum(saved is not None for shard in model.ensemble_.shards for saved in shard.states)
    inner = model.estimators_[0]
    times = [time_call(lambda: _round_trip(inner))[1].wall for _ in range(21)]
    return n_states * float(np.median(times))


def _round_trip(inner: Any) -> str:
    return state.digest(state.decode(state.encode(inner)))


def make_overhead_table(races: list[Race], repeats: int) -> Table:
    """Return the table of overheads."""
    return Table(
        "3. Overhead of SISA's `fit` over a bare loop on the same shards",
        (
            "S", "R", "epochs", "SISA s", "bare s", "overhead %", "median of pairs %",
            "processor time %", "outside the learner %", "states %", "same models",
        ),
        [race.row() for race in races],
        note=(
            f"Shortest of {repeats} interleaved repetitions, one process; two runs of the same "
            "calls differ by up to a tenth here, so *outside the learner* is the sharper figure: "
            "processor time of SISA's `fit` outside the learner's own calls, over the time inside "
            "them, in one run. The bare loop gets its "
            "shards already cut and its seeds already drawn; SISA's time includes checks, hashing "
            "of ids, cutting and copying the rows, and saving states (*states*: share of the "
            "whole, from the time of one state). Most of the extra is fixed per row and per stage "
            "and does not grow with the epochs: the last line, not judged, is a light training."
        ),
    )  # fmt: skip


def profile_parts(call: Callable[[], Any]) -> dict[str, float]:
    """Profile a call; return processor seconds by part (the rest under "other")."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(call)
    stats: Any = pstats.Stats(profiler)
    parts = dict.fromkeys(PARTS, 0.0)
    for (file, _, name), (_, _, _, cumulative, _) in stats.stats.items():
        for part, names in PARTS.items():
            # `fit` of the wrapper itself is the whole call, not the inner training.
            ours = "letheon" in file
            if name in names and ours == (part != "inner training"):
                parts[part] = max(parts[part], 0) + cumulative
    parts["other"] = max(stats.total_tt - sum(parts.values()), 0.0)
    return parts


def make_latency_table(models: dict[Setting, SISAClassifier], n_calls: int) -> Table:
    """Return the parts of the time of single removals."""
    rows = []
    for setting, model in models.items():
        people = np.random.default_rng(1).choice(model.ids_, n_calls, replace=False).tolist()
        total = dict.fromkeys((*PARTS, "other"), 0.0)
        for person in people:
            for part, seconds in profile_parts(partial(model.forget, [person])).items():
                total[part] += seconds
        milliseconds = [1000 * seconds / n_calls for seconds in total.values()]
        rows.append((*setting[:2], sum(milliseconds), *milliseconds))
    columns = ("S", "R", "all", *PARTS, "other")
    note = (
        f"Processor ms, mean of {n_calls} random removals of one, under cProfile, which adds some."
    )
    return Table("5b. Where the time of one `forget` goes", columns, rows, note)


def make_storage_table(models: dict[Setting, SISAClassifier]) -> Table:
    """Return bytes of all states against the plan's estimate."""
    rows = []
    for setting, model in models.items():
        shards = model.ensemble_.shards
        saved = [len(s.data or b"") for shard in shards for s in shard.states if s is not None]
        finals = [len(state.encode(inner)) for inner in model.estimators_]
        planned = setting.plan(model.n_rows_)
        estimate = planned.states * finals[0]
        actual = sum(saved) + sum(finals)
        held = sum(shard.rows.X.nbytes for shard in shards)
        rows.append(
            (*setting[:2], planned.states, len(saved) + len(finals), estimate, actual,
             actual / estimate, actual / held)
        )  # fmt: skip
    columns = (
        "S", "R", "states planned", "states", "bytes planned", "bytes", "bytes / plan",
        "bytes / training rows",
    )  # fmt: skip
    note = "The plan is given the encoded size of one shard's final model as `state_bytes`."
    return Table("5c. Storage of states", columns, rows, note)


_IMPORT = (
    "import sys, time; start = time.perf_counter(); import letheon; "
    "print(time.perf_counter() - start, 'sklearn' in sys.modules, 'torch' in sys.modules)"
)


def time_imports(repeats: int) -> tuple[Table, list[TargetCheck]]:
    """Time ``import letheon`` in fresh interpreters."""
    answers = [_run_python(_IMPORT).split() for _ in range(repeats)]
    seconds = [float(answer[0]) for answer in answers]
    heavy = sorted({word for answer in answers for word in answer[1:]})
    table = Table(
        "5a. `import letheon` in a fresh interpreter",
        ("runs", "min s", "median s", "max s"),
        [(repeats, min(seconds), float(np.median(seconds)), max(seconds))],
    )
    median = float(np.median(seconds))
    return table, [
        TargetCheck(
            "import letheon, median", f"{median:.3f} s", "< 0.3 s", median < MOST_IMPORT_SECONDS
        ),
        TargetCheck(
            "import letheon brings neither scikit-learn nor torch",
            "neither" if heavy == ["False"] else "it does",
            "neither",
            heavy == ["False"],
        ),
    ]


def _run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
