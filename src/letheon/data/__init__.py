"""The rows of a model: tables, labels, ids, and their physical removal."""

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
    "IdIndex",
    "Ids",
    "IntIds",
    "People",
    "RowMatch",
    "Rows",
    "SlotRows",
    "TextIds",
    "as_ids",
    "hold_labels",
    "hold_table",
    "hold_target",
    "is_text_column",
    "join_target",
    "present_table",
    "require_one_kind",
    "row_ids",
    "table_length",
]
