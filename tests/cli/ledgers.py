"""Commands of the ledger as a shell calls them, and files to call them with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB
from typer.testing import CliRunner, Result

import letheon
from letheon.cli import app

PEOPLE = tuple(f"person-{number:04d}" for number in range(40))
LEAVING = PEOPLE[3], PEOPLE[17]


def call(*words: str | Path, stdin: str | None = None, columns: int = 80) -> Result:
    """Run a command in this process."""
    env = {"COLUMNS": str(columns), "TERM": "dumb", "LETHEON_LEDGER": None}
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin, env=env)


def done(*words: str | Path, stdin: str | None = None) -> Any:
    """Run a command that must succeed; return its JSON document."""
    result = call(*words, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def table() -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(len(PEOPLE), 3)).round(3)
    return X, (X[:, 0] > 0).astype(int)


@dataclass(frozen=True)
class LedgerFiles:
    """A saved model and its rows, as arrays and as a table."""

    model: Path
    arrays: Path
    rows: Path


def files_in(folder: Path) -> LedgerFiles:
    """Write a model of `PEOPLE` and its rows."""
    X, y = table()
    files = LedgerFiles(folder / "m.letheon", folder / "rows.npz", folder / "rows.csv")
    model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=list(PEOPLE))
    letheon.save(model, files.model)
    np.savez(files.arrays, X=X, y=y, ids=np.array(PEOPLE))
    lines = [
        f"{who},{','.join(map(str, row))},{kind}"
        for who, row, kind in zip(PEOPLE, X, y, strict=True)
    ]
    files.rows.write_text("who,a,b,c,kind\n" + "\n".join(lines) + "\n", "utf-8")
    return files
