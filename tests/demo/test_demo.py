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
    DaREForestClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
    demo,
    persist,
)
from letheon.cli import app
from letheon.demo import _models, _scene, _trust
from letheon.exceptions import UnknownIdError
from letheon.measures.attacks import RMIA
from letheon.noise import SecretArray

JUDGING = (
    _models.choose_method,
    _models.measure,
    _models.attack,
    _models.watch,
    _models.report,
)

# Acts with models of their own.
ALONE = (_models.regrow, _models.step, _models.deepen, _trust.erase, *JUDGING)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few people and few passes: the same acts in a second or two."""
    monkeypatch.setattr(_scene, "N_TRAIN", 200)
    monkeypatch.setattr(_scene, "PASSES", 9)


@pytest.fixture(scope="module")
def output() -> str:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    return result.output


def play_small(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Play the small demo and return whether all was true, and what was said."""
    make_small(monkeypatch)
    said = io.StringIO()
    return demo.play(3, Console(file=said, width=80)), said.getvalue()


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


def test_every_act_is_played(output: str) -> None:
    titles = re.findall(r"^\d+\. (.+)$", output, flags=re.MULTILINE)
    assert titles == [act.title for act in demo.ACTS]


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
    acts = [act for act in demo.ACTS if act.play in (_models.train, _models.forget)]
    monkeypatch.setattr(demo, "ACTS", acts)
    said = io.StringIO()
    demo.play(3, Console(file=said, width=30))
    assert "test accuracy" in said.getvalue()
    assert len(re.findall(r"\d\.\dx +\d\.\dx", said.getvalue())) == 3


def forgets_nothing(model: Any, ids: list[str], *, digest: bool = False) -> Any:
    if "person-999" in ids:
        raise UnknownIdError("ids not in this model")
    return SISAClassifier.forget(model, [], digest=digest)


def refuses_nobody(model: Any, ids: list[str], *, digest: bool = False) -> Any:
    return SISAClassifier.forget(model, [i for i in ids if i != "person-999"], digest=digest)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [(forgets_nothing, "forgetting equals a fresh fit"), (refuses_nobody, "an unknown id is")],
)
def test_a_model_that_cheats_fails_the_demo(
    cheat: Callable[..., Any], caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheater = type("SISAClassifier", (SISAClassifier,), {"__init__": SISAClassifier.__init__})
    cheater.forget = cheat  # type: ignore[attr-defined]
    monkeypatch.setattr(_scene, "SISAClassifier", cheater)
    others = (_models.keep, *ALONE)
    monkeypatch.setattr(demo, "ACTS", [act for act in demo.ACTS if act.play not in others])
    fine, said = play_small(monkeypatch)
    assert not fine
    assert caught in said.partition("NOT TRUE")[2]


def test_models_ends_with_a_report(output: str) -> None:
    """A method is chosen, liars are found and a retrain is not, the monitor retrains."""
    words = " ".join(output.split())
    assert "faster than retraining" in words
    verdicts = re.findall(r"rmia on forgotten people: [^:]*: (not found|found)", words)
    assert verdicts == ["not found", "found", "found"]
    assert "Forgetting was tested by canary backdoor (not found), canary u-lira" in words
    assert "equal to a fresh fit, byte for byte" in words
    assert re.search(r"request \d+: .*: retrained \(", words)
    found = re.search(r"browser:(/\S+?report\.html)", words.replace(" ", ""))
    assert found is not None
    assert "The four properties" in Path(found[1]).read_text(encoding="utf-8")


def test_an_attacker_who_finds_nobody_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(RMIA):
        def run(self, unlearner: Any, *args: Any, **kwargs: Any) -> Any:
            honest = NaiveUnlearner(unlearner.estimator)
            return super().run(honest, *args, **kwargs)

    monkeypatch.setattr(_models, "RMIA", Blind)
    fine, said = play_alone(_models.attack, monkeypatch)
    assert not fine
    assert "is found" in said.partition("NOT TRUE")[2]


def play_alone(act: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Play one act."""
    monkeypatch.setattr(demo, "ACTS", [each for each in demo.ACTS if each.play is act])
    return play_small(monkeypatch)


def test_the_forest_forgets_lazily_then_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, said = play_alone(_models.regrow, monkeypatch)
    assert fine
    said = " ".join(said.split())
    assert re.search(r"dare: forgot 1 person, 4 rows .* subtrees?, \d+ rows", said)
    assert "Equal to a fresh fit without the six: yes" in said
    refit, lazy, settled = map(float, re.findall(r"s ([\d.]+)x", said))
    assert refit == 1
    assert lazy >= settled > 0


def test_a_forest_that_keeps_somebody_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sly(DaREForestClassifier):
        def forget(self, ids: Any, *, digest: bool = False) -> Any:
            return super().forget([] if "person-000" in ids else ids, digest=digest)

    Sly.__name__ = "DaREForestClassifier"
    monkeypatch.setattr(_models, "DaREForestClassifier", Sly)
    fine, said = play_alone(_models.regrow, monkeypatch)
    assert not fine
    assert "a forest forgets exactly" in said.partition("NOT TRUE")[2]


def test_the_regression_steps_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, said = play_alone(_models.step, monkeypatch)
    assert fine
    said = " ".join(said.split())
    assert re.search(r"influence: forgot 1 person, 4 rows .* certified", said)
    numbers = re.search(r"gradient of (\S+); (\S+) of it .* Measured: (\S+),", said)
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
    [(Immovable, "the account covers the residual"), (Selective, "nobody who left a regression")],
)
def test_a_regression_that_cheats_fails_the_demo(
    cheat: type[InfluenceClassifier], caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_models, "InfluenceClassifier", cheat)
    fine, said = play_alone(_models.step, monkeypatch)
    assert not fine
    assert caught in said.partition("NOT TRUE")[2]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@needs_torch
def test_nets_forget_exactly_or_say_how_far_off_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, said = play_alone(_models.deepen, monkeypatch)
    assert fine
    said = " ".join(said.split())
    assert re.search(r"sisa-net: forgot 1 person, 4 rows .* 1 shard, \d stages?; exact", said)
    assert "Equal to a fresh fit without the six: yes" in said
    assert re.search(r"deepobliviate: forgot 1 person, 4 rows .* empirical", said)
    assert "the sum of absolute differences of all parameters" in said
    estimate, truth = map(
        float, re.findall(r"distance (?:of|is) (\d\S*?)(?: from|\.(?: |$))", said)
    )
    assert (estimate > 0) == (truth > 0)


@needs_torch
@pytest.mark.parametrize(
    ("name", "caught"),
    [
        ("SISANetClassifier", "a sharded net forgets exactly"),
        ("DeepObliviateClassifier", "nobody who left a net of blocks is held"),
    ],
)
def test_a_net_that_keeps_somebody_fails_the_demo(
    name: str, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Any = getattr(letheon, name)

    def keeps_everybody(model: Any, ids: list[str], **options: Any) -> Any:
        return honest.forget(copy.copy(model), ids, **options)

    sly = type(name, (honest,), {"__init__": honest.__init__, "forget": keeps_everybody})
    monkeypatch.setattr(letheon, name, sly)
    fine, said = play_alone(_models.deepen, monkeypatch)
    assert not fine
    assert caught in said.partition("NOT TRUE")[2]


@needs_torch
def test_a_run_that_stops_early_is_no_run_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    early = _models._block_net
    monkeypatch.setattr(_models, "_block_net", lambda seed, _: early(seed, 1e9))
    said = play_alone(_models.deepen, monkeypatch)[1]
    assert "a run to the end leaves no block out" in said.partition("NOT TRUE")[2]


def test_nets_are_skipped_where_torch_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scene, "find_spec", lambda _: None)
    fine, said = play_alone(_models.deepen, monkeypatch)
    assert fine
    assert "Skipped: nets need torch" in said
    assert "pip install 'letheon[torch]'" in said


def test_a_file_that_loses_something_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: Any) -> Any:
        model = persist.load(path)
        _scene.let_go(model, model.ids_[:1].tolist())
        return model

    monkeypatch.setattr(_models, "load", careless)
    monkeypatch.setattr(demo, "ACTS", [act for act in demo.ACTS if act.play not in ALONE])
    assert "a loaded model forgets alike" in play_small(monkeypatch)[1].partition("NOT TRUE")[2]


def test_a_false_claim_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(scene: _scene.Scene) -> None:
        scene.say(scene.check(1 + 1 == 3, "sums are right"))

    monkeypatch.setattr(demo, "ACTS", (demo.Act("Sums", lie),))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "NOT TRUE: sums are right" in result.output


@pytest.fixture
def scene() -> _scene.Scene:
    return _scene.set_scene(Console(file=io.StringIO()), 0)


def test_people_own_several_rows_and_test_rows_are_others(scene: _scene.Scene) -> None:
    assert len(scene.X) + len(scene.X_test) == 1797
    assert {scene.ids.tolist().count(name) for name in scene.some_people(6)} == {4}


def test_who_left_is_not_asked_again(scene: _scene.Scene) -> None:
    scene.gone = [*scene.some_people(6), scene.somebody_else()]
    assert scene.somebody_else() not in scene.gone
    assert np.isin(scene.ids, scene.gone).sum() == 7 * 4


def test_the_end_says_how_to_open_the_desk(output: str) -> None:
    last = output.rpartition("The same with pages and an API")[2]
    assert "letheon serve --demo" in last
    assert "letheon serve --ledger" in last
