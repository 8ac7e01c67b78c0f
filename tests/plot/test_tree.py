"""The drawing of a tree shows the tree."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from matplotlib import pyplot as plt
from sklearn.ensemble import RandomForestClassifier

from letheon.forest import DaREForestClassifier, DaREForestRegressor
from letheon.plot import ForestTreeDisplay


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


def forest(**params: Any) -> DaREForestClassifier:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.array(["ash", "elm", "oak"])[rng.integers(0, 3, 300)]
    return DaREForestClassifier(n_estimators=2, random_state=0, **params).fit(X, y)


def texts(display: ForestTreeDisplay) -> dict[int, list[str]]:
    return {node: box.get_text().split("\n") for node, box in display.boxes_.items()}


def test_boxes_say_what_nodes_are() -> None:
    model = forest()
    display = ForestTreeDisplay.from_estimator(model, tree=1, max_depth=2)
    tree = model.tree_(1)
    assert display.ax_.get_title() == "Tree 1"
    for node, lines in texts(display).items():
        is_open = tree.kind[node] != 0 and tree.depths()[node] < 2
        side = "missing: yes" if tree.missing_left[node] else "missing: no"
        split = [f"x[{tree.feature[node]}] ≤ {tree.threshold[node]:.4g}", side] if is_open else []
        dots = ["…"] if tree.kind[node] != 0 and not is_open else []
        assert lines == [*split, f"{tree.n[node]:,} rows", tree.summary(node), *dots]


@pytest.mark.parametrize("max_depth", [0, 1, 3, None])
def test_all_nodes_down_to_the_depth_are_drawn(max_depth: int | None) -> None:
    model = forest(max_depth=5)
    display = ForestTreeDisplay.from_estimator(model, max_depth=max_depth)
    depths = model.tree_(0).depths()
    deepest = 5 if max_depth is None else max_depth
    assert sorted(display.boxes_) == np.flatnonzero(depths <= deepest).tolist()
    assert len(display.ax_.lines) == len(display.boxes_) - 1


def test_parents_stand_over_their_children_and_nothing_overlaps() -> None:
    display = ForestTreeDisplay.from_estimator(forest(), max_depth=3)
    display.figure_.canvas.draw()
    boxes = {node: box.get_window_extent() for node, box in display.boxes_.items()}
    assert not any(a.overlaps(b) for a, b in combinations(boxes.values(), 2))
    tree = display.tree
    for node, box in boxes.items():
        if int(tree.left[node]) in boxes:
            left, right = boxes[int(tree.left[node])], boxes[int(tree.right[node])]
            assert left.x0 < box.x0 < right.x0
            assert box.y0 > max(left.y1, right.y1)


def test_frames_tell_random_nodes_best_splits_and_leaves_apart() -> None:
    display = ForestTreeDisplay.from_estimator(forest(random_depth=1, max_depth=2), max_depth=None)
    tree = display.tree
    for node, box in display.boxes_.items():
        frame = box.get_bbox_patch()
        assert frame is not None
        assert (frame.get_linewidth() > 0) == (tree.kind[node] != 0)
        assert (frame.get_linestyle() == "--") == (tree.kind[node] == 2)


def test_a_legend_explains_dashed_frames_where_there_are_some() -> None:
    legend = ForestTreeDisplay.from_estimator(forest(random_depth=1)).ax_.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["random split"]
    assert ForestTreeDisplay.from_estimator(forest()).ax_.get_legend() is None


def test_the_legend_covers_no_node() -> None:
    display = ForestTreeDisplay.from_estimator(forest(random_depth=2), max_depth=2)
    display.figure_.canvas.draw()
    legend = display.ax_.get_legend()
    assert legend is not None
    area = legend.get_window_extent()
    assert not any(box.get_window_extent().overlaps(area) for box in display.boxes_.values())


def test_a_side_for_missing_values() -> None:
    X = np.array([[0.0], [1.0], [np.nan]])
    model = DaREForestClassifier(n_estimators=1).fit(X, ["a", "b", "a"])
    assert texts(ForestTreeDisplay.from_estimator(model))[0][1] == "missing: yes"


def test_another_forest_is_refused_by_name() -> None:
    other = RandomForestClassifier(1).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(TypeError, match=r"DaREForestClassifier or .* not RandomForestClassifier"):
        ForestTreeDisplay.from_estimator(other)


def test_purer_nodes_are_darker() -> None:
    X = np.array([[0.0], [0.0], [0.0], [1.0], [1.0]])
    model = DaREForestClassifier(n_estimators=1).fit(X, ["a", "a", "b", "a", "a"])
    display = ForestTreeDisplay.from_estimator(model)
    mixed, pure = (display._node_colour(node) for node in (1, 2))
    assert sum(pure) < sum(mixed)


def test_regression_is_coloured_by_its_mean() -> None:
    model = DaREForestRegressor(n_estimators=1).fit([[0.0], [1.0]], [1.0, 5.0])
    display = ForestTreeDisplay.from_estimator(model)
    assert texts(display)[0] == ["x[0] ≤ 0", "missing: yes", "2 rows", "mean 3"]
    assert texts(display)[1] == ["1 row", "mean 1"]
    assert (
        sum(display._node_colour(2)) < sum(display._node_colour(0)) < sum(display._node_colour(1))
    )


def test_a_single_leaf_and_one_value() -> None:
    model = DaREForestRegressor(n_estimators=1, max_depth=0).fit([[0.0], [1.0]], [4.0, 4.0])
    assert texts(ForestTreeDisplay.from_estimator(model)) == {0: ["2 rows", "mean 4"]}


def test_a_tree_without_rows() -> None:
    model = DaREForestClassifier(n_estimators=40, subsample=0.01, random_state=0)
    model.fit([[0.0], [1.0]], [0, 1])
    empty = next(t for t in range(40) if model.tree_(t).n[0] == 0)
    display = ForestTreeDisplay.from_estimator(model, tree=empty)
    assert texts(display) == {0: ["0 rows", "no rows"]}


def test_long_names_are_cut() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a name that goes on and on": [0.0, 1.0]})
    display = ForestTreeDisplay.from_estimator(DaREForestClassifier().fit(frame, [0, 1]))
    assert texts(display)[0][0] == "a name that goes on… ≤ 0"


def test_given_axes_are_used() -> None:
    _, ax = plt.subplots()
    display = ForestTreeDisplay(forest().tree_(0), title="mine").plot(ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    assert ax.get_title() == "mine"


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="max_depth must be at least 0 or None, not -1"):
        ForestTreeDisplay.from_estimator(forest(), max_depth=-1)
