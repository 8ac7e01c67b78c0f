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
from letheon.data._rows import People, RowMatch, Rows, SlotRows
from letheon.data._tables import (
    hold_labels,
    hold_table,
    hold_target,
    is_text_column,
    join_target,
    present_table,
    require_one_kind,
    table_length,
)

__all__ = [
    "Frame",
    "FrameSchema",
    "IdIndex",
    "Ids",
    "IntIds",
    "People",
    "RowMatch",
    "Rows",
    "SlotRows",
    "TextIds",
    "as_frame",
    "as_ids",
    "as_table",
    "column_names",
    "hold_labels",
    "hold_table",
    "hold_target",
    "is_text_column",
    "join_target",
    "numbers_of",
    "present_table",
    "require_one_kind",
    "row_ids",
    "table_length",
    "to_native",
]
