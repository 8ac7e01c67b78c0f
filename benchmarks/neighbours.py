"""Benchmarks of the vector index: recall, rows scanned, speed, deletion; peers in the same run.

Run ``python benchmarks/neighbours.py`` (about 30 minutes on one core) or ``--quick`` for a first
look; ``--only mnist,lives`` runs some sections, ``--rows 200000`` changes the size of the synthetic
tables. The peers are faiss-cpu (IVFFlat with as many lists as the index has cells, one thread),
hnswlib and scikit-learn; a peer that is not installed is left out, and its targets fail. Recall is
measured against the nearest rows of the floats. Times are processor times of one thread. Results go
to ``benchmarks/results``.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl
import typer
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._data import find_home
from benchmarks._report import BenchmarkReport, Table, TargetCheck, time_call
from letheon.datasets import load as load_real
from letheon.neighbors import VectorIndex

RESULTS = Path(__file__).resolve().parent / "results"
K = 10
RECALL = 0.97
Rows = NDArray[np.float32]


class NeighbourScale(NamedTuple):
    """Sizes of a run."""

    rows: int
    pictures: int
    queries: int
    forgotten: int
    lives: int


FULL = NeighbourScale(1_000_000, 60_000, 1_000, 2_000, 200)
QUICK = NeighbourScale(20_000, 6_000, 100, 100, 5)


class Problem(NamedTuple):
    """Rows, queries and the exact neighbours of the queries."""

    name: str
    X: Rows
    queries: Rows
    truth: NDArray[np.int64]
    step: float | None


class Operation(NamedTuple):
    """What a number of cells gives: recall, share of rows scanned, queries per second."""

    n_probe: int
    recall: float
    scanned: float
    speed: float


def measure_recall(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the share of true neighbours that were found."""
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]))


def find_truth(X: Rows, queries: Rows) -> NDArray[np.int64]:
    """Return the nearest rows by Euclidean distance, computed block by block in float64."""
    norms = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    truth = np.empty((len(queries), K), np.int64)
    for begin in range(0, len(queries), 50):
        block = queries[begin : begin + 50]
        scores = norms - 2.0 * (block @ X.T)
        nearest = np.argpartition(scores, K, axis=1)[:, :K]
        truth[begin : begin + 50] = nearest
    return truth


def list_probes(n_cells: int) -> Iterator[int]:
    """Yield numbers of cells to try, about 15 % apart."""
    n = 1
    while n <= n_cells:
        yield n
        n = max(n + 1, int(n * 1.15))


def find_operation(
    probe: Callable[[int], tuple[NDArray[Any], float]],
    problem: Problem,
    n_cells: int,
    wanted: float,
) -> Operation:
    """Return the smallest number of cells that reaches a recall; `probe` returns hits and share."""
    for n_probe in list_probes(n_cells):
        found, scanned = probe(n_probe)
        recall = measure_recall(found, problem.truth)
        if recall >= wanted:
            break
    speeds = []
    for _ in range(3):
        _, seconds = time_call(lambda: probe(n_probe))
        speeds.append(len(problem.queries) / seconds.cpu)
    return Operation(n_probe, recall, scanned, max(speeds))


def probe_index(index: VectorIndex, problem: Problem) -> Callable[[int], Any]:
    def probe(n_probe: int) -> tuple[NDArray[Any], float]:
        answers = index.query(problem.queries, K, n_probe=n_probe)
        share = answers.n_scanned / len(problem.queries) / len(problem.X)
        return answers.ids, share

    return probe


def probe_faiss(peer: Any, problem: Problem) -> Callable[[int], Any]:
    sizes = np.array([peer.invlists.list_size(i) for i in range(peer.nlist)])
    shares: dict[int, float] = {}

    def probe(n_probe: int) -> tuple[NDArray[Any], float]:
        if n_probe not in shares:
            _, cells = peer.quantizer.search(problem.queries, n_probe)
            n_scanned = peer.nlist + sizes[cells].sum(axis=1).mean()
            shares[n_probe] = float(n_scanned / len(problem.X))
        peer.nprobe = n_probe
        return peer.search(problem.queries, K)[1], shares[n_probe]

    return probe


def import_peer(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


def build_faiss(problem: Problem, n_cells: int) -> tuple[Any, float] | None:
    faiss = import_peer("faiss")
    if faiss is None:
        return None
    faiss.omp_set_num_threads(1)
    n_columns = problem.X.shape[1]
    quantizer = faiss.IndexFlatL2(n_columns)
    peer = faiss.IndexIVFFlat(quantizer, n_columns, n_cells)
    start = time.process_time()
    peer.train(problem.X)
    peer.add(problem.X)
    return peer, time.process_time() - start


def compare_section(report: BenchmarkReport, problem: Problem, recall: float) -> VectorIndex:
    """Compare the index with faiss: rows scanned and speed at equal recall, and time to build."""
    index = VectorIndex(metric="euclidean", step=problem.step, n_jobs=1, random_state=0)
    _, seconds = time_call(lambda: index.fit(problem.X))
    ours = find_operation(probe_index(index, problem), problem, index.n_cells_, recall)
    rows = [("letheon", index.n_cells_, f"{seconds.cpu:.1f}", *_show(ours))]
    goal = TargetCheck(
        f"recall@10, {problem.name}", f"{ours.recall:.3f}", f">= {recall}", ours.recall >= recall
    )
    checks = [goal]
    if problem.name == "mnist":
        passed = ours.scanned <= 0.05
        checks.append(TargetCheck("rows scanned, mnist", f"{ours.scanned:.2%}", "<= 5 %", passed))
    built = build_faiss(problem, index.n_cells_)
    if built is not None:
        peer, peer_seconds = built
        theirs = find_operation(probe_faiss(peer, problem), problem, index.n_cells_, ours.recall)
        rows.append(("faiss IVFFlat", index.n_cells_, f"{peer_seconds:.1f}", *_show(theirs)))
        checks += _compare(problem.name, ours, theirs, seconds.cpu / peer_seconds)
    rows += measure_sklearn(problem)
    columns = ("index", "cells", "build s", "cells probed", "recall@10", "scanned", "queries/s")
    shape = f"{len(problem.X):,} x {problem.X.shape[1]}, {len(problem.queries):,} queries"
    report.add(Table(f"{problem.name}: {shape}", columns, rows, ""), checks)
    return index


def _show(operation: Operation) -> tuple[str, ...]:
    n_probe, recall, scanned, speed = operation
    return str(n_probe), f"{recall:.4f}", f"{scanned:.2%}", f"{speed:,.0f}"


def _compare(name: str, ours: Operation, theirs: Operation, build: float) -> list[TargetCheck]:
    scanned, speed = ours.scanned / theirs.scanned, ours.speed / theirs.speed
    return [
        TargetCheck(f"rows scanned / faiss, {name}", f"{scanned:.2f}", "<= 1", scanned <= 1),
        TargetCheck(f"queries per second / faiss, {name}", f"{speed:.2f}", ">= 0.7", speed >= 0.7),
        TargetCheck(f"build / faiss, {name}", f"{build:.2f}", "<= 1.5", build <= 1.5),
    ]


def measure_sklearn(problem: Problem) -> list[tuple[Any, ...]]:
    """Return the line of scikit-learn's exact search on a few queries."""
    from sklearn.neighbors import NearestNeighbors

    peer = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(problem.X)
    queries = problem.queries[:100]
    _, seconds = time_call(lambda: peer.kneighbors(queries))
    speed = f"{len(queries) / seconds.cpu:,.0f}"
    return [("scikit-learn, brute force", "", "", "", "1", "100%", speed)]


def forget_section(
    report: BenchmarkReport, scale: NeighbourScale, index: VectorIndex, problem: Problem
) -> None:
    """Forget rows one by one, everything counted, and compare with a fresh build."""
    rng = np.random.default_rng(1)
    gone = rng.choice(len(problem.X), min(scale.forgotten, len(problem.X) // 2), replace=False)
    times = []
    n_pivots = 0
    for person in gone.tolist():
        receipt, seconds = time_call(lambda person=person: index.forget([person]))  # type: ignore[misc]
        times.append(seconds.cpu * 1000)
        n_pivots += receipt.rebuilt["pivots"]
    stay = np.delete(np.arange(len(problem.X)), gone)
    fresh = VectorIndex(metric="euclidean", step=problem.step, n_jobs=1, random_state=0)
    equal = fresh.fit(problem.X[stay], ids=stay).digest() == index.digest()
    middle, mean = float(np.median(times)), float(np.mean(times))
    values = (len(gone), n_pivots, f"{middle:.3f}", f"{mean:.3f}", f"{max(times):.1f}")
    report.add(
        Table(
            f"Deletion, one row at a time, {problem.name}",
            ("requests", "new pivots", "median ms", "mean ms", "largest ms"),
            [values],
            "",
        ),
        [
            TargetCheck(f"median, {problem.name}", f"{middle:.3f} ms", "<= 1 ms", middle <= 1),
            TargetCheck(f"mean, {problem.name}", f"{mean:.3f} ms", "<= 5 ms", mean <= 5),
            TargetCheck(f"digest of a fresh build, {problem.name}", str(equal), "True", equal),
        ],
    )


def mnist_section(report: BenchmarkReport, scale: NeighbourScale) -> None:
    """MNIST, with deletion here and in hnswlib."""
    if not (find_home() / "mnist").is_dir():
        print("MNIST was not found; the section is left out")
        return
    data: Any = load_real("mnist", folder=find_home())
    X = np.rint(data.X[: scale.pictures] * 255).astype(np.float32)
    queries = np.rint(data.X_test[: scale.queries] * 255).astype(np.float32)
    problem = Problem("mnist", X, queries, find_truth(X, queries), 2.0)
    index = compare_section(report, problem, RECALL)
    forget_section(report, scale, index, problem)
    ghost_section(report, problem)


def ghost_section(report: BenchmarkReport, problem: Problem) -> None:
    """Count vectors that a saved file of hnswlib still has after they were marked as deleted."""
    hnswlib = import_peer("hnswlib")
    if hnswlib is None:
        return
    X = problem.X[:5_000]
    peer = hnswlib.Index("l2", X.shape[1])
    peer.init_index(len(X), ef_construction=100, M=16)
    peer.set_num_threads(1)
    peer.add_items(X)
    for i in range(100):
        peer.mark_deleted(i)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        peer.save_index(str(path))
        content = path.read_bytes()
    n_left = sum(X[i].tobytes() in content for i in range(100))
    report.add(
        Table(
            "Vectors in the saved file after 100 deletions",
            ("index", "vectors"),
            [("hnswlib, mark_deleted", n_left), ("letheon, see the tests", 0)],
            "",
        )
    )


def cifar_section(report: BenchmarkReport, scale: NeighbourScale) -> None:
    """CIFAR-10, projected on its 128 principal components."""
    if not (find_home() / "cifar10").is_dir():
        print("CIFAR-10 was not found; the section is left out")
        return
    data: Any = load_real("cifar-10", folder=find_home())
    pictures = np.asarray(data.X, np.float32).reshape(len(data.X), -1)[: scale.pictures]
    pictures = pictures - pictures.mean(axis=0)
    _, directions = np.linalg.eigh(pictures.T @ pictures)
    rows = np.ascontiguousarray(pictures @ directions[:, -128:], np.float32)
    X, queries = rows[scale.queries :], rows[: scale.queries]
    problem = Problem("cifar", X, queries, find_truth(X, queries), None)
    compare_section(report, problem, 0.9)


def cluster_section(report: BenchmarkReport, scale: NeighbourScale) -> None:
    """Gaussian clusters in 128 columns, of two widths; deletion in the first."""
    for width in (0.5, 1.0):
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(1000, 128)).astype(np.float32)
        n = scale.rows + scale.queries
        rows = centres[rng.integers(0, 1000, n)]
        rows += np.float32(width) * rng.standard_normal(size=rows.shape, dtype=np.float32)
        X, queries = rows[: scale.rows], rows[scale.rows :]
        name = f"clusters, sd {width}"
        problem = Problem(name, X, queries, find_truth(X, queries), 1 / 16)
        index = compare_section(report, problem, 0.9)
        if width == 0.5:
            forget_section(report, scale, index, problem)


def life_section(report: BenchmarkReport, scale: NeighbourScale) -> None:
    """Long lives: add and forget in turn, compared with a fresh build."""
    equal = 0
    for life in range(scale.lives):
        rng = np.random.default_rng(life)
        X = rng.normal(size=(2_000, 16)).astype(np.float32)
        held = np.sort(rng.choice(2_000, 1_000, replace=False))
        index = VectorIndex(random_state=life).fit(X[held], ids=held)
        for _ in range(20):
            gone = rng.choice(held, rng.integers(1, 40), replace=False)
            index.forget(gone)
            held = np.setdiff1d(held, gone)
            new = rng.choice(np.setdiff1d(np.arange(2_000), held), 20, replace=False)
            index.add(X[new], ids=new)
            held = np.union1d(held, new)
        equal += index.digest() == VectorIndex(random_state=life).fit(X[held], ids=held).digest()
    passed = equal == scale.lives
    report.add(
        Table("Long lives", ("lives", "changes each", "equal"), [(scale.lives, 40, equal)], ""),
        [TargetCheck("long lives", str(equal), str(scale.lives), passed)],
    )


SECTIONS = {
    "mnist": mnist_section,
    "cifar": cifar_section,
    "clusters": cluster_section,
    "lives": life_section,
}


def main(
    quick: bool = typer.Option(False, help="Small numbers, as a smoke test."),
    only: str = typer.Option("", help="Sections to run, separated by commas."),
    rows: int = typer.Option(0, help="Rows of the synthetic tables."),
) -> None:
    """Measure and write the report."""
    scale = QUICK if quick else FULL
    scale = scale._replace(rows=rows) if rows else scale
    name = "neighbours_quick" if quick or only or rows else "neighbours"
    report = BenchmarkReport("Vector index", dict(scale._asdict()), file=RESULTS / name)
    with threadpoolctl.threadpool_limits(1):
        for section in only.split(",") if only else SECTIONS:
            SECTIONS[section](report, scale)
    raise typer.Exit(0 if report.passed or quick else 1)


if __name__ == "__main__":
    typer.run(main)
