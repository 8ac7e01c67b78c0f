"""Write tables with ids in every kind of file that a purge can or cannot search."""

import gzip
import json
import pickle
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

Ids = Sequence[Any]
Random = np.random.Generator


def _features(n_rows: int, rng: Random) -> Any:
    """Random features; few of them are whole numbers, and none is by chance an id."""
    return np.round(rng.normal(size=n_rows), 4) + 0.00001


def _cell(value: int | str, rng: Random) -> str:
    """Write a value as programs do: plain, quoted, with spaces, or as a float."""
    forms = [str(value), f'"{value}"', f" {value} "]
    if isinstance(value, int):
        forms += [f"{value}.0", f"{value:+d}"]
    return forms[rng.integers(len(forms))]


def _write_delimited(path: Path, ids: Ids, rng: Random, mark: str) -> None:
    lines = [mark.join(("id", "age", "group"))] if rng.random() < 0.8 else []
    for value, age in zip(ids, _features(len(ids), rng), strict=True):
        text = _cell(value, rng)
        if mark in str(value) or '"' in str(value):
            text = '"{}"'.format(str(value).replace('"', '""'))
        lines.append(mark.join((text, str(age), "a")))
    path.write_bytes(("\n".join(lines) + "\n").encode())


def write_csv(path: Path, ids: Ids, rng: Random) -> None:
    _write_delimited(path, ids, rng, ",;"[rng.integers(2)])


def write_tsv(path: Path, ids: Ids, rng: Random) -> None:
    _write_delimited(path, ids, rng, "\t")


def write_csv_gz(path: Path, ids: Ids, rng: Random) -> None:
    write_csv(path, ids, rng)
    path.write_bytes(gzip.compress(path.read_bytes()))


def _records(ids: Ids, rng: Random) -> list[dict[str, Any]]:
    ages = _features(len(ids), rng).tolist()
    return [{"id": value, "more": {"age": age}} for value, age in zip(ids, ages, strict=True)]


def write_jsonl(path: Path, ids: Ids, rng: Random) -> None:
    texts = [json.dumps(record, ensure_ascii=rng.random() < 0.5) for record in _records(ids, rng)]
    path.write_text("\n".join(texts), "utf-8")


def write_json(path: Path, ids: Ids, rng: Random) -> None:
    path.write_text(json.dumps(_records(ids, rng), indent=[None, 1][rng.integers(2)]), "utf-8")


def _column(ids: Ids, rng: Random) -> Any:
    """Return ids as a column of any width that holds them."""
    if isinstance(ids[0], str):
        return pa.array(ids).dictionary_encode() if rng.random() < 0.3 else pa.array(ids)
    most = max(map(abs, ids))
    kinds = [pa.int64(), *([pa.float64()] if most < 2**53 else [])]
    kinds += [pa.int32(), pa.uint32()] if most < 2**31 and min(ids) >= 0 else []
    return pa.array(ids, kinds[rng.integers(len(kinds))])


def _arrow_table(ids: Ids, rng: Random) -> Any:
    return pa.table({"age": _features(len(ids), rng), "id": _column(ids, rng)})


def write_parquet(path: Path, ids: Ids, rng: Random) -> None:
    pq.write_table(_arrow_table(ids, rng), path, compression=["NONE", "snappy"][rng.integers(2)])


def write_arrow(path: Path, ids: Ids, rng: Random) -> None:
    table = _arrow_table(ids, rng)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def write_sqlite(path: Path, ids: Ids, rng: Random) -> None:
    kind = "TEXT" if isinstance(ids[0], str) else ["INTEGER", "TEXT", ""][rng.integers(3)]
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"CREATE TABLE people (age REAL, id {kind})")
        if rng.random() < 0.5:
            conn.execute("CREATE INDEX by_id ON people (id)")
        rows = list(zip(_features(len(ids), rng).tolist(), ids, strict=True))
        conn.executemany("INSERT INTO people VALUES (?, ?)", rows)
        conn.commit()


def write_npy(path: Path, ids: Ids, rng: Random) -> None:
    values = np.array(ids)
    if values.dtype.kind == "i" and rng.random() < 0.5:
        values = np.column_stack([values, np.arange(len(ids))]).astype(
            [int, float][rng.integers(2)]
        )
    np.save(path, np.asfortranarray(values) if rng.random() < 0.3 else values)


def write_npz(path: Path, ids: Ids, rng: Random) -> None:
    save = [np.savez, np.savez_compressed][rng.integers(2)]
    save(path, X=_features(len(ids), rng), ids=np.array(ids))


def write_pickle(path: Path, ids: Ids, rng: Random) -> None:
    path.write_bytes(pickle.dumps(_records(ids, rng)))


def write_text(path: Path, ids: Ids, rng: Random) -> None:
    lines = [f"{value} was {age}" for value, age in zip(ids, _features(len(ids), rng), strict=True)]
    path.write_text("\n".join(lines), "utf-8")


Writer = Callable[[Path, Ids, Random], None]
SEARCHED: dict[str, Writer] = {
    "csv": write_csv,
    "tsv": write_tsv,
    "csv.gz": write_csv_gz,
    "jsonl": write_jsonl,
    "json": write_json,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "sqlite": write_sqlite,
    "npy": write_npy,
    "npz": write_npz,
}
KINDS: dict[str, Writer] = SEARCHED | {"pkl": write_pickle, "txt": write_text}
