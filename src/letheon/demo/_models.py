"""Acts of the demo about models: train, forget and compare; choose, measure, attack and watch."""

import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import letheon
from letheon.bench import describe_machine
from letheon.datasets import Requests
from letheon.demo import _scene
from letheon.demo._scene import Scene, let_go, measure_seconds
from letheon.evaluation import ORDINARY, SAME, evaluate
from letheon.evaluation.report import Picture, Report, Table, write_page
from letheon.exceptions import UnknownIdError
from letheon.forest import DaREForestClassifier
from letheon.linear import InfluenceClassifier
from letheon.measures import efficiency
from letheon.measures.attacks import RMIA, FineTuneOnly, KeepsEverything
from letheon.monitor import Calibration, Monitor, MonitorTolerances
from letheon.naive import NaiveUnlearner
from letheon.parallel import one_thread
from letheon.persist import inspect, load, save
from letheon.select import Candidate, Need, Tolerances, choose
from letheon.sharded import SISAClassifier, plan
from letheon.terminal import size_text, time_text

BLOCKS = 20


def meet(scene: Scene) -> None:
    """Say what the data and the models are."""
    people = len(set(scene.ids.tolist()))
    scene.say(
        f"{len(scene.X):,} images of handwritten digits from scikit-learn, given to {people} "
        f"made-up people with {_scene.ROWS_PER_PERSON} rows each; {len(scene.X_test)} more for "
        f"testing. One small neural network, {_scene.PASSES} passes, made to forget in three ways."
    )


def train(scene: Scene) -> None:
    """Fit every model."""
    with scene.progress() as bars:
        task = bars.add_task("", total=len(scene.models))
        for name, model in scene.models.items():
            bars.update(task, description=name)
            scene.fit_seconds[name] = measure_seconds(partial(scene.fit, model))
            bars.advance(task)
        bars.update(task, description="models trained")
    rows = [
        (name, time_text(scene.fit_seconds[name]), scene.accuracy(model))
        for name, model in scene.models.items()
    ]
    scene.show(("model", "training", "test accuracy"), rows)
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
    scene.show(("model", "mean time", "mean work", "speed-up", "expected"), _costs(scene))
    scene.say(
        "Work is what was trained again, as a share of a retrain. The expected speed-up counts "
        "rows, as a mean over all people (letheon plan). The measured one is that of these six, "
        "timed on this machine: it depends on which slices they are in, and it is lower where "
        "shards are small, since every call of the learner has a fixed cost whatever its rows."
    )


def _costs(scene: Scene) -> Iterator[tuple[str, ...]]:
    naive = [receipt.seconds for receipt in scene.receipts[_scene.NAIVE]]
    for name, receipts in scene.receipts.items():
        model, expected = scene.models[name], 1.0
        if isinstance(model, SISAClassifier):
            expected = plan(
                len(scene.X),
                n_shards=model.n_shards,
                n_slices=model.n_slices,
                epochs=_scene.PASSES,
                rows_per_person=_scene.ROWS_PER_PERSON,
            ).speed_up
        seconds = [receipt.seconds for receipt in receipts]
        work = sum(receipt.work for receipt in receipts) / len(receipts)
        measured = efficiency(naive, seconds).value
        time_each = time_text(sum(seconds) / len(seconds))
        yield name, time_each, f"{work:.1%}", f"{measured:.1f}x", f"{expected:.1f}x"


def compare(scene: Scene) -> None:
    """Compare every model with a fresh fit on the remaining rows."""
    rows = []
    with scene.progress() as bars:
        task = bars.add_task("fresh fits without the six", total=len(scene.models))
        for name, model in scene.models.items():
            ours, fresh = model.digest(), scene.fresh_fit(name).digest()
            verdict = scene.check(ours == fresh, f"{name}: forgetting equals a fresh fit")
            rows.append((name, f"{ours[:12]}...", f"{fresh[:12]}...", verdict))
            bars.advance(task)
    scene.show(("model", "after forgetting", "fresh fit", "equal"), rows)
    scene.say(
        "A digest is the SHA-256 of everything the model keeps: rows, states, parameters, seed. "
        "Equal digests: the model is, byte for byte, one that never saw the six people. Whoever "
        "has the remaining rows can make this comparison."
    )


def keep(scene: Scene) -> None:
    """Save and load a model; let one more person leave both the old and the loaded one."""
    model, person = scene.models[_scene.SLICED], scene.somebody_else()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.letheon"
        save(model, path)
        info, loaded = inspect(path), load(path)
    let_go(model, [person])
    receipt = let_go(loaded, [person])
    scene.gone.append(person)
    fresh = scene.fresh_fit(_scene.SLICED).digest()
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
    model = scene.models[_scene.SHARDED]
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
    forest = scene.fit(DaREForestClassifier(random_state=scene.seed))
    leaving = scene.some_people(6)
    receipts = [forest.forget([person]) for person in leaving]
    settling = measure_seconds(forest.settle)
    fresh = DaREForestClassifier(random_state=forest.seed_)
    refit = measure_seconds(lambda: scene.fit(fresh, leaving))
    scene.say(
        f"A forest of {forest.n_estimators} trees on the same rows, "
        f"{scene.accuracy(forest)} right on the test rows. The same six "
        "people leave, one after the other. Subtrees that would have grown otherwise are dropped "
        "at once, and grown again when they are needed, or all together:"
    )
    scene.quote(str(receipts[-1]))
    forgetting = sum(receipt.seconds for receipt in receipts)
    scene.show_times(
        {
            "a refit": refit,
            "one person, lazily": forgetting / len(receipts),
            "one person, settled": (forgetting + settling) / len(receipts),
        }
    )
    exact = scene.check(fresh.digest() == forest.digest(), "a forest forgets exactly")
    scene.say(
        f"Equal to a fresh fit without the six: {exact}. This table is small: the more rows, "
        "the smaller the share of them that one person can change."
    )


def step(scene: Scene) -> None:
    """Let people leave a logistic regression by small steps; look into the account of its noise."""
    leaving = scene.some_people(20)
    model, fresh = (InfluenceClassifier(l2=0.01) for _ in range(2))
    # Several threads would slow both down on matrices this small, and the refit more.
    with one_thread():
        scene.fit(model)
        receipts = [model.forget([person]) for person in leaving]
        refit = measure_seconds(lambda: scene.fit(fresh, leaving))
    scene.say(
        "A logistic regression on the same rows, released with secret noise. Twenty people leave, "
        "one after the other; for each the coefficients make one Newton step, and get new noise:"
    )
    scene.quote(str(receipts[-1]))
    mean = sum(receipt.seconds for receipt in receipts) / len(receipts)
    scene.show_times({"a refit": refit, "one person, certified": mean})
    _audit(scene, model, fresh)
    held = set(model.ids_.tolist())
    gone = scene.check(held.isdisjoint(leaving), "nobody who left a regression is held")
    scene.say(f"Nobody who left is held: {gone}.")


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
    why = "Skipped: nets need torch, which is not installed. With it this act is played:"
    if not scene.lacks(["torch"], why, "torch"):
        _by_shards(scene)
        _by_blocks(scene)


def _by_shards(scene: Scene) -> None:
    leaving = scene.some_people(6)
    model = scene.fit(_sharded_net(scene.seed))
    receipt = model.forget(leaving[:1])
    model.forget(leaving[1:])
    fresh = scene.fit(_sharded_net(model.seed_), leaving)
    scene.say(
        f"A net of torch in each of {_scene.SHARDS} shards, {scene.accuracy(model)} right on the "
        "test rows. One person leaves, then five more:"
    )
    scene.quote(str(receipt))
    exact = scene.check(fresh.digest() == model.digest(), "a sharded net forgets exactly")
    scene.say(f"Equal to a fresh fit without the six: {exact}.")


def _by_blocks(scene: Scene) -> None:
    leaving = scene.some_people(6)
    # Where a request stops is the only difference: at a small change, or at the end.
    model, whole = (_block_net(scene.seed, epsilon) for epsilon in (0.1, 0.0))
    for each in (whole, model):
        scene.fit(each)
        receipts = [each.forget([person]) for person in leaving]
    scene.say(
        f"One net, trained on {BLOCKS} blocks of people, one after the other; "
        f"{scene.accuracy(model)} right. The six leave one by one: a block "
        "is trained again, and so are later ones until the difference hardly changes any more. "
        "The rest of the old training is added on:"
    )
    scene.quote(str(receipts[-1]))
    gone = not np.isin(leaving, model.ids_).any()
    scene.check(gone, "nobody who left a net of blocks is held")
    scene.check(whole.exact_blocks_ == BLOCKS, "a run to the end leaves no block out")
    scene.say(
        f"empirical: nothing is proved. Receipts estimate a distance of {model.tail_:.3g} from "
        "runs to the end, as the sum of absolute differences of all parameters. We made these "
        f"runs: the true distance is {_distance(model, whole):.3g}."
    )


def _sharded_net(seed: int) -> "letheon.SISANetClassifier":
    return letheon.SISANetClassifier(
        n_shards=_scene.SHARDS, n_slices=4, epochs=_scene.PASSES, device="cpu", random_state=seed
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
    claim = scene.models[_scene.SLICED].guarantee_
    words = {
        claim.kind: "The bytes of a fresh fit on the remaining rows, in their order, "
        "with the same seed, library versions and CPU kernel.",
        "certified": "The regression: a refit with fresh noise could as well have given these "
        "coefficients, up to epsilon and delta, as long as the noise stays secret.",
        "empirical": "The net of blocks: near a retrain by an estimate that may be wrong. "
        "It bounds nothing.",
        claim.requests: "People did not choose to leave because of what the model showed "
        "them. Nothing is claimed about people who did.",
        claim.releases: "Whoever kept an older model still has what it knew.",
        "confidential": "Digests: with the remaining rows at hand, an old digest "
        "confirms a right guess of a forgotten row.",
    }
    scene.show_facts(words)


def open_desk(scene: Scene) -> None:
    """Say how to open the desk."""
    scene.lacks(["fastapi"], "The desk needs an extra:", "service")
    program = "letheon" if which("letheon") else ".venv/bin/letheon"
    scene.say(
        "A desk before a ledger takes requests, shows models and certificates, replays audits by a "
        "button, and lets people check their receipts. A filled example, a token for each role:"
    )
    scene.quote(f"{program} serve --demo")
    scene.say("Your own, made at the first start, which prints one token of an admin:")
    scene.quote(f"{program} serve --ledger erasures")


ROWS_PER_PATIENT = 3
TREES = 30
SEEDS = 3
CANARIES = 24


def _patients() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's breast cancer table, given to made-up patients."""
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, np.array([f"patient-{row // ROWS_PER_PATIENT:03}" for row in range(len(X))])


def choose_method(scene: Scene) -> None:
    """Say what is needed and tolerated, and let the methods compete."""
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    comparison = choose(
        _patients(),
        need=Need(guarantee="exact"),
        tolerances=Tolerances(effectiveness=0.06),
        candidates=[
            Candidate(
                DaREForestClassifier(n_estimators=TREES), efficiency={"random_depth": [0, 4, 8]}
            ),
            Candidate(SISAClassifier(logistic), efficiency={"n_shards": [2, 5]}),
            InfluenceClassifier(),
        ],
        requests=Requests(kind="person", n=10),
        expected_requests=100,
        seeds=SEEDS,
        cv=3,
        random_state=scene.seed,
    )
    scene.say(
        "Another table: 569 tumours from scikit-learn, given to 190 made-up patients. We need an "
        "exact method, and tolerate at most 6 points of accuracy below the best ordinary model:"
    )
    scene.quote(comparison.reason)
    scene.results["comparison"] = comparison
    scene.check(comparison.best is not None, "a method is within the tolerances")


def measure(scene: Scene) -> None:
    """Measure the four properties against both baselines."""
    evaluation = evaluate(
        DaREForestClassifier(n_estimators=TREES),
        _patients(),
        Requests(kind="person", n=10),
        seeds=SEEDS,
        title="DaRE forest",
        random_state=scene.seed,
    )
    scene.say(
        "Efficiency, effectiveness, consistency and certifiability of a forest, against the same "
        "forest and against the best ordinary model, both trained on the remaining rows:"
    )
    scene.console.print(evaluation)
    scene.results["evaluation"] = evaluation
    is_proved = evaluation.measures[SAME]["effectiveness"].basis == "by proof"
    scene.check(
        is_proved and bool(evaluation.equal_digests), "an exact method is equal to its own retrain"
    )


def attack(scene: Scene) -> None:
    """Let an attacker look for people who left: models that lie are found, a retrain is not."""
    # More columns than rows; the first rows have the wrong label.
    rng = np.random.default_rng(scene.seed)
    slope = rng.normal(size=300)
    X, others = rng.normal(size=(200, 300)), rng.normal(size=(200, 300))
    y = (X @ slope > 0).astype(int)
    y[:CANARIES] = 1 - y[:CANARIES]
    population = others, (others @ slope > 0).astype(int)
    learner = SGDClassifier(
        loss="log_loss", alpha=1e-6, learning_rate="constant", eta0=0.05, max_iter=15, tol=None
    )
    suspects = {
        "naive retraining": (NaiveUnlearner(learner), False),
        "only says that it forgot": (KeepsEverything(learner), True),
        "trains on without them": (FineTuneOnly(learner), True),
    }
    scene.say(
        f"{CANARIES} people with wrong labels, which a model can only know by heart, leave three "
        "models. An attacker with a few models of his own guesses who was there (RMIA). An AUC of "
        "0.5 is a coin; the floor is what he reaches against a true retrain:"
    )
    leaving = np.arange(CANARIES)
    for name, (suspect, lies) in suspects.items():
        result = RMIA(n_targets=8).run(
            suspect, X, y, forget=leaving, population=population, seed=scene.seed
        )[0]
        scene.quote(f"{name}: {result}")
        scene.results.setdefault("attacks", {})[name] = result
        verdict = "is found" if lies else "is not found"
        scene.check(result.found == lies, f"an attacker's victim, {name}, {verdict}")
    scene.say("Found means: it did not forget. Not found proves nothing.")


def watch(scene: Scene) -> None:
    """Watch a model that drifts through a stream of requests, until it must be retrained."""
    X, y, people = _patients()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.isin(people, np.unique(people)[::4])
    rows = X[~test], y[~test], people[~test]
    drifting = FineTuneOnly(
        SGDClassifier(loss="log_loss", average=True), n_passes=1, random_state=scene.seed
    )
    monitor = Monitor(
        drifting.fit(rows[0], rows[1], ids=rows[2]),
        X[test],
        y[test],
        tolerances=MonitorTolerances(effectiveness=0.04, certifiability=25.0),
        retrain_with=rows,
        calibration=Calibration(
            kinds=("uniform",),
            assume="requests come uniformly",
            n_requests=15,
            n_looks=5,
            horizon=0.25,
        ),
        random_state=scene.seed,
    )
    for ids in Requests(n=40).stream(None, *rows, seed=scene.seed):
        reading = monitor.forget(ids)
        if reading.retrained:
            break
    scene.say(
        "A model that only trains on without those who left drifts away from a retrain, and "
        "without one nobody sees it. A monitor rehearses removals on copies, estimates after each "
        "request how far the model may be, and retrains before a tolerance is passed:"
    )
    scene.results["monitor"] = monitor
    readings = [*monitor.history]
    for each in [*readings[:2], readings[-1]] if len(readings) > 2 else readings:
        scene.quote(str(each))
    scene.check(reading.retrained, "the monitor retrains in time")
    scene.say(
        f"{len(readings)} requests, then a retrain. How often such estimates are too low, in "
        "thousands of streams: docs/monitor.md."
    )


def report(scene: Scene) -> None:
    """Write what was found into one page that opens without a network."""
    comparison, evaluation = scene.results["comparison"], scene.results["evaluation"]
    # A name of its own: others can write to the shared folder.
    page = Path(tempfile.mkdtemp(prefix="letheon-demo-")) / "report.html"
    both = [evaluation.measures[baseline] for baseline in (SAME, ORDINARY)]
    measured = Table(
        f"{evaluation.title}: {evaluation.requests}",
        ("measure", f"against the {SAME}", f"against the {ORDINARY}"),
        [[name, *(measures.get(name) for measures in both)] for name in both[1]],
    )
    attacked = Table(
        "An attack on three models",
        ["model", "AUC of the attack", "floor: a retrain", "trace of who left"],
        [
            [name, result.measures["AUC"], result.floor["AUC"], result.verdict]
            for name, result in scene.results["attacks"].items()
        ],
    )
    pictures = []
    if find_spec("matplotlib"):
        import matplotlib as mpl

        mpl.use("Agg", force=False)
        drawn = {
            "The four properties": evaluation.plot(),
            "Speed against accuracy": comparison.plot(),
            "Requests until the retrain": scene.results["monitor"].plot(),
        }
        pictures = [Picture(display.figure_, title) for title, display in drawn.items()]
    written = Report(
        "Judge, choose and watch: the demo of letheon",
        settings={"seed": scene.seed, "seeds of each measurement": SEEDS},
        machine=describe_machine(),
        table=measured,
        tables=[attacked],
        summary=comparison.reason.splitlines(),
        notes=[evaluation.tested, *evaluation.warnings, *evaluation.fairness],
        pictures=pictures,
    )
    write_page(page, written.to_html())
    scene.say("All of it, with pictures, in one file; open it in a browser:")
    scene.quote(str(page))
    scene.check(page.stat().st_size > 0, "a report is written")
