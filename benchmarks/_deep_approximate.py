"""Fisher scrubbing and DeltaGrad for networks: time, accuracy and agreement."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_models import (
    WIDE_MLP,
    ImageSet,
    Yardstick,
    agreement,
    copy_model,
    make_deltagrad,
    make_fisher,
    percent,
    points,
    time_on_device,
    times,
)
from benchmarks._report import Table
from letheon.deep import MLP

__all__ = ["list_scrubs", "make_deltagrad_table", "make_fisher_table", "measure_replays"]

FISHER_COLUMNS = (
    "labels", "rows of F", "exponent", "sigma", "Newton step", "again s", "x naive",
    "accuracy - naive", "agrees: naive", "agrees: before",
)  # fmt: skip
FISHER_NOTE = (
    "One person leaves the tuned net, {naive:.3g} s naively retrained. exponent 0.25: variance of "
    "the noise F^(-1/2), the optimum of the theory; 0.5: F^(-1), the authors' code, with 1/F at "
    "most 1,000; their sigmas are on different scales. *labels*: F by all labels or by one drawn "
    "per row. Without a Newton step the parameters keep what they learned, blurred."
)
DELTAGRAD_COLUMNS = (
    "who leaves", "period", "exact steps", "approximate steps", "share of work", "again s",
    "own fit s", "x own fit", "x naive", "agrees: exact replay", "accuracy", "missed (estimate)",
    "missed (true)",
)  # fmt: skip
DELTAGRAD_NOTE = (
    "{net}, plain gradient descent, batch {batch}, {epochs} passes, {data}. *x own fit*: the fit "
    "that is replayed over the request; *x naive*: the tuned naive retrain of {naive:.3g} s, which "
    "is of another net. *share of work*: as the receipt counts it. *exact replay*: period 1, which "
    "is a retrain with the same batches; *missed*: L2 distance of the parameters from it. On nets "
    "this small an exact step takes hardly longer than a product with the L-BFGS matrix."
)
CLAMP = 1e3
SMALL_MLP = MLP(widths=(64,), scale=1 / 255)


class Scrub(NamedTuple):
    """Settings of one scrubbing."""

    labels: str
    fisher_rows: int | None
    exponent: float
    sigma: float
    newton_step: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model; the authors' code clamps 1/F."""
        return {**self._asdict(), "clamp": CLAMP if self.exponent == 0.5 else None}


def list_scrubs(
    rows: Sequence[int | None], sigmas: Mapping[float, Sequence[float]], *, newton: bool
) -> list[Scrub]:
    """Return all sigmas with F from the fewest rows, then other settings at the first sigma."""
    fewest, first = rows[-1], sigmas[0.25][0]
    steps = [
        Scrub("all", fewest, exponent, sigma) for exponent, many in sigmas.items() for sigma in many
    ]
    steps += [Scrub("all", n_rows, 0.25, first) for n_rows in rows[:-1]]
    steps += [Scrub("sampled", n_rows, 0.25, first) for n_rows in rows]
    step = Scrub("sampled", fewest, 0.25, first, newton_step=True)
    return [*steps, step] if newton else steps


def make_fisher_table(yardstick: Yardstick, tried: list[Scrub]) -> Table:
    """Scrub one person from copies of one network."""
    data, device = yardstick.data, yardstick.device
    model = make_fisher(yardstick.recipe, device, noise_seed=1).fit(data.X, data.y)
    before, rows = model.predict(data.X_test), []
    for scrub in tried:
        mine = copy_model(model, **scrub.settings())
        seconds = time_on_device(lambda mine=mine: mine.forget([7]), device)[1]  # type: ignore[misc]
        answers = mine.predict(data.X_test)
        gain = 100 * float(np.mean(answers == data.y_test)) - yardstick.accuracy
        n_rows = "all" if scrub.fisher_rows is None else f"{scrub.fisher_rows:,}"
        rows.append(
            (
                scrub.labels, n_rows, scrub.exponent, scrub.sigma,
                "yes" if scrub.newton_step else "no", seconds.wall,
                times(yardstick.seconds.wall / seconds.wall), points(gain),
                percent(agreement(answers, yardstick.answers)), percent(agreement(answers, before)),
            )
        )  # fmt: skip
    note = FISHER_NOTE.format(naive=yardstick.seconds.wall)
    return Table(f"Fisher: {data.describe()}", FISHER_COLUMNS, rows, note)


class Replay(NamedTuple):
    """Removals by DeltaGrad, compared with exact steps."""

    rows: list[tuple[Any, ...]]
    settings: dict[str, Any]
    data: ImageSet


def measure_replays(
    data: ImageSet, yardstick: Yardstick, epochs: int, crowds: Sequence[int], *, wide: bool
) -> Replay:
    """Fit once; remove people from copies, by approximate and by exact steps."""
    device = yardstick.device
    module = WIDE_MLP if wide else SMALL_MLP
    settings = {"module": module, "epochs": epochs, "batch_size": 512, "learning_rate": 0.2}
    model = make_deltagrad(device, **settings)
    fit = time_on_device(lambda: model.fit(data.X, data.y), device)[1].wall
    rows = []
    for n_people in crowds:
        people = np.random.default_rng(n_people).choice(len(data.y), n_people, replace=False)
        exact = copy_model(model, period=1)
        exact.forget(people)
        for period in (5, 20):
            mine = copy_model(model, period=period)
            receipt, seconds = time_on_device(lambda mine=mine, p=people: mine.forget(p), device)  # type: ignore[misc]
            rows.append(_replay_row(yardstick, data, (mine, exact), receipt, seconds.wall, fit))
    return Replay(rows, settings, data)


def _replay_row(
    yardstick: Yardstick,
    data: ImageSet,
    models: tuple[Any, Any],
    receipt: Any,
    wall: float,
    fit: float,
) -> tuple[Any, ...]:
    model, exact = models
    answers, wanted = model.predict(data.X_test), exact.predict(data.X_test)
    n_exact = receipt.rebuilt["exact steps"]
    n_steps = int(model.epochs) * -(-len(data.y) // int(model.batch_size))
    away = float((model.nets_.flat - exact.nets_.flat).norm())
    people = "1 person" if receipt.n_ids == 1 else f"{receipt.n_ids} people"
    return (
        people, model.period, n_exact, f"at most {n_steps - n_exact}", percent(100 * receipt.work),
        wall, fit, times(fit / wall), times(yardstick.seconds.wall / wall),
        percent(agreement(answers, wanted)), percent(100 * float(np.mean(answers == data.y_test))),
        receipt.estimates["missed"], away,
    )  # fmt: skip


def make_deltagrad_table(replay: Replay, yardstick: Yardstick) -> Table:
    """Return the table of all removals."""
    note = DELTAGRAD_NOTE.format(
        net=f"MLP of {replay.settings['module'].widths}",
        batch=replay.settings["batch_size"],
        epochs=replay.settings["epochs"],
        data=replay.data.describe(),
        naive=yardstick.seconds.wall,
    )
    title = f"DeltaGrad: {replay.data.describe()}"
    return Table(title, DELTAGRAD_COLUMNS, replay.rows, note)
