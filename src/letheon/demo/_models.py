"""Demo steps about models: train, forget, compare, choose, measure, attack and monitor."""

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
from letheon.demo import _context
from letheon.demo._context import DemoContext, forget_ids, measure_seconds
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


def show_data(demo: DemoContext) -> None:
    """Describe the data and the models."""
    people = len(set(demo.ids.tolist()))
    demo.print_text(
        f"{len(demo.X):,} images of handwritten digits from scikit-learn, assigned to {people} "
        f"fictional people with {_context.ROWS_PER_PERSON} rows each; {len(demo.X_test)} more for "
        f"testing. One small neural network, {_context.PASSES} epochs, three ways to forget."
    )


def train_models(demo: DemoContext) -> None:
    """Fit every model."""
    with demo.progress() as bars:
        task = bars.add_task("", total=len(demo.models))
        for name, model in demo.models.items():
            bars.update(task, description=name)
            demo.fit_seconds[name] = measure_seconds(partial(demo.fit, model))
            bars.advance(task)
        bars.update(task, description="models trained")
    rows = [
        (name, time_text(demo.fit_seconds[name]), demo.accuracy_text(model))
        for name, model in demo.models.items()
    ]
    demo.show_table(("model", "training", "test accuracy"), rows)
    demo.print_text("Each shard is trained separately, on fewer rows. This costs accuracy.")


def forget_people(demo: DemoContext) -> None:
    """Forget some people, one after the other."""
    leaving = demo.pick_ids(6)
    with demo.progress() as bars:
        for name, model in demo.models.items():
            task = bars.add_task(name, total=len(leaving))
            demo.receipts[name] = []
            for person in leaving:
                demo.receipts[name].append(forget_ids(model, [person]))
                bars.advance(task)
    demo.forgotten += leaving
    demo.print_text("The last receipt of each model. A receipt never contains the ids:")
    for receipts in demo.receipts.values():
        demo.print_quote(str(receipts[-1]))
    demo.show_table(("model", "mean time", "mean work", "speed-up", "expected"), _cost_rows(demo))
    demo.print_text(
        "Work is the share of a full retraining that was needed. The expected speed-up counts rows "
        "and is a mean over all people (see letheon plan). The measured speed-up is that of these "
        "six people on this machine: it depends on their slices, and it is lower for small shards, "
        "because every call of the learner has a fixed cost."
    )


def _cost_rows(demo: DemoContext) -> Iterator[tuple[str, ...]]:
    naive = [receipt.seconds for receipt in demo.receipts[_context.NAIVE]]
    for name, receipts in demo.receipts.items():
        model, expected = demo.models[name], 1.0
        if isinstance(model, SISAClassifier):
            expected = plan(
                len(demo.X),
                n_shards=model.n_shards,
                n_slices=model.n_slices,
                epochs=_context.PASSES,
                rows_per_person=_context.ROWS_PER_PERSON,
            ).speed_up
        seconds = [receipt.seconds for receipt in receipts]
        work = sum(receipt.work for receipt in receipts) / len(receipts)
        measured = efficiency(naive, seconds).value
        time_each = time_text(sum(seconds) / len(seconds))
        yield name, time_each, f"{work:.1%}", f"{measured:.1f}x", f"{expected:.1f}x"


def compare_with_refit(demo: DemoContext) -> None:
    """Compare every model with a fresh fit on the remaining rows."""
    rows = []
    with demo.progress() as bars:
        task = bars.add_task("fresh fits without the six people", total=len(demo.models))
        for name, model in demo.models.items():
            ours, fresh = model.digest(), demo.fresh_fit(name).digest()
            verdict = demo.check(ours == fresh, f"{name}: forgetting equals a fresh fit")
            rows.append((name, f"{ours[:12]}...", f"{fresh[:12]}...", verdict))
            bars.advance(task)
    demo.show_table(("model", "after forgetting", "fresh fit", "equal"), rows)
    demo.print_text(
        "A digest is the SHA-256 of everything in the model: rows, states, parameters, seed. Equal "
        "digests mean that the model is, byte for byte, one that was never trained on the six "
        "people. Anyone with the remaining rows can make this comparison."
    )


def save_and_load(demo: DemoContext) -> None:
    """Save and load a model; forget another person in both copies."""
    model, person = demo.models[_context.SLICED], demo.pick_remaining_id()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.letheon"
        save(model, path)
        info, loaded = inspect(path), load(path)
    forget_ids(model, [person])
    receipt = forget_ids(loaded, [person])
    demo.forgotten.append(person)
    fresh = demo.fresh_fit(_context.SLICED).digest()
    demo.print_text(
        f"Saved in the format {info.format}: {size_text(info.size)}, no pickle. The file contains "
        "rows, so it is personal data. The model was loaded again, and one more person "
        "was forgotten:"
    )
    demo.print_quote(str(receipt))
    same = demo.check(loaded.digest() == model.digest(), "a loaded model forgets in the same way")
    exact = demo.check(loaded.digest() == fresh, "a loaded model forgets exactly")
    demo.print_text(f"Equal to the model in memory: {same}.")
    demo.print_text(f"Equal to a fresh fit without all seven people: {exact}.")


def refuse_unknown_id(demo: DemoContext) -> None:
    """Try to forget an unknown id: the request is refused and nothing changes."""
    model = demo.models[_context.SHARDED]
    known, before, refused = demo.pick_remaining_id(), model.digest(), False
    try:
        forget_ids(model, [known, "person-999"])
    except UnknownIdError as error:
        refused = True
        demo.print_quote(f"UnknownIdError: {error}", "yellow")
    demo.check(refused, "an unknown id is refused")
    same = demo.check(model.digest() == before, "a refused request changes nothing")
    demo.print_text(
        f"Nothing was forgotten, not even {known}, a known id. Model unchanged: {same}."
    )


def forget_in_regression(demo: DemoContext) -> None:
    """Forget people in a logistic regression with Newton steps, and show the spent budget."""
    leaving = demo.pick_ids(20)
    model, fresh = (InfluenceClassifier(l2=0.01) for _ in range(2))
    # With matrices this small, several threads would slow down both, the refit more.
    with one_thread():
        demo.fit(model)
        receipts = [model.forget([person]) for person in leaving]
        refit = measure_seconds(lambda: demo.fit(fresh, leaving))
    demo.print_text(
        "A logistic regression on the same rows, released with secret noise. It forgets twenty "
        "people, one after the other. Each removal is one Newton step plus new noise:"
    )
    demo.print_quote(str(receipts[-1]))
    mean = sum(receipt.seconds for receipt in receipts) / len(receipts)
    demo.show_times({"a refit": refit, "one person, certified": mean})
    _check_account(demo, model, fresh)
    remaining = set(model.ids_.tolist())
    removed = demo.check(
        remaining.isdisjoint(leaving), "a regression has no ids that were forgotten"
    )
    demo.print_text(f"All forgotten ids are removed from the model: {removed}.")


def _check_account(
    demo: DemoContext, model: InfluenceClassifier, fresh: InfluenceClassifier
) -> None:
    """Show the guarantee and the spent budget, and check both."""
    claim, account, left = model.guarantee_, model.account_, model.exact_residual()
    covered = demo.check(account.spent <= account.limit, "the budget covers what was spent")
    # Removed rows are stored as zeros, so sums differ in the last digits.
    honest = demo.check(left <= account.spent * (1 + 1e-9), "the account covers the residual")
    accuracies = [each.score(demo.X_test, demo.y_test) for each in (model, fresh)]
    close = demo.check(
        abs(accuracies[0] - accuracies[1]) <= 0.01, "a step is as good as a refit, within a point"
    )
    demo.print_text(
        f"{claim.kind}: indistinguishable from a refit with fresh noise, up to epsilon = "
        f"{claim.epsilon:g} and delta = {claim.delta:g}. The noise hides a gradient of "
        f"{account.limit:.3g}; {account.spent:.3g} of it is spent. Within the budget: {covered}. "
        f"Measured: {left:.3g}, at most the spent amount: {honest}. Measurements "
        f"during the removals: {account.exact}; additional steps: {account.polishes}; "
        f"retrainings: {account.retrains}. A data set this small needs these "
        "measurements: with more rows a step spends almost nothing and reads no other row."
    )
    demo.print_text(
        f"Test accuracy: {accuracies[0]:.1%}, refit {accuracies[1]:.1%}. Within one percentage "
        f"point: {close}."
    )


def forget_in_networks(demo: DemoContext) -> None:
    """Forget people in PyTorch networks: exactly with shards, and approximately with blocks."""
    why = "Skipped: this step needs torch, which is not installed. To install it:"
    if not demo.explain_missing(["torch"], why, "torch"):
        _forget_by_shards(demo)
        _forget_by_blocks(demo)


def _forget_by_shards(demo: DemoContext) -> None:
    leaving = demo.pick_ids(6)
    model = demo.fit(_make_sharded_net(demo.seed))
    receipt = model.forget(leaving[:1])
    model.forget(leaving[1:])
    fresh = demo.fit(_make_sharded_net(model.seed_), leaving)
    demo.print_text(
        f"One PyTorch network in each of {_context.SHARDS} shards, {demo.accuracy_text(model)} "
        "accurate on the test rows. It forgets one person, then five more:"
    )
    demo.print_quote(str(receipt))
    exact = demo.check(fresh.digest() == model.digest(), "a sharded network forgets exactly")
    demo.print_text(f"Equal to a fresh fit without the six: {exact}.")


def _forget_by_blocks(demo: DemoContext) -> None:
    leaving = demo.pick_ids(6)
    # The only difference is where retraining stops: at a small change, or at the last block.
    model, whole = (_make_block_net(demo.seed, epsilon) for epsilon in (0.1, 0.0))
    for each in (whole, model):
        demo.fit(each)
        receipts = [each.forget([person]) for person in leaving]
    demo.print_text(
        f"One network, trained on {BLOCKS} blocks of people, one after the other; "
        f"{demo.accuracy_text(model)} accurate. It forgets the six one by one: their block is "
        "trained again, and later blocks until the difference from the old run is stable. The "
        "changes by the other blocks are taken from the old run:"
    )
    demo.print_quote(str(receipts[-1]))
    removed = not np.isin(leaving, model.ids_).any()
    demo.check(removed, "a network of blocks has no ids that were forgotten")
    demo.check(whole.exact_blocks_ == BLOCKS, "a full run retrains every later block")
    demo.print_text(
        f"empirical: nothing is proved. Receipts estimate a distance of {model.tail_:.3g} from "
        "retraining all later blocks, as the sum of absolute differences of all parameters. For "
        "comparison, the demo retrained them: the true distance is "
        f"{_parameter_distance(model, whole):.3g}."
    )


def _make_sharded_net(seed: int) -> "letheon.SISANetClassifier":
    return letheon.SISANetClassifier(
        n_shards=_context.SHARDS,
        n_slices=4,
        epochs=_context.PASSES,
        device="cpu",
        random_state=seed,
    )


def _make_block_net(seed: int, epsilon: float) -> "letheon.DeepObliviateClassifier":
    return letheon.DeepObliviateClassifier(
        n_blocks=BLOCKS,
        epsilon=epsilon,
        epochs=3,
        batch_size=32,
        learning_rate=0.2,
        device="cpu",
        random_state=seed,
    )


def _parameter_distance(
    one: "letheon.DeepObliviateClassifier", two: "letheon.DeepObliviateClassifier"
) -> float:
    """Return the sum of absolute differences between all parameters of two networks."""
    pairs = zip(one.to_modules()[0].parameters(), two.to_modules()[0].parameters(), strict=True)
    return sum(float((ours - theirs).abs().sum()) for ours, theirs in pairs)


def explain_guarantees(demo: DemoContext) -> None:
    """Explain the guarantees and their limits."""
    claim = demo.models[_context.SLICED].guarantee_
    words = {
        claim.kind: "The model has the bytes of a fresh fit on the remaining rows, in their order, "
        "with the same seed, library versions and CPU kernel.",
        "certified": "The regression: a refit with fresh noise gives these coefficients with about "
        "the same probability, up to epsilon and delta, if the noise stays secret.",
        "empirical": "The network of blocks: close to a retrained model by an estimate that may be "
        "wrong. There is no bound.",
        claim.requests: "The guarantee holds for requests that do not depend on outputs of the "
        "model.",
        claim.releases: "The guarantee is about the latest model. An older copy still contains "
        "what it learned.",
        "confidential": "Keep digests confidential: with the remaining rows, an old digest can "
        "confirm a guess of a forgotten row.",
    }
    demo.show_facts(words)


def show_service(demo: DemoContext) -> None:
    """Show how to start the web service."""
    demo.explain_missing(["fastapi"], "The web service needs an extra:", "service")
    program = "letheon" if which("letheon") else ".venv/bin/letheon"
    demo.print_text(
        "The web service in front of a ledger receives requests, shows models and certificates, "
        "runs audits, and lets people check the status of their requests. To start it with example "
        "data and one token per role:"
    )
    demo.print_quote(f"{program} serve --demo")
    demo.print_text("To start it with your own ledger (the first start prints an admin token):")
    demo.print_quote(f"{program} serve --ledger erasures")


ROWS_PER_PATIENT = 3
TREES = 30
SEEDS = 3
CANARIES = 24


def _load_patients() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's breast cancer data, assigned to fictional patients."""
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, np.array([f"patient-{row // ROWS_PER_PATIENT:03}" for row in range(len(X))])


def choose_method(demo: DemoContext) -> None:
    """State needs and tolerances, and compare methods."""
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    comparison = choose(
        _load_patients(),
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
        random_state=demo.seed,
    )
    demo.print_text(
        "Another data set: 569 tumours from scikit-learn, assigned to 190 fictional patients. We "
        "need an exact method and tolerate an accuracy at most 6 percentage points below the best "
        "ordinary model:"
    )
    demo.print_quote(comparison.reason)
    demo.results["comparison"] = comparison
    demo.check(comparison.best is not None, "a method is within the tolerances")


def measure_forest(demo: DemoContext) -> None:
    """Measure the four properties against both baselines."""
    evaluation = evaluate(
        DaREForestClassifier(n_estimators=TREES),
        _load_patients(),
        Requests(kind="person", n=10),
        seeds=SEEDS,
        title="DaRE forest",
        random_state=demo.seed,
    )
    demo.print_text(
        "Efficiency, effectiveness, consistency and certifiability of a forest, compared with the "
        "same forest and with the best ordinary model, both trained on the remaining rows:"
    )
    demo.console.print(evaluation)
    demo.results["evaluation"] = evaluation
    is_proved = evaluation.measures[SAME]["effectiveness"].basis == "by proof"
    demo.check(
        is_proved and bool(evaluation.equal_digests),
        "an exact method equals its own retrained model",
    )


def attack_models(demo: DemoContext) -> None:
    """Attack three models: two that did not forget are detected, a retrained model is not."""
    # More columns than rows; the first rows have the wrong label.
    rng = np.random.default_rng(demo.seed)
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
        "claims to forget, keeps everything": (KeepsEverything(learner), True),
        "only trains further": (FineTuneOnly(learner), True),
    }
    demo.print_text(
        f"Three models forget {CANARIES} people with wrong labels, which can only be memorised. "
        "An attacker trains a few models and guesses who was in the training data (RMIA). An AUC "
        "of 0.5 is random guessing; the floor is the attacker's AUC for a retrained model:"
    )
    leaving = np.arange(CANARIES)
    for name, (suspect, lies) in suspects.items():
        result = RMIA(n_targets=8).run(
            suspect, X, y, forget=leaving, population=population, seed=demo.seed
        )[0]
        demo.print_quote(f"{name}: {result}")
        demo.results.setdefault("attacks", {})[name] = result
        verdict = "is found" if lies else "is not found"
        demo.check(result.found == lies, f"in the attack, the model that {name}, {verdict}")
    demo.print_text(
        '"found" means that the model did not forget. "not found" does not prove that it did.'
    )


def monitor_model(demo: DemoContext) -> None:
    """Monitor a drifting model over a sequence of requests, until it must be retrained."""
    X, y, people = _load_patients()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = np.isin(people, np.unique(people)[::4])
    rows = X[~test], y[~test], people[~test]
    drifting = FineTuneOnly(
        SGDClassifier(loss="log_loss", average=True), n_passes=1, random_state=demo.seed
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
        random_state=demo.seed,
    )
    for ids in Requests(n=40).stream(None, *rows, seed=demo.seed):
        reading = monitor.forget(ids)
        if reading.retrained:
            break
    demo.print_text(
        "A model that is only trained further on the remaining rows drifts away from a retrained "
        "model. A monitor rehearses removals on copies, estimates the distance after each request, "
        "and retrains the model before a tolerance is exceeded:"
    )
    demo.results["monitor"] = monitor
    readings = [*monitor.history]
    for each in [*readings[:2], readings[-1]] if len(readings) > 2 else readings:
        demo.print_quote(str(each))
    demo.check(reading.retrained, "the monitor retrains in time")
    demo.print_text(
        f"The model was retrained after {len(readings)} requests. docs/monitor.md shows how often "
        "such estimates are too low, over thousands of sequences."
    )


def write_report(demo: DemoContext) -> None:
    """Write the results to one HTML page that works offline."""
    comparison, evaluation = demo.results["comparison"], demo.results["evaluation"]
    # A private directory: other users can write to the shared temporary directory.
    page = Path(tempfile.mkdtemp(prefix="letheon-demo-")) / "report.html"
    both = [evaluation.measures[baseline] for baseline in (SAME, ORDINARY)]
    measured = Table(
        f"{evaluation.title}: {evaluation.requests}",
        ("measure", f"against the {SAME}", f"against the {ORDINARY}"),
        [[name, *(measures.get(name) for measures in both)] for name in both[1]],
    )
    attacked = Table(
        "An attack on three models",
        ["model", "AUC of the attack", "floor: retrained model", "trace of forgotten people"],
        [
            [name, result.measures["AUC"], result.floor["AUC"], result.verdict]
            for name, result in demo.results["attacks"].items()
        ],
    )
    pictures = []
    if find_spec("matplotlib"):
        import matplotlib as mpl

        mpl.use("Agg", force=False)
        drawn = {
            "The four properties": evaluation.plot(),
            "Speed and accuracy": comparison.plot(),
            "Requests until retraining": demo.results["monitor"].plot(),
        }
        pictures = [Picture(display.figure_, title) for title, display in drawn.items()]
    written = Report(
        "letheon demo: measure, choose and monitor",
        settings={"seed": demo.seed, "seeds of each measurement": SEEDS},
        machine=describe_machine(),
        table=measured,
        tables=[attacked],
        summary=comparison.reason.splitlines(),
        notes=[evaluation.tested, *evaluation.warnings, *evaluation.fairness],
        pictures=pictures,
    )
    write_page(page, written.to_html())
    demo.print_text("All results with plots in one file; open it in a browser:")
    demo.print_quote(str(page))
    demo.check(page.stat().st_size > 0, "a report is written")
