"""Acts of the demo about judging: choose a method, measure, attack and watch it, report."""

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon.bench import describe_machine
from letheon.datasets import Requests
from letheon.demo._scene import Scene
from letheon.evaluation import ORDINARY, SAME, evaluate
from letheon.evaluation.report import Picture, Report, Table, write_page
from letheon.forest import DaREForestClassifier
from letheon.linear import InfluenceClassifier
from letheon.measures.attacks import RMIA, FineTuneOnly, KeepsEverything
from letheon.monitor import Calibration, Monitor
from letheon.monitor import Tolerances as Watched
from letheon.naive import NaiveUnlearner
from letheon.select import Candidate, Need, Tolerances, choose
from letheon.sharded import SISAClassifier

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
    scene.found["comparison"] = comparison
    scene.check(comparison.best is not None, "a method is within the tolerances")


def measure(scene: Scene) -> None:
    """Measure the four properties against both baselines."""
    found = evaluate(
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
    scene.console.print(found)
    scene.found["evaluation"] = found
    equal = found.measures[SAME]["effectiveness"].basis == "by proof" and found.equal_digests
    scene.check(bool(equal), "an exact method is equal to its own retrain")


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
        scene.found.setdefault("attacks", {})[name] = result
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
        tolerances=Watched(effectiveness=0.04, certifiability=25.0),
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
    scene.found["monitor"] = monitor
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
    comparison, evaluation = scene.found["comparison"], scene.found["evaluation"]
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
            for name, result in scene.found["attacks"].items()
        ],
    )
    pictures = []
    if find_spec("matplotlib"):
        import matplotlib as mpl

        mpl.use("Agg", force=False)
        drawn = {
            "The four properties": evaluation.plot(),
            "Speed against accuracy": comparison.plot(),
            "Requests until the retrain": scene.found["monitor"].plot(),
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
