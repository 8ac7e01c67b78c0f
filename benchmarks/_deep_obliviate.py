"""DeepObliviate: cost of a removal, distance from a retrained model, and residuals."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._deep_models import (
    TimedRemoval,
    Yardstick,
    agreement,
    copy_model,
    percent,
    points,
    score_accuracy,
    time_on_device,
    time_removal,
    times,
)
from benchmarks._report import Table, TargetCheck

__all__ = [
    "Blocked",
    "ObliviateRun",
    "Rule",
    "check_obliviate",
    "list_points",
    "make_block_table",
    "make_obliviate_table",
    "make_residual_table",
    "measure_removals",
]

FASTER, AGREES, NEAR = 20.0, 98.0, 0.3
LAGS = (0, 1, 2, 4, 8, 16, 32, 64)
UNIFORM, FIRST = "uniform", "first block"
COLUMNS = (
    "rule", "who leaves", "requests", "blocks", "share of data", "again ms", "x naive", "x by cpu",
    "first use ms", "agrees: exact", "agrees: naive", "accuracy - naive", "estimated tail",
    "true distance", "of doing nothing",
)  # fmt: skip
NOTE = (
    "{net}. *uniform*: one person in each of blocks {places}, each on a copy of the same model; "
    "means. *first block*: one person there. Others: random people. *again*: the clock's time of "
    "the request with everything loaded{graphs}; *first use*: the first request of a copy, of one "
    "person in the last block, which loads and captures. *x naive*: {naive:.3g} s of the tuned "
    "naive retrain over it ({cpu:.3g} s of the processor). *agrees*: equal answers on "
    "{n_test:,} test images with training the blocks again to the end (epsilon 0, exact), and with "
    "the tuned naive retrain. *do nothing*: the model before. *naive, other seed*: how far two "
    "naive retrains agree. *estimated tail*: what the receipt says is left, in L1; *true "
    "distance*: what is left; *of doing nothing*: that over the distance of the model before, so "
    "that 1 means no nearer to a retrain. The block model's own accuracy is {accuracy}, its fit "
    "{fit:.3g} s."
)
BLOCK_COLUMNS = (
    "block", "blocks retrained", "share of data", "again ms", "x naive", "agrees: exact",
    "agrees: naive", "estimated tail", "ceiling", "true distance", "do nothing",
)  # fmt: skip
BLOCK_NOTE = (
    "One row per request, rule {rule}. *ceiling*: the tail if no later residual exceeds the last "
    "two. *true distance*: L1 between the parameters and those of training the blocks again to the "
    "end. *do nothing*: the same for the model before. The receipt is honest where the true "
    "distance is not above the estimate; it was above in {above} of {n}."
)
RESIDUAL_NOTE = (
    "Delta_t / ||V_t||_1: how far one person changes the movement of the t-th block after theirs, "
    "relative to that movement. He et al. observe a decay. *grows* counts positions whose largest "
    "value is above twice the first: {n_growing} of {n}. Blocks are counted from 1."
)


class Rule(NamedTuple):
    """Stop rule of a removal."""

    stop: str
    epsilon: float

    def __str__(self) -> str:
        """Describe the rule in a few words."""
        return f"{self.stop}, {self.epsilon:g}"


class Exact(NamedTuple):
    """The blocks retrained to the end: predictions, parameters and relative residuals."""

    answers: NDArray[Any]
    flat: NDArray[np.float32]
    residuals: list[float]


class Blocked:
    """A block model on the rows of a baseline, and its exact retrainings."""

    def __init__(self, model: Any, yardstick: Yardstick) -> None:
        data, self.device = yardstick.data, yardstick.device
        self.model, self.yardstick, self.data = model, yardstick, data
        self.fit = time_on_device(lambda: model.fit(data.X, data.y), self.device)[1]
        self.answers = model.predict(data.X_test)
        self.block: NDArray[np.int64] = model.rows_.extra["block"].copy()
        self.warm_up = self.person(self.n_blocks - 1, skip=1)
        self._exact: dict[tuple[int, ...], Exact] = {}
        before = copy_model(model, epsilon=0.0)
        before.forget([self.warm_up])
        self.flat = _read_parameters(before)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.model.n_blocks)

    def person(self, block: int, skip: int = 0) -> int:
        """Return a person of a block, counted from 0."""
        return int(np.flatnonzero(self.block == block)[skip])

    def crowd(self, n_people: int, seed: int) -> list[int]:
        """Return random people."""
        candidates = np.delete(np.arange(len(self.block)), self.warm_up)
        drawn = np.random.default_rng(seed).choice(candidates, n_people, replace=False)
        return [int(person) for person in drawn]

    def exact(self, people: list[int]) -> Exact:
        """Retrain the blocks to the end and return the result, which is cached."""
        key = tuple(people)
        if key not in self._exact:
            model = copy_model(self.model, epsilon=0.0)
            model.forget([self.warm_up])
            model.forget(people)
            answers = model.predict(self.data.X_test)
            first = int(self.block[people].min())
            self._exact[key] = Exact(
                answers, _read_parameters(model), _compute_residuals(self.model, model, first)
            )
        return self._exact[key]


def _read_parameters(model: Any) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = model.nets_.flat[0].cpu().numpy()
    return flat


def _compute_residuals(old: Any, new: Any, first: int) -> list[float]:
    """Return Delta_i / ||V_i||_1 from block `first` on; the last block lost one more person."""
    shares = []
    for i in range(first, int(old.n_blocks) - 1):
        moved = old.vault_.get(i + 1) - old.vault_.get(i)
        other = new.vault_.get(i + 1) - new.vault_.get(i)
        length = float(moved.abs().sum())
        shares.append(float((other - moved).abs().sum()) / length if length else 0.0)
    return shares


class ObliviateRun(NamedTuple):
    """One removal under one rule."""

    rule: Rule
    who: str
    block: int
    request: TimedRemoval
    exactly: float
    naively: float
    gain: float
    tail: float
    ceiling: float
    distance: float
    idle: float


def measure_removals(
    blocked: Blocked,
    rules: Sequence[Rule],
    blocks: Sequence[int],
    crowds: Iterable[int],
    crowded: int,
) -> list[ObliviateRun]:
    """Run every removal under every rule, each on a copy; then retrain naively again.

    Large batches are removed only under the first `crowded` rules.
    """
    singles = [(UNIFORM, [blocked.person(block)]) for block in blocks]
    singles += [(FIRST, [blocked.person(0)])]
    many = [(f"{n:,} people", blocked.crowd(n, seed=n)) for n in crowds]
    results = []
    for number, rule in enumerate(rules):
        cases = singles + (many if number < crowded else [])
        results += [_measure_removal(blocked, rule, who, people) for who, people in cases]
    blocked.yardstick.look()
    return results


def _measure_removal(blocked: Blocked, rule: Rule, who: str, people: list[int]) -> ObliviateRun:
    exact, data = blocked.exact(people), blocked.data
    model = copy_model(blocked.model, **rule._asdict())
    made = time_removal(model, people, blocked.device, blocked.warm_up)
    answers, estimates = model.predict(data.X_test), made.receipt.estimates
    return ObliviateRun(
        rule,
        who,
        int(blocked.block[people].min()),
        made,
        agreement(answers, exact.answers),
        agreement(answers, blocked.yardstick.answers),
        100 * float(np.mean(answers == data.y_test)) - blocked.yardstick.accuracy,
        estimates["residual_tail"],
        estimates["residual_ceiling"],
        float(np.abs(_read_parameters(model) - exact.flat).sum()),
        float(np.abs(blocked.flat - exact.flat).sum()),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def make_obliviate_table(blocked: Blocked, runs: list[ObliviateRun], other: NDArray[Any]) -> Table:
    """Return one row per rule and kind of removal, with means over several removals."""
    groups: dict[tuple[Rule, str], list[ObliviateRun]] = {}
    for run in runs:
        groups.setdefault((run.rule, run.who), []).append(run)
    rows = [_make_row(blocked.yardstick, rule, who, mine) for (rule, who), mine in groups.items()]
    rows += [_make_idle_row(blocked), _make_seed_row(blocked.yardstick, other)]
    yardstick, graphs = blocked.yardstick, " and captured" if blocked.device == "cuda" else ""
    places = ", ".join(str(run.block + 1) for run in groups[runs[0].rule, UNIFORM])
    note = NOTE.format(
        net=_describe_model(blocked.model),
        places=places,
        graphs=graphs,
        naive=yardstick.seconds.wall,
        cpu=yardstick.seconds.cpu,
        n_test=len(blocked.data.y_test),
        accuracy=percent(score_accuracy(blocked.model, blocked.data)),
        fit=blocked.fit.wall,
    )
    return Table(f"DeepObliviate: {blocked.data.describe()}", COLUMNS, rows, note)


def list_points(blocked: Blocked, runs: list[ObliviateRun]) -> list[tuple[str, float, float]]:
    """Return name, mean speed-up and mean agreement with naive retraining of every rule."""
    points = []
    for rule in dict.fromkeys(run.rule for run in runs):
        mine = [run for run in runs if run.rule == rule and run.who == UNIFORM]
        wall = _mean(run.request.seconds.wall for run in mine)
        ratio = blocked.yardstick.seconds.wall / wall
        points.append((f"DeepObliviate, {rule}", ratio, _mean(run.naively for run in mine)))
    return points


def _describe_model(model: Any) -> str:
    return (
        f"{model.n_blocks} blocks, {model.epochs} pass(es) over each, batch {model.batch_size}, "
        f"rate {model.learning_rate:g}, momentum {model.momentum:g}"
    )


def _make_row(
    yardstick: Yardstick, rule: Rule, who: str, runs: list[ObliviateRun]
) -> tuple[Any, ...]:
    wall = _mean(run.request.seconds.wall for run in runs)
    cpu = _mean(run.request.seconds.cpu for run in runs)
    blocks = [run.request.receipt.rebuilt["blocks"] for run in runs]
    most = f" (most {max(blocks)})" if len(blocks) > 1 else ""
    return (
        str(rule), who, len(runs), f"{np.mean(blocks):.1f}{most}",
        percent(100 * _mean(run.request.receipt.work for run in runs)), 1000 * wall,
        times(yardstick.seconds.wall / wall), times(yardstick.seconds.cpu / cpu),
        1000 * _mean(run.request.first_use for run in runs),
        percent(_mean(run.exactly for run in runs)), percent(_mean(run.naively for run in runs)),
        points(_mean(run.gain for run in runs)), _mean(run.tail for run in runs),
        _mean(run.distance for run in runs), _format_distance(runs),
    )  # fmt: skip


def _format_distance(runs: list[ObliviateRun]) -> str:
    """Return the mean remaining distance, as a share of the distance before."""
    return f"{_mean(run.distance / run.idle for run in runs if run.idle):.3g}"


def _make_idle_row(blocked: Blocked) -> tuple[Any, ...]:
    singles = [each for people, each in blocked._exact.items() if len(people) == 1]
    exact = _mean(agreement(blocked.answers, each.answers) for each in singles)
    away = _mean(float(np.abs(blocked.flat - each.flat).sum()) for each in singles)
    naive = agreement(blocked.answers, blocked.yardstick.answers)
    gain = score_accuracy(blocked.model, blocked.data) - blocked.yardstick.accuracy
    gap = [""] * 7
    return (
        "do nothing",
        "1 person",
        *gap,
        percent(exact),
        percent(naive),
        points(gain),
        "",
        away,
        "1",
    )


def _make_seed_row(yardstick: Yardstick, other: NDArray[Any]) -> tuple[Any, ...]:
    gain = 100 * float(np.mean(other == yardstick.data.y_test)) - yardstick.accuracy
    agrees = percent(agreement(other, yardstick.answers))
    return ("naive, other seed", "", *[""] * 8, agrees, points(gain), "", "", "")


def make_block_table(blocked: Blocked, runs: list[ObliviateRun], rule: Rule) -> Table:
    """Return the removals of one person under one rule, by block."""
    mine = [run for run in runs if run.rule == rule and run.who in {UNIFORM, FIRST}]
    mine.sort(key=lambda run: run.block)
    naive = blocked.yardstick.seconds.wall
    rows = [
        (
            run.block + 1,
            run.request.receipt.rebuilt["blocks"],
            percent(100 * run.request.receipt.work),
            1000 * run.request.seconds.wall,
            times(naive / run.request.seconds.wall),
            percent(run.exactly),
            percent(run.naively),
            run.tail,
            run.ceiling,
            run.distance,
            run.idle,
        )
        for run in mine
    ]
    above = sum(run.distance > run.tail * 1.001 for run in mine)
    note = BLOCK_NOTE.format(rule=rule, above=above, n=len(mine))
    title = f"DeepObliviate by block: {blocked.data.name}"
    return Table(title, BLOCK_COLUMNS, rows, note)


def make_residual_table(
    blocked: Blocked, blocks: Iterable[int]
) -> tuple[Table, dict[int, list[float]]]:
    """Return relative residuals by block and lag, and the complete series for a plot."""
    series = {block: blocked.exact([blocked.person(block)]).residuals for block in {0, *blocks}}
    series = {block: values for block, values in sorted(series.items()) if values}
    rows = []
    for block, values in series.items():
        cells = [f"{values[lag]:.3g}" if lag < len(values) else "" for lag in LAGS]
        largest = int(np.argmax(values))
        rows.append((block + 1, *cells, f"{max(values):.3g} at t={largest}"))
    n_growing = sum(max(values) > 2 * values[0] for values in series.values())
    note = RESIDUAL_NOTE.format(n_growing=n_growing, n=len(series))
    columns = ("block", *(f"t={lag}" for lag in LAGS), "largest")
    title = f"Residual memory of one person by block: {blocked.data.name}"
    return Table(title, columns, rows, note), series


def check_obliviate(blocked: Blocked, runs: list[ObliviateRun], rule: Rule) -> list[TargetCheck]:
    """Check the removal of one person, mean over uniform blocks, on a CPU."""
    if blocked.device != "cpu":
        return []
    mine = [run for run in runs if run.rule == rule and run.who == UNIFORM]
    ratio = blocked.yardstick.seconds.wall / _mean(run.request.seconds.wall for run in mine)
    exactly, naively = _mean(run.exactly for run in mine), _mean(run.naively for run in mine)
    gap = abs(_mean(run.gain for run in mine))
    what = f"{blocked.data.name} CNN, {blocked.n_blocks} blocks, one person, {rule}"
    return [
        TargetCheck(
            f"{what}: naive retraining over removal", times(ratio), f">= {FASTER:g}x",
            ratio >= FASTER,
        ),
        TargetCheck(
            f"{what}: agrees with retrained blocks", percent(exactly), f">= {AGREES:g} %",
            exactly >= AGREES,
        ),
        TargetCheck(
            f"{what}: agrees with naive", percent(naively), f">= {AGREES:g} %",
            naively >= AGREES,
        ),
        TargetCheck(
            f"{what}: accuracy next to naive", f"{gap:.2f} points", f"<= {NEAR:g} points",
            gap <= NEAR,
        ),
    ]  # fmt: skip
