"""Parts of an estimator: their places in a pipeline, and what they are converted to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sklearn.utils import get_tags

from letheon.base import ForgetMixin
from letheon.conversion._report import ConversionRow
from letheon.preprocessing import ForgetColumnTransformer
from letheon.steps import passes_through

# Monotone in each column, so that they do not change the splits of a tree.
SCALERS = frozenset(
    {"MaxAbsScaler", "MinMaxScaler", "PowerTransformer", "RobustScaler", "StandardScaler"}
)
_TREES = frozenset(
    f"{family}{task}"
    for family in (
        "DecisionTree",
        "ExtraTrees",
        "GradientBoosting",
        "HistGradientBoosting",
        "LGBM",
        "RandomForest",
        "XGB",
    )
    for task in ("Classifier", "Regressor")
)
_VECTORISERS = frozenset(["CountVectorizer", "HashingVectorizer", "TfidfVectorizer"])
_DECOMPOSITIONS = frozenset(["LatentDirichletAllocation", "NMF", "PCA", "TruncatedSVD"])
# Parameters that make the output dense.
DENSE: Mapping[str, Mapping[str, Any]] = {
    "OneHotEncoder": {"sparse_output": False},
    "KBinsDiscretizer": {"encode": "onehot-dense"},
}


# From a parameter of the original and its value to parameters of the result.
Translation = Callable[[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class ConvertedPart:
    """A converted part: estimator, rows of the report, and translation of parameters."""

    estimator: Any
    rows: tuple[ConversionRow, ...]
    translate: Translation


@dataclass(frozen=True)
class Place:
    """Where a part is, and what the steps around it need.

    Attributes
    ----------
    step : str
        Names of the steps, as in `set_params`; empty for the whole.
    is_last : bool
        Whether the part is the model, not a transformer in front of it.
    for_trees : bool
        Whether its output goes to trees without a step in between.
    dense : str
        Class of a later step that takes no sparse matrices; empty if all take them.
    gets_terms : bool
        Whether its input is a sparse matrix of terms.
    """

    step: str = ""
    is_last: bool = False
    for_trees: bool = False
    dense: str = ""
    gets_terms: bool = False

    def enter(self, name: str, **changes: Any) -> "Place":
        """Return the place of a part of this part."""
        step = f"{self.step}__{name}" if self.step else name
        return replace(self, step=step, **changes)

    def describe(self, part: Any) -> str:
        """Return step and class of a part for an error message."""
        kind = part if isinstance(part, str) else type(part).__name__
        return f"step {self.step!r} ({kind})" if self.step else kind


def returns_terms(steps: Iterable[Any]) -> bool:
    """Return whether a chain of steps returns a sparse matrix of terms."""
    has_terms = False
    for step in steps:
        inner = step.get_params(deep=True).values() if hasattr(step, "get_params") else ()
        names = {type(part).__name__ for part in (step, *inner)}
        has_terms = (has_terms or bool(names & _VECTORISERS)) and not names & _DECOMPOSITIONS
    return has_terms


def takes_sparse(model: Any) -> bool:
    """Return whether a model gets sparse matrices in a pipeline.

    A forest does not: its columns can leave and arrive without a fit only if they are dense.
    """
    is_forest = isinstance(model, ForgetMixin) and "forest" in model.facts.families
    return not is_forest and bool(get_tags(model).input_tags.sparse)


def look_behind(part: Any, converted: Any, place: Place) -> Place:
    """Return what the step in front of a part has to know."""
    if passes_through(converted):
        return place
    name = type(part).__name__
    is_tree = name in _TREES or (isinstance(part, ForgetMixin) and "forest" in part.facts.families)
    later = "" if name in _DECOMPOSITIONS else place.dense
    dense = later if takes_sparse(converted) else type(converted).__name__
    return replace(place, for_trees=is_tree, dense=dense)


def explain_dense(dense: Mapping[str, Any], place: Place) -> list[str]:
    """Return the note on parameters that make the output dense."""
    settings = ", ".join(f"{name}={value!r}" for name, value in dense.items())
    return [f"{settings}: {place.dense} takes no sparse matrices"] if dense else []


def prefix_with(name: str) -> Translation:
    """Return the translation into parameters of an inner estimator."""
    return lambda key, value: {f"{name}__{key}": value}


def make_forgetting(name: str, converted: ConvertedPart) -> ConvertedPart:
    """Return a part as a last step of a `ForgetPipeline`, which must have `forget`."""
    if isinstance(converted.estimator, ForgetMixin):
        return converted
    model = ForgetColumnTransformer(
        [(name, converted.estimator, slice(None))], verbose_feature_names_out=False
    )

    def translate(key: str, value: Any) -> Mapping[str, Any]:
        renamed = converted.translate(key, value)
        return {f"{name}__{inner}": setting for inner, setting in renamed.items()}

    return ConvertedPart(model, converted.rows, translate)


def add_note(converted: ConvertedPart, note: str) -> ConvertedPart:
    """Return the part with a note in its first row."""
    first, *others = converted.rows
    return replace(converted, rows=(first.with_notes(note), *others))


def explain_output(part: Any, unused: Sequence[str] = ()) -> list[str]:
    """Return notes on settings of a part that have no effect."""
    config = getattr(part, "_sklearn_output_config", {})
    notes = ["set_output is not carried over"] if config.get("transform") else []
    return [*notes, f"without effect: {', '.join(unused)}"] if unused else notes
