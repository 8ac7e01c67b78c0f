"""Benchmarks of recommenders that forget: time of one removal, and quality next to `implicit`.

Run ``python benchmarks/recommend.py`` (about 10 minutes and 8 GB on one core) or, for a first
look, ``python benchmarks/recommend.py --quick``. The peer is CosineRecommender of the package
`implicit` (``pip install implicit``) with the same number of neighbours, on the same histories and
one thread. Results go to ``benchmarks/results``.
"""

import resource
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._report import BenchmarkReport, Table, TargetCheck, time_call
from letheon.recommend import EASE, ItemKNN

RESULTS = Path(__file__).resolve().parent / "results" / "recommend"
N_GROUPS = 40
N_NEIGHBORS = 20
N_REQUESTS = 300


def make_histories(n_people: int, n_items: int, mean_length: float, seed: int) -> sp.csr_array:
    """Return histories of people with a taste: half of the items from one group, power laws."""
    draw = np.random.default_rng(seed)
    lengths = np.minimum(draw.geometric(1 / mean_length, n_people), n_items // 4)
    rows = np.repeat(np.arange(n_people, dtype=np.int32), lengths)
    popularity = 1 / (np.arange(n_items) + 10.0) ** 0.8
    bounds = np.cumsum(popularity) / popularity.sum()
    items = np.searchsorted(bounds, draw.random(len(rows))).astype(np.int32)
    groups = draw.integers(0, N_GROUPS, n_people)[rows]
    in_group = draw.random(len(rows)) < 0.5
    items[in_group] = (items - items % N_GROUPS + groups)[in_group]
    items = np.minimum(items, n_items - 1)
    ones = np.ones(len(rows), np.float32)
    table = sp.csr_array((ones, (rows, items)), shape=(n_people, n_items))
    table.sum_duplicates()
    table.data[:] = 1
    return table


def hide_one_item(table: sp.csr_array, seed: int) -> tuple[sp.csr_array, np.ndarray[Any, Any]]:
    """Return histories without one item of each, and that item; -1 for a history of one item."""
    draw = np.random.default_rng(seed)
    lengths = np.diff(table.indptr)
    places = table.indptr[:-1] + (draw.random(len(lengths)) * lengths).astype(np.int64)
    is_long = lengths > 1
    hidden = np.where(is_long, table.indices[np.minimum(places, table.nnz - 1)], -1)
    keep = np.ones(table.nnz, bool)
    keep[places[is_long]] = False
    indptr = np.concatenate([[0], np.cumsum(lengths - is_long)])
    rest = sp.csr_array((table.data[keep], table.indices[keep], indptr), shape=table.shape)
    return rest, hidden


def compute_ndcg(items: np.ndarray[Any, Any], hidden: np.ndarray[Any, Any]) -> float:
    """Return nDCG@10 with one relevant item per history."""
    use = hidden >= 0
    places = np.argmax(items == hidden[:, None], axis=1)
    is_hit = (items == hidden[:, None]).any(axis=1)
    return float(np.where(is_hit, 1 / np.log2(places + 2.0), 0.0)[use].mean())


def measure_requests(model: Any, people: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the milliseconds of single removals."""
    times = [time_call(partial(model.forget, [int(who)]))[1].cpu for who in people]
    return np.array(times) * 1e3


def compare_quality(report: BenchmarkReport, n_people: int, n_items: int) -> None:
    """Compare nDCG@10 with `implicit` on held-out items."""
    from implicit.nearest_neighbours import CosineRecommender

    table = make_histories(n_people, n_items, 25, 1)
    train, hidden = hide_one_item(table, 2)
    queries, wanted = train[:2000], hidden[:2000]
    peer = CosineRecommender(K=N_NEIGHBORS, num_threads=1)
    _, peer_fit = time_call(partial(peer.fit, sp.csr_matrix(train), show_progress=False))
    peer_items, _ = peer.recommend(np.arange(2000), sp.csr_matrix(queries), N=10)
    rows, scores = [("implicit, cosine", peer_fit.cpu, compute_ndcg(peer_items, wanted))], {}
    for name, model in (
        ("ItemKNN, cosine", ItemKNN(n_neighbors=N_NEIGHBORS, max_items=None, random_state=0)),
        ("EASE", EASE(l2=200.0, max_items=None, random_state=0)),
    ):
        fitted, seconds = time_call(partial(model.fit, train))
        scores[name] = compute_ndcg(fitted.recommend(queries, 10).items, wanted)
        rows.append((name, seconds.cpu, scores[name]))
    gap = scores["ItemKNN, cosine"] - rows[0][2]
    verdict = TargetCheck(
        "nDCG@10 of ItemKNN - implicit's", f"{gap:+.4f}", ">= -0.002", gap >= -0.002
    )
    shown = [(name, f"{cpu:.2f}", f"{ndcg:.4f}") for name, cpu, ndcg in rows]
    report.add(
        Table(f"Quality, {n_people:,} x {n_items:,}", ("model", "fit, s", "nDCG@10"), shown),
        [verdict],
    )


def measure_large(report: BenchmarkReport, n_people: int, n_items: int, mean: float) -> None:
    """Measure the fit and single removals of ItemKNN on a large table."""
    from implicit.nearest_neighbours import CosineRecommender

    table = make_histories(n_people, n_items, mean, 3)
    peer = CosineRecommender(K=N_NEIGHBORS, num_threads=1)
    _, refit = time_call(partial(peer.fit, sp.csr_matrix(table), show_progress=False))
    del peer  # its memory
    model, fit = time_call(lambda: ItemKNN(random_state=0).fit(table))
    leaving = np.random.default_rng(4).choice(n_people, N_REQUESTS, replace=False)
    times = measure_requests(model, leaving)
    _, one = time_call(lambda: model.recommend(table[:1], 10))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    row = (
        f"{table.nnz:,}",
        f"{refit.cpu:.1f}",
        f"{fit.cpu:.1f}",
        f"{np.median(times):.2f}",
        f"{times.mean():.2f}",
        f"{np.quantile(times, 0.99):.2f}",
        f"{refit.cpu * 1e3 / times.mean():,.0f}x",
        f"{one.cpu * 1e3:.0f}",
        f"{peak:.1f}",
    )
    names = (
        *("interactions", "implicit's fit, s", "our fit, s", "person p50, ms", "mean", "p99"),
        *("implicit's fit / person", "first recommendation, ms", "peak, GiB"),
    )
    verdicts = [
        TargetCheck("peak of the process, GiB", f"{peak:.1f}", "<= 8", peak <= 8),
        TargetCheck(
            "ItemKNN, one person, p50, ms",
            f"{np.median(times):.2f}",
            "<= 10",
            bool(np.median(times) <= 10),
        ),
    ]
    report.add(Table(f"ItemKNN, {n_people:,} x {n_items:,}", names, [row]), verdicts)


def measure_ease(report: BenchmarkReport, n_people: int, n_items: int) -> None:
    """Measure the fit, single removals and the lazy solution of EASE."""
    table = make_histories(n_people, n_items, 50, 5)
    model, fit = time_call(lambda: EASE(random_state=0).fit(table))
    _, solve = time_call(lambda: model.weights_)
    times = measure_requests(model, np.random.default_rng(6).choice(n_people, N_REQUESTS, False))
    stay = np.isin(np.arange(n_people), model.ids_)
    fresh = EASE(random_state=0).fit(table[stay], ids=np.flatnonzero(stay))
    is_equal = fresh.digest() == model.digest()
    row = (f"{fit.cpu:.1f}", f"{solve.cpu:.1f}", f"{np.median(times):.2f}", f"{times.mean():.2f}")
    verdicts = [
        TargetCheck(
            "EASE, one person, p50, ms",
            f"{np.median(times):.2f}",
            "<= 10",
            bool(np.median(times) <= 10),
        ),
        TargetCheck("digest equals a fresh fit", str(is_equal), "True", is_equal),
    ]
    names = ("fit, s", "solution, s", "person p50, ms", "mean")
    report.add(Table(f"EASE, {n_people:,} x {n_items:,}", names, [row]), verdicts)


def main(quick: bool = False) -> None:
    """Run all sections; exit with 1 if a target is missed."""
    file = RESULTS.with_name("recommend_quick") if quick else RESULTS
    settings = {"neighbours": N_NEIGHBORS, "requests": N_REQUESTS}
    report = BenchmarkReport(title="Recommenders that forget", settings=settings, file=file)
    compare_quality(report, 5_000 if quick else 50_000, 1_000 if quick else 5_000)
    measure_ease(report, 5_000 if quick else 100_000, 500 if quick else 10_000)
    if quick:
        measure_large(report, 20_000, 2_000, 30)
    else:
        measure_large(report, 1_000_000, 20_000, 60)
    raise typer.Exit(0 if report.passed or quick else 1)


if __name__ == "__main__":
    typer.run(main)
