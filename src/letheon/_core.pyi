# Types of the compiled core; its functions are documented where they are bound
# (cpp/bindings) and their rules in letheon.seeds and letheon.definitions (dare.md).

from typing import Any

import numpy as np
import numpy.typing as npt

def siphash24(key: bytes, message: bytes) -> int: ...
def hash_ints(
    key: bytes, prefix: bytes, values: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]: ...
def hash_texts(
    key: bytes, prefix: bytes, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]: ...
def mix64(key: int, bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]: ...
def mix64_pairs(
    keys: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]: ...
def mix32(key: int, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]: ...
def keep_candidates(
    is_normal: bool, scale: int, words: npt.NDArray[np.uint64], n_wanted: int
) -> npt.NDArray[np.int64]: ...
def powers_of_two(dithers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]: ...
def quantise(
    X: npt.NDArray[np.float64],
    factors: npt.NDArray[np.float64],
    shifts: npt.NDArray[np.float64],
    roots: npt.NDArray[np.float64] | None,
    high: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    n_clipped: npt.NDArray[np.int64],
) -> None: ...
def add_products(
    high: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    sign: int,
    products: npt.NDArray[np.int64],
) -> None: ...
def add_sparse_products(
    begins: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    low: npt.NDArray[np.int64],
    sign: int,
    n_columns: int,
    products: npt.NDArray[np.int64],
    floats: npt.NDArray[np.float64] | None,
) -> None: ...
def read_column_sums(
    counts: npt.NDArray[np.int64],
    sums: npt.NDArray[np.uint8],
    squares: npt.NDArray[np.uint8],
) -> ColumnSums: ...

class ColumnSums:
    def __init__(self, n_columns: int) -> None: ...
    @property
    def n_columns(self) -> int: ...
    def add(self, X: npt.NDArray[np.float64]) -> None: ...
    def subtract(self, X: npt.NDArray[np.float64]) -> None: ...
    def change_sparse(
        self,
        begins: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
        is_added: bool,
    ) -> None: ...
    def select(self, columns: npt.NDArray[np.int64]) -> ColumnSums: ...
    def put(self, columns: npt.NDArray[np.int64], other: ColumnSums) -> None: ...
    def counts(self) -> npt.NDArray[np.int64]: ...
    def sum_bytes(self) -> npt.NDArray[np.uint8]: ...
    def square_bytes(self) -> npt.NDArray[np.uint8]: ...
    def sums(self) -> npt.NDArray[np.float64]: ...
    def means(self) -> npt.NDArray[np.float64]: ...
    def variances(self) -> npt.NDArray[np.float64]: ...
    def round(
        self,
        scale_dithers: npt.NDArray[np.uint64],
        centre_dithers: npt.NDArray[np.uint64],
        centre_bits: int,
        scale_step: int,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]: ...

class ForestSpec:
    def __init__(
        self,
        *,
        criterion: str,
        n_columns: int,
        max_depth: int,
        max_features: int,
        n_thresholds: int,
        random_depth: int,
        min_samples_split: int,
        min_samples_leaf: int,
        tree_keys: npt.NDArray[np.uint64],
        sample_keys: npt.NDArray[np.uint64],
        sample_limit: int,
        y_exponent: int | None,
        cache_rows: int | None = None,
        slack: int | None = None,
        column_keys: npt.NDArray[np.uint32] | None = None,
        categorical: npt.NDArray[np.uint8] | None = None,
    ) -> None: ...

class Report:
    @property
    def rebuilt_rows(self) -> int: ...
    @property
    def rebuilt_nodes(self) -> int: ...
    @property
    def touched_trees(self) -> int: ...
    @property
    def rescans(self) -> int: ...
    @property
    def rescaled(self) -> bool: ...
    @property
    def emptied(self) -> bool: ...

def restore_cost(
    trees: npt.NDArray[np.uint8],
    n_trees: int,
    n_rows: int,
    n_columns: int,
    n_classes: int,
    regression: bool,
    text_bytes: int,
) -> tuple[int, int]: ...

class Forest:
    def __init__(self, spec: ForestSpec) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_unbuilt(self) -> int: ...
    @property
    def n_nodes(self) -> int: ...
    @property
    def n_done(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    def fit(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        n_threads: int,
    ) -> None: ...
    def find_ints(
        self, values: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def find_texts(
        self, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def forget(self, slots: npt.NDArray[np.uint32], eager: bool, n_threads: int) -> Report: ...
    def forget_cost(self, slots: npt.NDArray[np.uint32], n_threads: int) -> Report: ...
    def learn(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        eager: bool,
        n_threads: int,
    ) -> Report: ...
    def settle(self, n_threads: int) -> Report: ...
    def reweigh(self, before: npt.NDArray[np.uint32], after: npt.NDArray[np.uint32]) -> Report: ...
    def copy_rows(
        self, slots: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]: ...
    def is_constant(self, column: int, without: npt.NDArray[np.uint32]) -> bool: ...
    def move_columns(
        self,
        layout: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint32],
        fills: npt.NDArray[np.float32],
        max_features: int,
    ) -> None: ...
    def predict(self, X: npt.NDArray[Any], n_threads: int) -> npt.NDArray[np.float64]: ...
    def apply(self, X: npt.NDArray[Any], n_threads: int) -> npt.NDArray[np.int64]: ...
    def ids(self) -> dict[str, Any]: ...
    def rows(self, order: npt.NDArray[np.uint32]) -> dict[str, Any]: ...
    def trees(self, order: npt.NDArray[np.uint32], n_threads: int) -> npt.NDArray[np.uint8]: ...
    def restore(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        trees: list[npt.NDArray[np.uint8]],
        n_threads: int,
    ) -> None: ...
    def tree(self, index: int) -> dict[str, Any]: ...
    def importances(self, n_threads: int) -> npt.NDArray[np.float64]: ...
    def class_counts(self) -> npt.NDArray[np.int64]: ...

def find_leaves(
    begins: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int32],
    thresholds: npt.NDArray[np.float32],
    rights: npt.NDArray[np.int32],
    missing_left: npt.NDArray[np.uint8],
    categorical: npt.NDArray[np.uint8],
    X: npt.NDArray[Any],
    n_threads: int,
) -> npt.NDArray[np.int32]: ...

class IndexReport:
    @property
    def n_pivots(self) -> int: ...
    @property
    def n_moved(self) -> int: ...

class Index:
    def __init__(
        self,
        *,
        metric: str,
        dtype: str,
        n_columns: int,
        step: float,
        keeps_rows: bool,
        path: str,
    ) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_pivots(self) -> int: ...
    def add(
        self,
        X: npt.NDArray[Any],
        is_grid: bool,
        target: npt.NDArray[np.float64] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        n_pivots: int,
        n_threads: int,
    ) -> IndexReport: ...
    def forget(
        self, slots: npt.NDArray[np.uint32], n_pivots: int, n_threads: int
    ) -> IndexReport: ...
    def query(
        self,
        X: npt.NDArray[Any],
        k: int,
        n_probe: int,
        allowed: npt.NDArray[np.uint8] | None,
        n_threads: int,
    ) -> dict[str, Any]: ...
    def find_ints(
        self, values: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def find_texts(
        self, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def ids(self) -> dict[str, Any]: ...
    def rows(self) -> dict[str, Any]: ...
    def copy_rows(
        self, slots: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]: ...

class BoostingSpec:
    def __init__(
        self,
        *,
        loss: str,
        n_columns: int,
        n_rounds: int,
        max_leaves: int,
        rate: int,
        pilot_rate: int,
        l2: int,
        step_bits: int,
        n_chains: int,
        chain_people: int,
        max_bins: int,
        min_samples_leaf: int,
        tree_columns: int,
        key: int,
        y_exponent: int | None,
        is_categorical: npt.NDArray[np.uint8] | None,
    ) -> None: ...

class BoostingReport:
    @property
    def chains(self) -> int: ...
    @property
    def trees(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def everything(self) -> bool: ...
    @property
    def emptied(self) -> bool: ...

def boosting_restore_cost(
    n_rounds: int, n_rows: int, n_columns: int, n_classes: int, text_bytes: int
) -> tuple[int, int]: ...

class Boosting:
    def __init__(self, spec: BoostingSpec) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def is_settled(self) -> bool: ...
    @property
    def n_done(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    def fit(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        order: npt.NDArray[np.uint32],
        n_threads: int,
    ) -> None: ...
    def restore(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        order: npt.NDArray[np.uint32],
        trees: npt.NDArray[np.uint8],
        n_threads: int,
    ) -> None: ...
    def learn(
        self,
        X: npt.NDArray[Any],
        target: npt.NDArray[Any],
        n_classes: int,
        weights: npt.NDArray[np.uint32] | None,
        ids_values: npt.NDArray[np.int64] | None,
        ids_blob: npt.NDArray[np.uint8] | None,
        ids_offsets: npt.NDArray[np.int64] | None,
        owners: npt.NDArray[np.uint64],
        order: npt.NDArray[np.uint32],
        eager: bool,
        n_threads: int,
    ) -> BoostingReport: ...
    def find_ints(
        self, values: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def find_texts(
        self, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...
    def forget(
        self, slots: npt.NDArray[np.uint32], eager: bool, n_threads: int
    ) -> BoostingReport: ...
    def forget_cost(self, slots: npt.NDArray[np.uint32], reweighed: bool) -> BoostingReport: ...
    def copy_rows(
        self, slots: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]: ...
    def reweigh(
        self, before: npt.NDArray[np.uint32], after: npt.NDArray[np.uint32]
    ) -> BoostingReport: ...
    def settle(self, n_threads: int) -> None: ...
    def predict(
        self, X: npt.NDArray[Any], n_rounds: int, n_threads: int
    ) -> npt.NDArray[np.float64]: ...
    def rows(self, order: npt.NDArray[np.uint32]) -> dict[str, Any]: ...
    def ids(self) -> dict[str, Any]: ...
    def trees(self, n_threads: int) -> npt.NDArray[np.uint8]: ...
    def tree(self, index: int) -> dict[str, Any]: ...
    def scale(self) -> dict[str, Any]: ...
    def importances(self) -> npt.NDArray[np.float64]: ...
    def class_counts(self) -> npt.NDArray[np.int64]: ...
