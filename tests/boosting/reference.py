"""Boosting by its definition text: plain loops over all rows, sums in Python's integers."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.data import as_ids
from letheon.seeds import Purpose, keyed_hash_ints

PEOPLE, CHAIN, DITHER, BASE, COLUMN, SCALE = range(6)
MASK = 2**64 - 1
ONE = 1 << 15
WIDEST, STEEPEST = 24 << 8, 8 << 8
PILOT_RATE = 307
F = np.float32


def finalise(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def mix(key: int, about: int) -> int:
    return finalise(key ^ finalise(about + 0x9E3779B97F4A7C15 & MASK))


def exp(score: int, bits: int) -> float:
    return math.exp(score / 256) * 2.0**bits


def sigmoid(score: int) -> int:
    share = math.floor(ONE / (1 + math.exp(-abs(score) / 256)) + 0.5)
    return share if score >= 0 else ONE - share


def log_ratio(top: int, bottom: int) -> int:
    """Return 256 log(top / bottom), rounded towards 0."""
    if top > bottom:
        return -log_ratio(bottom, top)
    return -min(math.floor(256 * math.log(bottom / top)), WIDEST) if top else -WIDEST


def divide(top: int, bottom: int) -> int:
    """Divide and round towards 0."""
    return top // bottom if (top < 0) == (bottom < 0) else -(-top // bottom)


class BoostedSplit(NamedTuple):
    column: int
    threshold: float
    missing_left: bool
    categorical: bool

    def sends_left(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        inside = x == F(self.threshold) if self.categorical else x <= F(self.threshold)
        return np.where(np.isnan(x), self.missing_left, inside)


class ChainNode:
    """Some rows of a chain, and their best split; rows are numbers in all rows."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.rows = rows
        self.gain = F(0)
        self.split: BoostedSplit | None = None
        self.children: tuple[ChainNode, ChainNode] | None = None

    def leaves(self) -> list["ChainNode"]:
        if self.children is None:
            return [self]
        return self.children[0].leaves() + self.children[1].leaves()

    def splits(self) -> list[BoostedSplit]:
        if self.children is None or self.split is None:
            return []
        return [self.split, *self.children[0].splits(), *self.children[1].splits()]

    def codes(self, X: NDArray[np.float32], rows: NDArray[np.int64], first: int = 0) -> Any:
        """Return the numbers of the leaves of some rows, as a dict."""
        if self.children is None or self.split is None:
            return dict.fromkeys(rows.tolist(), first)
        left = self.split.sends_left(X[rows, self.split.column])
        n_left = len(self.children[0].leaves())
        return self.children[0].codes(X, rows[left], first) | self.children[1].codes(
            X, rows[~left], first + n_left
        )


class ReferenceBoosting:
    """Trees of a boosted model: a function of its parameters and of weighted rows.

    `weights` are in steps of 2**-weight_bits, with the weights of classes.
    """

    def __init__(
        self, model: Any, X: Any, y: Any, ids: Any, weights: Any, class_steps: int = 1
    ) -> None:
        self.p: dict[str, Any] = model.get_params()
        self.X = np.asarray(X, np.float32)
        self.weights = [int(weight) for weight in weights]
        self.unit: int = class_steps << self.p["weight_bits"]
        self.key = int(keyed_hash_ints(model.seed_, Purpose.BOOSTING, np.zeros(1, np.int64))[0])
        self.owners = as_ids(ids).hashes(model.seed_, Purpose.ROW_OWNER).tolist()
        self.n_chains: int = min(self.p["n_chains"], self.p["n_estimators"])
        self.loss = self.p["loss"]
        self.set_skeleton(len(set(self.owners)))
        if self.loss == "log_loss":
            labels = sorted(set(y.tolist()))
            self.target = [labels.index(label) for label in y.tolist()]
            self.n_outputs = len(labels) if len(labels) > 2 else 1
        else:
            self.n_outputs = 1
            self.scale_target(y)
        self.most = min(8 << self.p["step_bits"], 10_000 // self.p["n_estimators"])
        self.chains = [self.chain_of(owner) for owner in self.owners]
        self.base = [self.round_base(k) for k in range(self.n_outputs)]
        self.trees: list[ChainNode] = []

    def draw(self, use: int, about: int) -> int:
        return mix(mix(self.key, use), about)

    def set_skeleton(self, n_people: int) -> None:
        grid = [1 << 32]
        while grid[-1] < 1 << 41:
            grid.append(grid[-1] + grid[-1] // 671)
        own = grid[self.draw(PEOPLE, 0) % 64 :: 64]
        self.people = max((size for size in own if size <= n_people << 32), default=1 << 32)
        size = self.p["skeleton_people"]
        if size is None:
            root = int(math.sqrt(math.sqrt(self.people)))
            self.chain_people = (669 * root << 24) // self.n_chains
        else:
            self.chain_people = max(1, int(size) // self.n_chains) << 32

    def chain_of(self, owner: int) -> int | None:
        share = self.draw(CHAIN, owner)
        if self.chain_people * self.n_chains >= self.people:
            return share * self.n_chains >> 64
        place = (share * self.people >> 64) // self.chain_people
        return place if place < self.n_chains else None

    def scale_target(self, y: Any) -> None:
        exponent = math.frexp(max(map(abs, y.tolist())))[1]
        q = [round(math.ldexp(value, 31 - exponent)) for value in y.tolist()]
        total = sum(self.weights)
        self.sum = sum(w * value for w, value in zip(self.weights, q, strict=True))
        power = math.floor(2.0 ** (self.draw(SCALE, 0) / 2**64) * 2**16)
        centre = scale = 0
        if self.loss == "squared_error":
            squares = sum(w * value**2 for w, value in zip(self.weights, q, strict=True))
            variance = (total * squares - self.sum**2) // total**2
            scale = max(0, ((variance * power**2 >> 32).bit_length() - 1) // 2)
            dither = self.draw(SCALE, 1) >> 32
            unit = total << scale
            centre = ((self.sum << 32) + unit * dither) // (unit << 32) << scale
            self.start = (self.sum - total * centre) * 256 // unit
        else:
            scale = max(0, ((self.sum // total) * power >> 16).bit_length() - 1)
            self.start = min(log_ratio(self.sum >> scale, total), STEEPEST)
        shift = scale - 15
        moved = [value - centre for value in q]
        if shift > 0:
            self.target = [(value + (1 << shift - 1)) >> shift for value in moved]
        else:
            self.target = [value << -shift for value in moved]

    def weigh(self, label: int, rows: Any) -> int:
        return sum(self.weights[i] for i in rows if self.target[i] == label)

    def round_base(self, output: int) -> int:
        everyone = range(len(self.owners))
        total = sum(self.weights)
        if self.loss != "log_loss":
            exact = int(self.start)
        elif self.n_outputs > 1:
            exact = log_ratio(self.weigh(output, everyone), total)
        else:
            positive = self.weigh(1, everyone)
            exact = log_ratio(positive, total - positive)
        place = exact + (self.draw(BASE, output) >> 58) >> 6
        step = 1 << self.p["step_bits"] - 2
        return int(place * step)

    def gradients(self, scores: list[int], target: int) -> list[tuple[int, int]]:
        if self.loss == "squared_error":
            return [((scores[0] << 7) - target, ONE)]
        if self.loss == "poisson":
            score = min(max(scores[0], -WIDEST), STEEPEST)
            # Means below 1 are rounded, others are rounded down.
            mean = math.floor(exp(score, 15) + (0.5 if score <= 0 else 0))
            return [(mean - target, mean)]
        if self.n_outputs == 1:
            shares = [sigmoid(min(max(scores[0], -WIDEST), WIDEST))]
            own = [target == 1]
        else:
            parts = [math.floor(exp(-min(max(scores) - s, WIDEST), 30) + 0.5) for s in scores]
            total = sum(parts)
            shares = [((part << 15) + total // 2) // total for part in parts]
            own = [target == k for k in range(self.n_outputs)]
        return [
            (share - (ONE if mine else 0), share * (ONE - share) >> 15)
            for share, mine in zip(shares, own, strict=True)
        ]

    def list_edges(self, column: int, rows: Any) -> tuple[list[float], bool]:
        """Return the thresholds or categories of a chain, and whether there are categories."""
        weights: dict[float, int] = {}
        for i in rows:
            x = float(self.X[i, column])
            if not math.isnan(x):
                weights[x] = weights.get(x, 0) + self.weights[i]
        most = self.p["max_bins"]
        if column in (self.p["categorical_features"] or []):
            ranked = sorted(weights, key=lambda x: (-weights[x], int(F(x).view(np.uint32))))
            return sorted(ranked[: most - 1]), True
        values = sorted(weights)
        return (values if len(values) <= most else self.cut(values, weights)), False

    def cut(self, values: list[float], weights: dict[float, int]) -> list[float]:
        most = self.p["max_bins"]
        mean = sum(weights.values()) // most + 1
        heavy = {x for x in values if weights[x] >= mean}
        rest, left = sum(weights[x] for x in values if x not in heavy), most - len(heavy)
        edges, filled, wanted = [], 0, rest // max(left, 1) + 1
        for place, x in enumerate(values):
            filled += 0 if x in heavy else weights[x]
            is_end = place + 1 == len(values) or values[place + 1] in heavy
            if x not in heavy and filled < wanted and not is_end:
                continue
            edges.append(x)
            if x not in heavy:
                rest, left = rest - filled, max(1, left - 1) if left else 0
                wanted = rest // max(left, 1) + 1
            filled = 0
        return [*edges[: most - 1], edges[-1]] if len(edges) > most else edges

    def grow_chain(self, chain: int) -> None:
        rows = np.array([i for i, own in enumerate(self.chains) if own == chain], np.int64)
        columns = range(self.X.shape[1])
        self.edges = {j: self.list_edges(j, rows.tolist()) for j in columns}
        starts = [self.pilot_start(k, rows.tolist()) for k in range(self.n_outputs)]
        scores = {i: list(starts) for i in rows.tolist()}
        n_rounds = self.p["n_estimators"]
        first, last = (c * n_rounds // self.n_chains for c in (chain, chain + 1))
        for number in range(first, last):
            gradients = {i: self.gradients(scores[i], self.target[i]) for i in scores}
            for k in range(self.n_outputs):
                own = {i: gradients[i][k] for i in scores}
                root, pairs, shift = self.grow(rows, own, number * self.n_outputs + k)
                self.trees.append(root)
                for leaf in root.leaves():
                    g, h = self.add_up(leaf.rows, pairs)
                    below = max(h + (self.l2 >> shift), 1) * 1024
                    above = -g * PILOT_RATE << 8
                    sign = 1 if above >= 0 else -1
                    value = divide(above + sign * (below // 2), below)
                    most = self.most << 8 - self.p["step_bits"]
                    for i in leaf.rows.tolist():
                        scores[i][k] += min(max(value, -most), most)

    @property
    def l2(self) -> int:
        return round(float(self.p["l2_regularization"]) * ONE) * self.unit

    def pilot_start(self, output: int, rows: list[int]) -> int:
        total = sum(self.weights[i] for i in rows)
        if total == 0:
            return 0
        summed = sum(self.weights[i] * self.target[i] for i in rows)
        if self.loss == "squared_error":
            return divide(summed, total) >> 7
        if self.loss == "poisson":
            return min(log_ratio(summed >> 15, total), STEEPEST)
        positive = self.weigh(output if self.n_outputs > 1 else 1, rows)
        return log_ratio(positive, total if self.n_outputs > 1 else total - positive)

    def add_up(self, rows: Any, pairs: dict[int, tuple[int, int]]) -> tuple[int, int]:
        return sum(pairs[i][0] for i in rows.tolist()), sum(pairs[i][1] for i in rows.tolist())

    def grow(
        self, rows: NDArray[np.int64], gradients: dict[int, tuple[int, int]], number: int
    ) -> tuple[ChainNode, dict[int, tuple[int, int]], int]:
        sizes = [
            sum(abs(pair[k]) * self.weights[i] for i, pair in gradients.items()) for k in (0, 1)
        ]
        shift = max(0, max(sizes, default=0).bit_length() - 30)
        pairs = {
            i: (divide(g * self.weights[i], 1 << shift), h * self.weights[i] >> shift)
            for i, (g, h) in gradients.items()
        }
        key = self.draw(COLUMN, number)
        n_columns = self.X.shape[1]
        n_chosen = max(1, int(float(self.p["colsample"]) * n_columns))
        chosen = sorted(sorted(range(n_columns), key=lambda j: mix(key, j))[:n_chosen])
        root = ChainNode(rows)
        nodes = [root]
        self.search(root, pairs, chosen, shift)
        for _ in range(self.p["max_leaves"] - 1):
            ends = [node for node in nodes if node.children is None]
            best = max(ends, key=lambda node: node.gain)
            if best.gain <= 0 or best.split is None:
                break
            left = best.split.sends_left(self.X[best.rows, best.split.column])
            best.children = (ChainNode(best.rows[left]), ChainNode(best.rows[~left]))
            for child in best.children:
                self.search(child, pairs, chosen, shift)
            nodes += best.children
        return root, pairs, shift

    def search(
        self, node: ChainNode, pairs: dict[int, tuple[int, int]], columns: list[int], shift: int
    ) -> None:
        rows = node.rows.tolist()
        weight, least = sum(self.weights[i] for i in rows), self.p["min_samples_leaf"] * self.unit
        if len(rows) < 2 or weight < 2 * least:
            return
        g, h = self.add_up(node.rows, pairs)
        if h < 2:  # less than 1 on one side
            return
        l2 = F(self.l2 >> shift)
        least_h = max(F(least) * (F(h) / F(weight)), F(1))
        best = F(0)
        for split in self.candidates(columns, node.rows, pairs):
            left = split.sends_left(self.X[node.rows, split.column])
            gl, hl = self.add_up(node.rows[left], pairs)
            sides = F(hl), F(h) - F(hl)
            if sides[0] < least_h or sides[1] < least_h:
                continue
            below = sides[0] + l2, sides[1] + l2
            right = F(g) - F(gl)
            top = F(gl) * F(gl) * below[1] + right * right * below[0]
            score = top / (below[0] * below[1])
            if score > best:
                best, node.split = score, split
        node.gain = best - F(g) * F(g) / (F(h) + l2)

    def candidates(
        self, columns: list[int], rows: NDArray[np.int64], pairs: dict[int, tuple[int, int]]
    ) -> list[BoostedSplit]:
        """Return the splits in the order in which the first of equals counts."""
        splits = []
        for column in columns:
            edges, categorical = self.edges[column]
            missing = self.add_up(rows[np.isnan(self.X[rows, column])], pairs) != (0, 0)
            for side in (False, True) if missing else (not categorical,):
                # With missing values on the right, all other values may be on the left.
                is_whole = missing and not side
                some = edges if categorical or is_whole else edges[:-1]
                splits += [BoostedSplit(column, x, side, categorical) for x in some]
        return splits

    def fit(self) -> tuple[list[list[BoostedSplit]], list[list[tuple[int, int, int]]]]:
        """Return the splits of all trees, and sums and steps of their leaves."""
        for chain in range(self.n_chains):
            self.grow_chain(chain)
        everyone = np.arange(len(self.owners))
        bits, rate = self.p["step_bits"], round(self.p["learning_rate"] * 1024)
        dither_key = self.draw(DITHER, 0)
        states = [list(self.base) for _ in everyone]
        leaves = []
        for number in range(self.p["n_estimators"]):
            all_gradients = [
                self.gradients([s << 8 - bits for s in state], target)
                for state, target in zip(states, self.target, strict=True)
            ]
            for k in range(self.n_outputs):
                tree = self.trees[number * self.n_outputs + k]
                codes = tree.codes(self.X, everyone)
                dither = mix(dither_key, k) + number * 0x9E3779B97F4A7C15 >> 32 & 2**32 - 1
                sums = [[0, 0] for _ in tree.leaves()]
                for i, leaf in codes.items():
                    for part in (0, 1):
                        sums[leaf][part] += all_gradients[i][k][part] * self.weights[i]
                steps = []
                for g, h in sums:
                    unit = max(h + self.l2, 1) * 1024
                    step = ((-g * rate << bits + 32) + unit * dither) // (unit << 32)
                    steps.append(min(max(step, -self.most), self.most))
                for i, leaf in codes.items():
                    states[i][k] += steps[leaf]
                leaves.append([(g, h, s) for (g, h), s in zip(sums, steps, strict=True)])
        return [tree.splits() for tree in self.trees], leaves


def list_gains(
    node: ChainNode, leaves: Iterator[tuple[int, int, int]], l2: float, gains: list[float]
) -> tuple[float, float]:
    """Return the sums of a node, and add the gains below it to those of their columns."""
    if node.children is None or node.split is None:
        g, h, _ = next(leaves)
        return g, h
    left, right = (list_gains(child, leaves, l2, gains) for child in node.children)
    both = left[0] + right[0], left[1] + right[1]
    scores = [g * g / (h + l2) if h + l2 > 0 else 0.0 for g, h in (left, right, both)]
    gains[node.split.column] += max(0.0, scores[0] + scores[1] - scores[2])
    return both


def read_trees(model: Any) -> tuple[Any, Any, Any]:
    """Return base scores, splits and leaves from the bytes of the core."""
    data = bytes(model.boosting_.core.trees(1))
    assert data[:4] == b"LTRB"
    read: Callable[[str, int], Any] = lambda kind, at: np.frombuffer(data, kind, 1, at)[0].item()  # noqa: E731
    n_rounds, n_outputs = read("<u4", 8), read("<u4", 12)
    base = [read("<i4", 16 + 4 * k) for k in range(n_outputs)]
    place = 16 + 4 * n_outputs
    splits: list[list[BoostedSplit]] = []
    leaves: list[list[tuple[int, int, int]]] = []
    for _ in range(n_rounds * n_outputs):
        splits.append([])
        leaves.append([])
        while len(leaves[-1]) <= len(splits[-1]):
            tag, place = data[place], place + 1
            if tag:
                column, threshold = read("<u4", place), read("<f4", place + 4)
                splits[-1].append(BoostedSplit(column, threshold, tag & 4 == 4, tag & 3 == 2))
                place += 8
            else:
                leaves[-1].append(
                    (read("<i8", place), read("<i8", place + 8), read("<i4", place + 16))
                )
                place += 20
    assert place == len(data)
    return base, splits, leaves
