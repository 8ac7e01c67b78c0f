"""Draw `docs/laws.png` of forest.md; `make_figures.py` draws the other pictures.

Run ``python docs/make_forest.py`` after changing the forest's rule.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))  # run as a script, not a module


def laws() -> dict[str, Sequence[float]]:
    """Return root thresholds when person 3 of 5 was forgotten, or never added."""
    from tests.forest.test_cases import NEW, thresholds

    published = {kind: NEW.published(23, retrain=kind) for kind in (False, True)}
    return {
        "published rule, forget": [low for _, low in published[False]],
        "published rule, retrain": [low for _, low in published[True]],
        "letheon, forget": thresholds(NEW.forgotten(25)),
        "letheon, retrain": thresholds(NEW.retrained(26)),
    }


def draw_laws(file: Path) -> None:
    """Draw the distribution of the root threshold, one panel per rule."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    for place, (name, sample) in enumerate(laws().items()):
        axes, (rule, how) = panels[place // 2], name.split(", ")
        counts = Counter(sample)
        shift, colour = (-0.2, "#4477aa") if how == "forget" else (0.2, "#ccbb44")
        shares = [counts[value] / len(sample) for value in (1, 2, 4)]
        axes.bar([x + shift for x in range(3)], shares, 0.38, color=colour, label=how)
        axes.set(title=rule, xlabel="threshold lies above", xticks=range(3))
        axes.set_xticklabels(["1", "2 (new neighbours)", "4"])
    panels[0].set_ylabel("share of 3,000 trees")
    panels[0].legend(frameon=False)
    figure.savefig(file, dpi=70)


def main() -> None:
    """Draw the plot in the docs folder."""
    draw_laws(DOCS / "laws.png")


if __name__ == "__main__":
    main()
