# Types of the compiled core; its functions are documented where they are bound
# (cpp/bindings/module.cpp) and their rules in letheon.seeds.

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
