"""The demo: complete, honest about failures, readable on a pipe."""

import copy
import io
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import letheon
from letheon import (
    BoostingClassifier,
    DaREForestClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
    demo,
    persist,
)
from letheon.cli import app
from letheon.demo import _context, _models, _trees, _trust
from letheon.exceptions import UnknownIdError
from letheon.measures.attacks import RMIA
from letheon.noise import SecretArray

JUDGING = (
    _models.choose_method,
    _models.measure_forest,
    _models.attack_models,
    _models.monitor_model,
    _models.write_report,
)

# Steps with their own models.
ALONE = (
    _trees.forget_in_forest,
    _trees.forget_in_boosting,
    _models.forget_in_regression,
    _models.forget_in_networks,
    _trust.run_erasure,
    *JUDGING,
)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few people and few epochs: the same steps in a second or two."""
    monkeypatch.setattr(_context, "N_TRAIN", 200)
    monkeypatch.setattr(_context, "PASSES", 9)


@pytest.fixture(scope="module")
def output() -> str:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    return result.output


def run_small(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Run the small demo; return whether all statements were true, and the output."""
    make_small(monkeypatch)
    output_text = io.StringIO()
    return demo.run_demo(3, Console(file=output_text, width=80)), output_text.getvalue()


@pytest.mark.soak
def test_the_real_demo_takes_less_than_a_minute() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-W", "error", "-c", "from letheon.cli import app; app()", "demo"]
    run = subprocess.run(command, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stdout.partition(b"NOT TRUE")[2] + run.stderr
    assert b"\x1b" not in run.stdout
    # Processor time: what else the machine does at the moment is not the demo's fault.
    assert after.ru_utime - before.ru_utime < 60


def test_every_step_runs(output: str) -> None:
    titles = re.findall(r"^\d+\. (.+)$", output, flags=re.MULTILINE)
    assert titles == [step.title for step in demo.STEPS]


def test_all_digests_are_equal_to_a_fresh_fit(output: str) -> None:
    pairs = re.findall(r"([0-9a-f]{12})\.\.\. +([0-9a-f]{12})\.\.\. +(yes|NO)", output)
    assert len(pairs) == 3
    assert all(ours == fresh and verdict == "yes" for ours, fresh, verdict in pairs)


def test_receipts_progress_and_refusal_are_shown(output: str) -> None:
    for words in (
        "sisa: forgot 1 person, 4 rows",
        "6/6",
        "UnknownIdError: ids not in this model: ['person-999']",
        "Model unchanged: yes",
        "oblivious",
        "confidential",
    ):
        assert words in output


def test_piped_output_is_plain_and_fits_80_columns(output: str) -> None:
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80
    assert [line for line in output.splitlines() if line != line.rstrip()] == []


def test_why_small_shards_gain_less_is_said(output: str) -> None:
    assert "fixed cost" in " ".join(output.split())


def test_narrow_terminals_lose_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    steps = [
        step for step in demo.STEPS if step.run in (_models.train_models, _models.forget_people)
    ]
    monkeypatch.setattr(demo, "STEPS", steps)
    output_text = io.StringIO()
    demo.run_demo(3, Console(file=output_text, width=30))
    assert "test accuracy" in output_text.getvalue()
    assert len(re.findall(r"\d\.\dx +\d\.\dx", output_text.getvalue())) == 3


def forgets_nothing(model: Any, ids: list[str], *, digest: bool = False) -> Any:
    if "person-999" in ids:
        raise UnknownIdError("ids not in this model")
    return SISAClassifier.forget(model, [], digest=digest)


def accepts_every_id(model: Any, ids: list[str], *, digest: bool = False) -> Any:
    return SISAClassifier.forget(model, [i for i in ids if i != "person-999"], digest=digest)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [(forgets_nothing, "forgetting equals a fresh fit"), (accepts_every_id, "an unknown id is")],
)
def test_a_model_that_cheats_fails_the_demo(
    cheat: Callable[..., Any], caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheater = type("SISAClassifier", (SISAClassifier,), {"__init__": SISAClassifier.__init__})
    cheater.forget = cheat  # type: ignore[attr-defined]
    monkeypatch.setattr(_context, "SISAClassifier", cheater)
    others = (_models.save_and_load, *ALONE)
    monkeypatch.setattr(demo, "STEPS", [step for step in demo.STEPS if step.run not in others])
    is_ok, output_text = run_small(monkeypatch)
    assert not is_ok
    assert caught in output_text.partition("NOT TRUE")[2]


def test_models_ends_with_a_report(output: str) -> None:
    """A method is chosen, liars are found and a retrain is not, the monitor retrains."""
    words = " ".join(output.split())
    assert "faster than retraining" in words
    verdicts = re.findall(r"rmia on forgotten people: [^:]*: (not found|found)", words)
    assert verdicts == ["not found", "found", "found"]
    assert "Forgetting was tested by canary backdoor (not found), canary u-lira" in words
    assert "Digests: equal to a fresh fit" in words
    assert re.search(r"request \d+: .*: retrained \(", words)
    address = re.search(r"browser:(/\S+?report\.html)", words.replace(" ", ""))
    assert address is not None
    assert "The four properties" in Path(address[1]).read_text(encoding="utf-8")


def test_an_attack_that_finds_nothing_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(RMIA):
        def run(self, unlearner: Any, *args: Any, **kwargs: Any) -> Any:
            honest = NaiveUnlearner(unlearner.estimator)
            return super().run(honest, *args, **kwargs)

    monkeypatch.setattr(_models, "RMIA", Blind)
    is_ok, output_text = run_alone(_models.attack_models, monkeypatch)
    assert not is_ok
    assert "is found" in output_text.partition("NOT TRUE")[2]


def run_alone(step: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Run one step."""
    monkeypatch.setattr(demo, "STEPS", [each for each in demo.STEPS if each.run is step])
    return run_small(monkeypatch)


def test_the_forest_forgets_lazily_then_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, output_text = run_alone(_trees.forget_in_forest, monkeypatch)
    assert is_ok
    output_text = " ".join(output_text.split())
    assert re.search(r"dare: forgot 1 person, 4 rows; .* subtrees?, \d+ rows", output_text)
    assert "Equal to a fresh fit without the six: yes" in output_text
    refit, lazy, settled = map(float, re.findall(r"s ([\d.]+)x", output_text))
    assert refit == 1
    assert lazy >= settled > 0


def test_a_forest_that_keeps_a_person_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sly(DaREForestClassifier):
        def forget(self, ids: Any, *, digest: bool = False) -> Any:
            return super().forget([] if "person-000" in ids else ids, digest=digest)

    Sly.__name__ = "DaREForestClassifier"
    monkeypatch.setattr(_trees, "DaREForestClassifier", Sly)
    is_ok, output_text = run_alone(_trees.forget_in_forest, monkeypatch)
    assert not is_ok
    assert "a forest forgets exactly" in output_text.partition("NOT TRUE")[2]


def test_boosting_forgets_exactly_in_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, output_text = run_alone(_trees.forget_in_boosting, monkeypatch)
    assert is_ok
    output_text = " ".join(output_text.split())
    assert re.search(r"boosting: forgot 1 person, 4 rows; .* rounds?", output_text)
    assert "Equal to a fresh fit without the six: yes" in output_text


def test_boosting_that_keeps_a_person_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlyBooster(BoostingClassifier):
        def forget(self, ids: Any, *, digest: bool = False) -> Any:
            return super().forget([] if "person-000" in ids else ids, digest=digest)

    monkeypatch.setattr(_trees, "BoostingClassifier", SlyBooster)
    is_ok, output_text = run_alone(_trees.forget_in_boosting, monkeypatch)
    assert not is_ok
    assert "gradient boosting forgets exactly" in output_text.partition("NOT TRUE")[2]


def test_the_regression_steps_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, output_text = run_alone(_models.forget_in_regression, monkeypatch)
    assert is_ok
    output_text = " ".join(output_text.split())
    assert re.search(r"influence: forgot 1 person, 4 rows; .* certified", output_text)
    numbers = re.search(r"gradient of (\S+); (\S+) of it .* Measured: (\S+),", output_text)
    assert numbers
    hides, spent, measured = map(float, numbers.groups())
    assert measured <= spent <= hides


class Immovable(InfluenceClassifier):
    """Drops the rows and keeps the coefficients that were trained on them."""

    def forget(self, ids: Any, **options: Any) -> Any:
        before = self.model_, SecretArray(self.weights_.open().copy())
        receipt = super().forget(ids, **options)
        self.model_, self.weights_ = before
        return receipt


class Selective(InfluenceClassifier):
    """Keeps one person."""

    def forget(self, ids: Any, **options: Any) -> Any:
        return super().forget([] if "person-000" in ids else ids, **options)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [(Immovable, "the account covers the residual"), (Selective, "a regression has no ids")],
)
def test_a_regression_that_cheats_fails_the_demo(
    cheat: type[InfluenceClassifier], caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_models, "InfluenceClassifier", cheat)
    is_ok, output_text = run_alone(_models.forget_in_regression, monkeypatch)
    assert not is_ok
    assert caught in output_text.partition("NOT TRUE")[2]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@needs_torch
def test_nets_forget_exactly_or_say_how_far_off_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, output_text = run_alone(_models.forget_in_networks, monkeypatch)
    assert is_ok
    output_text = " ".join(output_text.split())
    assert re.search(
        r"sisa-net: forgot 1 person, 4 rows; .* \(1 shard, \d stages?\); exact", output_text
    )
    assert "Equal to a fresh fit without the six: yes" in output_text
    assert re.search(r"deepobliviate: forgot 1 person, 4 rows; .* empirical", output_text)
    assert "the sum of absolute differences of all parameters" in output_text
    estimate, truth = map(
        float, re.findall(r"distance (?:of|is) (\d\S*?)(?: from|\.(?: |$))", output_text)
    )
    assert (estimate > 0) == (truth > 0)


@needs_torch
@pytest.mark.parametrize(
    ("name", "caught"),
    [
        ("SISANetClassifier", "a sharded network forgets exactly"),
        ("DeepObliviateClassifier", "a network of blocks has no ids that were forgotten"),
    ],
)
def test_a_network_that_keeps_people_fails_the_demo(
    name: str, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Any = getattr(letheon, name)

    def keep_all(model: Any, ids: list[str], **options: Any) -> Any:
        return honest.forget(copy.copy(model), ids, **options)

    sly = type(name, (honest,), {"__init__": honest.__init__, "forget": keep_all})
    monkeypatch.setattr(letheon, name, sly)
    is_ok, output_text = run_alone(_models.forget_in_networks, monkeypatch)
    assert not is_ok
    assert caught in output_text.partition("NOT TRUE")[2]


@needs_torch
def test_a_run_that_stops_early_is_no_run_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    early = _models._make_block_net
    monkeypatch.setattr(_models, "_make_block_net", lambda seed, _: early(seed, 1e9))
    output_text = run_alone(_models.forget_in_networks, monkeypatch)[1]
    assert "a full run retrains every later block" in output_text.partition("NOT TRUE")[2]


def test_nets_are_skipped_where_torch_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_context, "find_spec", lambda _: None)
    is_ok, output_text = run_alone(_models.forget_in_networks, monkeypatch)
    assert is_ok
    assert "Skipped: this step needs torch" in output_text
    assert "pip install 'letheon[torch]'" in output_text


def test_a_file_that_loses_something_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: Any) -> Any:
        model = persist.load(path)
        _context.forget_ids(model, model.ids_[:1].tolist())
        return model

    monkeypatch.setattr(_models, "load", careless)
    monkeypatch.setattr(demo, "STEPS", [step for step in demo.STEPS if step.run not in ALONE])
    assert (
        "a loaded model forgets in the same way"
        in run_small(monkeypatch)[1].partition("NOT TRUE")[2]
    )


def test_a_false_claim_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(context: _context.DemoContext) -> None:
        context.print_text(context.check(1 + 1 == 3, "sums are right"))

    monkeypatch.setattr(demo, "STEPS", (demo.DemoStep("Sums", lie),))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "NOT TRUE: sums are right" in result.output


@pytest.fixture
def context() -> _context.DemoContext:
    return _context.make_context(Console(file=io.StringIO()), 0)


def test_people_own_several_rows_and_test_rows_are_others(context: _context.DemoContext) -> None:
    assert len(context.X) + len(context.X_test) == 1797
    assert {context.ids.tolist().count(name) for name in context.pick_ids(6)} == {4}


def test_who_left_is_not_asked_again(context: _context.DemoContext) -> None:
    context.forgotten = [*context.pick_ids(6), context.pick_remaining_id()]
    assert context.pick_remaining_id() not in context.forgotten
    assert np.isin(context.ids, context.forgotten).sum() == 7 * 4


def test_the_demo_shows_how_to_start_the_service(output: str) -> None:
    last = output.rpartition("The web service")[2]
    assert "letheon serve --demo" in last
    assert "letheon serve --ledger" in last
