"""Frozen steps as nodes of an ONNX graph."""

from collections.abc import Callable
from typing import Any

import numpy as np

from letheon.predictor import OnnxGraph, OnnxTable
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)
from letheon.steps import passes_through


def find_texts(step: Any) -> tuple[int, ...]:
    """Return the input columns of a frozen step that contain texts."""
    if isinstance(step, ForgetColumnTransformer):
        return tuple(
            {part.columns[place] for part in step.parts_ for place in find_texts(part.step)}
        )
    if hasattr(step, "fitted_"):
        return find_texts(step.fitted_.steps[0][1])
    published = None if passes_through(step) else vars(step).get("published_")
    kinds = getattr(published, "kinds", ())
    return tuple(np.flatnonzero([kind == "text" for kind in kinds]).tolist())


def export_step(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    """Add a frozen step to an ONNX graph, and return its output."""
    if passes_through(step):
        return table
    if hasattr(step, "fitted_"):
        for _, part in step.fitted_.steps:
            table = export_step(part, graph, table)
        return table
    export = _EXPORTS.get(type(step))
    if export is None:
        known = ", ".join(kind.__name__ for kind in _EXPORTS)
        raise TypeError(f"{type(step).__name__} has no ONNX form; expected one of: {known}")
    return export(step, graph, table)


def _export_columns(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    outputs = [
        graph.join(export_step(part.step, graph, graph.select(table, part.columns)))
        for part in step.parts_
    ]
    return OnnxTable(graph.add("Concat", *outputs, axis=1))


def _export_scaler(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    published = step.published_
    centred = graph.add("Sub", graph.join(table), graph.constant(published.centre))
    return OnnxTable(graph.add("Div", centred, graph.constant(published.scale)))


def _export_imputer(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    """Fill the columns one by one; the empty text is a missing text."""
    published, columns = step.published_, []

    def find_missing(column: int) -> tuple[str, str]:
        cell = graph.join(graph.select(table, (column,)))
        if published.kinds[column] != "text":
            return cell, graph.add("IsNaN", cell)
        return cell, graph.add("Equal", cell, graph.constant(np.array([""], object)))

    for column, fill in zip(published.kept, published.fills, strict=True):
        cell, is_missing = find_missing(column)
        value = np.array([fill], object if isinstance(fill, str) else np.float64)
        columns.append(graph.add("Where", is_missing, graph.constant(value), cell))
    shown = [graph.cast(find_missing(column)[1], np.float64) for column in published.indicated]
    return OnnxTable(None, (*columns, *shown))


def _export_one_hot(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    published, parts = step.published_, []
    has_group = step.handle_unknown == "infrequent_if_exist"
    for column, (places, rare) in enumerate(
        zip(published.places, published.rare_places, strict=True)
    ):
        # The first row is that of unknown categories; with handle_unknown="error" it has zeros.
        numbers = np.array([rare if has_group else -1, *places.values()])
        rows = (numbers[:, None] == np.arange(len(published.outputs))).astype(np.float64)
        cell = graph.join(graph.select(table, (column,)))
        is_text = published.kinds[column] == "text"
        parts.append(graph.look_up(cell, tuple(places), rows, is_text=is_text))
    return OnnxTable(graph.add("Sum", *parts))


def _export_ordinal(step: Any, graph: OnnxGraph, table: OnnxTable) -> OnnxTable:
    published, parts = step.published_, []
    unknown = np.nan if step.unknown_value is None else step.unknown_value
    for column, codes in enumerate(published.codes):
        missing = step.encoded_missing_value
        numbers = [missing if key is None else code for key, code in codes.items()]
        rows = np.array([unknown, *numbers], np.float64)[:, None]
        cell = graph.join(graph.select(table, (column,)))
        is_text = published.kinds[column] == "text"
        parts.append(graph.look_up(cell, tuple(codes), rows, is_text=is_text))
    return OnnxTable(graph.add("Concat", *parts, axis=1))


_EXPORTS: dict[type, Callable[[Any, OnnxGraph, OnnxTable], OnnxTable]] = {
    ForgetColumnTransformer: _export_columns,
    OneHotEncoder: _export_one_hot,
    OrdinalEncoder: _export_ordinal,
    RobustScaler: _export_scaler,
    SimpleImputer: _export_imputer,
    StandardScaler: _export_scaler,
}
