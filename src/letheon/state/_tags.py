"""Type tags: the names by which files and digests know the classes of this package.

A tag is frozen: it never changes, whatever happens to the class. Most tags are the module paths
that the classes had when tags were introduced. A class that is moved or renamed keeps its tag; the
table then says where the class is now. An estimator of `letheon.methods` without a line in the
table has the public path that it is registered with; any other class its import path, which must
be public.
"""

from typing import Any

from letheon.exceptions import UnsupportedStateError
from letheon.methods import class_paths

# Packages whose classes may be part of a model; command line, service and ledger are not.
_PACKAGES = "base compose guarantee inner naive receipt sharded state"
# Controls of attacks have digests, but no file may hold one: they do not forget.
_CONTROLS = "letheon.measures."
_PUBLIC = tuple(f"letheon.{name}." for name in _PACKAGES.split())

# Start of the tags -> module of the classes today, and the last part of each tag. A class with
# another name today is written as ``tag=name``.
_TABLE: dict[str, tuple[str, str]] = {
    "letheon.rows._ids": ("letheon.data._ids", "IntIds TextIds"),
    "letheon.rows._rows": ("letheon.data._rows", "Rows"),
    "letheon.rows._slots": ("letheon.data._slots", "SlotRows"),
    "letheon.sharded._assign": ("letheon.sharded._shards", "Assignment"),
    "letheon.sharded._shards": ("letheon.sharded._shards", "Ensemble Shard"),
    "letheon.sharded._sisa": ("letheon.sharded._sisa", "SISAClassifier SISARegressor"),
    "letheon.sharded._stages": ("letheon.sharded._shards", "ConstantModel"),
    "letheon.sharded._states": ("letheon.sharded._shards", "SavedState"),
    "letheon.forest._classifier": ("letheon.forest._estimators", "DaREForestClassifier"),
    "letheon.forest._model": ("letheon.forest._model", "ForestModel"),
    "letheon.forest._regressor": ("letheon.forest._estimators", "DaREForestRegressor"),
    "letheon.forest._settings": ("letheon.forest._inputs", "Settings"),
    "letheon.convex._account": ("letheon.linear._account", "Account"),
    "letheon.convex._cache": ("letheon.removal", "Cache"),
    "letheon.convex._data_free": ("letheon.linear._newton", "StoredCurvature"),
    "letheon.convex._deltagrad": ("letheon.linear._deltagrad", "DeltaGradClassifier Pace"),
    "letheon.convex._descent": ("letheon.linear._descent", "DescentToDeleteClassifier"),
    "letheon.convex._descent_theory": (
        "letheon.linear._descent_theory",
        "DistributedPlan Geometry PublishedPlan SecretPlan WeakPlan",
    ),
    "letheon.convex._design": ("letheon.linear._model", "Design"),
    "letheon.convex._distributed": ("letheon.linear._descent_steps", "Parts"),
    "letheon.convex._fisher": ("letheon.linear._fisher", "FisherClassifier"),
    "letheon.convex._fisher_law": ("letheon.linear._fisher_law", "Closeness"),
    "letheon.convex._fisher_walk": ("letheon.linear._fisher_walk", "FisherAccount"),
    "letheon.convex._influence": (
        "letheon.linear._influence",
        "InfluenceClassifier InfluenceRegressor",
    ),
    "letheon.convex._linear": ("letheon.linear._model", "Linear"),
    "letheon.convex._noise": ("letheon.noise", "NoiseSource Sealed"),
    "letheon.convex._published": ("letheon.linear._model", "PublishedModel"),
    "letheon.convex._trajectory": ("letheon.linear._replay", "Trajectory"),
    "letheon.measures.attacks._controls": (
        "letheon.measures.attacks._controls",
        "FineTuneOnly KeepsEverything",
    ),
    "letheon.deep._backbone": ("letheon.deep._backbone", "Backbone"),
    "letheon.deep._deltagrad": ("letheon.deep._deltagrad", "DeltaGradNetClassifier"),
    "letheon.deep._fisher": ("letheon.deep._fisher", "FisherNetClassifier"),
    "letheon.deep._head": ("letheon.deep._head", "CertifiedHeadClassifier"),
    "letheon.deep._nets": ("letheon.deep._nets", "CNN MLP ResNet"),
    "letheon.deep._obliviate": ("letheon.deep._obliviate", "DeepObliviateClassifier"),
    "letheon.deep._path": ("letheon.deep._replay", "Path"),
    "letheon.deep._sisa": ("letheon.deep._sisa", "SISANetClassifier"),
    "letheon.deep._trained": ("letheon.deep._module", "Nets"),
    "letheon.deep._vault": ("letheon.deep._vault", "Vault"),
}


def _read_table() -> dict[str, str]:
    paths = {}
    for start, (module, names) in _TABLE.items():
        for entry in names.split():
            tag, _, name = entry.partition("=")
            paths[f"{start}.{tag}"] = f"{module}.{name or tag}"
    return paths


_PATHS = _read_table()
_TAGS = {path: tag for tag, path in _PATHS.items()}
_REGISTERED = frozenset(f"{module}.{name}" for name, module in class_paths().items())


def is_ours(tag: str) -> bool:
    """Say whether a tag belongs to a class of this package."""
    return tag.startswith("letheon.")


def tag_of(thing: Any) -> str:
    """Return the tag of a class or function: its frozen name, else ``module.qualname``."""
    module, name = thing.__module__, thing.__qualname__
    path = f"{module}.{name}"
    if path in _TAGS or not is_ours(path):
        return _TAGS.get(path, path)
    public = f"{'.'.join(module.split('.')[:2])}.{name}"
    return public if public in _REGISTERED else path


def import_path(tag: str) -> str:
    """Return where the class or function of a tag is imported from today."""
    return _PATHS.get(tag, tag)


def is_model_class(tag: str) -> bool:
    """Say whether a class of this package may be part of a model, by its tag."""
    if tag.startswith(_CONTROLS):
        return False
    is_known = tag in _PATHS or tag in _REGISTERED
    return is_known or (tag.startswith(_PUBLIC) and is_public_path(tag))


def is_public_path(path: str) -> bool:
    """Say whether no part of an import path is private."""
    return all(part.isidentifier() and part[0] != "_" for part in path.split("."))


def require_stable_tag(tag: str) -> None:
    """Refuse a class of this package whose tag is a private path, which may change."""
    if is_ours(tag) and tag not in _PATHS and not is_public_path(tag):
        raise UnsupportedStateError(
            f"{tag} has no type tag, so no file may hold it; add it to letheon.state._tags"
        )
