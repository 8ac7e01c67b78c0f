"""Ids of any length are found as values of data files, or the file counts as not searched."""

import io
import json
import random
import sqlite3
import string
import zipfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from letheon.ledger.purge import search as id_values
from letheon.ledger.purge import values
from letheon.ledger.purge.scan import Markers, ScanResult, ScanTarget, scan_files
from tests.ledger.residue import quick_folder
from tests.ledger.tables import KINDS, SEARCHED, Ids, write_csv

PEOPLE = [f"P{number:04d}" for number in range(60)]
NUMBERS = list(range(10_000_000, 10_000_060))


def search(folder: Path, erased: int | str, others: Sequence[Any]) -> ScanResult:
    markers = Markers.from_values(ids=[erased]).with_neighbours(
        lambda: [str(value) for value in others]
    )
    return scan_files([ScanTarget("store", folder)], markers)


def reasons(result: ScanResult) -> list[str]:
    return [one.reason for one in result.not_searched]


@st.composite
def planted_tables(draw: st.DrawFn) -> tuple[str, Ids, int]:
    """A kind of file, ids of one length and kind, and a seed."""
    length, seed = draw(st.integers(1, 40)), draw(st.integers(0, 2**32 - 1))
    rng = random.Random(seed)
    n_ids = draw(st.sampled_from([1, 2, 5, 40]))
    if draw(st.booleans()) and length <= 18:
        low = 10 ** (length - 1)
        start = rng.randrange(low, 10 * low)
        step = draw(st.sampled_from([1, 7]))
        numbers = [start + step * number for number in range(n_ids)]
        return draw(st.sampled_from(sorted(KINDS))), numbers, seed
    letters = draw(
        st.sampled_from([string.ascii_letters + string.digits, "äßéñ中-_.@x", "0123456789"])
    )
    texts = {"".join(rng.choices(letters, k=length)) for _ in range(n_ids)}
    return draw(st.sampled_from(sorted(KINDS))), sorted(texts), seed


def check_planted(table: tuple[str, Ids, int]) -> None:
    kind, ids, seed = table
    rng = np.random.default_rng(seed)
    erased = ids[int(rng.integers(len(ids)))]
    others: list[Any] = [value for value in ids if value != erased]
    with quick_folder() as folder:
        KINDS[kind](folder / f"table.{kind}", ids, rng)
        assert not search(folder, erased, others).is_clean
        if others:
            KINDS[kind](folder / f"table.{kind}", others, rng) if kind != "sqlite" else None
            if kind != "sqlite":
                assert not search(folder, erased, others).hits


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(planted_tables())
def test_a_planted_row_is_found_or_its_file_not_searched(table: tuple[str, Ids, int]) -> None:
    check_planted(table)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(planted_tables())
def test_planted_rows_at_length(table: tuple[str, Ids, int]) -> None:
    check_planted(table)


@pytest.mark.parametrize("kind", sorted(SEARCHED))
@pytest.mark.parametrize("ids", [PEOPLE, NUMBERS, [7_000 + 13 * n for n in range(60)]])
def test_an_id_in_a_column_of_ids_is_residue(kind: str, ids: Ids, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(kind))
    SEARCHED[kind](tmp_path / f"a.{kind}", ids, rng)
    result = search(tmp_path, ids[3], [value for value in ids if value != ids[3]])
    assert {hit.kind for hit in result.hits} == {"value"}
    assert str(ids[3]) not in repr(result)


@pytest.mark.parametrize("kind", sorted(SEARCHED))
@pytest.mark.parametrize("ids", [PEOPLE, NUMBERS])
def test_a_table_without_the_person_is_clean(kind: str, ids: Ids, tmp_path: Path) -> None:
    left: list[Any] = [value for value in ids if value != ids[3]]
    SEARCHED[kind](tmp_path / f"a.{kind}", left, np.random.default_rng(len(kind)))
    assert search(tmp_path, ids[3], left).is_clean


def test_small_numbers_are_never_taken_for_people(tmp_path: Path) -> None:
    """A column of row numbers has every small number; who has the number 7 may stand there."""
    rows = "\n".join(f"{number},{20 + number % 50},{number % 2}" for number in range(500))
    (tmp_path / "a.csv").write_text(f"index,age,label\n{rows}\n")
    result = search(tmp_path, 7, [number for number in range(500) if number != 7])
    assert not result.hits
    assert reasons(result) == ["ambiguous-value"]


def write_unrelated(path: Path, rng: np.random.Generator) -> None:
    """Write a table of ages, years, codes and row numbers, in which no person stands."""
    n_rows = int(rng.integers(2, 60))
    columns = {
        "index": np.arange(n_rows),
        "age": rng.integers(0, 100, n_rows),
        "year": 1950 + rng.permutation(76)[:n_rows],
        "cents": rng.integers(0, 10 ** int(rng.integers(2, 7)), n_rows),
        "code": np.array([f"{'ABC'[n % 3]}{n % 10}" for n in rng.integers(0, 30, n_rows)]),
        "order": int(rng.integers(1, 10**6)) + np.arange(n_rows),
    }
    if rng.random() < 0.5:
        lines = [",".join(columns)] + [
            ",".join(map(str, row)) for row in zip(*columns.values(), strict=True)
        ]
        path.with_suffix(".csv").write_text("\n".join(lines))
    else:
        pq.write_table(pa.table(columns), path.with_suffix(".parquet"))


def count_false_hits(n_files: int, seed: int) -> int:
    """Search unrelated files for people whose ids look like anything in them."""
    rng, n_hits = np.random.default_rng(seed), 0
    populations: list[list[Any]] = [
        list(range(500)),
        (1900 + rng.permutation(150)).tolist(),
        rng.choice(10**5, 300, replace=False).tolist(),
        rng.choice(10**7, 300, replace=False).tolist(),
        [f"{letter}{digit}" for letter in "ABCDE" for digit in range(10)],
        [f"P{number:03d}" for number in range(300)],
    ]
    for start in range(0, n_files, 100):
        people = populations[int(rng.integers(len(populations)))]
        markers = Markers.from_values(ids=people[:5]).with_neighbours(
            partial(list, [str(value) for value in people[5:]])
        )
        with quick_folder() as folder:
            for number in range(min(100, n_files - start)):
                write_unrelated(folder / str(number), rng)
            n_hits += len(
                {hit.file for hit in scan_files([ScanTarget("store", folder)], markers).hits}
            )
    return n_hits


def test_unrelated_files_are_no_residue() -> None:
    assert count_false_hits(300, 1) == 0


@pytest.mark.soak
def test_false_hits_are_at_most_one_in_ten_thousand_files() -> None:
    assert count_false_hits(30_000, 2) <= 3


@pytest.mark.parametrize("kind", sorted(SEARCHED))
def test_a_damaged_file_is_not_searched_and_never_an_error(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    file = tmp_path / f"a.{kind}"
    SEARCHED[kind](file, PEOPLE, rng)
    content = file.read_bytes()
    for _ in range(60):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), 6):
            damaged[place] = rng.integers(256)
        cut = int(rng.integers(1, len(content))) if rng.random() < 0.3 else len(content)
        file.write_bytes(damaged[:cut])
        result = search(tmp_path, "never-there", PEOPLE)
        assert not result.hits


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"id,age\n\0\0\0", "file-kind"),
        ("a.csv", b"id^age\nP0003^7\n", "ambiguous-value"),
        ("a.json", b'{"id": ', "damaged"),
        ("a.json", b"[" * 100_000, "damaged"),
        ("a.npy", b"\x93NUMPY\x01\x00", "damaged"),
        ("a.parquet", b"PAR1 and no more", "damaged"),
        ("a.feather", b"ARROW1\0\0", "damaged"),
        ("a.db", b"SQLite format 3\0" + bytes(84), "damaged"),
        ("a.pkl", b"\x80\x04N.", "file-kind"),
        ("a.txt", b"words of a person", "file-kind"),
        ("a.csv", b'id\n"1\n2\nP0003\n4\n', "ambiguous-value"),
        ("a.csv", b"x,ids\n1,P0001;P0003\n", "ambiguous-value"),
        ("a.csv", b'{"x": 1, "id": "P0003"}\n{"x": 1, "id": "P0004"}\n', "ambiguous-value"),
        ("a.csv", b"<id>P0003</id>, <id>P0004</id>", "file-kind"),
    ],
)
def test_what_cannot_be_searched_is_said(
    name: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    result = search(tmp_path, "P0003", [])
    assert reasons(result) == [reason]
    assert not result.is_clean
    assert not result.has_problems


def test_long_ids_are_searched_in_texts_and_short_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no ids in this text")
    assert search(tmp_path, "person-4711", []).is_clean
    assert not search(tmp_path, "4711", []).is_clean
    (tmp_path / "secret.asc").write_text("-----BEGIN PGP MESSAGE-----\n")
    assert not search(tmp_path, "person-4711", []).is_clean


def test_a_number_is_found_in_a_binary_column_whatever_its_length(tmp_path: Path) -> None:
    """Nine digits are long enough for a search for bytes, which sees no binary number."""
    pq.write_table(pa.table({"id": [123456789, 5]}), tmp_path / "a.parquet")
    assert search(tmp_path, 123456789, []).hits


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_number_that_a_column_cannot_hold_exactly(dtype: Any, tmp_path: Path) -> None:
    number = 2049 if dtype == np.float16 else 16_777_217
    np.save(tmp_path / "a.npy", np.array([number, 1, 2], dtype))
    assert not search(tmp_path, number, []).is_clean


def test_a_rounded_neighbour_is_not_taken_for_the_person(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([24478533814897469, 1.0]))
    result = search(tmp_path, 24478533814897468, [24478533814897469])
    assert reasons(result) == ["ambiguous-value"]
    assert not result.hits


def test_a_category_without_a_row_is_found(tmp_path: Path) -> None:
    ids = pa.array(PEOPLE).dictionary_encode()
    pq.write_table(pa.table({"id": ids.slice(5)}), tmp_path / "a.parquet")
    assert search(tmp_path, PEOPLE[3], PEOPLE[4:]).hits


def test_a_deleted_row_of_a_database_is_not_clean(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("PRAGMA secure_delete = OFF")
        conn.execute("CREATE TABLE people (id TEXT, age INT)")
        conn.executemany("INSERT INTO people VALUES (?, 40)", [(value,) for value in PEOPLE])
        conn.execute("DELETE FROM people WHERE id = 'P0003'")
        conn.commit()
        assert b"P0003" in file.read_bytes()
        assert reasons(search(tmp_path, "P0003", PEOPLE)) == ["deleted-rows"]
        conn.execute("VACUUM")
    assert search(tmp_path, "P0003", [value for value in PEOPLE if value != "P0003"]).is_clean


def test_a_write_ahead_log_is_not_clean(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE people (id TEXT)")
        conn.execute("INSERT INTO people VALUES ('P0003')")
        conn.commit()
        assert not search(tmp_path, "P0003", []).is_clean
        assert {file.name for file in tmp_path.iterdir()} == {"a.db", "a.db-shm", "a.db-wal"}


def test_values_inside_archives_are_found(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", PEOPLE, np.random.default_rng(0))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.write(tmp_path / "a.csv", "a.csv")
    (tmp_path / "a.csv").unlink()
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.writestr("inner.zip", inner.getvalue())
    assert search(tmp_path, "P0003", PEOPLE).hits
    nested = (tmp_path / "outer.zip").read_bytes()
    for _ in range(3):
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.writestr("inner.zip", nested)
        nested = (tmp_path / "outer.zip").read_bytes()
    assert not search(tmp_path, "P0003", PEOPLE).is_clean


@pytest.mark.parametrize("name", ["P0003.csv", "export_P0003-may.csv", "P0003/x.csv"])
def test_a_file_that_is_named_after_a_person_is_not_clean(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("age\n40\n")
    result = search(tmp_path, "P0003", [])
    assert reasons(result) == ["ambiguous-name"]
    assert "P0003" not in repr(result)


def test_names_of_fields_and_repeated_fields_are_values(tmp_path: Path) -> None:
    records = {value: {"age": 3} for value in PEOPLE}
    (tmp_path / "a.json").write_text(json.dumps(records))
    assert search(tmp_path, "P0003", PEOPLE).hits
    (tmp_path / "a.json").write_text('{"id": "P0003", "id": "x"}')
    assert not search(tmp_path, "P0003", PEOPLE).is_clean


def test_without_pyarrow_parquet_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": PEOPLE}), tmp_path / "a.parquet")

    def missing() -> Any:
        raise id_values.UnsearchableError("needs-pyarrow")

    monkeypatch.setattr(values, "_import_pyarrow", missing)
    assert reasons(search(tmp_path, "P0003", PEOPLE)) == ["needs-pyarrow"]


def test_markers_of_an_earlier_version_search_nothing(tmp_path: Path) -> None:
    old = Markers.from_bytes(b'{"texts": [], "salts": [], "rows": []}')
    write_csv(tmp_path / "a.csv", PEOPLE, np.random.default_rng(0))
    result = scan_files([ScanTarget("store", tmp_path)], old)
    assert reasons(result) == ["ids-not-kept"]
    again = Markers.from_bytes(Markers.from_values(ids=[7, 8]).to_bytes())
    assert again.ids == (7, 8)


def plant_chance(_: Any, __: Any) -> float:
    return 1e-9


def plant_no_parts(_: Any, __: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("name", "bug", "fails"),
    [
        ("_chance_of", plant_chance, test_unrelated_files_are_no_residue),
        ("_holds_ids", lambda *_: True, test_small_numbers_are_never_taken_for_people),
    ],
)
def test_planted_bugs_of_the_rule_are_caught(
    name: str, bug: Any, fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_values.IdValues, name, bug)
    arguments = (tmp_path,) if fails is test_small_numbers_are_never_taken_for_people else ()
    with pytest.raises(AssertionError):
        fails(*arguments)


@pytest.mark.parametrize("kind", sorted(SEARCHED))
def test_a_reader_that_loses_a_column_is_caught(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrix above sees a bug in any reader: without the ids the file looks clean."""
    real = values.read_values
    monkeypatch.setattr(
        "letheon.ledger.purge.scan.read_values",
        lambda *given: (chunk for chunk in real(*given) if len(set(map(str, chunk[1]))) < 20),
    )
    SEARCHED[kind](tmp_path / f"a.{kind}", PEOPLE, np.random.default_rng(1))
    assert not search(tmp_path, PEOPLE[3], PEOPLE[4:]).hits
