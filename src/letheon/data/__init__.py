"""The rows of a model: tables, labels, ids, and their physical removal."""

from letheon.data._frame import (
    Frame,
    FrameSchema,
    as_frame,
    as_table,
    column_names,
    numbers_of,
    to_native,
)
from letheon.data._ids import IdIndex, Ids, IntIds, TextIds, as_ids, row_ids
from letheon.data._matrix import (
    CategoryColumns,
    CategoryTable,
    EncodedRows,
    KnownCategories,
    ValueCounts,
    ValueNames,
    as_matrix,
    is_matrix,
)
from letheon.data._people import People
from letheon.data._rows import RowMatch, Rows, SlotRows
from letheon.data._tables import (
    as_narwhals,
    hold_table,
    is_text_column,
    list_orders,
    present_table,
    table_length,
)
from letheon.data._targets import hold_labels, hold_target, join_target, require_one_kind

__all__ = [
    "CategoryColumns",
    "CategoryTable",
    "EncodedRows",
    "Frame",
    "FrameSchema",
    "IdIndex",
    "Ids",
    "IntIds",
    "KnownCategories",
    "People",
    "RowMatch",
    "Rows",
    "SlotRows",
    "TextIds",
    "ValueCounts",
    "ValueNames",
    "as_frame",
    "as_ids",
    "as_matrix",
    "as_narwhals",
    "as_table",
    "column_names",
    "hold_labels",
    "hold_table",
    "hold_target",
    "is_matrix",
    "is_text_column",
    "join_target",
    "list_orders",
    "numbers_of",
    "present_table",
    "require_one_kind",
    "row_ids",
    "table_length",
    "to_native",
]
