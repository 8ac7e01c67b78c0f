"""Rows with holes against a plain list; a wiped row is nowhere in the memory that is held."""

import copy
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from letheon import state
from letheon.data import IdIndex, Ids, IntIds, SlotRows, TextIds, as_ids
from letheon.data import _rows as module
from letheon.data._ids import _KEY, _MANY
from letheon.exceptions import IdsLengthError, IdsTypeError
from letheon.seeds import Purpose, keyed_hash_texts
from tests.data.buffers import owned_bytes
from tests.sharded.people import examples

FORMS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "csr_array": sp.csr_array,
    "csr_matrix": lambda X: sp.csr_matrix(X.astype(np.float32)),
    "images": lambda X: X.astype(np.float32).reshape(-1, 1, 2, 2),
    # Pixels that are the bytes of the same numbers.
    "uint8": lambda X: X.astype(np.float32).view(np.uint8).reshape(-1, 4, 4),
}
# Eight bytes that occur nowhere by chance.
INT_NAMES = [0x5EC2E70F0A1B0000 + n for n in range(12)]
TEXT_NAMES = ["", *(f"customer-é-{n:02d}" for n in range(11))]


class Row(NamedTuple):
    """One row of the plain list: number `n` gives it numbers that no other row has."""

    n: int
    name: int | str

    @property
    def x(self) -> NDArray[np.float64]:
        # Every fourth value is a zero, so that sparse rows differ in length.
        x = 1e6 + self.n + np.array([0.3125, 0.4375, 0.5625, 0.6875])
        x[self.n % 4] = 0
        return x

    @property
    def y(self) -> float:
        return self.n + 0.71875e9


def build(rows: list[Row], form: str) -> SlotRows:
    return SlotRows(*parts(rows, form))


def parts(rows: list[Row], form: str) -> tuple[Any, Any, Ids, dict[str, Any]]:
    X = np.array([row.x for row in rows]).reshape(len(rows), 4)
    y = np.array([row.y for row in rows], float)
    extra = {"pair": np.array([[row.n + 0x5EED00000000, -row.n] for row in rows]).reshape(-1, 2)}
    return FORMS[form](X), y, as_ids([row.name for row in rows]), extra


def dense(X: Any) -> NDArray[Any]:
    """Return any form as a table of numbers."""
    array: NDArray[Any] = X.toarray() if sp.issparse(X) else X
    if array.dtype == np.uint8:
        array = array.reshape(len(array), 16).view(np.float32)
    return array.reshape(len(array), 4)


def arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield every array that an object reaches."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from arrays(part)
    elif hasattr(value, "__dict__"):
        yield from arrays(vars(value))


def memory_of(rows: SlotRows) -> bytes:
    return b"".join(owned_bytes(array) for array in arrays(rows))


def hash_of(name: int | str) -> bytes:
    return as_ids([name]).hashes(_KEY, Purpose.ID_INDEX).tobytes()


def secrets(row: Row, dtype: Any) -> list[bytes]:
    """The row's numbers: as a dense row, as a sparse one, its label, its extra value."""
    x = row.x.astype(dtype)
    numbers = [x, x[x != 0], np.float64(row.y), np.int64(row.n + 0x5EED00000000)]
    return [number.tobytes() for number in numbers]


def assert_gone(rows: SlotRows, gone: list[Row], held: list[Row]) -> None:
    memory, names = memory_of(rows) + pickle.dumps(rows), {row.name for row in held}
    dtype = dense(rows.X).dtype
    for row in gone:
        assert not any(secret in memory for secret in secrets(row, dtype)), row
    for name in {row.name for row in gone} - names:
        spelt = name.encode() if isinstance(name, str) else np.int64(name).tobytes()
        assert name == "" or spelt not in memory, f"the id {name!r} is still there"
        assert hash_of(name) not in memory, f"the hash of {name!r} is still there"


def assert_holds(rows: SlotRows, held: list[Row]) -> None:
    alive = rows.alive
    X, y, ids, extra = parts(held, "float64")
    assert (len(rows), rows.n_slots) == (len(held), len(alive))
    assert (rows.n_slots - len(rows)) * 5 <= rows.n_slots
    table = dense(rows.X)
    assert table[alive].tolist() == X.astype(table.dtype).tolist()
    assert rows.y[alive].tolist() == y.tolist()
    assert rows.ids.to_list() == ids.to_list()
    assert rows.extra["pair"][alive].tolist() == extra["pair"].tolist()
    holes = ~alive
    assert not table[holes].any()
    assert not rows.y[holes].any()
    assert not rows.extra["pair"][holes].any()


def assert_finds(rows: SlotRows, wanted: list[Any], held: list[Row]) -> None:
    match = rows.find(as_ids(wanted))
    slots = np.flatnonzero(rows.alive)
    expected = [int(slot) for slot, row in zip(slots, held, strict=True) if row.name in wanted]
    assert match.positions.tolist() == expected
    assert match.positions.dtype == np.int64
    names = {row.name for row in held}
    assert match.missing.to_list() == [name for name in wanted if name not in names]


class Slots(RuleBasedStateMachine):
    """Any sequence of calls does to the rows what it does to a list."""

    @initialize(form=st.sampled_from(sorted(FORMS)), text=st.booleans(), data=st.data())
    def start(self, form: str, text: bool, data: st.DataObject) -> None:
        self.form = form
        self.names: list[int | str] = [*TEXT_NAMES] if text else [*INT_NAMES]
        self.count = 0
        self.gone: list[Row] = []
        self.held: list[Row] = self.newcomers(data.draw(st.integers(1, 40)), data)
        self.rows = build(self.held, form)

    def newcomers(self, count: int, data: st.DataObject) -> list[Row]:
        names = data.draw(st.lists(st.sampled_from(self.names), min_size=count, max_size=count))
        self.count += count
        return [Row(self.count - count + k, name) for k, name in enumerate(names)]

    @rule(data=st.data(), most=st.sampled_from([1, 1, 3]))
    def forget(self, data: st.DataObject, most: int) -> None:
        choices = st.lists(
            st.sampled_from(self.names), min_size=1, max_size=most, unique_by=lambda name: name
        )
        wanted = data.draw(choices)
        assert_finds(self.rows, wanted, self.held)
        self.rows.wipe(self.rows.find(as_ids(wanted)).positions)
        self.gone += [row for row in self.held if row.name in wanted]
        self.held = [row for row in self.held if row.name not in wanted]

    @rule(data=st.data())
    def wipe_some_slot(self, data: st.DataObject) -> None:
        if self.held:
            place = data.draw(st.integers(0, len(self.held) - 1))
            self.rows.wipe(np.flatnonzero(self.rows.alive)[[place]])
            self.gone.append(self.held.pop(place))

    @rule(data=st.data(), count=st.integers(1, 5))
    def append(self, data: st.DataObject, count: int) -> None:
        new = self.newcomers(count, data)
        if self.held:
            self.rows.append(*parts(new, self.form))
            self.held += new

    @rule(
        how=st.sampled_from(
            [
                SlotRows.compact_copy,
                copy.copy,
                copy.deepcopy,
                lambda rows: pickle.loads(pickle.dumps(rows)),
                lambda rows: pickle.loads(pickle.dumps(rows, protocol=5)),
                lambda rows: state.decode(state.encode(rows)),
            ]
        )
    )
    def go_on_with_a_copy(self, how: Callable[[SlotRows], SlotRows]) -> None:
        new = how(self.rows)
        mine = [array for array in arrays(self.rows) if array.size]
        yours = [array for array in arrays(new) if array.size]
        assert not any(np.shares_memory(a, b) for a in mine for b in yours)
        self.rows = new

    @invariant()
    def rows_are_the_list(self) -> None:
        if hasattr(self, "rows"):
            assert_holds(self.rows, self.held)
            assert_gone(self.rows, self.gone, self.held)

    @invariant()
    def state_knows_nothing_of_the_past(self) -> None:
        if hasattr(self, "rows") and self.held:
            fresh = build(self.held, self.form)
            assert state.encode(self.rows) == state.encode(fresh)


TestSlots = Slots.TestCase
TestSlots.settings = settings(examples(40), stateful_step_count=25)


def people(count: int, *, text: bool = False) -> list[Row]:
    """As many rows; two of every three people own one, the third owns two."""
    names = [n - (n % 4 == 3) for n in range(count)]
    first = 0x5EC2E70F0A000000
    return [Row(n, f"customer-{k:05d}" if text else first + k) for n, k in enumerate(names)]


def forget_all(form: str, *, text: bool, at_once: int = 1) -> None:
    """Forget people in a mixed order and look for all of them after each step."""
    held, gone = people(30, text=text), list[Row]()
    rows = build(held, form)
    names = list(dict.fromkeys(row.name for row in held))
    order = [names[k] for k in np.random.default_rng(0).permutation(len(names))]
    for begin in range(0, len(order), at_once):
        leaving = order[begin : begin + at_once]
        rows.wipe(rows.find(as_ids(leaving)).positions)
        gone += [row for row in held if row.name in leaving]
        held = [row for row in held if row.name not in leaving]
        assert_gone(rows, gone, held)
        assert_finds(rows, order[: begin + at_once + 1], held)
    assert len(rows) == 0


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_all_people_can_leave_without_a_trace(form: str, text: bool, at_once: int) -> None:
    forget_all(form, text=text, at_once=at_once)


@pytest.mark.parametrize("n_gone", [2, 12], ids=["holes", "compacted"])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_pickles_tell_no_history(form: str, text: bool, n_gone: int) -> None:
    held = people(30, text=text)
    rows = build(held, form)
    rows.wipe(np.arange(n_gone))
    assert (rows.n_slots == 30) == (n_gone == 2)
    fresh = pickle.dumps(build(held[n_gone:], form))
    assert pickle.dumps(rows) == pickle.dumps(copy.copy(rows)) == fresh


def overwrite_one_entry(index: IdIndex, first: int, end: int) -> None:
    """What a first thought does: copies that earlier erasures made of this hash stay."""
    index._sorted[end - 1] = index._sorted[end - 2] if end > 1 else index._sorted[end % 2]


def zero_values_only(X: Any, positions: Any) -> None:
    for position in positions.tolist():
        X.data[X.indptr[position] : X.indptr[position + 1]] = 0


def move_without_zeroing(array: Any, runs: Any) -> Any:
    kept = np.concatenate([array[begin:end] for begin, end in runs] or [array[:0]])
    array[: len(kept)] = kept
    return array[: len(kept)]


def nothing(*_: Any) -> None:
    """Do not wipe."""


def empty_without_zeroing(rows: SlotRows, positions: Any) -> None:
    rows.alive[positions] = False
    rows._n_rows -= len(positions)


BUGS: list[tuple[Any, str, Any, str, bool, str]] = [
    (IntIds, "wipe", nothing, "float64", False, "the id .* is still there"),
    (TextIds, "wipe", nothing, "float64", True, "the id .* is still there"),
    (IdIndex, "erase", nothing, "float64", False, "the hash of .* is still there"),
    (IdIndex, "_overwrite_erased_run", nothing, "float64", False, "the hash of .* is still there"),
    (IdIndex, "_overwrite_erased_run", overwrite_one_entry, "float64", True, "the hash of .* is"),
    (module, "_zero_csr", nothing, "csr_array", False, r"Row\(n="),
    (module, "_move_down", move_without_zeroing, "float64", False, r"Row\(n="),
    (module, "_move_down", move_without_zeroing, "float32", True, r"Row\(n="),
    (module, "_move_down", move_without_zeroing, "uint8", False, r"Row\(n="),
    (SlotRows, "_zero_slots", empty_without_zeroing, "images", False, r"Row\(n="),
]


@pytest.mark.parametrize(("where", "name", "bug", "form", "text", "caught"), BUGS)
def test_planted_bugs_are_caught(
    where: Any,
    name: str,
    bug: Any,
    form: str,
    text: bool,
    caught: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if where is not module:  # a compaction would hide the bug: all ids and hashes are made anew
        monkeypatch.setattr(module, "_SLOTS_PER_HOLE", 1)
    forget_all(form, text=text)
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError, match=caught):
        forget_all(form, text=text)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_wiped_columns_are_forgotten_too(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def holes_keep_columns() -> bool:
        X = kind(np.tile([0.0, 0.0, 5.0], (20, 1)))
        rows = SlotRows(X, np.ones(20), as_ids(list(range(20))))
        rows.wipe(np.array([3]))
        return bool(rows.X.indices[3])

    assert not holes_keep_columns()
    monkeypatch.setattr(module, "_zero_csr", zero_values_only)
    assert holes_keep_columns()


@pytest.mark.parametrize("many", [1, 10**9], ids=["all at once", "one by one"])
@given(
    names=st.lists(st.integers(0, 6), min_size=1, max_size=20),
    batches=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=6), max_size=8),
)
def test_erased_entries_have_the_hash_of_a_remaining_id(
    many: int, names: list[int], batches: list[list[int]]
) -> None:
    index, left = IdIndex(as_ids(names)), set(range(len(names)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("letheon.data._ids._MANY", many)
        for batch in batches:
            leaving = np.array([row for row in batch if row < len(names)], np.int64)
            index.erase(leaving)
            left -= set(leaving.tolist())
            alive = as_ids([names[row] for row in left]).hashes(_KEY, Purpose.ID_INDEX)
            assert set(index._sorted.tolist()) == (set(alive.tolist()) or {0})
            assert index._sorted.tolist() == sorted(index._sorted.tolist())
            for name in range(7):
                rows = [row for row in sorted(left) if names[row] == name]
                assert index.find_one(as_ids([name])).tolist() == rows
                assert index.find(as_ids([name, 9])).positions.tolist() == rows


@pytest.mark.parametrize("n_hashes", [1, 2])
@pytest.mark.parametrize("text", [False, True])
def test_collisions_of_the_living_and_the_dead(
    n_hashes: int, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashes(ids: Ids, *_: Any) -> NDArray[np.uint64]:
        return np.array([sum(str(v).encode()) % n_hashes for v in ids.to_list()], np.uint64)

    for kind in (IntIds, TextIds):
        monkeypatch.setattr(kind, "hashes", hashes)
    names: list[Any] = [str(n) for n in range(40)] if text else list(range(40))
    held = [Row(n, name) for n, name in enumerate(names)]
    rows = build(held, "float64")
    for name in (names[7], names[0], names[39]):
        rows.wipe(rows.find(as_ids([name])).positions)
        held = [row for row in held if row.name != name]
        for other in names:
            assert_finds(rows, [other], held)
        assert_finds(rows, names, held)


def test_zero_is_a_person_among_holes() -> None:
    held = [Row(n, n) for n in range(30)]
    rows = build(held, "float64")
    rows.wipe(np.array([5, 29]))
    del held[29], held[5]
    assert_finds(copy.copy(rows), [0], held)
    assert_finds(copy.copy(rows), [0, 5, 29], held)


def test_a_lone_text_has_the_hash_that_it_has_among_others() -> None:
    texts = TextIds.from_strings(["", "a", "é", "a\0"])
    for seed, parts_before in ((0, ()), (7, (3, "x"))):
        among = keyed_hash_texts(seed, Purpose.SHARD, texts.blob, texts.offsets, *parts_before)
        for place, expected in enumerate(among.tolist()):
            alone = texts.take(np.array([place]))
            assert alone.hashes(seed, Purpose.SHARD, *parts_before).tolist() == [expected]


@pytest.mark.parametrize("ids", [as_ids(["1"]), as_ids(["1", "2"])])
def test_ids_of_the_other_kind_are_missing(ids: Ids) -> None:
    match = build([Row(0, 1), Row(1, 2)], "float64").find(ids)
    assert match.positions.size == 0
    assert match.missing.to_list() == ids.to_list()


def test_a_person_with_very_many_rows() -> None:
    held = [Row(n, n % 20) for n in range(40 * _MANY)]
    rows = build(held, "float64")
    for name in (3, 4):
        rows.wipe(rows.find(as_ids([name])).positions)
        held = [row for row in held if row.name != name]
        assert_finds(rows, list(range(20)), held)
    assert_holds(rows, held)


def test_rows_stay_in_their_slots_until_a_fifth_is_empty() -> None:
    rows = build(people(30), "float64")
    rows.wipe(np.array([0, 2, 7, 14, 20, 29]))
    assert (len(rows), rows.n_slots) == (24, 30)
    assert np.flatnonzero(~rows.alive).tolist() == [0, 2, 7, 14, 20, 29]
    rows.wipe(np.array([1]))
    assert (len(rows), rows.n_slots) == (23, 23)
    assert rows.alive.all()
    assert not rows.X.base[23:].any()


@pytest.mark.parametrize("form", FORMS)
def test_wiping_again_changes_nothing(form: str) -> None:
    rows = build(people(30), form)
    rows.wipe(np.array([7, 3, 7]))
    before = memory_of(rows)
    rows.wipe(np.array([3]))
    rows.wipe(np.array([], np.int64))
    assert memory_of(rows) == before
    assert len(rows) == 28


@pytest.mark.parametrize("position", [-1, 30, 2**40])
def test_slots_that_are_not_there(position: int) -> None:
    rows = build(people(30), "float64")
    before = memory_of(rows)
    for positions in ([position], [3, position]):
        with pytest.raises(IndexError):
            rows.wipe(np.array(positions))
    assert memory_of(rows) == before


def test_an_interrupted_wipe_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    held = people(30)
    rows = build(held, "float64")
    where = rows.find(as_ids([held[9].name])).positions
    with monkeypatch.context() as patch:
        patch.setattr(IntIds, "wipe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rows.wipe(where)
    rows.wipe(where)
    gone = [row for row in held if row.name == held[9].name]
    held = [row for row in held if row not in gone]
    assert_holds(rows, held)
    assert_gone(rows, gone, held)
    assert_finds(rows, [row.name for row in held], held)


def test_without_memory_to_compact_the_holes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    held = people(30)
    rows = build(held, "csr_array")
    with monkeypatch.context() as patch:
        patch.setattr(module, "take_rows", fail)
        rows.wipe(np.arange(9))
    assert (len(rows), rows.n_slots) == (21, 30)
    assert_gone(rows, held[:9], held[9:])
    rows.wipe(np.array([29]))
    assert rows.n_slots == 20
    assert_holds(rows, held[9:29])


@pytest.mark.parametrize("wiped", [[5], list(range(0, 2000, 9))])
def test_wiping_allocates_nothing_large(wiped: list[int]) -> None:
    rows = SlotRows(np.ones((2000, 200)), np.ones(2000), as_ids(list(range(2000))))
    rows.find(as_ids([5]))
    size = rows.X.nbytes
    tracemalloc.start()
    rows.wipe(np.array(wiped))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows) == 2000 - len(wiped)
    assert peak < size / 10


def test_a_held_reference_to_a_sparse_table_empties() -> None:
    rows = build(people(30), "csr_array")
    old = rows.X
    rows.wipe(np.arange(10))
    assert rows.n_slots == 20
    assert not old.data.any()
    assert not old.indices.any()


def test_scipy_leaves_holes_where_they_are() -> None:
    for rows in (build(people(30), "csr_array"), copy.copy(build(people(30), "csr_array"))):
        rows.wipe(np.array([3]))
        twin = copy.copy(rows)
        for X in (rows.X, twin.X):
            before = X.indptr.tolist()
            X.sum_duplicates()
            X.sort_indices()
            assert X.max() > 0
            assert X.indptr.tolist() == before
            assert not X[[3]].toarray().any()


def test_stale_values_behind_a_sparse_view_are_left_out() -> None:
    # sum_duplicates shortens the buffers by a view, and old values stay behind its end.
    n = 40
    X = sp.csr_array(
        (np.arange(1.0, 2 * n + 1) * 1e5, np.zeros(2 * n, int), np.arange(0, 2 * n + 1, 2)),
        shape=(n, 2),
    )
    X.sum_duplicates()
    last = X.data.base[-1]
    assert last == 2e5 * n, "scipy copies now: the test lost its point"
    rows = SlotRows(X, np.ones(n), as_ids(list(range(n))))
    assert np.float64(last).tobytes() not in memory_of(rows)


def test_index_dtypes_are_canonical() -> None:
    X = sp.csr_array(np.eye(4))
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    wide = SlotRows(X, np.ones(4), as_ids([1, 2, 3, 4]))
    narrow = SlotRows(sp.csr_array(np.eye(4)), np.ones(4), as_ids([1, 2, 3, 4]))
    assert state.encode(wide) == state.encode(narrow)
    assert wide.X.indices.dtype == wide.X.indptr.dtype == np.int32


def test_dense_memory_is_taken_over_and_ids_are_not() -> None:
    X, y, ids = np.ones((20, 2)), np.arange(20), as_ids([f"p{n}" for n in range(20)])
    rows = SlotRows(X, y, ids)
    assert rows.X is X
    assert rows.y is y
    rows.wipe(np.array([4]))
    assert not X[4].any()
    assert ids.to_list()[4] == "p4"


@pytest.mark.parametrize("text", [False, True])
def test_ids_of_some_slots_are_a_copy(text: bool) -> None:
    held = people(30, text=text)
    rows = build(held, "images")
    some = rows.ids_at(np.array([7, 3, 7]))
    assert some.to_list() == [held[7].name, held[3].name, held[7].name]
    rows.wipe(np.array([3]))
    assert some.to_list()[1] == held[3].name
    assert rows.ids_at(np.array([3])).to_list() != [held[3].name]


def test_images_keep_their_shape_and_kind() -> None:
    rows = build(people(30), "uint8")
    rows.append(*parts(people(2), "uint8"))
    rows.wipe(np.arange(9))
    for twin in (rows, copy.copy(rows), rows.compact_copy(), pickle.loads(pickle.dumps(rows))):
        assert twin.X.shape == (23, 4, 4)
        assert twin.X.dtype == np.uint8


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((1, 2, 8), np.uint8), "X has the layout .*8.*; this model was fitted with .*4, 4"),
        (np.ones((1, 4), np.uint8), "Pass the same kind of table"),
        (np.full((1, 4, 4), 256.0), "do not fit into uint8, the dtype of this model"),
        (np.full((1, 4, 4), 0.5), "do not fit into"),
    ],
)
def test_images_of_another_kind_are_not_added(X: Any, message: str) -> None:
    rows = build(people(30), "uint8")
    before = memory_of(rows)
    _, y, ids, extra = parts(people(1), "uint8")
    with pytest.raises(ValueError, match=message):
        rows.append(X, y, ids, extra)
    assert memory_of(rows) == before


def test_a_single_row_with_a_text_id_can_be_wiped() -> None:
    rows = SlotRows(np.ones((1, 2)), np.ones(1), as_ids(["only"]))
    rows.wipe(rows.find(as_ids(["only"])).positions)
    assert len(rows) == 0
    assert b"only" not in memory_of(rows)


def read_only(X: NDArray[Any]) -> NDArray[Any]:
    X.flags.writeable = False
    return X


def unsorted() -> Any:
    return sp.csr_array((np.ones(4), np.array([1, 0, 1, 0]), np.array([0, 2, 4])), shape=(2, 2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"X": [[1.0], [2.0]]}, "X is a list; expected an array of rows, a CSR"),
        ({"X": np.ones(2)}, "X is a ndarray; expected an array of rows"),
        ({"X": np.ones((2, 3, 4), np.uint8).transpose(0, 2, 1)}, "not in C order"),
        ({"X": sp.csr_array(np.eye(2, dtype=np.uint8))}, "X has dtype uint8; expected float32"),
        ({"X": np.ones((2, 2), complex)}, "X has dtype complex128; expected numbers"),
        ({"X": np.ones((2, 2), ">f8")}, "X has dtype >f8"),
        ({"X": np.asfortranarray(np.ones((2, 2)))}, "not in C order"),
        ({"X": np.ones((3, 2))[:2]}, "a view of a larger array"),
        ({"X": read_only(np.ones((2, 2)))}, "X is read-only"),
        ({"X": sp.csc_array(np.eye(2))}, r"X has the sparse format csc; expected CSR"),
        ({"X": sp.csr_array(np.eye(2, dtype=int))}, "X has dtype int64"),
        ({"X": unsorted()}, r"unsorted or duplicate indices; pass hold_table\(X\)"),
        ({"y": [1, 2]}, "y has the type list; expected the result of hold_target"),
        ({"y": np.ones(2, np.float32)}, "y has the type float32"),
        ({"y": np.ones(3)}, r"y has shape \(3,\)"),
        ({"ids": as_ids([1])}, "got 1 ids for 2 rows"),
        ({"extra": {"k": np.ones(3)}}, r"extra\['k'\] has shape \(3,\); expected 2 rows"),
        (
            {"extra": {"k": np.array(["a", "b"])}},
            r"extra\['k'\] is not valid; expected an array",
        ),
        ({"extra": {"k": np.array(1.0)}}, r"extra\['k'\] has shape \(\); expected 2 rows"),
    ],
)
def test_what_cannot_be_wiped_in_place_is_refused(given: dict[str, Any], message: str) -> None:
    good = {"X": np.ones((2, 2)), "y": np.ones(2), "ids": as_ids([1, 2]), "extra": None}
    with pytest.raises(ValueError, match=message):
        SlotRows(**{**good, **given})


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"X": np.ones((1, 3))}, ValueError, r"X has the layout .*; this model was fitted with"),
        ({"X": sp.csr_array(np.ones((1, 4)))}, ValueError, "same kind of table"),
        ({"y": np.ones(2)}, ValueError, r"y has shape \(2,\)"),
        ({"ids": as_ids(["a"])}, IdsTypeError, "has int ids, but got str ids"),
        ({"ids": as_ids([1, 2])}, IdsLengthError, "got 2 ids for 1 rows"),
        ({"extra": None}, ValueError, "extra has the layout {}; expected"),
        ({"extra": {"pair": np.ones((1, 2))}}, ValueError, "extra has the layout .*float64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_changes(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    rows = build(people(30), "float64")
    rows.wipe(np.array([3]))
    before, slots = memory_of(rows), rows.n_slots
    X, y, ids, extra = parts([Row(99, 99)], "float64")
    good = {"X": X, "y": y, "ids": ids, "extra": extra}
    with pytest.raises(error, match=message):
        rows.append(**{**good, **given})
    assert memory_of(rows) == before
    assert rows.n_slots == slots


def test_newcomers_take_the_dtypes_held() -> None:
    rows = SlotRows(np.ones((2, 2), np.float32), np.array([0, 1]), as_ids([1, 2]))
    rows.append(np.full((1, 2), 0.5), np.array([1.0]), as_ids([3]))
    assert rows.X.dtype == np.float32
    assert rows.y.dtype == np.int64
    assert rows.y.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match=r"new labels have dtype float64 .* do not fit into int64"):
        rows.append(np.full((1, 2), 0.5), np.array([1.5]), as_ids([4]))
    assert len(rows) == 3


@pytest.mark.parametrize("form", FORMS)
def test_newcomers_to_an_empty_house(form: str) -> None:
    rows = build(people(3), form)
    rows.wipe(np.arange(3))
    assert len(rows) == 0
    new = [Row(50, INT_NAMES[0]), Row(51, INT_NAMES[1])]
    rows.append(*parts(new, form))
    assert_holds(rows, new)
    assert state.encode(rows) == state.encode(build(new, form))


def test_a_copy_keeps_the_slots() -> None:
    rows = build(people(30), "csr_array")
    rows.wipe(np.array([3]))
    for twin in (copy.copy(rows), copy.deepcopy(rows)):
        assert twin.alive.tolist() == rows.alive.tolist()
        twin.wipe(np.array([5]))
        assert (len(twin), len(rows)) == (28, 29)
        assert rows.X[[5]].toarray().any()


def test_buffers_lent_by_a_reader_are_copied() -> None:
    held = people(30)
    X, y, ids, extra = parts(held, "float64")
    lent = {"X": read_only(X), "y": read_only(y), "ids": ids, "extra": extra}
    rows = SlotRows._from_state(lent)
    rows.wipe(np.array([0]))
    assert_holds(rows, held[1:])
    assert X[0].any()
