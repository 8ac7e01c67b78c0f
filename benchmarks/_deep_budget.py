"""SISA and DeepObliviate at equal numbers of saved states: the survey's Table 3, measured."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_backdoor import Planted
from benchmarks._deep_models import Yardstick, clocked, percent, times, twin
from benchmarks._report import Table
from letheon.measures import effectiveness, output_consistency

__all__ = ["Contender", "budget_table", "contend"]

COLUMNS = (
    "method", "states", "efficiency", "share of data", "effectiveness", "consistency",
    "certifiability", "accuracy", "prediction ms", "fit s", "state MB", "guarantee",
)  # fmt: skip
NOTE = (
    "One person leaves, mean of {n} random ones, each from a copy. *efficiency*: {naive:.3g} s of "
    "the tuned naive retrain over the request, everything loaded. *effectiveness*: gap of the test "
    "accuracy to that retrain, in points; *consistency*: equal answers, to that retrain. "
    "*certifiability*: SAPE on backdoored images, {rows} rows of one owner, from the section on "
    "backdoors. *prediction*: {n_test:,} images. *state*: parameters that are kept."
)


class Contender(NamedTuple):
    """One method with its measures."""

    method: str
    n_states: int
    walls: list[float]
    work: float
    effectiveness: float
    consistency: float
    accuracy: float
    prediction: float
    fit: float
    state: float
    guarantee: str


def contend(
    method: str, model: Any, yardstick: Yardstick, fit: float, n_states: int, people: list[int]
) -> Contender:
    """Let people leave copies of a fitted model, one each."""
    data, device, walls, work = yardstick.data, yardstick.device, [], []
    answers = model.predict(data.X_test)
    for person in people:
        mine = _loaded(model, person, device)
        receipt, seconds = clocked(lambda mine=mine, p=person: mine.forget([p]), device)  # type: ignore[misc]
        walls.append(seconds.wall)
        work.append(receipt.work)
        answers = mine.predict(data.X_test)
    right = 100 * float(np.mean(answers == data.y_test))
    gap = effectiveness(_share, data.y_test, answers, yardstick.answers, n_resamples=10)
    prediction = clocked(lambda: mine.predict(data.X_test), device)[1].wall
    return Contender(
        method, n_states, walls, float(np.mean(work)), 100 * gap.value,
        output_consistency(answers, yardstick.answers).value, right, prediction, fit,
        n_states * model.nets_.flat.shape[1] * 4 / 1e6, receipt.guarantee.kind,
    )  # fmt: skip


def _loaded(model: Any, person: int, device: str) -> Any:
    """Return a copy from which somebody else has left already, on a GPU."""
    mine = twin(model)
    if device == "cuda":
        extra = mine.rows_.extra
        block = extra.get("block", extra.get("slice"))
        candidates = np.flatnonzero(block == block.max())
        mine.forget([int(candidates[candidates != person][0])])
    return mine


def _share(truth: Any, answers: Any) -> float:
    return float(np.mean(truth == answers))


def budget_table(
    found: list[Contender], yardstick: Yardstick, backdoors: list[Planted], n_rows: int
) -> Table:
    """Return one row per method, the naive retrain first."""
    naive = yardstick.seconds.wall
    n_test = len(yardstick.data.y_test)
    prediction = clocked(lambda: yardstick.model.predict(yardstick.data.X_test), yardstick.device)[
        1
    ].wall
    rows: list[tuple[Any, ...]] = [
        (
            "naive", 0, "1x", "100 %", "0", "100 %", "0 %", percent(yardstick.accuracy),
            1000 * prediction, yardstick.first.wall, 0.0, "exact",
        )
    ]  # fmt: skip
    for each in found:
        wall = float(np.mean(each.walls))
        rows.append(
            (
                each.method, each.n_states, times(naive / wall), percent(100 * each.work),
                f"{each.effectiveness:.2f} points", percent(each.consistency),
                _sape(each.method, backdoors), percent(each.accuracy), 1000 * each.prediction,
                each.fit, each.state, each.guarantee,
            )
        )  # fmt: skip
    n = len(found[0].walls)
    note = NOTE.format(n=n, naive=naive, rows=n_rows, n_test=n_test)
    return Table(f"Equal numbers of states: {yardstick.data.describe()}", COLUMNS, rows, note)


def _sape(method: str, backdoors: list[Planted]) -> str:
    """Return the SAPE of the first case of a method, if there is one."""
    mine = [each for each in backdoors if method.startswith(each.method)]
    return f"{mine[0].sape.value:.1f} %" if mine else "not measured"
