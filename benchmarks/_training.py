"""What SISA adds to training: against a bare loop over the same shards; states; latency."""

import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier

from benchmarks._cost import Setting
from benchmarks._report import Seconds, Table, Verdict, timed
from letheon import SISAClassifier, state
from letheon.parallel import one_thread
from letheon.seeds import Purpose, library_seed

MOST_OVERHEAD = 0.05
MOST_IMPORT_SECONDS = 0.3

# Functions whose cumulative time makes up a part of a call.
PARTS = {
    "find rows": ("_locate",),
    "copy rows": ("without", "_split", "_hold", "change_rows"),
    "inner training": ("partial_fit", "fit"),
    "save states": ("_save", "keep"),
    "seeds": ("fill",),
}


class Block(NamedTuple):
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
        """Overhead by the shortest times: other work on the machine only ever adds."""
        return min(t.wall for t in self.sisa) / min(t.wall for t in self.bare) - 1

    @property
    def processor_overhead(self) -> float:
        """The same in processor time."""
        return min(t.cpu for t in self.sisa) / min(t.cpu for t in self.bare) - 1

    def row(self) -> tuple[Any, ...]:
        """Return the line of the table."""
        ratios = [a.wall / b.wall for a, b in zip(self.sisa, self.bare, strict=True)]
        return (
            *self.setting, min(t.wall for t in self.sisa), min(t.wall for t in self.bare),
            100 * self.overhead, 100 * (float(np.median(ratios)) - 1),
            100 * self.processor_overhead,
            100 * self.outside,
            100 * self.saving, "yes" if self.same_models else "NO",
        )  # fmt: skip

    def verdicts(self) -> list[Verdict]:
        """Judge the overhead, and that both trained the same models."""
        return [
            _light(f"overhead of training on the clock, {self.setting}", self.overhead),
            _light(f"time outside the learner's own calls, {self.setting}", self.outside),
            Verdict(
                f"bare loop trains the same models, {self.setting}",
                "bytes equal" if self.same_models else "differ",
                "bytes equal",
                self.same_models,
            ),
        ]


def _light(what: str, overhead: float) -> Verdict:
    return Verdict(what, f"{overhead:+.1%}", "<= 5 %", overhead <= MOST_OVERHEAD)


def blocks_of(model: SISAClassifier, setting: Setting) -> list[Block]:
    """Return what a bare loop needs, prepared outside its time."""
    blocks = []
    for shard in model.ensemble_.shards:
        rows, stages = shard.rows, setting.plan(model.n_rows_).schedule
        ends = np.searchsorted(rows.extra["slice"], np.arange(setting.n_slices), side="right")
        passes = stages if setting.stage_epochs else (1,)
        seeds = [
            [_seed(model, shard.number, stage, epoch) for epoch in range(count)]
            for stage, count in enumerate(passes)
        ]
        blocks.append(Block(rows.X, rows.y, ends.tolist(), seeds))
    return blocks


def _seed(model: SISAClassifier, shard: int, stage: int, epoch: int) -> int:
    return library_seed(model.seed_, Purpose.STAGE, shard, stage, epoch, "random_state")


def bare_loop(setting: Setting, blocks: list[Block]) -> list[Any]:
    """Train all shards as anybody would, without states, hashes or anything kept."""
    learner = setting.learner()
    with one_thread():
        if setting.stage_epochs is None:
            return [
                clone(learner).set_params(random_state=block.seeds[0][0]).fit(block.X, block.y)
                for block in blocks
            ]
        return [_bare_stages(clone(learner), block) for block in blocks]


def _bare_stages(model: Any, block: Block) -> Any:
    classes = np.unique(block.y)
    for end, seeds in zip(block.ends, block.seeds, strict=True):
        for seed in seeds if end else ():
            model.random_state = seed
            model.partial_fit(block.X[:end], block.y[:end], classes=classes)
    return model


def race(setting: Setting, X: Any, y: Any, seed: int, repeats: int) -> Race:
    """Time SISA and the bare loop in turn, so that a busy moment hits both."""
    sisa, bare, outside = [], [], []
    for _ in range(repeats):
        with learning_time() as inside:
            model, seconds = timed(lambda: setting.model(seed).fit(X, y))
        sisa.append(seconds)
        outside.append(seconds.cpu / sum(inside) - 1)
        loose, seconds = timed(partial(bare_loop, setting, blocks_of(model, setting)))
        bare.append(seconds)
    pairs = zip(model.estimators_, loose, strict=True)
    same = all(a.coef_.tobytes() == b.coef_.tobytes() for a, b in pairs)
    saving = _saving_seconds(model) / min(t.wall for t in sisa)
    return Race(setting, model, sisa, bare, same, saving, min(outside))


@contextmanager
def learning_time() -> Iterator[list[float]]:
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


def _saving_seconds(model: SISAClassifier) -> float:
    """Estimate the seconds `fit` spent on states: one round trip, times the states there are."""
    n_states = sum(saved is not None for shard in model.ensemble_.shards for saved in shard.states)
    inner = model.estimators_[0]
    times = [timed(lambda: _round_trip(inner))[1].wall for _ in range(21)]
    return n_states * float(np.median(times))


def _round_trip(inner: Any) -> str:
    return state.digest(state.decode(state.encode(inner)))


def overhead_table(races: list[Race], repeats: int) -> Table:
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


def latency_table(models: dict[Setting, SISAClassifier], n_calls: int) -> Table:
    """Return where the time of single removals goes."""
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


def storage_table(models: dict[Setting, SISAClassifier]) -> Table:
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


def import_times(repeats: int) -> tuple[Table, list[Verdict]]:
    """Time ``import letheon`` in fresh interpreters."""
    answers = [_fresh(_IMPORT).split() for _ in range(repeats)]
    seconds = [float(answer[0]) for answer in answers]
    heavy = sorted({word for answer in answers for word in answer[1:]})
    table = Table(
        "5a. `import letheon` in a fresh interpreter",
        ("runs", "min s", "median s", "max s"),
        [(repeats, min(seconds), float(np.median(seconds)), max(seconds))],
    )
    median = float(np.median(seconds))
    return table, [
        Verdict(
            "import letheon, median", f"{median:.3f} s", "< 0.3 s", median < MOST_IMPORT_SECONDS
        ),
        Verdict(
            "import letheon brings neither scikit-learn nor torch",
            "neither" if heavy == ["False"] else "it does",
            "neither",
            heavy == ["False"],
        ),
    ]


def _fresh(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
