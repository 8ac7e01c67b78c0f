"""Pictures of the report: measured ranges beside published ones, and what attackers found."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from letheon.bench._published import Spread
from letheon.bench._table import Line, attack_value, lines_of
from letheon.evaluation.report import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_pictures"]

Record = dict[str, Any]
# Okabe and Ito's colours.
_COLOURS = {"same algorithm": "#0072B2", "ordinary model": "#D55E00", "published": "#767676"}
_SHIFT = {"same algorithm": -0.22, "ordinary model": 0.06, "published": 0.32}
_ATTACKS = {
    "RMIA": ("rmia", "AUC", "#0072B2"),
    "before and after": ("before-after", "AUC", "#D55E00"),
    "backdoor": ("backdoor", "AUC", "#009E73"),
}
_LEAST_POINTS = 0.01


def draw_pictures(records: Sequence[Record]) -> list[Picture]:
    """Return the pictures of a report; without matplotlib there are none."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    lines = lines_of(records)
    if not lines:
        return []
    pictures = [_draw_measures(lines, Figure)]
    if any(record["attacks"] for record in records):
        pictures.append(_draw_attacks(records, lines, Figure))
    return pictures


def _draw_measures(lines: Sequence[Line], figure_type: Any) -> Picture:
    names = _names(lines)
    figure = figure_type(figsize=(11, 1.4 + 0.36 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for line in lines:
        place = names.index(_name(line))
        _range(left, place, line.baseline, line.efficiency)
        _range(right, place, line.baseline, _on_log_axis(line.effectiveness))
        known = line.published
        is_here = known is not None and known.efficiency_against == line.baseline
        if known is not None and is_here and isinstance(known.efficiency, Spread):
            _range(left, place, "published", known.efficiency)
    left.axvline(1, color="black", linewidth=0.8)
    left.set(xscale="log", xlabel="efficiency: times faster than a retrain")
    right.set(xscale="log", xlabel="effectiveness: points of accuracy off")
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.4, -0.6)
    for ax in (left, right):
        ax.grid(axis="x", alpha=0.3)
        for place in range(1, len(names), 2):
            ax.axhspan(place - 0.5, place + 0.5, color="#f2f2f2", zorder=0)
    _legend(figure, ["against the same algorithm", "against an ordinary model", "published"])
    note = (
        "Least, geometric mean (effectiveness: mean) and largest over data sets; the least number "
        f"of people. Below {_LEAST_POINTS} points is drawn there."
    )
    return Picture(
        figure,
        title="Efficiency and effectiveness, measured and published",
        alt="Ranges over data sets for each method and setting; the main table has the numbers",
        note=note,
    )


def _legend(figure: Any, words: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker="o", label=word)
        for colour, word in zip(_COLOURS.values(), words, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)


def _name(line: Line) -> str:
    return f"{line.method} ({line.family}), {line.setting}"


def _names(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(_name(line) for line in lines))


def _on_log_axis(points: Spread) -> Spread:
    return Spread(*(max(value, _LEAST_POINTS) for value in points))


def _range(ax: "Axes", place: int, what: str, spread: Spread) -> None:
    height, colour = place + _SHIFT[what], _COLOURS[what]
    ax.plot([spread.low, spread.high], [height, height], color=colour, linewidth=1.4)
    ax.plot([spread.mean], [height], marker="o", markersize=4, color=colour)


def _draw_attacks(records: Sequence[Record], lines: Sequence[Line], figure_type: Any) -> Picture:
    keys = {_name(line): (line.method, line.family, line.setting) for line in lines}
    names = [name for name, key in keys.items() if _found(records, key, "RMIA") is not None]
    figure = figure_type(figsize=(9, 1.4 + 0.32 * len(names)), layout="constrained")
    ax = figure.subplots()
    for number, (attack, (_, _, colour)) in enumerate(_ATTACKS.items()):
        for place, name in enumerate(names):
            pair = _found(records, keys[name], attack)
            if pair is None:
                continue
            height = place + 0.25 * (number - 1)
            label = attack if place == 0 else None
            ax.plot(pair[::-1], [height, height], color=colour, linewidth=1.0)
            ax.plot([pair[0]], [height], "o", color=colour, markersize=5, label=label)
            ax.plot([pair[1]], [height], "o", color=colour, markersize=5, fillstyle="none")
    ax.axvline(0.5, color="black", linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="AUC; 0.5: nothing is found", xlim=(0.3, 1.02), ylim=(len(names) - 0.4, -0.6))
    ax.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(_ATTACKS), frameon=False)
    return Picture(
        figure,
        title="What attackers find about forgotten people",
        alt="AUC of three attacks on each method, with their floors",
        note=(
            "Full: the unlearned model; hollow: the floor (of before and after: people who never "
            "were there). Means over data sets."
        ),
    )


def _found(
    records: Sequence[Record], key: tuple[str, str, str], attack: str
) -> tuple[float, float] | None:
    name, measure, _ = _ATTACKS[attack]
    return attack_value(records, key, name, measure)
