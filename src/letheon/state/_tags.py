"""Type tags, the names of classes in files and digests, and how instances become nodes.

A tag never changes. Most tags are the module paths that the classes had when tags were introduced.
A class that is moved or renamed keeps its tag; the table then maps the tag to the current path of
the class. If a class is not in the table, its tag is its registered public path for an estimator of
`letheon.methods`, and otherwise its import path, which must be public.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import numpy as np

from letheon.exceptions import UnsupportedStateError
from letheon.methods import class_paths
from letheon.state._allowed import CLASSES, REFUSED

# Packages whose classes may be part of a model; command line, service and ledger are not.
_PACKAGES = "base compose guarantee inner_estimator naive receipt sharded state"
# Negative controls of attacks have digests, but no file may contain one: they do not forget.
_CONTROLS = "letheon.measures."
_PUBLIC = tuple(f"letheon.{name}." for name in _PACKAGES.split())

# Start of the tags -> module of the classes today, and the last part of each tag. A class with
# another name today is written as ``tag=name``.
_TABLE: dict[str, tuple[str, str]] = {
    "letheon.compose": ("letheon.steps", "DataIndependent FittedSteps"),
    "letheon.rows._ids": ("letheon.data._ids", "IntIds TextIds"),
    "letheon.rows._rows": ("letheon.data._rows", "Rows"),
    "letheon.rows._slots": ("letheon.data._rows", "SlotRows"),
    "letheon.sharded._assign": ("letheon.sharded._shards", "Assignment"),
    "letheon.sharded._shards": ("letheon.sharded._shards", "Ensemble Shard"),
    "letheon.sharded._sisa": ("letheon.sharded._sisa", "SISAClassifier SISARegressor"),
    "letheon.sharded._stages": ("letheon.sharded._shards", "ConstantModel"),
    "letheon.sharded._states": ("letheon.sharded._shards", "SavedState"),
    "letheon.forest._classifier": ("letheon.forest._estimators", "DaREForestClassifier"),
    "letheon.forest._model": ("letheon.forest._model", "ForestModel"),
    "letheon.forest._regressor": ("letheon.forest._estimators", "DaREForestRegressor"),
    "letheon.forest._settings": ("letheon.forest._inputs", "Settings=ForestSettings"),
    "letheon.boosting.model": ("letheon.boosting._model", "BoostingModel BoostingSettings"),
    "letheon.neighbors.model": ("letheon.neighbors._model", "IndexModel IndexSettings"),
    "letheon.convex._account": ("letheon.linear._account", "Account"),
    "letheon.convex._cache": ("letheon.removal", "Cache"),
    "letheon.convex._data_free": ("letheon.linear._newton", "StoredCurvature"),
    "letheon.convex._deltagrad": (
        "letheon.linear._deltagrad",
        "DeltaGradClassifier Pace=DescentSettings",
    ),
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
    "letheon.convex._noise": ("letheon.noise", "NoiseSource Sealed=SecretArray"),
    "letheon.convex._published": ("letheon.linear._model", "PublishedModel"),
    "letheon.predictor": (
        "letheon.predictor._predictor",
        "EstimatorPredictor Predictor ScorePredictor",
    ),
    "letheon.predictor.pipeline": ("letheon.frozen._predictor", "PipelinePredictor"),
    "letheon.predictor.ensemble": ("letheon.sharded._predictor", "EnsemblePredictor"),
    "letheon.predictor.answers": ("letheon.predictor._answers", "Answers"),
    "letheon.predictor.inputs": ("letheon.predictor._inputs", "NumberInputs TreeInputs"),
    "letheon.predictor.scores": ("letheon.predictor._scores", "AffineScores TreeScores"),
    "letheon.sums.scores": ("letheon.sums._discriminant", "NormalScores QuadraticScores"),
    "letheon.sums.bayes.scores": ("letheon.sums._class_sums", "CategoryScores"),
    "letheon.convex._trajectory": ("letheon.linear._replay", "Trajectory"),
    "letheon.measures.attacks._controls": (
        "letheon.measures.attacks._controls",
        "FineTuneOnly KeepsEverything",
    ),
    "letheon.preprocessing": ("letheon.preprocessing._columns", "ColumnPart"),
    "letheon.preprocessing.terms": ("letheon.preprocessing._terms", "TermCounts Vocabulary"),
    "letheon.sums.features": ("letheon.sums._features", "FourierWeights"),
    "letheon.sums.bayes": ("letheon.sums._class_sums", "CategorySums FeatureSums"),
    "letheon.search": ("letheon.search", "SearchScores"),
    "letheon.recommend": ("letheon.recommend._co_counts", "CoCounts"),
    "letheon.deep._adapters": ("letheon.deep._adapters", "LoRA"),
    "letheon.deep._backbone": ("letheon.deep._backbone", "Backbone"),
    "letheon.deep._deltagrad": ("letheon.deep._deltagrad", "DeltaGradNetClassifier"),
    "letheon.deep._fisher": ("letheon.deep._fisher", "FisherNetClassifier"),
    "letheon.deep._head": ("letheon.deep._head", "CertifiedHeadClassifier"),
    "letheon.deep._nets": ("letheon.deep._nets", "CNN MLP ResNet"),
    "letheon.deep._obliviate": ("letheon.deep._obliviate", "DeepObliviateClassifier"),
    "letheon.deep._path": ("letheon.deep._replay", "Path"),
    "letheon.deep._sisa": ("letheon.deep._sisa", "SISANetClassifier SISANetRegressor"),
    "letheon.deep._trained": ("letheon.deep._module", "Nets"),
    "letheon.sums._columns": ("letheon.sums._columns", "ColumnSums"),
    "letheon.sums._gram": ("letheon.sums._gram", "Gram"),
    "letheon.sums._pca": ("letheon.sums._pca", "Components"),
    "letheon.sums._table_sums": ("letheon.sums._table_sums", "Grid TableSums"),
    "letheon.preprocessing._categories": (
        "letheon.preprocessing._categories",
        "CategoryCounts CategoryLists",
    ),
    "letheon.preprocessing._bins": ("letheon.preprocessing._bins", "BinEdges BinSample"),
    "letheon.preprocessing._keyed_sample": (
        "letheon.preprocessing._keyed_sample",
        "SampleBorder SampledFit",
    ),
    "letheon.preprocessing._target": (
        "letheon.preprocessing._target_sums",
        "TargetCodes TargetSums",
    ),
    "letheon.preprocessing._impute": (
        "letheon.preprocessing._impute",
        "FillValues MeanSums MedianSums MissingCounts ModeSums",
    ),
    "letheon.preprocessing._quantiles": ("letheon.preprocessing._quantiles", "QuantileSums"),
    "letheon.preprocessing._scale": ("letheon.preprocessing._scale", "Scaling"),
    "letheon.deep._vault": ("letheon.deep._checkpoints", "Vault=CheckpointStore"),
}


_PATHS = {
    f"{start}.{entry.partition('=')[0]}": f"{module}.{entry.rpartition('=')[2]}"
    for start, (module, names) in _TABLE.items()
    for entry in names.split()
}
_TAGS = {path: tag for tag, path in _PATHS.items()}
_REGISTERED = frozenset(f"{module}.{name}" for name, module in class_paths().items())


def is_ours(tag: str) -> bool:
    """Return whether a tag belongs to a class of this package."""
    return tag.startswith("letheon.")


def tag_of(value: Any) -> str:
    """Return the tag of a class or function; ``module.qualname`` if it has no other tag.

    Parameters
    ----------
    value : type or function
        The class or function.

    Returns
    -------
    str

    Examples
    --------
    >>> from letheon import BoostingClassifier
    >>> from letheon.state import tag_of
    >>> tag_of(BoostingClassifier)
    'letheon.boosting.BoostingClassifier'
    """
    module, name = value.__module__, value.__qualname__
    path = f"{module}.{name}"
    if path in _TAGS or not is_ours(path):
        return _TAGS.get(path, path)
    public = f"{'.'.join(module.split('.')[:2])}.{name}"
    return public if public in _REGISTERED else path


def import_path(tag: str) -> str:
    """Return the current import path of the class or function with this tag.

    Parameters
    ----------
    tag : str
        The tag.

    Returns
    -------
    str

    Examples
    --------
    >>> from letheon.state import import_path
    >>> import_path("sklearn.naive_bayes.GaussianNB")
    'sklearn.naive_bayes.GaussianNB'
    """
    return _PATHS.get(tag, tag)


def is_model_class(tag: str) -> bool:
    """Return whether the class of letheon with this tag may be part of a model."""
    if tag.startswith(_CONTROLS):
        return False
    is_known = tag in _PATHS or tag in _REGISTERED
    return is_known or (tag.startswith(_PUBLIC) and is_public_path(tag))


def is_public_path(path: str) -> bool:
    """Return whether an import path is public: no part begins with an underscore."""
    return all(part.isidentifier() and part[0] != "_" for part in path.split("."))


def require_stable_tag(tag: str) -> None:
    """Raise an error for a class of letheon whose tag is a private path, which may change."""
    if is_ours(tag) and tag not in _PATHS and not is_public_path(tag):
        raise UnsupportedStateError(
            f"{tag} has no type tag, so no file may contain it; add it to letheon.state._tags"
        )


def is_listed_class(name: str) -> bool:
    """Return whether objects of a class may be built even if the caller does not trust it."""
    return name in CLASSES or is_model_class(name)


class Codec(NamedTuple):
    """The conversion of objects of a class to plain values and back.

    `name` is the name of the class in files, if it differs from its tag. `cost` takes the arguments
    of `decode` and returns an upper bound on the bytes that `decode` allocates. `trial` takes them,
    too, and raises an error if `decode` is not safe; it is left out if the caller trusts the class.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[type, Any], Any]
    name: str | None = None
    cost: Callable[[type, Any], int] | None = None
    trial: Callable[[type, Any], None] | None = None


_registered: dict[type, Codec] = {}


def register_codec(cls: type, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register how objects of your own class, or of a third-party class, are stored.

    Parameters
    ----------
    cls : type
        The class; instances of subclasses are not covered.
    encode : callable
        Takes an object and returns a plain value, that is, a value with canonical bytes. Two
        objects that behave the same should have the same value. Two objects that behave differently
        must have different values.
    decode : callable
        Takes that value and returns an object. The value comes from a file, so validate it.

    Notes
    -----
    Registering a class means trusting it: files that name it are decoded in this process.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from letheon.state import decode, encode, register_codec
    >>> register_codec(Fraction, lambda f: (f.numerator, f.denominator), lambda v: Fraction(*v))
    >>> decode(encode([Fraction(1, 3)]))
    [Fraction(1, 3)]
    """
    _registered[cls] = Codec(encode, lambda _, plain: decode(plain))


@cache
def _load_codecs() -> Mapping[str, Codec]:
    # Imported late, because these modules import this one.
    modules = [
        import_module(f"letheon.state.{name}") for name in ("_types", "_sklearn", "_boosters")
    ]
    return {name: codec for module in modules for name, codec in module.CODECS.items()}


def codec_of(cls: type) -> Codec | None:
    """Return the codec of a class; None if it has none.

    Parameters
    ----------
    cls : type
        The class.

    Returns
    -------
    Codec or None

    Examples
    --------
    >>> from letheon.state import codec_of
    >>> codec_of(dict) is None
    True
    """
    codec = _registered.get(cls)
    return _load_codecs().get(tag_of(cls)) if codec is None else codec


def codec_named(name: str) -> tuple[Codec, type | None] | None:
    """Return the codec with a qualified name, and its class if the user registered it.

    None if there is no such codec.
    """
    for cls, codec in _registered.items():
        if tag_of(cls) == name:
            return codec, cls
    built_in = _load_codecs().get(name)
    return None if built_in is None else (built_in, None)


# Settings that never change the result.
NEUTRAL_PARAMETERS = frozenset({"n_jobs", "verbose", "rebuild", "checkpoint_dir"})
_NEUTRAL = NEUTRAL_PARAMETERS | {"memory", "_n_threads"}
# Attributes that depend on the machine, or that a fitted object fills when it is used.
_NEUTRAL_ATTRIBUTES: dict[str, frozenset[str]] = {
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper": frozenset({"n_threads"}),
    "sklearn.preprocessing._label.MultiLabelBinarizer": frozenset({"_cached_dict"}),
}
_HEAP_TYPE = 1 << 9


class _Ordinary:
    """A class with a `__dict__` and weak references, like every class written in Python."""


class EncodingPlan(NamedTuple):
    """The rules by which instances of a class are encoded."""

    name: str
    codec: Codec | None
    fields: tuple[str, ...] | None
    has_own_state: bool
    has_digest_state: bool
    is_estimator: bool
    is_ours: bool
    neutral: frozenset[str]


@lru_cache(maxsize=4096)
def plan_of(cls: type, codec: Codec | None) -> EncodingPlan:
    """Return how instances of a class are encoded; raise an error for unsupported classes."""
    name = tag_of(cls)
    require_stable_tag(name)
    for base in cls.__mro__:
        reason = REFUSED.get(tag_of(base))
        if reason is not None:
            raise UnsupportedStateError(
                f"an object of class {cls.__name__} cannot be part of a model: {reason}"
            )
    fields = dataclass_fields(cls)
    has_own_state = hasattr(cls, "_to_state") and hasattr(cls, "_from_state")
    if codec is None and fields is None and not has_own_state:
        require_plain_attributes(cls)
    is_estimator = hasattr(cls, "get_params")
    neutral = _NEUTRAL_ATTRIBUTES.get(name, frozenset())
    return EncodingPlan(
        name if codec is None or codec.name is None else codec.name,
        codec,
        fields,
        has_own_state,
        hasattr(cls, "_digest_state"),
        is_estimator,
        is_ours(name),
        neutral | _NEUTRAL if is_estimator else neutral,
    )


def dataclass_fields(cls: type) -> tuple[str, ...] | None:
    """Return the field names of a dataclass of letheon; None for estimators and other classes."""
    is_estimator = hasattr(cls, "get_params")
    if is_estimator or not (dataclasses.is_dataclass(cls) and is_ours(tag_of(cls))):
        return None
    return tuple(field.name for field in dataclasses.fields(cls))


def require_plain_attributes(cls: type) -> None:
    """Raise an error for a class whose instances have state outside their `__dict__`."""
    small = cls.__basicsize__ <= _Ordinary.__basicsize__ and cls.__itemsize__ == 0
    made_in_python = all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1])
    if not (small and made_in_python and cls.__dictoffset__):
        raise UnsupportedStateError(
            f"{tag_of(cls)} cannot be saved, because it has state outside its attributes; register "
            "a codec with letheon.state.register_codec, or use a class with plain attributes"
        )


def importable_name(value: Any) -> str | None:
    """Return the name by which a class or function can be imported; None if there is none."""
    if isinstance(value, np.ufunc):
        places = ("numpy", "scipy.special")
        names = [f"{p}.{value.__name__}" for p in places if _look_up(p, value.__name__) is value]
        return names[0] if names else None
    module, name = value.__module__, value.__qualname__
    # Compiled PyTorch functions are static methods of a class that their module does not show.
    if isinstance(value, BuiltinFunctionType) and value.__self__ is None:
        name = value.__name__
    if _look_up(module or "", name) is not value:
        return None
    return tag_of(value) if isinstance(value, type) else f"{module}.{name}"


def _look_up(module: str, name: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
