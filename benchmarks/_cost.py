"""What forgetting costs: sampled removals against the closed form."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

from benchmarks._report import Seconds, Table, Verdict, timed
from letheon import Measure, NaiveUnlearner, Receipt, SISAClassifier
from letheon.measures import efficiency
from letheon.sharded import Plan, plan

TOLERANCE = 0.10
COLUMNS = (
    "S", "R", "people", "removals", "speed-up by formula", "counted", "counted, everybody",
    "time", "time low", "time high", "processor time", "time over naive", "sampling error %",
)  # fmt: skip


NOTE = """Learner: SGD logistic regression; data: {data}.
Formula: 3RS / (2R + 1) for one person, and its batch form. *counted*: row visits in the receipts,
against a refit of the same ensemble; *counted, everybody*: the same counted for every person or
batch there is, so without sampling. *time*: mean seconds of `fit` of the same ensemble (on all rows
before the removals, on the remaining rows after them) over mean seconds of `forget`, with Fieller's
95 % interval, which does not know that the sample is stratified and so is too wide. *processor
time*: the same in time of the processor for this process, which other work on the machine hardly
moves. *time over naive*: against NaiveUnlearner of the plain learner with the same epochs, which
makes one long call where slices make many short ones. *sampling error*: how far the work of the
sample is from that of everybody, as a share of it; it is known, because all work can be counted."""


class Setting(NamedTuple):
    """Shards, slices and epochs of one model under test."""

    n_shards: int
    n_slices: int
    epochs: int

    def __str__(self) -> str:
        """As the issue writes it."""
        return f"(S,R)=({self.n_shards},{self.n_slices})"

    @property
    def stage_epochs(self) -> int | None:
        """Epochs that are given to SISA: without slices the learner's own `fit` does them."""
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
        """Return the closed form for a batch of so many people."""
        return plan(
            n_rows,
            people,
            n_shards=self.n_shards,
            n_slices=self.n_slices,
            epochs=self.epochs,
        )


class Cells(NamedTuple):
    """Who is in which shard and slice, and what training a shard from a slice on costs."""

    people: NDArray[Any]
    shard: NDArray[np.int64]
    slice: NDArray[np.int64]
    visits_from: NDArray[np.float64]

    @classmethod
    def of(cls, model: SISAClassifier, schedule: tuple[int, ...]) -> "Cells":
        """Read the cells off a fitted model in which every person owns one row."""
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
        """Return the work of forgetting these positions, as a share of training everything."""
        first: dict[int, int] = {}
        for shard, piece in zip(
            self.shard[batch].tolist(), self.slice[batch].tolist(), strict=True
        ):
            first[shard] = min(piece, first.get(shard, piece))
        work = sum(self.visits_from[shard, piece] for shard, piece in first.items())
        return float(work / self.visits_from[:, 0].sum())


class Sample(NamedTuple):
    """Batches to forget, in random order, and what counting says about all of them."""

    batches: list[list[Any]]
    everybody: float
    error: float


def draw(cells: Cells, people: int, n_batches: int, rng: np.random.Generator) -> Sample:
    """Cut everybody at random into batches and take some, spread evenly over their work.

    Batches are sorted by the work they will cause and every k-th is taken, from the start that
    represents all of them best. Work is counted here from the cells alone, not with the library's
    own count, so that the receipts can still be wrong. `error` is how far the sample's mean is
    from that of all batches, as a share of it. Batches have nobody in common.
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
class Cost:
    """Sampled removals of one setting and batch size, with all that they are compared with."""

    setting: Setting
    people: int
    plan: Plan
    sample: Sample
    receipts: list[Receipt]
    seconds: list[Seconds]
    naive: list[float]

    @property
    def formula(self) -> float:
        """Speed-up by the closed form over training the same ensemble again."""
        left = 1 - self.people / self.plan.n_rows
        return self.plan.fit_visits * left / self.plan.visits

    @property
    def counted(self) -> float:
        """Speed-up in row visits: one over the mean share of the receipts."""
        return 1 / float(np.mean([receipt.work for receipt in self.receipts]))

    def row(self, refits: list[Seconds]) -> tuple[Any, ...]:
        """Return the line of the table."""
        walls, speed = [s.wall for s in self.seconds], self._speed(refits)
        cpu = self._processor_speed(refits)
        return (
            *self.setting[:2], self.people, len(walls), self.formula, self.counted,
            1 / self.sample.everybody, speed.value, speed.low, speed.high, cpu.value,
            efficiency(self.naive, walls).value, 100 * self.sample.error,
        )  # fmt: skip

    def _speed(self, refits: list[Seconds]) -> Measure:
        return efficiency([s.wall for s in refits], [s.wall for s in self.seconds])

    def _processor_speed(self, refits: list[Seconds]) -> Measure:
        return efficiency([s.cpu for s in refits], [s.cpu for s in self.seconds])

    def verdicts(self, refits: list[Seconds]) -> list[Verdict]:
        """Judge counted work and time against the closed form."""
        what = f"{self.setting}, {self.people} leaving"
        return [
            _within(f"counted cost, {what}", self.counted, self.formula),
            _within(f"time on the clock, {what}", self._speed(refits).value, self.formula),
            _within(f"processor time, {what}", self._processor_speed(refits).value, self.formula),
        ]


def _within(what: str, reached: float, formula: float) -> Verdict:
    # The mean cost is what must agree, and a cost is one over a speed-up.
    off = formula / reached - 1
    text = f"{reached:.3f}x, formula {formula:.3f}x, cost {off:+.1%}"
    return Verdict(what, text, "within 10 %", abs(off) <= TOLERANCE)


def removals(
    setting: Setting,
    model: SISAClassifier,
    naive: list[float],
    people: int,
    n_batches: int,
    rng: np.random.Generator,
) -> Cost:
    """Forget sampled batches one after the other and keep the receipts.

    The model loses about one row in a hundred over all batches; receipts count work as a share of
    the rows that remain, so the ratios do not move.
    """
    planned = setting.plan(model.n_rows_, people)
    sample = draw(Cells.of(model, planned.schedule), people, n_batches, rng)
    timings = [timed(partial(model.forget, batch)) for batch in sample.batches]
    receipts, seconds = [t[0] for t in timings], [t[1] for t in timings]
    return Cost(setting, people, planned, sample, receipts, seconds, naive)


def refit(setting: Setting, model: SISAClassifier, X: Any, y: Any) -> tuple[Seconds, Verdict]:
    """Train the same ensemble afresh on the rows that remain, and compare the digests."""
    rows = np.sort(model.ids_)
    ids = rows.tolist()
    fresh, seconds = timed(lambda: setting.model(model.seed_).fit(X[rows], y[rows], ids=ids))
    same = fresh.digest() == model.digest()
    what = f"after all removals the digest is that of a fresh fit, {setting}"
    return seconds, Verdict(what, "equal" if same else "differs", "equal", same)


def naive_seconds(setting: Setting, X: Any, y: Any, seed: int) -> list[float]:
    """Time naive retraining of the plain learner with the same epochs: a fit and a forget."""
    model = NaiveUnlearner(setting.learner(), random_state=seed)
    _, first = timed(lambda: model.fit(X, y))
    return [first.wall, model.forget([0]).seconds]


def cost_table(costs: list[Cost], refits: dict[Setting, list[Seconds]], data: str) -> Table:
    """Return the table of single removals and batches."""
    return Table(
        "1-2. Cost of forgetting, as speed-ups",
        COLUMNS,
        [cost.row(refits[cost.setting]) for cost in costs],
        note=NOTE.format(data=data),
    )
