"""Canonical bytes of a fitted model: codec, digest, checkpoints.

A value goes ``to_tree`` (plain nodes, no classes) and from there to a `digest`, to bytes in memory
(`encode`), or to a file (`write_file`). The way back has three phases: read and verify the bytes,
audit every name and setting in them before anything is imported, and only then construct.
Nothing in a file is ever executed.

Examples
--------
>>> from sklearn.naive_bayes import GaussianNB
>>> from letheon import state
>>> model = GaussianNB().fit([[0.0], [1.0], [4.0], [5.0]], ["a", "a", "b", "b"])
>>> again = state.decode(state.encode(model))
>>> again.predict([[3.9]]).tolist(), state.digest(again) == state.digest(model)
(['b'], True)
"""

from letheon.state._blob import decode, decode_plain, digest, encode
from letheon.state._budget import UNLIMITED, MemoryBudget
from letheon.state._decode import has_listed_classes, require_trust, trust_of
from letheon.state._encode import classes_of, ensure_supported, to_tree
from letheon.state._environment import environment
from letheon.state._file import Contents, build, read_contents, read_file, write_file
from letheon.state._nodes import Node, names_of
from letheon.state._plans import NEUTRAL_PARAMETERS
from letheon.state._registry import register_codec
from letheon.state._stores import Checkpoint, DirectoryStore
from letheon.state._tags import import_path, tag_of

__all__ = [
    "NEUTRAL_PARAMETERS",
    "UNLIMITED",
    "Checkpoint",
    "Contents",
    "DirectoryStore",
    "MemoryBudget",
    "Node",
    "build",
    "classes_of",
    "decode",
    "decode_plain",
    "digest",
    "encode",
    "ensure_supported",
    "environment",
    "has_listed_classes",
    "import_path",
    "names_of",
    "read_contents",
    "read_file",
    "register_codec",
    "require_trust",
    "tag_of",
    "to_tree",
    "trust_of",
    "write_file",
]
