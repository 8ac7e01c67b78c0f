"""Ids in odd spellings and odd columns: found, or the file is not searched; never clean."""

import datetime as dt
import io
import sqlite3
import struct
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from letheon.audit import check_residue
from letheon.ledger.certificates.explanations import PURGE_NOT_CLAIMED
from letheon.ledger.purge import stores
from letheon.ledger.purge.scan import Markers, ScanResult, ScanTarget, scan_files
from letheon.ledger.purge.search import IdValues

NUMBER, CODE = 12_345_678, "P0003"
PERSON = uuid.UUID("d9428888-122b-41e1-b85c-61b5b1b6d7f0")


def search(folder: Path, erased: int | str, *others: str) -> ScanResult:
    return scan_files(
        [ScanTarget("store", folder)],
        Markers.from_values(ids=[erased]).with_neighbours(lambda: others),
    )


@pytest.mark.parametrize(
    ("person", "text"),
    [
        *((NUMBER, text) for text in ('"12,345,678",1', "12 345 678;1", "12.345.678;1")),
        *((NUMBER, text) for text in ('="12345678",1', "#12345678,1", "No. 12345678,1")),
        (NUMBER, "１２３４５６７８,1"),
        (NUMBER, "x:1.2345678e+07, y"),
        (NUMBER, "12,345,678|yes|no"),
        (CODE, "P0003 1,5 2,5"),
        (CODE, "P0003:Smith, John:34"),
        (CODE, "P0003~Smith, John"),
        (CODE, 'a,"[""P0003"", ""P0001""]"'),
        (CODE, 'a,"{""id"": ""\\u0050\\u0030003""}"'),
        *((CODE, text) for text in ("/users/P0003/x,1", "p0003,1", "(P0003),1", "saw P0003 now,1")),
        *((CODE, text) for text in ("\u200bP0003,1", "a,b\n\ufeffP0003,1")),
        ("ward-7/12", "see WARD 7-12,1"),
        ("2024-01-05", "2024-01-05T10:00:00,1"),
    ],
)
def test_an_id_as_a_word_of_a_cell_is_never_clean(
    person: int | str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"{text}\n", "utf-8")
    assert not search(tmp_path, person).is_clean
    (tmp_path / "a.csv").write_text("Q0004 1,5:Doe, 0.12345678 /users/x 2024-01-06T10:00:00\n")
    assert search(tmp_path, person).is_clean


@pytest.mark.parametrize(
    ("person", "encoding"),
    [
        ("田中", "shift-jis"),
        ("René1", "mac-roman"),
        ("René Descartes", "cp437"),
        ("Žižk", "cp1250"),
    ],
)
def test_an_id_in_an_unknown_encoding_is_never_clean(
    person: str, encoding: str, tmp_path: Path
) -> None:
    """The id of two characters has six bytes, but four in UTF-16: that ended a purge."""
    (tmp_path / "a.csv").write_bytes(f"id;age\n{person};7\n".encode(encoding))
    assert not search(tmp_path, person).is_clean
    (tmp_path / "a.csv").write_bytes("id;age\nQ;7\n".encode(encoding))
    assert search(tmp_path, person).is_clean


@pytest.mark.parametrize("codec", ["zstd", "lz4", "snappy", "brotli"])
def test_a_packed_file_with_the_name_of_a_text_is_not_searched(codec: str, tmp_path: Path) -> None:
    content = b"id,age\n" + b"".join(b"P%04d,7\n" % number for number in range(9))
    (tmp_path / "a.csv").write_bytes(pa.compress(content, codec, asbytes=True))
    assert not search(tmp_path, CODE).is_clean


def write_parquet(column: Any, metadata: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": column}).replace_schema_metadata(metadata), stream)
    return stream.getvalue()


def write_arrow(column: Any) -> bytes:
    stream = io.BytesIO()
    table = pa.table({"x": column})
    with pa.ipc.new_file(stream, table.schema) as file:
        file.write_table(table)
    return stream.getvalue()


def write_numpy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def write_sqlite(*commands: tuple[str, tuple[Any, ...]]) -> bytes:
    with closing(sqlite3.connect(":memory:")) as conn:
        for command in commands:
            conn.execute(*command)
        conn.commit()
        return conn.serialize()


BINARY: dict[str, tuple[int | str, Callable[[], bytes]]] = {
    "uuid": (str(PERSON), lambda: write_parquet(pa.array([PERSON.bytes], pa.uuid()))),
    "uuid-bytes": (str(PERSON), lambda: write_parquet(pa.array([PERSON.bytes], pa.binary(16)))),
    "packed-number": (4660, lambda: write_parquet([struct.pack("<i", 4660)])),
    "date": ("2024-01-05", lambda: write_parquet([dt.date(2024, 1, 5)])),
    "words": (CODE, lambda: write_parquet(["person P0003"])),
    "long-words": ("ann@example.org", lambda: write_parquet(["to Ann@example.org"] * 9)),
    "note": (CODE, lambda: write_parquet([1.5], {"person": CODE})),
    "tensor": (
        NUMBER,
        lambda: write_arrow(pa.FixedShapeTensorArray.from_numpy_ndarray(np.array([[NUMBER, 2]]))),
    ),
    "rowid": (
        NUMBER,
        lambda: write_sqlite(
            ("CREATE TABLE t (x)", ()), ("INSERT INTO t (rowid, x) VALUES (?, 'a')", (NUMBER,))
        ),
    ),
    "blob": (
        CODE,
        lambda: write_sqlite(
            ("CREATE TABLE t (x)", ()), ("INSERT INTO t VALUES (?)", (b'{"id": "P0003"}',))
        ),
    ),
    "view": (CODE, lambda: write_sqlite(("CREATE VIEW v AS SELECT 'P0003'", ()))),
    "dates": ("2024-01-05", lambda: write_numpy(np.array(["2024-01-05"], "M8[D]"))),
    "imaginary": (NUMBER, lambda: write_numpy(np.array([1 + 1j * NUMBER]))),
}


@pytest.mark.parametrize("kind", sorted(BINARY))
def test_an_id_in_an_odd_column_is_never_clean(kind: str, tmp_path: Path) -> None:
    person, write = BINARY[kind]
    (tmp_path / "a").write_bytes(write())
    result = search(tmp_path, person)
    assert not result.is_clean
    assert str(person) not in repr(result)


@pytest.mark.parametrize(
    "text",
    ["GET /users/P000003/x", "user_P000003", "user-P000003;", "{P000003}"],
)
def test_signs_beside_a_long_id_do_not_hide_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    assert search(tmp_path, "P000003").hits


@pytest.mark.parametrize(
    ("person", "text"),
    [
        ("org/person/12345", r'{"id": "org\/person\/12345"}'),
        ("a/b@example.org", "a%2fb%40example.org"),
        ("a/b@example.org", "a/b%40example.org"),
        ("a&b@example.org", "a&amp;b@example.org"),
        ("René Descartes", "Rene\u0301 Descartes"),
    ],
)
def test_escapes_of_other_programs_do_not_hide_a_long_id(
    person: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text(text, "utf-8")
    assert search(tmp_path, person).hits


@pytest.mark.parametrize("text", ["0.123456789", "-123456789", "1,-123456789,2"])
def test_a_part_of_another_number_is_no_person(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{text}\n")
    assert search(tmp_path, 123456789).is_clean
    (tmp_path / "a.log").write_text("user-123456789")
    assert search(tmp_path, 123456789).hits


@settings(max_examples=200, deadline=None)
@given(
    st.text(min_size=1, max_size=8).filter(lambda text: text.isalnum() and text.isprintable()),
    st.text("., :/-_()[]{}#=\"'\u200b", min_size=1, max_size=3),
)
def test_any_id_is_seen_as_a_word(person: str, sign: str) -> None:
    result = IdValues([person], [], ()).search([("x", [f"word{sign}{person}{sign}word"])])
    assert result.row is not None or result.reasons == {"ambiguous-value"}


def test_every_code_of_an_attestation_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "definitions.md").read_text("utf-8")
    for code in {*stores._NOT_CLAIMED, *PURGE_NOT_CLAIMED}:
        assert f"| `{code}` | {PURGE_NOT_CLAIMED[code]} |" in page


@pytest.mark.parametrize("marker", [np.int64(4660), b"4660", b"P0003", np.str_("P0003")])
def test_an_audit_drops_no_marker(marker: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,age\nP0003,7\n4660,8\n")
    check = check_residue({"exports": tmp_path}, ["another-person@example.org", marker])
    assert check.verdict != "pass"


@pytest.mark.parametrize(
    ("marker", "error"), [(PERSON, TypeError), (7.0, TypeError), (b"\xff\xfe\x01", ValueError)]
)
def test_an_audit_refuses_a_marker_that_it_cannot_search(
    marker: Any, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match=r"markers\[1\]"):
        check_residue({"exports": tmp_path}, ["another-person@example.org", marker])
