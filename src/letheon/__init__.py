"""Models that can forget: machine unlearning with scikit-learn's habits.

Names are imported when they are first used (PEP 562), so that ``import letheon`` is fast and
needs neither scikit-learn nor torch.

Examples
--------
>>> import letheon
>>> letheon.__version__.count(".")
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from letheon.base import ForgetMixin
    from letheon.compose import DataIndependent, ForgetPipeline, forget
    from letheon.convex import (
        DeltaGradClassifier,
        DescentToDeleteClassifier,
        FisherClassifier,
        InfluenceClassifier,
        InfluenceRegressor,
    )
    from letheon.forest import DaREForestClassifier, DaREForestRegressor
    from letheon.guarantee import Guarantee, MethodFacts
    from letheon.measures import Measure
    from letheon.naive import NaiveUnlearner
    from letheon.persist import load, save
    from letheon.receipt import Receipt
    from letheon.sharded import SISAClassifier, SISARegressor

__version__ = "0.1.0"

__all__ = [
    "DaREForestClassifier",
    "DaREForestRegressor",
    "DataIndependent",
    "DeltaGradClassifier",
    "DescentToDeleteClassifier",
    "FisherClassifier",
    "ForgetMixin",
    "ForgetPipeline",
    "Guarantee",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "Measure",
    "MethodFacts",
    "NaiveUnlearner",
    "Receipt",
    "SISAClassifier",
    "SISARegressor",
    "__version__",
    "forget",
    "load",
    "save",
]

# Where each public name lives; the imports above say the same to type checkers and editors.
_EXPORTS = {
    "DaREForestClassifier": "letheon.forest",
    "DaREForestRegressor": "letheon.forest",
    "DataIndependent": "letheon.compose",
    "DeltaGradClassifier": "letheon.convex",
    "DescentToDeleteClassifier": "letheon.convex",
    "FisherClassifier": "letheon.convex",
    "ForgetMixin": "letheon.base",
    "ForgetPipeline": "letheon.compose",
    "Guarantee": "letheon.guarantee",
    "InfluenceClassifier": "letheon.convex",
    "InfluenceRegressor": "letheon.convex",
    "Measure": "letheon.measures",
    "MethodFacts": "letheon.guarantee",
    "NaiveUnlearner": "letheon.naive",
    "Receipt": "letheon.receipt",
    "SISAClassifier": "letheon.sharded",
    "SISARegressor": "letheon.sharded",
    "forget": "letheon.compose",
    "load": "letheon.persist",
    "save": "letheon.persist",
}

# Modules that are reachable as attributes without an import of their own.
_MODULES = frozenset(
    {
        "base",
        "checks",
        "compose",
        "convex",
        "exceptions",
        "forest",
        "guarantee",
        "measures",
        "naive",
        "parallel",
        "persist",
        "receipt",
        "rows",
        "seeds",
        "sharded",
        "state",
    }
)


def __getattr__(name: str) -> Any:
    """Import a public name or module on first use, and keep it."""
    if name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
    elif name in _MODULES:
        value = import_module(f"letheon.{name}")
    else:
        raise AttributeError(f"module 'letheon' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names and modules, imported or not."""
    return sorted({*__all__, *_MODULES})
