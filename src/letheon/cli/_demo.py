"""`letheon demo`: the main job end to end, as a list of small acts.

A new act is a function of the `Scene` and a line in `ACTS`. Acts find things out with
`Scene.check`; the demo fails if one of them was false.
"""

import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import letheon
from letheon.cli._console import PlainConsole, show_table
from letheon.cli._erasure import erase
from letheon.cli._judging import attack, choose_method, measure, report, watch
from letheon.cli._scene import (
    NAIVE,
    PASSES,
    ROWS_PER_PERSON,
    SHARDED,
    SHARDS,
    SLICED,
    Scene,
    fixed_passes,
    let_go,
    set_scene,
)
from letheon.cli._stranger import distrust
from letheon.cli._words import size_text, time_text
from letheon.exceptions import UnknownIdError
from letheon.forest import DaREForestClassifier
from letheon.linear import InfluenceClassifier
from letheon.measures import efficiency
from letheon.parallel import one_thread
from letheon.persist import inspect, load, save
from letheon.receipt import Receipt
from letheon.sharded import SISAClassifier, plan

BLOCKS = 20


class Act(NamedTuple):
    """One part of the demo."""

    title: str
    play: Callable[[Scene], None]


def play(seed: int = 0, console: Console | None = None) -> bool:
    """Play all acts; return whether everything that was claimed turned out true."""
    begin = time.perf_counter()
    scene = set_scene(console or PlainConsole(), seed)
    for number, act in enumerate(ACTS, start=1):
        scene.console.print(f"\n[bold]{number}. {act.title}[/bold]")
        act.play(scene)
    for claim in scene.failures:
        scene.console.print(f"\n[bold red]NOT TRUE:[/bold red] {claim}")
    scene.console.print(f"\nDone in {time.perf_counter() - begin:.1f} s.")
    return not scene.failures


def meet(scene: Scene) -> None:
    """Say what the data and the models are."""
    people = len(set(scene.ids.tolist()))
    scene.say(
        f"{len(scene.X):,} images of handwritten digits from scikit-learn, given to {people} "
        f"made-up people with {ROWS_PER_PERSON} rows each; {len(scene.X_test)} more for testing. "
        f"One small neural network, {PASSES} passes, made to forget in three ways."
    )


def train(scene: Scene) -> None:
    """Fit every model."""
    with scene.progress() as bars:
        task = bars.add_task("", total=len(scene.models))
        for name, model in scene.models.items():
            bars.update(task, description=name)
            begin = time.perf_counter()
            with fixed_passes():
                model.fit(scene.X, scene.y, ids=scene.ids)
            scene.fit_seconds[name] = time.perf_counter() - begin
            bars.advance(task)
        bars.update(task, description="models trained")
    table = _table("model", "training", "test accuracy")
    for name, model in scene.models.items():
        accuracy = model.score(scene.X_test, scene.y_test)
        table.add_row(name, time_text(scene.fit_seconds[name]), f"{accuracy:.1%}")
    show_table(scene.console, table)
    scene.say("Shards are trained apart, on fewer rows each. Accuracy is what that costs.")


def forget(scene: Scene) -> None:
    """Let some people leave, one after the other."""
    leaving = scene.some_people(6)
    with scene.progress() as bars:
        for name, model in scene.models.items():
            task = bars.add_task(name, total=len(leaving))
            scene.receipts[name] = []
            for person in leaving:
                scene.receipts[name].append(let_go(model, [person]))
                bars.advance(task)
    scene.gone += leaving
    scene.say("The last receipt of each model; a receipt never says who left:")
    for receipts in scene.receipts.values():
        scene.quote(str(receipts[-1]))
    show_table(scene.console, _costs(scene))
    scene.say(
        "Work is what was trained again, as a share of a retrain. The expected speed-up counts "
        "rows, as a mean over all people (letheon plan). The measured one is that of these six, "
        "timed on this machine: it depends on which slices they are in, and it is lower where "
        "shards are small, since every call of the learner has a fixed cost whatever its rows."
    )


def _costs(scene: Scene) -> Table:
    table = _table("model", "mean time", "mean work", "speed-up", "expected")
    naive = [receipt.seconds for receipt in scene.receipts[NAIVE]]
    for name, receipts in scene.receipts.items():
        seconds = [receipt.seconds for receipt in receipts]
        work = sum(receipt.work for receipt in receipts) / len(receipts)
        table.add_row(
            name,
            time_text(sum(seconds) / len(seconds)),
            f"{work:.1%}",
            f"{efficiency(naive, seconds).value:.1f}x",
            f"{_expected(scene, name):.1f}x",
        )
    return table


def _expected(scene: Scene, name: str) -> float:
    model = scene.models[name]
    if not isinstance(model, SISAClassifier):
        return 1.0
    return plan(
        len(scene.X),
        n_shards=model.n_shards,
        n_slices=model.n_slices,
        epochs=PASSES,
        rows_per_person=ROWS_PER_PERSON,
    ).speed_up


def compare(scene: Scene) -> None:
    """Compare every model with a fresh fit on the remaining rows."""
    table = _table("model", "after forgetting", "fresh fit", "equal")
    with scene.progress() as bars:
        task = bars.add_task("fresh fits without the six", total=len(scene.models))
        for name, model in scene.models.items():
            ours, fresh = model.digest(), scene.fresh_fit(name).digest()
            verdict = scene.check(ours == fresh, f"{name}: forgetting equals a fresh fit")
            table.add_row(name, f"{ours[:12]}...", f"{fresh[:12]}...", verdict)
            bars.advance(task)
    show_table(scene.console, table)
    scene.say(
        "A digest is the SHA-256 of everything the model keeps: rows, states, parameters, seed. "
        "Equal digests: the model is, byte for byte, one that never saw the six people. Whoever "
        "has the remaining rows can make this comparison."
    )


def keep(scene: Scene) -> None:
    """Save and load a model; let one more person leave both the old and the loaded one."""
    model, person = scene.models[SLICED], scene.somebody_else()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.letheon"
        save(model, path)
        info, loaded = inspect(path), load(path)
    let_go(model, [person])
    receipt = let_go(loaded, [person])
    scene.gone.append(person)
    fresh = scene.fresh_fit(SLICED).digest()
    scene.say(
        f"Saved in the format {info.format}: {size_text(info.size)}, no pickle. The file holds "
        "rows, so it is personal data. Loaded again, and one more person left:"
    )
    scene.quote(str(receipt))
    same = scene.check(loaded.digest() == model.digest(), "a loaded model forgets alike")
    exact = scene.check(loaded.digest() == fresh, "a loaded model forgets exactly")
    scene.say(f"Equal to the model that was never saved: {same}.")
    scene.say(f"Equal to a fresh fit without all seven: {exact}.")


def refuse(scene: Scene) -> None:
    """Ask for somebody who is not there: the request is refused and nothing changes."""
    model = scene.models[SHARDED]
    known, before, refused = scene.somebody_else(), model.digest(), False
    try:
        let_go(model, [known, "person-999"])
    except UnknownIdError as error:
        refused = True
        scene.quote(f"UnknownIdError: {error}", "yellow")
    scene.check(refused, "an unknown id is refused")
    same = scene.check(model.digest() == before, "a refused request changes nothing")
    scene.say(f"All or nothing: {known} is known, and is still held. Model unchanged: {same}.")


def regrow(scene: Scene) -> None:
    """Let six people leave a forest, first lazily; grow what was dropped; compare with a refit."""
    forest = DaREForestClassifier(random_state=scene.seed).fit(scene.X, scene.y, ids=scene.ids)
    leaving = scene.some_people(6)
    receipts = [forest.forget([person]) for person in leaving]
    settling = _seconds(forest.settle)
    rows = ~np.isin(scene.ids, leaving)
    fresh = DaREForestClassifier(random_state=forest.seed_)
    refit = _seconds(lambda: fresh.fit(scene.X[rows], scene.y[rows], ids=scene.ids[rows]))
    scene.say(
        f"A forest of {forest.n_estimators} trees on the same rows, "
        f"{forest.score(scene.X_test, scene.y_test):.1%} right on the test rows. The same six "
        "people leave, one after the other. Subtrees that would have grown otherwise are dropped "
        "at once, and grown again when they are needed, or all together:"
    )
    scene.quote(str(receipts[-1]))
    show_table(scene.console, _forest_times(receipts, settling, refit))
    exact = scene.check(fresh.digest() == forest.digest(), "a forest forgets exactly")
    scene.say(
        f"Equal to a fresh fit without the six: {exact}. This table is small: the more rows, "
        "the smaller the share of them that one person can change."
    )


def _forest_times(receipts: list[Receipt], settling: float, refit: float) -> Table:
    forgetting = sum(receipt.seconds for receipt in receipts)
    times = {
        "a refit": refit,
        "one person, lazily": forgetting / len(receipts),
        "one person, settled": (forgetting + settling) / len(receipts),
    }
    table = _table("what", "mean time", "speed-up")
    for what, seconds in times.items():
        table.add_row(what, time_text(seconds), f"{refit / seconds:,.1f}x")
    return table


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def step(scene: Scene) -> None:
    """Let people leave a logistic regression by small steps; look into the account of its noise."""
    leaving = scene.some_people(20)
    rows = ~np.isin(scene.ids, leaving)
    model, fresh = (InfluenceClassifier(l2=0.01) for _ in range(2))
    # Several threads would slow both down on matrices this small, and the refit more.
    with one_thread():
        model.fit(scene.X, scene.y, ids=scene.ids)
        receipts = [model.forget([person]) for person in leaving]
        refit = _seconds(lambda: fresh.fit(scene.X[rows], scene.y[rows], ids=scene.ids[rows]))
    scene.say(
        "A logistic regression on the same rows, released with secret noise. Twenty people leave, "
        "one after the other; for each the coefficients make one Newton step, and get new noise:"
    )
    scene.quote(str(receipts[-1]))
    show_table(scene.console, _step_times(receipts, refit))
    _audit(scene, model, fresh)
    held = set(model.ids_.tolist())
    gone = scene.check(held.isdisjoint(leaving), "nobody who left a regression is held")
    scene.say(f"Nobody who left is held: {gone}.")


def _step_times(receipts: list[Receipt], refit: float) -> Table:
    one = sum(receipt.seconds for receipt in receipts) / len(receipts)
    table = _table("what", "mean time", "speed-up")
    table.add_row("a refit", time_text(refit), "1.0x")
    table.add_row("one person, certified", time_text(one), f"{refit / one:,.1f}x")
    return table


def _audit(scene: Scene, model: InfluenceClassifier, fresh: InfluenceClassifier) -> None:
    """Show what is claimed and what was spent of it, and check both."""
    claim, account, left = model.guarantee_, model.account_, model.exact_residual()
    covered = scene.check(account.spent <= account.limit, "the budget covers what was spent")
    # Measured with rows left out and with rows wiped: sums that differ in the last digits.
    honest = scene.check(left <= account.spent * (1 + 1e-9), "the account covers the residual")
    accuracies = [each.score(scene.X_test, scene.y_test) for each in (model, fresh)]
    close = scene.check(
        abs(accuracies[0] - accuracies[1]) <= 0.01, "a step is as good as a refit, within a point"
    )
    scene.say(
        f"{claim.kind}: not to be told from a refit with fresh noise, up to epsilon = "
        f"{claim.epsilon:g} and delta = {claim.delta:g}. The noise hides a gradient of "
        f"{account.limit:.3g}; {account.spent:.3g} of it are spent. Within the budget: {covered}. "
        f"Measured: {left:.3g}, not above what the account says: {honest}. It was measured "
        f"{account.exact} times on the way, improved by another step {account.polishes} times, and "
        f"{account.retrains} retrains were needed. So few rows leave little room: with more of "
        "them a step hardly spends anything, and looks at no other row."
    )
    scene.say(
        f"Right on the test rows: {accuracies[0]:.1%}, refit {accuracies[1]:.1%}. Within a point: "
        f"{close}."
    )


def deepen(scene: Scene) -> None:
    """Let people leave nets of torch: exactly by shards, and by an estimate with blocks."""
    if find_spec("torch") is None:
        scene.say("Skipped: nets need torch, which is not installed. With it this act is played:")
        scene.quote("pip install 'letheon[torch]'")
        return
    _by_shards(scene)
    _by_blocks(scene)


def _by_shards(scene: Scene) -> None:
    leaving = scene.some_people(6)
    rows = ~np.isin(scene.ids, leaving)
    model = _sharded_net(scene.seed).fit(scene.X, scene.y, ids=scene.ids)
    receipt = model.forget(leaving[:1])
    model.forget(leaving[1:])
    fresh = _sharded_net(model.seed_).fit(scene.X[rows], scene.y[rows], ids=scene.ids[rows])
    scene.say(
        f"A net of torch in each of {SHARDS} shards, "
        f"{model.score(scene.X_test, scene.y_test):.1%} right on the test rows. One person leaves, "
        "then five more:"
    )
    scene.quote(str(receipt))
    exact = scene.check(fresh.digest() == model.digest(), "a sharded net forgets exactly")
    scene.say(f"Equal to a fresh fit without the six: {exact}.")


def _by_blocks(scene: Scene) -> None:
    leaving = scene.some_people(6)
    # Where a request stops is the only difference: at a small change, or at the end.
    model, whole = (_block_net(scene.seed, epsilon) for epsilon in (0.1, 0.0))
    for each in (whole, model):
        each.fit(scene.X, scene.y, ids=scene.ids)
        receipts = [each.forget([person]) for person in leaving]
    scene.say(
        f"One net, trained on {BLOCKS} blocks of people, one after the other; "
        f"{model.score(scene.X_test, scene.y_test):.1%} right. The six leave one by one: a block "
        "is trained again, and so are later ones until the difference hardly changes any more. "
        "The rest of the old training is added on:"
    )
    scene.quote(str(receipts[-1]))
    gone = not np.isin(leaving, model.ids_).any()
    scene.check(gone, "nobody who left a net of blocks is held")
    ended = whole.exact_blocks_ == BLOCKS
    scene.check(ended, "a run to the end leaves no block out")
    scene.say(
        f"empirical: nothing is proved. Receipts estimate a distance of {model.tail_:.3g} from "
        "runs to the end, as the sum of absolute differences of all parameters. We made these "
        f"runs: the true distance is {_distance(model, whole):.3g}."
    )


def _sharded_net(seed: int) -> "letheon.SISANetClassifier":
    return letheon.SISANetClassifier(
        n_shards=SHARDS, n_slices=4, epochs=PASSES, device="cpu", random_state=seed
    )


def _block_net(seed: int, epsilon: float) -> "letheon.DeepObliviateClassifier":
    return letheon.DeepObliviateClassifier(
        n_blocks=BLOCKS,
        epsilon=epsilon,
        epochs=3,
        batch_size=32,
        learning_rate=0.2,
        device="cpu",
        random_state=seed,
    )


def _distance(
    one: "letheon.DeepObliviateClassifier", two: "letheon.DeepObliviateClassifier"
) -> float:
    """Return the sum of absolute differences between all parameters of two nets."""
    pairs = zip(one.to_modules()[0].parameters(), two.to_modules()[0].parameters(), strict=True)
    return sum(float((ours - theirs).abs().sum()) for ours, theirs in pairs)


def explain(scene: Scene) -> None:
    """Say what was claimed and what was not."""
    claim = scene.models[SLICED].guarantee_
    words = Table.grid(padding=(0, 2))
    words.add_row(
        claim.kind,
        "The bytes of a fresh fit on the remaining rows, in their order, "
        "with the same seed, library versions and CPU kernel.",
    )
    words.add_row(
        "certified",
        "The regression: a refit with fresh noise could as well have given these "
        "coefficients, up to epsilon and delta, as long as the noise stays secret.",
    )
    words.add_row(
        "empirical",
        "The net of blocks: near a retrain by an estimate that may be wrong. It bounds nothing.",
    )
    words.add_row(
        claim.requests,
        "People did not choose to leave because of what the model showed "
        "them. Nothing is claimed about people who did.",
    )
    words.add_row(claim.releases, "Whoever kept an older model still has what it knew.")
    words.add_row(
        "confidential",
        "Digests: with the remaining rows at hand, an old digest "
        "confirms a right guess of a forgotten row.",
    )
    scene.console.print(words)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def open_desk(scene: Scene) -> None:
    """Say how to open the desk."""
    if find_spec("fastapi") is None:
        scene.say("The desk needs an extra:")
        scene.quote("pip install 'letheon[service]'")
    scene.say(
        "A desk before a ledger takes requests, shows models and certificates, replays audits by a "
        "button, and lets people check their receipts. A filled example, a token for each role:"
    )
    scene.quote(f"{_program()} serve --demo")
    scene.say("Your own, made at the first start, which prints one token of an admin:")
    scene.quote(f"{_program()} serve --ledger erasures")


def _program() -> str:
    """Return the command as it can be typed here."""
    return "letheon" if which("letheon") else ".venv/bin/letheon"


ACTS: tuple[Act, ...] = (
    Act("People and their rows", meet),
    Act("Train", train),
    Act("Six people leave, one after the other", forget),
    Act("Is it really as if they had never been there?", compare),
    Act("Save, load, forget again", keep),
    Act("A request that cannot be served", refuse),
    Act("A forest: forget now, grow later", regrow),
    Act("A regression: one step and secret noise", step),
    Act("Nets: exactly, or by an estimate", deepen),
    Act("Which method? Say what you need", choose_method),
    Act("Measure it", measure),
    Act("Attack it", attack),
    Act("Watch it", watch),
    Act("A report", report),
    Act("What this means", explain),
    Act("The whole story: asked, erased, certified, purged, audited", erase),
    Act("The same with pages and an API", open_desk),
    Act("A file from a stranger", distrust),
)
