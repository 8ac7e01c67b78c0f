"""Canonical bytes of a fitted model, and the digests, files and checkpoints made of them.

``to_tree`` turns a value into plain nodes without classes. The nodes are the source of digests
(`digest`), bytes in memory (`encode`) and files (`write_file`). Reading has three phases: read and
verify the bytes, audit every name and setting before anything is imported, and only then construct
the value. Nothing in a file is executed.

Examples
--------
>>> from sklearn.naive_bayes import GaussianNB
>>> from letheon import state
>>> model = GaussianNB().fit([[0.0], [1.0], [4.0], [5.0]], ["a", "a", "b", "b"])
>>> again = state.decode(state.encode(model))
>>> again.predict([[3.9]]).tolist(), state.digest(again) == state.digest(model)
(['b'], True)
"""

from letheon.state._arrays import plain_descr
from letheon.state._boosters import fix_settings, require_repeatable
from letheon.state._bytes import sync_directory, to_bytes, write_atomically
from letheon.state._decode import decode, decode_plain, has_listed_classes, require_trust, trust_of
from letheon.state._encode import (
    FORMAT,
    classes_of,
    digest,
    encode,
    ensure_supported,
    environment,
    to_tree,
)
from letheon.state._file import Contents, read_contents, read_file, write_file
from letheon.state._nodes import (
    UNLIMITED,
    Array,
    Coded,
    Instance,
    Items,
    MemoryBudget,
    Node,
    Objects,
    Pairs,
    Record,
    Scalar,
    names_of,
)
from letheon.state._stores import CheckpointName, DirectoryStore
from letheon.state._tags import NEUTRAL_PARAMETERS, codec_of, import_path, register_codec, tag_of

__all__ = [
    "FORMAT",
    "NEUTRAL_PARAMETERS",
    "UNLIMITED",
    "Array",
    "CheckpointName",
    "Coded",
    "Contents",
    "DirectoryStore",
    "Instance",
    "Items",
    "MemoryBudget",
    "Node",
    "Objects",
    "Pairs",
    "Record",
    "Scalar",
    "classes_of",
    "codec_of",
    "decode",
    "decode_plain",
    "digest",
    "encode",
    "ensure_supported",
    "environment",
    "fix_settings",
    "has_listed_classes",
    "import_path",
    "names_of",
    "plain_descr",
    "read_contents",
    "read_file",
    "register_codec",
    "require_repeatable",
    "require_trust",
    "sync_directory",
    "tag_of",
    "to_bytes",
    "to_tree",
    "trust_of",
    "write_atomically",
    "write_file",
]
