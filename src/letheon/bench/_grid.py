"""Which cells the benchmark has: data set x method x setting x people removed."""

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from letheon.bench._recipes import RECIPES, Family

__all__ = ["DATASETS", "QUICK_DATASETS", "Cell", "Options", "cells_of", "share_or_number"]

Kind = Literal["measure", "attack"]

DATASETS = ("adult", "mnist", "covtype", "higgs", "census", "diabetes", "cifar-2")
QUICK_DATASETS = ("breast-cancer", "digits")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run and how large.

    Attributes
    ----------
    datasets : tuple of str
        Names; see `DATASETS` and `QUICK_DATASETS`.
    methods : tuple of str or None
        Methods, by the names of the table; None: all.
    families : tuple of {"linear", "forest", "net"}
        Model families.
    removed : tuple of str
        People who leave: a number (``"100"``) or a share (``"1%"``). All of them in one request,
        but for ``"1"``: then one after the other leaves, so that the time of one is a mean.
    attack_removed : str
        People whom the attackers are after.
    seeds : int
        Repetitions of every cell.
    rows, net_rows, attack_rows, test_rows : int
        Rows at most: to train linear models and forests, nets, models under attack, and to test.
    attacks : bool
        Whether attacks are run too.
    small : bool
        Small models: fewer trees, fewer epochs.
    device : str
        Where nets are trained.
    synthetic : {"never", "if-absent"}
        Whether made-up tables stand in for absent files.
    random_state : int
        Seed of splits, samples and trials.
    """

    datasets: tuple[str, ...] = DATASETS
    methods: tuple[str, ...] | None = None
    families: tuple[Family, ...] = ("linear", "forest", "net")
    removed: tuple[str, ...] = ("1", "100", "1%", "10%")
    attack_removed: str = "100"
    seeds: int = 5
    rows: int = 5_000
    net_rows: int = 2_000
    attack_rows: int = 1_000
    test_rows: int = 4_000
    attacks: bool = True
    small: bool = False
    device: str = "cpu"
    synthetic: Literal["never", "if-absent"] = "never"
    random_state: int = 0

    def __post_init__(self) -> None:
        """Reject people who are neither a number nor a share."""
        for removed in self.removed:
            share_or_number(removed)

    @classmethod
    def quick(cls, **others: Any) -> "Options":
        """Return the options of a run of about two minutes on data that ship with scikit-learn."""
        usual: dict[str, Any] = {
            "datasets": QUICK_DATASETS,
            "removed": ("1", "10%"),
            "attack_removed": "10%",
            "seeds": 2,
            "rows": 800,
            "net_rows": 800,
            "attack_rows": 400,
            "small": True,
        }
        return cls(**(usual | others))

    def rows_of(self, cell: "Cell") -> int:
        """Return how many rows a cell trains on at most."""
        most = self.net_rows if cell.family == "net" else self.rows
        return min(most, self.attack_rows) if cell.kind == "attack" else most

    def fingerprint(self, cell: "Cell") -> dict[str, Any]:
        """Return what a cell's result depends on; a result with another one is not resumed.

        The device is not in it: nets may be run elsewhere and their cells put beside the others.
        """
        return {
            **asdict(cell),
            "seeds": self.seeds,
            "rows": self.rows_of(cell),
            "test_rows": self.test_rows,
            "small": self.small,
            "random_state": self.random_state,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One experiment: a method with a setting on a data set, and so many people who leave."""

    dataset: str
    method: str
    family: Family
    setting: str
    removed: str
    kind: Kind = "measure"

    @property
    def name(self) -> str:
        """Name of its file: unique, and readable."""
        parts = [getattr(self, field.name) for field in fields(self)]
        words = [re.sub(r"[^a-z0-9.%]+", "-", str(part).lower()).strip("-") for part in parts]
        return "_".join(words).replace("%", "pc")


def share_or_number(text: str) -> float:
    """Return the people who leave: a share below 1 for ``"10%"``, a whole number for ``"100"``.

    Examples
    --------
    >>> share_or_number("10%"), share_or_number("100")
    (0.1, 100)
    """
    if re.fullmatch(r"\d+(\.\d+)? ?%", text):
        share = float(text.rstrip("% ")) / 100
        if 0 < share < 1:
            return share
    elif re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    raise ValueError(f"{text!r}; expected a number of people from 1, or a share such as 10%")


def cells_of(options: Options) -> list[Cell]:
    """Return all cells, data set by data set: a data set is loaded once for all its cells."""
    return [
        cell
        for dataset in options.datasets
        for family in options.families
        for cell in _cells_of_family(options, dataset, family)
    ]


def _cells_of_family(options: Options, dataset: str, family: Family) -> list[Cell]:
    found = []
    for recipe in RECIPES:
        wanted = options.methods is None or recipe.method in options.methods
        if not wanted or recipe.family != family:
            continue
        first = Cell(
            dataset=dataset,
            method=recipe.method,
            family=family,
            setting=recipe.setting,
            removed="",
        )
        found += [replace(first, removed=r) for r in options.removed if recipe.serves(r)]
        if options.attacks and recipe.attacked:
            found.append(replace(first, removed=options.attack_removed, kind="attack"))
    return found
