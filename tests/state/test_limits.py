"""What a file may make its reader allocate: sizes are counted before anything is allocated."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KDTree
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import state
from letheon.exceptions import CorruptFileError, MemoryLimitError
from letheon.ledger.models import table_files
from letheon.state import _nodes, tag_of
from letheon.state._arrays import dtype_descr, dtype_from
from letheon.state._bytes import to_bytes
from letheon.state._nodes import (
    Array,
    Coded,
    Fields,
    Instance,
    Items,
    MemoryBudget,
    Name,
    Objects,
    Pairs,
    Record,
    Ref,
    Scalar,
    Strings,
    Triple,
    check_shape,
)
from letheon.state._tags import codec_of
from tests.state.forge import blob_of, file_of


def _tuple(*items: Any) -> Items:
    return Items("tuple", items)


def _field(name: str, dtype: Any, offset: int, *shape: int) -> Items:
    return _tuple(name, dtype, offset, _tuple(*shape))


def _fields(itemsize: int, *fields: Items, n: int = 4, aligned: bool = False) -> Fields:
    column = Array("<f8", (n,), np.full(n, 1.5).tobytes())
    return Fields(_tuple(itemsize, aligned, _tuple(*fields)), (n,), (column,) * len(fields))


def test_an_offset_near_two_billion_writes_nowhere(tmp_path: Path) -> None:
    """NumPy adds offset and size in C ints; the sum is negative and passes its check."""
    code = (
        "import sys; from letheon import state\n"
        "for path in sys.argv[1:]:\n"
        "    try: state.decode(open(path, 'rb').read())\n"
        "    except ValueError as error: print(type(error).__name__)"
    )
    paths = []
    for offset in (2**31 - 8, 2**31 - 1, 2**31 - 4):
        node = _fields(128, _field("a", "<f8", offset), _field("b", "<f8", 0))
        paths.append(tmp_path / f"{offset}")
        paths[-1].write_bytes(blob_of(node))
    # In a process of its own: the old reader dies of it.
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["CorruptFileError"] * 3), done.stderr


@pytest.mark.parametrize(
    "node",
    [
        _fields(16, _field("a", "<f8", 0), _field("b", "<f8", 4)),
        _fields(16, _field("a", "<f8", 0), _field("b", "<f8", 16)),
        _fields(16, _field("a", "<f8", 0), _field("a", "<f8", 8)),
        _fields(16, _field("a", "<f8", 0), _field("", "<f8", 8)),
        _fields(16, _field("a", "<f8", 0), _field("b", "<f8", -8)),
        _fields(15, _field("a", "<f8", 0), _field("b", "<f8", 8)),
        _fields(2**31, _field("a", "<f8", 0), _field("b", "<f8", 8)),
        _fields(4096, _field("a", "<f8", 0), _field("b", "<f8", 8)),
        _fields(16, _field("a", "<f8", 0), _field("b", "<f8", 8, 2**16, 2**16, 2**32)),
        _fields(16, _field("a", "<f8", 0), _field("b", "<f8", 8, -1)),
        _fields(16, _field("a", "<f8", 0), _field("b", "|O", 8)),
        _fields(16, _field("a", "<f8", 0), _field("b", "f8", 8)),
        _fields(17, _field("a", "<f8", 0), _field("b", "<f8", 8), aligned=True),
        _fields(16, _field("a", "<f8", 0), _tuple("b", "<f8", True, _tuple())),
        _fields(0),
    ],
    ids=range(15),
)
def test_structured_dtypes_that_are_not_canonical(node: Fields) -> None:
    with pytest.raises(CorruptFileError):
        state.decode(blob_of(node))


_plain = st.sampled_from(["<f8", "<i4", "|u1", "<U3", "<c16", "|S5"])


@given(
    st.lists(st.tuples(_plain, st.lists(st.integers(0, 3), max_size=2)), min_size=1), st.booleans()
)
def test_dtypes_of_numpy_come_back_from_their_description(fields: Any, align: bool) -> None:
    rows = [(f"f{i}", kind, tuple(shape)) for i, (kind, shape) in enumerate(fields)]
    dtype = np.dtype(rows, align=align)
    if dtype.itemsize:
        assert dtype_from(dtype_descr(dtype)) == dtype


@given(st.lists(st.integers(-(2**31), 2**33), min_size=3, max_size=3))
def test_no_offset_leaves_the_item(numbers: list[int]) -> None:
    itemsize, first, second = numbers
    descr = _tuple(itemsize, False, _tuple(_field("a", "<f8", first), _field("b", "<i4", second)))
    try:
        dtype = dtype_from(descr)
    except CorruptFileError:
        return
    assert dtype.fields is not None
    ends = [offset + inner.itemsize for inner, offset in (f[:2] for f in dtype.fields.values())]
    assert min(numbers) >= 0
    assert max(ends) <= dtype.itemsize == itemsize
    assert abs(first - second) >= (8 if first < second else 4)


@pytest.mark.parametrize(
    "shape", [(2**62, 2**62), (0, 2**62, 4), (2**63,), (1,) * 65, (-1,), (True,), (2**62, 0)]
)
def test_shapes_that_no_array_has(shape: tuple[Any, ...]) -> None:
    with pytest.raises(CorruptFileError):
        check_shape(shape, 8)


@given(st.lists(st.integers(0, 2**64), max_size=4), st.integers(0, 2**32))
def test_sizes_are_exact(shape: list[int], itemsize: int) -> None:
    try:
        size = check_shape(shape, itemsize)
    except CorruptFileError:
        return
    assert size == itemsize * int(np.prod(np.array(shape, dtype=object)))


def _repeated(n: int, times: int) -> Any:
    return Items("list", (Array("|u1", (n,), bytes(n)),) * times)


def _wide(width: int, count: int) -> Strings:
    lengths = Array("<u4", (count,), np.full(count, 1, "<u4").tobytes())
    return Strings(width, (count,), lengths, b"a" * count)


def _coded(value: Any, **changes: Any) -> Coded:
    codec = codec_of(type(value))
    assert codec is not None
    plain = {**codec.encode(value), **changes}
    return Coded(tag_of(type(value)), state.to_tree(plain))


def _padded_items() -> Any:
    """A structured item that is mostly padding, many times."""
    n = 60_000
    dtype = _tuple(80, False, _tuple(_field("a", "|u1", 0)))
    return Fields(dtype, (n,), (Array("|u1", (n,), bytes(n)),))


BOMBS: dict[str, Callable[[], Any]] = {
    "wide strings": lambda: _wide(10**6, 2_000),
    "one wide string": lambda: _wide(5 * 10**8, 1),
    "lil rows": lambda: _coded(sp.lil_matrix((3, 3)), shape=(10**9, 1)),
    "lil_array rows": lambda: _coded(sp.lil_array((3, 3)), shape=(10**8, 1)),
    "nested sets": lambda: _nested("frozenset", 79),
    "many empty lists": lambda: Items("list", (Items("list", ()),) * 8_000),
    "many dicts": lambda: Items("list", (Record((("a", 1),)),) * 10_000),
    "many scalars": lambda: Items("list", (Scalar(Array("<f8", (), bytes(8))),) * 10_000),
    "padding": _padded_items,
    "tiny leaves": lambda: _coded(KDTree(np.zeros((9, 2))), data=np.zeros((2**12, 60), np.int8)),
}


def _nested(kind: str, depth: int) -> Any:
    node: Any = Items("tuple", tuple(range(2_000)))
    for _ in range(depth):
        node = Items(kind, (node,))
    return node


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_blob_that_wants_much_is_refused_or_stays_below_the_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a smaller base the same shares are measured on smaller inputs.
    monkeypatch.setattr(_nodes, "BASE", 2 << 20)
    blob = blob_of(BOMBS[name]())
    peak = _peak(lambda: _refused(blob))
    assert peak <= _nodes.BASE + _nodes.PER_BYTE * len(blob)


def _refused(blob: bytes) -> Any:
    try:
        return state.decode(blob)
    except CorruptFileError:
        return None


def _peak(work: Callable[[], Any]) -> int:
    """Return the most memory that was held at once, beyond what was there before."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = work()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    del kept
    return peak


@pytest.mark.parametrize("name", ["wide strings", "one wide string", "lil rows", "lil_array rows"])
def test_the_bombs_of_the_review_name_the_limit_and_the_option(name: str) -> None:
    words = r"would take at least [\d,]+ bytes of memory, and the limit is [\d,]+ .* max_memory="
    with pytest.raises(MemoryLimitError, match=words):
        state.decode(blob_of(BOMBS[name]()))


def test_every_use_of_a_tensor_counts(tmp_path: Path) -> None:
    use = {"array": ["|u1", [2**20], "t0"]}
    path = file_of(tmp_path / "x", {"list": [use] * 200}, t0=np.zeros(2**20, np.uint8))
    with pytest.raises(MemoryLimitError, match="max_memory"):
        state.read_file(path)
    values = state.read_file(path, max_memory=300 * 2**20)
    assert len(values) == 200
    few = file_of(tmp_path / "y", {"list": [use] * 40}, t0=np.zeros(2**20, np.uint8))
    assert len(state.read_file(few)) == 40


def test_sets_of_repeated_tensors_are_not_written_out(tmp_path: Path) -> None:
    use = {"array": ["|u1", [2**20], "t0"]}
    inner = {"tuple": [use] * 2000}
    path = file_of(tmp_path / "x", {"set": [inner]}, t0=np.zeros(2**20, np.uint8))
    with pytest.raises(MemoryLimitError):
        state.read_file(path)


# A value of every kind that takes more memory than bytes: the count must cover what is measured.
COUNTED: dict[str, Callable[[], Any]] = {
    "ints": lambda: Items("list", tuple(range(10**6, 10**6 + 1_500))),
    "floats": lambda: Items("tuple", tuple(map(float, range(1_500)))),
    "none": lambda: Items("list", (None,) * 400),
    "texts": lambda: Items("list", tuple(f"word {i}" for i in range(400))),
    "wide texts": lambda: Items("list", ("a" * 1000 + "😀",) * 300),
    "bytes": lambda: Items("list", (b"abc",) * 700),
    "lists": lambda: Items("list", (Items("list", (1,)),) * 700),
    "tuples": lambda: Items("list", (Items("tuple", ()),) * 700),
    "sets": lambda: Items("list", (Items("set", (1, 2)),) * 400),
    "set": lambda: _in_order("set", range(2_800)),
    "frozenset": lambda: _in_order("frozenset", range(2_800)),
    "dict": lambda: Record(tuple((f"{i:06}", i) for i in range(2_800))),
    "dicts": lambda: Items("list", (Record((("a", 1),)),) * 400),
    "pairs": lambda: Pairs(tuple((i, 1) for i in _sorted_ints(2_800))),
    "arrays": lambda: Items("list", (Array("<f8", (1,), bytes(8)),) * 400),
    "large arrays": lambda: Items("list", (Array("<f8", (100,), bytes(800)),) * 700),
    "strings": lambda: Items("list", (_wide(3, 1),) * 700),
    "long strings": lambda: _wide(40, 700),
    "objects": lambda: Objects((1_500,), tuple(map(float, range(1_500)))),
    "scalars": lambda: Items("list", (Scalar(Array("<f8", (), bytes(8))),) * 400),
    "ranges": lambda: Items("list", tuple(state.to_tree(range(5)) for _ in range(700))),
    "fields": lambda: Items(
        "list", (_fields(16, _field("a", "<f8", 0), _field("b", "<f8", 8)),) * 120
    ),
    "lil": lambda: state.to_tree(sp.random_array((400, 9), density=0.2, format="lil", rng=0)),
    "dok": lambda: state.to_tree(sp.random_array((90, 90), density=0.2, format="dok", rng=0)),
    "csr": lambda: state.to_tree(sp.random_array((300, 300), density=0.2, format="csr", rng=0)),
    "generators": lambda: state.to_tree([np.random.default_rng(i) for i in range(60)]),
    "frame": lambda: state.to_tree(_frame(np.arange(3_000.0).reshape(600, 5))),
    "wide frame": lambda: state.to_tree(_frame(np.zeros((2, 60), np.int8))),
    "texts in a frame": lambda: state.to_tree(_frame(np.array([["a"] * 2] * 900, object))),
    "categories": lambda: state.to_tree(_frame(np.arange(900).astype(str)[:, None], "category")),
    "objects of classes": lambda: state.to_tree([LogisticRegression() for _ in range(60)]),
}


def _frame(values: Any, dtype: Any = None) -> Any:
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(values, dtype=dtype)


def _sorted_ints(n: int) -> list[int]:
    return sorted(range(n), key=to_bytes)


def _in_order(kind: str, values: Any) -> Items:
    return Items(kind, tuple(sorted(values, key=to_bytes)))


class Watched(MemoryBudget):
    """Remembers the most that was counted at once."""

    most = 0

    def take(self, n_bytes: int, what: str) -> None:
        """Count, and look."""
        super().take(n_bytes, what)
        Watched.most = max(Watched.most, self.used)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "most", 0)
    monkeypatch.setattr("letheon.state._decode.MemoryBudget", Watched)
    monkeypatch.setattr("letheon.state._file.MemoryBudget", Watched)
    return Watched


@pytest.mark.parametrize("name", COUNTED)
def test_the_count_covers_what_is_measured(name: str, watched: type[Watched]) -> None:
    blob = blob_of(COUNTED[name]())
    state.decode(blob)  # imports are not counted
    peak = _peak(lambda: state.decode(blob))
    # The first use of a library in a process takes some memory of its own.
    assert peak <= watched.most + 500_000


def test_an_object_heavy_manifest_stays_below_what_was_counted(
    tmp_path: Path, watched: type[Watched]
) -> None:
    value = {f"{i:05}": [i, {"a": (float(i), "é")}] for i in range(300)}
    state.write_file(tmp_path / "x", value)
    state.read_file(tmp_path / "x")
    peak = _peak(lambda: state.read_file(tmp_path / "x"))
    # The first use of a library in a process takes some memory of its own.
    assert peak <= watched.most + 500_000


def _texts(n: int) -> Items:
    """A list that becomes an array of n strings, each as wide as the widest."""
    return Items("list", ("x" * 100_000, *["a"] * n))


def _million() -> Any:
    return Triple("range", 0, 10**9, 1)


LAZY: dict[str, Callable[[], Any]] = {
    "a range": _million,
    "a range of arguments": lambda: Coded(
        "functools.partial",
        Record((("args", _million()), ("func", Name("numpy.mean")), ("keywords", Record(())))),
    ),
    "texts to interpolate": lambda: Coded(
        "scipy.interpolate._interpolate.interp1d",
        Record(
            (
                ("axis", 0),
                ("bounds_error", None),
                ("fill_value", 0.0),
                ("x", _texts(2_000)),
                ("y", _texts(2_000)),
            )
        ),
    ),
    "texts of a spline": lambda: Coded(
        "scipy.interpolate._bsplines.BSpline",
        Record(
            (("axis", 0), ("c", _texts(2_000)), ("extrapolate", True), ("k", 1), ("t", _texts(2)))
        ),
    ),
    "rows of no columns": lambda: Coded(
        "pandas.DataFrame",
        Record((("columns", Items("list", ())), ("names", Items("list", ())), ("n_rows", 10**12))),
    ),
    "a state of texts": lambda: Coded(
        "numpy.random._generator.Generator",
        state.to_tree(
            {
                **np.random.Generator(np.random.MT19937(0)).bit_generator.state,
                "state": {"key": ["x" * 100_000, *["a"] * 2_000], "pos": 1},
            }
        ),
    ),
}


@pytest.mark.parametrize("name", LAZY)
def test_nothing_is_unfolded_that_was_not_counted(name: str) -> None:
    blob = blob_of(LAZY[name]())
    with pytest.raises(CorruptFileError):
        state.decode(blob)
    assert _peak(lambda: _refused(blob)) < 5 * 10**6


def test_equal_hashes_are_refused() -> None:
    modulus = sys.hash_info.modulus
    for keys in (
        [5 + i * modulus for i in range(1, 200)],
        [complex(-1000003.0 * i, float(i)) for i in range(200)],
    ):
        tree = _in_order("set", keys)
        with pytest.raises(CorruptFileError, match="same hash"):
            state.decode(blob_of(tree))
        with pytest.raises(CorruptFileError, match="same hash"):
            state.decode(blob_of(Pairs(tuple((key, 1) for key in tree.items))))
    honest = {2.0**k for k in range(-500, 500)} | set(range(-500, 500))
    assert state.decode(state.encode(honest)) == honest


def test_references_that_branch_count_every_path() -> None:
    """Sixty objects, each with the one before it in two places: 2**60 ways to the first."""
    name = "sklearn.cluster._bisect_k_means._BisectingTree"
    n, centre = 60, Array("<f8", (1,), bytes(8))
    inner = Instance(name, Record((("center", centre), ("left", None), ("right", None))))
    for number in range(n, 2 * n - 1):
        # Numbers below n are the centres, outermost first; then the objects, innermost first.
        attributes = (("center", centre), ("left", inner), ("right", Ref(number)))
        inner = Instance(name, Record(attributes))
    with pytest.raises(MemoryLimitError, match="a reference"):
        state.decode(blob_of(inner))


def _honest() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    words = [" ".join(f"w{i}" for i in rng.integers(0, 20_000, 60)) for _ in range(400)]
    yield CountVectorizer(ngram_range=(1, 2)).fit(words[:100])
    yield np.array([f"a label that is wide {i}" for i in range(20_000)])
    yield sp.random_array((5_000, 50), density=0.05, format="lil", rng=0)
    yield np.array(words * 10, dtype=object)
    yield {i: f"{i}" for i in range(10_000)}


@pytest.mark.parametrize("form", ["blob", "file"])
def test_honest_values_are_far_below_the_limit(form: str, tmp_path: Path) -> None:
    for value in _honest():
        if form == "blob":
            again = state.decode(state.encode(value))
        else:
            state.write_file(tmp_path / "x", value)
            again = state.read_file(tmp_path / "x")
        assert state.digest(again) == state.digest(value)


def _forest_blob(n_trees: int, n_rows: int) -> bytes:
    """Return the file of a forest whose trees are one leaf each: few bytes for many rows."""
    import struct

    model = letheon.DaREForestClassifier(n_estimators=1, max_depth=0, random_state=0)
    X = np.zeros((n_rows, 1), np.float32)
    model.fit(X, np.arange(n_rows) % 2)
    tree = state.to_tree(model)

    def changed(node: Any) -> Any:
        if type(node) is Record:
            return Record(tuple((key, _leaves(key, value)) for key, value in node.items))
        return node

    def _leaves(key: str, value: Any) -> Any:
        if key == "trees":
            single = bytes(value.data)[16:]
            data = bytes(value.data)[:8] + struct.pack("<I", n_trees) + bytes(value.data)[12:16]
            data += single * n_trees
            return Array("|u1", (len(data),), data)
        if key == "n_trees":
            return n_trees
        return walk(value)

    def walk(node: Any) -> Any:
        if type(node) is Record:
            return changed(node)
        if hasattr(node, "state"):
            return node._replace(state=changed(node.state))
        return node

    return blob_of(walk(tree))


def test_many_small_trees_over_many_rows_are_refused_before_they_are_built() -> None:
    assert state.decode(_forest_blob(3, 50)).n_rows_ == 50
    blob = _forest_blob(20_000, 10_000)  # 4 bytes for each row in each tree: 800 MB
    with pytest.raises(MemoryLimitError, match=r"letheon\.forest"):
        state.decode(blob)


def test_boosted_trees_of_one_leaf_over_many_rows_are_refused_before_they_are_built() -> None:
    rows = np.zeros((10_000, 1), np.float32)
    model = letheon.BoostingRegressor(n_estimators=1, random_state=0).fit(rows, rows[:, 0])
    parts = model.boosting_._to_state()
    settings = replace(parts["settings"], n_rounds=10_000)
    trees = np.tile(parts["trees"][20:], 10_000)
    header = parts["trees"][:20].copy()
    header[8:12] = np.frombuffer(np.uint32(10_000).tobytes(), np.uint8)
    few = parts | {"settings": replace(settings, n_rounds=9)}
    with pytest.raises(ValueError, match="fewer trees"):
        type(model.boosting_)._native_cost(few)
    forged = parts | {"settings": settings, "trees": np.concatenate([header, trees])}
    n_bytes, _ = type(model.boosting_)._native_cost(forged)
    assert n_bytes > 10_000 * 10_000  # a byte for each row in each tree
    vars(model.boosting_)["_to_state"] = lambda: forged
    with pytest.raises(MemoryLimitError, match=r"letheon\.boosting"):
        state.decode(state.encode(model))


@pytest.mark.parametrize("n_columns", [1, 12])
@pytest.mark.parametrize("kind", ["classes", "numbers", "subsample"])
def test_the_count_of_a_forest_covers_what_the_core_holds(kind: str, n_columns: int) -> None:
    X = np.random.default_rng(0).normal(size=(500, n_columns))
    few: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
    makers: dict[str, Callable[[], Any]] = {
        "classes": lambda: letheon.DaREForestClassifier(**few).fit(X, np.arange(500) % 7),
        "numbers": lambda: letheon.DaREForestRegressor(**few).fit(X, X[:, 0]),
        "subsample": lambda: letheon.DaREForestClassifier(subsample=0.5, **few).fit(X, X[:, 0] > 0),
    }
    forest = makers[kind]().forest_
    n_bytes, n_steps = type(forest)._native_cost(forest._to_state())
    restored = state.decode(state.encode(forest))
    assert restored.core.n_bytes <= n_bytes
    assert n_bytes <= 16 * len(state.encode(forest)) + _nodes.BASE
    assert n_steps >= restored.core.n_nodes


def test_an_option_raises_the_limit(tmp_path: Path) -> None:
    blob = blob_of(_wide(10**4, 2_000))
    with pytest.raises(MemoryLimitError):
        state.decode(blob)
    assert state.decode(blob, max_memory=200 << 20).shape == (2_000,)
    model = letheon.NaiveUnlearner(DecisionTreeClassifier()).fit([[0.0], [1.0]], [0, 1])
    letheon.save(model, tmp_path / "m")
    assert letheon.load(tmp_path / "m", max_memory=10**7).digest() == model.digest()
    with pytest.raises(MemoryLimitError, match="max_memory"):
        letheon.load(tmp_path / "m", max_memory=1000)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_memory"):
            letheon.load(tmp_path / "m", max_memory=wrong)  # type: ignore[arg-type]


def test_a_time_zone_is_a_name_and_no_path() -> None:
    pd = pytest.importorskip("pandas")
    series = pd.Series(pd.to_datetime(["2020-01-01"])).dt.tz_localize("America/Argentina/Salta")
    assert state.decode(state.encode(series)).dtype == series.dtype
    plain: dict[str, Any] = {
        "name": None,
        "column": {"dtype": "", "values": series.dt.tz_localize(None).to_numpy()},
    }
    for zone in ("dateutil//etc/passwd", "/etc/passwd", "dateutil/Europe/Berlin", "//x"):
        plain["column"]["dtype"] = f"datetime64[ns, {zone}]"
        with pytest.raises(CorruptFileError):
            state.decode(blob_of(Coded("pandas.Series", state.to_tree(plain))))


def test_a_polars_column_that_is_no_enum() -> None:
    pl = pytest.importorskip("polars")
    tree = _coded(pl.Series(["a"], dtype=pl.Enum(["a"])))
    broken = _coded(
        pl.Series(["a"], dtype=pl.Enum(["a"])), column={**_enum("a"), "categories": ["b"]}
    )
    assert state.decode(blob_of(tree._replace(name="polars.Series"))).to_list() == ["a"]
    with pytest.raises(CorruptFileError):
        state.decode(blob_of(broken._replace(name="polars.Series")))


def _enum(text: str) -> dict[str, Any]:
    return {"dtype": "Enum", "values": np.array([text], dtype=object), "categories": [text]}


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_table_that_unpacks_to_far_more_is_refused(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "_MOST_UNPACKED", 1 << 16)
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, X=np.zeros(1 << 18), y=np.zeros(1))
    else:
        pd = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        pd.DataFrame({"x": np.zeros(1 << 18), "y": 0}).to_parquet(path, compression="zstd")
    columns = table_files.TableColumns("y", None, has_text_ids=False, is_table=True)
    with pytest.raises(table_files.TableFileError, match="unpacks to"):
        table_files.read_table_file(path, columns)
