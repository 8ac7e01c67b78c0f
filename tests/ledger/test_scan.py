"""The scanner finds a marker wherever and however it stands, and nothing that is not there."""

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import secrets
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.data import Rows, as_ids
from letheon.ledger.purge import scan as _scan
from letheon.ledger.purge.scan import Markers, ScanTarget, collect_markers, scan_files
from letheon.ledger.purge.search import Searcher
from tests.sharded.people import examples

SALT = bytes(range(7, 39))
PERSON = "jörg.müller+x@example.org"

ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "raw": lambda data: data,
    "hex": lambda data: data.hex().encode(),
    "HEX": lambda data: data.hex().upper().encode(),
    "base64": base64.b64encode,
    "base64-1": lambda data: base64.b64encode(b"a" + data + b"z"),
    "base64-2": lambda data: base64.b64encode(b"ab" + data + b"yz"),
    "base64url-1": lambda data: base64.urlsafe_b64encode(b"\xff" + data + b"\xff"),
}
WRITTEN: dict[str, Callable[[str], bytes]] = {
    "utf-8": str.encode,
    "json": lambda text: json.dumps(text).encode(),
    "json-utf-8": lambda text: json.dumps(text, ensure_ascii=False).encode(),
    "url": lambda text: quote(text, safe="").encode(),
    "utf-16-le": lambda text: text.encode("utf-16-le"),
    "utf-16-be": lambda text: text.encode("utf-16-be"),
    "hex": lambda text: text.encode().hex().encode(),
    "base64": lambda text: base64.b64encode(b"?" + text.encode() + b"!"),
}


def kinds_in(folder: Path, markers: Markers) -> set[str]:
    result = scan_files([("store", folder)], markers)
    assert not result.unread
    return {hit.kind for hit in result.hits}


def naive_find(data: bytes, strings: list[bytes]) -> list[tuple[int, int]]:
    """Every place by the plainest loop that there is."""
    return sorted(
        (start, number)
        for number, string in enumerate(strings)
        for start in range(len(data) - len(string) + 1)
        if data[start : start + len(string)] == string
    )


@examples(100)
@given(st.data())
def test_searcher_finds_what_a_plain_loop_finds(data: st.DataObject) -> None:
    few_values = st.binary(min_size=6, max_size=40).map(lambda raw: bytes(byte % 3 for byte in raw))
    strings = data.draw(st.lists(few_values, min_size=1, max_size=5, unique=True))
    pieces = st.one_of(st.sampled_from(strings), few_values)
    text = b"".join(data.draw(st.lists(pieces, max_size=8)))
    assert Searcher(strings).find(text) == naive_find(text, strings)


def test_searcher_refuses_strings_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="at least 6"):
        Searcher([b"short"])


@examples(100)
@given(
    offset=st.integers(0, 600),
    chunk=st.integers(1, 200),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    tail=st.integers(0, 600),
)
def test_planted_salt_is_found_at_any_offset_and_chunk_size(
    offset: int, chunk: int, encoding: str, tail: int
) -> None:
    planted = bytes(offset) + ENCODINGS[encoding](SALT) + bytes(tail)
    search = _scan._Search(Markers.from_values(salts=[SALT]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scan, "_CHUNK", chunk)
        search._search_stream(
            _scan._Source(ScanTarget("store", Path()), "file"), io.BytesIO(planted)
        )
    assert {hit.kind for hit in search.hits} == {"salt"}
    assert search.n_bytes == len(planted)


def test_scanner_without_overlap_would_miss_what_lies_across_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(90) + SALT + bytes(90))
    monkeypatch.setattr(_scan, "_CHUNK", 100)
    assert kinds_in(tmp_path, Markers.from_values(salts=[SALT])) == {"salt"}
    monkeypatch.setattr(Markers, "margin", 0)
    assert kinds_in(tmp_path, Markers.from_values(salts=[SALT])) == set()


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_id_is_found_in_every_form(form: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'before "' + WRITTEN[form](PERSON) + b'" after')
    assert kinds_in(tmp_path, Markers.from_values(ids=[PERSON])) == {"id"}


def test_nothing_is_found_in_random_data(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(secrets.token_bytes(1 << 22))
    (tmp_path / "digests").write_text(secrets.token_hex(1 << 20))
    (tmp_path / "base64").write_bytes(base64.b64encode(secrets.token_bytes(1 << 20)))
    markers = Markers.from_values(
        ids=[f"user{number}" for number in range(100, 400)] + ["a1b2c3", "123456"],
        salts=[secrets.token_bytes(32) for _ in range(300)],
    )
    result = scan_files([("noise", tmp_path)], markers)
    assert (result.hits, result.unread, result.files) == ((), (), 3)


def test_short_id_counts_only_as_a_word_of_its_own(tmp_path: Path) -> None:
    markers = Markers.from_values(ids=["ab12cd"])
    (tmp_path / "digest").write_text("77ab12cd00")
    assert not scan_files([("store", tmp_path)], markers).hits
    (tmp_path / "table.csv").write_text("id,age\nab12cd,44\n")
    assert [hit.file for hit in scan_files([("store", tmp_path)], markers).hits] == ["table.csv"]


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_part_of_a_longer_id_that_stays_is_excused(form: str, tmp_path: Path) -> None:
    erased, stays = "ann.smith@example.org", "joann.smith@example.org"
    markers = Markers.from_values(ids=[erased]).with_neighbours(lambda: [stays])
    file = tmp_path / "table"
    file.write_bytes(b"(" + WRITTEN[form](stays) + b")")
    assert kinds_in(tmp_path, markers) == set()
    file.write_bytes(b"(" + WRITTEN[form](stays) + b")(" + WRITTEN[form](erased) + b")")
    assert kinds_in(tmp_path, markers) == {"id"}


def packed(name: str, data: bytes) -> bytes:
    if name == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("clean", b"nothing")
            archive.writestr("member", data)
        return buffer.getvalue()
    pack: dict[str, Callable[[bytes], bytes]]
    pack = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    return pack[name](data)


@pytest.mark.parametrize("inner", ["none", "gzip", "zip"])
@pytest.mark.parametrize("outer", ["gzip", "bzip2", "xz", "zip"])
def test_archives_are_looked_into(outer: str, inner: str, tmp_path: Path) -> None:
    content = SALT * 3 if inner == "none" else packed(inner, SALT * 3)
    (tmp_path / "backup").write_bytes(packed(outer, b"x" * 99 + content))
    if inner == "none":
        assert kinds_in(tmp_path, Markers.from_values(salts=[SALT])) == {"salt"}
    (tmp_path / "backup").write_bytes(packed(outer, content))
    assert kinds_in(tmp_path, Markers.from_values(salts=[SALT])) == {"salt"}


def test_damaged_archives_are_reported_and_random_bytes_are_not(tmp_path: Path) -> None:
    noise = secrets.token_bytes(5000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(noise)[:-700])
    (tmp_path / "b.zip").write_bytes(packed("zip", noise)[:-30])
    (tmp_path / "c.bin").write_bytes(b"\x1f\x8b\x08\xff" + noise)
    result = scan_files([("store", tmp_path)], Markers.from_values(salts=[SALT]))
    assert [(unread.file, unread.reason) for unread in result.unread] == [
        ("a.gz", "damaged-archive"),
        ("b.zip", "damaged-archive"),
    ]
    assert not result.is_clean


def test_archive_that_unpacks_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 22)))
    monkeypatch.setattr(_scan, "_LARGEST_MEMBER", 1 << 21)
    result = scan_files([("store", tmp_path)], Markers.from_values(salts=[SALT]))
    assert [unread.file for unread in result.unread] == ["bomb.gz"]


def test_name_that_holds_an_id_is_found_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "person-000017").mkdir()
    (tmp_path / "person-000017" / "picture.png").write_bytes(b"")
    result = scan_files([("store", tmp_path)], Markers.from_values(ids=["person-000017"]))
    assert [(hit.file, hit.kind) for hit in result.hits] == [("…", "id")]
    assert "person-000017" not in repr(result)


def test_links_are_not_followed_and_unreadable_things_are_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(SALT)
    (inside / "file").write_bytes(b"clean")
    (inside / "to-file").symlink_to(inside / "file")
    (inside / "dangling").symlink_to(inside / "nowhere")
    (inside / "way-out").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    result = scan_files(
        [ScanTarget("store", inside), ScanTarget("gone", tmp_path / "gone", required=True)],
        Markers.from_values(salts=[SALT]),
    )
    assert not result.hits
    assert [(unread.store, unread.file, unread.reason) for unread in result.unread] == [
        ("store", "pipe", "special-file"),
        ("store", "way-out", "link-outside"),
        ("gone", str(tmp_path / "gone"), "missing"),
    ]
    assert result.files == 1


def test_file_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").write_bytes(SALT)

    def refuse(self: Path, *args: object) -> None:
        raise PermissionError(13, "denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    result = scan_files([("store", tmp_path)], Markers.from_values(salts=[SALT]))
    assert [(unread.file, unread.reason) for unread in result.unread] == [("locked", "unreadable")]


def test_file_read_apart_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(bytes(3_000_000) + SALT)
    result = scan_files(
        [ScanTarget("database", file, apart=True)], Markers.from_values(salts=[SALT])
    )
    assert [(hit.file, hit.offset) for hit in result.hits] == [("ledger.db", 3_000_000)]
    assert result.bytes == 3_000_032


def test_markers_travel_as_bytes() -> None:
    markers = Markers.from_values(ids=[PERSON, 1234567890], salts=[SALT], rows=[SALT[::-1]])
    assert Markers.from_bytes(markers.to_bytes()) == markers
    assert len(markers) == 4


def rows_of(X: np.ndarray, ids: list[str]) -> Rows:
    return Rows(X, None, as_ids(ids))


def test_markers_of_rows_leave_out_what_others_have_too() -> None:
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=(2, 30))
    erased = rows_of(np.vstack([shared, own, np.zeros(30)]), ["short", "long-id-1", "long-id-2"])
    left = rows_of(np.vstack([shared, rng.normal(size=30)]), ["long-id-3", "long-id-4"])
    markers = collect_markers(erased, np.frombuffer(SALT * 3, np.uint8).reshape(3, 32), left)
    assert markers.texts == ("long-id-1", "long-id-2")
    assert len(markers.rows) == 1
    assert markers.rows[0] in own.tobytes()
    assert len(markers.rows[0]) == 64


def test_piece_that_stands_in_other_rows_elsewhere_is_no_marker() -> None:
    series = np.random.default_rng(0).normal(size=500)
    lagged = np.lib.stride_tricks.sliding_window_view(series, 12)
    erased, left = rows_of(lagged[100:101], ["aaaaaa"]), lagged[np.r_[0:100, 101:400]]
    others = rows_of(left, ["bbbbbb"] * len(left))
    assert collect_markers(erased, np.zeros((1, 32), np.uint8), others).rows == ()


def test_texts_of_rows_are_markers() -> None:
    texts = ["a letter by a person", "ok", "with kind regards"]
    erased = rows_of(np.array(texts, object), ["aaaaaa", "bbbbbb", "dddddd"])
    left = rows_of(np.array(["another letter, with kind regards"], object), ["cccccc"])
    markers = collect_markers(erased, np.zeros((3, 32), np.uint8), left)
    assert markers.rows == (b"a letter by a person",)


def test_of_many_rows_a_sample_is_taken() -> None:
    n = 12_001
    erased = rows_of(np.zeros((n, 1)), [f"person-{number:06d}" for number in range(n)])
    salts = np.arange(n * 32, dtype=np.uint32).view(np.uint8).reshape(n, -1)[:, :32]
    markers = collect_markers(erased, salts, rows_of(np.zeros((1, 1)), ["x"]))
    assert 4_000 <= len(markers.texts) <= 5_000
    assert len(markers.texts) == len(markers.salts)


def test_socket_is_reported_and_never_opened(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        result = scan_files([("store", tmp_path)], Markers.from_values(salts=[SALT]))
    assert [(unread.file, unread.reason) for unread in result.unread] == [("s", "special-file")]


def test_result_says_which_ids_were_found_by_number(tmp_path: Path) -> None:
    markers = Markers.from_values(ids=["person-one", "person-two", "person-six"], salts=[SALT])
    (tmp_path / "file").write_bytes(b"person-two, " + SALT)
    (tmp_path / "person-six").touch()
    result = scan_files([("store", tmp_path)], markers)
    assert result.id_numbers == {1, 2}
    fewer = markers.without_texts({"person-two"})
    assert scan_files([("store", tmp_path)], fewer).id_numbers == {1}
    assert fewer.salts == markers.salts
