"""From a CSV file with categories and missing values to a passed audit, by commands alone."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import letheon
from letheon.ledger import Ledger
from tests.cli.ledgers import call, done
from tests.pipelines.people import LEAVING, PEOPLE, N, fit_pipeline, mixed_frame, target, write_csv

METHODS = ("dare", "boosting", "influence", "ridge")
CATEGORY_STEPS = {"boosting": "unchanged"}
ROLES = ("--target", "churned", "--ids", "customer")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    done("init", tmp_path / "home", "--name", "shop")
    write_csv(tmp_path / "train.csv")
    return tmp_path / "home"


def erase_and_audit(home: Path, *models: str) -> dict[str, str]:
    """Erase people in all models, export a bundle, and return the verdicts of its audit."""
    here = ("--ledger", home)
    for model in models:
        done("request", "add", *LEAVING, "--model", model, "--verified", *here)
    steps = done("batch", "apply", "--force", *here)
    assert sum(step["what"] == "purged" for step in steps) == len(models)
    bundle = home.parent / "bundle"
    key = done("ledger", "export", bundle, "--tier", "auditor", *here)["public_key"]
    report = done("audit", "report", bundle, "--key", key)
    assert report["passed"]
    checked = {item["model"]: item["level"] for item in report["results"] if item["level"] >= "V4"}
    assert {item["verdict"] for item in report["results"]} == {"pass"}
    return checked


def test_a_csv_is_trained_forgotten_and_audited(home: Path) -> None:
    rows = home.parent / "train.csv"
    for method in METHODS:
        words = ("--rows", rows, "--name", method, "--method", method, *ROLES)
        added = done("model", "add", *words, "--test", rows, "--ledger", home)
        assert (added["n_rows"], added["method"]) == (N, "pipeline")
        steps = {column["column"]: column["steps"] for column in added["columns"]}
        assert list(steps) == list(mixed_frame().columns)
        assert {steps["city"], steps["plan"]} == {CATEGORY_STEPS.get(method, "OneHotEncoder")}
        scaled = "" if method == "dare" else ", StandardScaler"
        expected = CATEGORY_STEPS.get(method, f"SimpleImputer{scaled}")
        assert steps["age"] == steps["member"] == expected
    checked = erase_and_audit(home, *METHODS)
    assert checked == {"dare": "V4", "boosting": "V4", "influence": "V5", "ridge": "V4"}


def test_the_preprocessing_is_printed_as_a_table(home: Path) -> None:
    words = ("--rows", home.parent / "train.csv", "--name", "m", *ROLES, "--ledger", home)
    result = call("model", "add", *words)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"registered m: pipeline, {N} rows"
    assert "trained DaREForestClassifier" in lines[1]
    assert lines[3:5] == ["age     SimpleImputer", "city    OneHotEncoder"]


def test_numbers_as_target_are_a_regression(home: Path) -> None:
    words = ("--rows", home.parent / "train.csv", "--name", "m", "--ids", "customer")
    result = call("model", "add", *words, "--target", "age", "--ledger", home)
    assert "trained DaREForestRegressor" in result.output


@pytest.mark.parametrize("kind", ["dare", "influence"])
def test_a_saved_pipeline_is_registered_with_its_csv(home: Path, kind: str) -> None:
    """The frame of the fit has a column of categories; in the CSV file they are texts."""
    letheon.save(fit_pipeline(kind), home.parent / "model")
    words = (home.parent / "model", "--rows", home.parent / "train.csv", "--name", "m", *ROLES)
    assert done("model", "add", *words, "--ledger", home)["n_rows"] == N
    assert erase_and_audit(home, "m") == {"m": "V4" if kind == "dare" else "V5"}


def lose_a_target(frame: pd.DataFrame) -> pd.DataFrame:
    labels = frame["churned"].astype(object)
    labels[5] = None
    return frame.assign(churned=labels)


@pytest.mark.parametrize(
    "spoil",
    [
        lose_a_target,
        lambda frame: frame[["churned", "customer"]],
        lambda frame: frame.assign(age=float("inf")),
        lambda frame: frame.assign(visits=2**60),
    ],
)
def test_rows_that_cannot_be_used_are_refused_without_their_values(home: Path, spoil: Any) -> None:
    frame = mixed_frame()
    frame = frame.assign(income=4242.4242, churned=target(frame), customer=range(N))
    rows = home.parent / "bad.csv"
    spoil(frame).to_csv(rows, index=False)
    result = call("model", "add", "--rows", rows, "--name", "m", *ROLES, "--ledger", home)
    assert result.exit_code == 4
    assert "a target in every row" in " ".join(result.output.split())
    assert "4242" not in result.output
    assert str(2**60) not in result.output
    assert done("model", "list", "--ledger", home) == []


@pytest.mark.parametrize("method", METHODS)
def test_a_csv_with_every_kind_of_column(home: Path, method: str) -> None:
    """Constants, empty columns, dates, mixed types, unique texts and odd names."""
    frame = mixed_frame()
    frame["gaps"] = None
    frame["date"] = pd.date_range("2026-01-01", periods=N).astype(str)
    frame["mixed"] = ["a", 1, 2.5, None] * (N // 4)
    frame["maybe"] = [True, None, False, True] * (N // 4)
    frame["name"] = [f"name {number}" for number in range(N)]
    frame["constant"], frame["large"] = 1, 2**50
    frame['straße, "é"'] = 1.5
    frame["drop"], frame["x__y"] = "passthrough", ["p", "q"] * (N // 2)
    frame = frame.assign(churned=["yes", "no"] * (N // 2), customer=PEOPLE)
    rows = home.parent / "all.csv"
    frame.to_csv(rows, index=False)
    words = ("--rows", rows, "--name", "m", "--method", method, *ROLES, "--ledger", home)
    added = done("model", "add", *words)
    assert len(added["columns"]) == len(frame.columns) - 2
    assert erase_and_audit(home, "m") == {"m": "V5" if method == "influence" else "V4"}


def test_a_method_with_a_model_file_is_refused(home: Path) -> None:
    letheon.save(fit_pipeline("dare"), home.parent / "model")
    words = (home.parent / "model", "--rows", home.parent / "train.csv", "--name", "m", *ROLES)
    result = call("model", "add", *words, "--method", "ridge", "--ledger", home)
    assert result.exit_code == 2
    assert "--method" in result.output


def test_the_preprocessing_of_a_model_is_shown(home: Path) -> None:
    words = ("--rows", home.parent / "train.csv", "--name", "m", *ROLES, "--ledger", home)
    done("model", "add", *words)
    result = call("model", "show", "m", "--ledger", home)
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert {"age SimpleImputer", "city OneHotEncoder"} <= set(lines)


def test_settings_of_a_new_model(home: Path) -> None:
    rows = home.parent / "train.csv"
    words = ("--rows", rows, "--ids", "customer", "--target", "age", "--method", "boosting")
    settings = {"loss": "poisson", "max_leaves": "8", "colsample": "0.5", "y_max": "none"}
    options = [word for item in settings.items() for word in ("--set", "=".join(item))]
    frame = mixed_frame().assign(customer=PEOPLE)
    frame["age"] = frame["age"].fillna(0).abs() + 0.5
    frame.to_csv(rows, index=False)
    done("model", "add", *words, "--name", "m", *options, "--ledger", home)
    with Ledger.open(home) as ledger:
        model = ledger.models.load("m").steps_[-1][1]
    found = model.get_params()
    assert [found[name] for name in settings] == ["poisson", 8, 0.5, None]
    assert erase_and_audit(home, "m") == {"m": "V4"}


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ([], "BoostingClassifier"),
        (["--set", "loss=log_loss"], "BoostingClassifier"),
        (["--set", "loss=poisson"], "BoostingRegressor"),
        (["--set", "loss=squared_error"], "BoostingRegressor"),
    ],
)
def test_the_loss_decides_what_whole_numbers_mean(
    home: Path, settings: list[str], trained: str
) -> None:
    rows = home.parent / "train.csv"
    mixed_frame().assign(customer=PEOPLE, visits=[row % 4 for row in range(N)]).to_csv(
        rows, index=False
    )
    words = ("--rows", rows, "--ids", "customer", "--target", "visits", "--method", "boosting")
    result = call("model", "add", *words, "--name", "m", *settings, "--ledger", home)
    assert f"trained {trained} " in result.output


WRONG_SETTINGS = {
    "loss=poison": "loss='poison'; expected 'squared_error' or 'poisson'",
    "max_leaves=1": "max_leaves='1'; expected a whole number from 2 to 64",
    "max_leaves=8.5": "expected a whole number",
    "colsample=nan": "colsample='nan'; expected a number above 0 and up to 1",
    "leaves=8": "'leaves' is not a setting of BoostingRegressor; expected one of: colsample",
    "random_state=3": "'random_state' is not a setting",
    "loss": "expected NAME=VALUE",
    "=3": "expected NAME=VALUE",
    "loss=": "expected NAME=VALUE",
}


@pytest.mark.parametrize("text", WRONG_SETTINGS)
def test_wrong_settings_are_refused(home: Path, text: str) -> None:
    rows = home.parent / "train.csv"
    words = ("--rows", rows, "--ids", "customer", "--target", "age", "--method", "boosting")
    result = call("model", "add", *words, "--name", "m", "--set", text, "--ledger", home)
    assert result.exit_code in (2, 4)
    assert WRONG_SETTINGS[text] in " ".join(result.output.replace("│", " ").split())
    assert done("model", "list", "--ledger", home) == []


def test_settings_are_for_a_new_model_and_given_once(home: Path) -> None:
    rows = home.parent / "train.csv"
    twice = ("--set", "max_depth=3", "--set", "max_depth=4")
    result = call("model", "add", "--rows", rows, "--name", "m", *ROLES, *twice, "--ledger", home)
    assert result.exit_code == 2
    assert "was given twice" in result.output
    letheon.save(fit_pipeline("dare"), home.parent / "model")
    words = (home.parent / "model", "--rows", rows, "--name", "m", *ROLES, *twice[:2])
    assert call("model", "add", *words, "--ledger", home).exit_code == 2
