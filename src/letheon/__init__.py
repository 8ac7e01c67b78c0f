"""Models that can forget: machine unlearning with the interface of scikit-learn.

Names are imported when they are first used (PEP 562), so that ``import letheon`` is fast and
needs neither scikit-learn nor torch. In docstrings, *the survey* is Mercuri et al. (2022), "An
Introduction to Machine Unlearning".

Examples
--------
>>> import letheon
>>> letheon.__version__.count(".")
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from letheon.methods import class_paths

if TYPE_CHECKING:
    from letheon.base import ForgetMixin
    from letheon.boosting import BoostingClassifier, BoostingRegressor
    from letheon.compose import DataIndependent, ForgetPipeline, forget
    from letheon.conversion import convert
    from letheon.deep import (
        CertifiedHeadClassifier,
        DeepObliviateClassifier,
        DeltaGradNetClassifier,
        FisherNetClassifier,
        SISANetClassifier,
        SISANetRegressor,
    )
    from letheon.evaluation import Evaluation, evaluate
    from letheon.forest import DaREForestClassifier, DaREForestRegressor
    from letheon.guarantee import Guarantee, MethodFacts
    from letheon.ledger import Ledger
    from letheon.linear import (
        DeltaGradClassifier,
        DescentToDeleteClassifier,
        FisherClassifier,
        InfluenceClassifier,
        InfluenceRegressor,
    )
    from letheon.measures import Measure
    from letheon.monitor import Monitor
    from letheon.naive import NaiveUnlearner
    from letheon.persist import load, save
    from letheon.receipt import Receipt
    from letheon.search import ForgetSearchCV
    from letheon.sharded import SISAClassifier, SISARegressor
    from letheon.versions import show_versions

__version__ = "0.1.0"

__all__ = [
    "BoostingClassifier",
    "BoostingRegressor",
    "CertifiedHeadClassifier",
    "DaREForestClassifier",
    "DaREForestRegressor",
    "DataIndependent",
    "DeepObliviateClassifier",
    "DeltaGradClassifier",
    "DeltaGradNetClassifier",
    "DescentToDeleteClassifier",
    "Evaluation",
    "FisherClassifier",
    "FisherNetClassifier",
    "ForgetMixin",
    "ForgetPipeline",
    "ForgetSearchCV",
    "Guarantee",
    "InfluenceClassifier",
    "InfluenceRegressor",
    "Ledger",
    "Measure",
    "MethodFacts",
    "Monitor",
    "NaiveUnlearner",
    "Receipt",
    "SISAClassifier",
    "SISANetClassifier",
    "SISANetRegressor",
    "SISARegressor",
    "__version__",
    "convert",
    "evaluate",
    "forget",
    "load",
    "save",
    "show_versions",
]

# Module of each public name; the imports above are for type checkers and editors.
_EXPORTS = class_paths(exported_only=True) | {
    "DataIndependent": "letheon.compose",
    "Evaluation": "letheon.evaluation",
    "ForgetMixin": "letheon.base",
    "Guarantee": "letheon.guarantee",
    "Ledger": "letheon.ledger",
    "Measure": "letheon.measures",
    "MethodFacts": "letheon.guarantee",
    "Monitor": "letheon.monitor",
    "Receipt": "letheon.receipt",
    "convert": "letheon.conversion",
    "evaluate": "letheon.evaluation",
    "forget": "letheon.compose",
    "load": "letheon.persist",
    "save": "letheon.persist",
    "show_versions": "letheon.versions",
}
__all__ += sorted(_EXPORTS.keys() - set(__all__))  # noqa: PLE0605  (methods only registered)

# Modules that are available as attributes without a separate import.
_MODULES = frozenset(
    {
        "audit",
        "base",
        "bench",
        "boosting",
        "checks",
        "client",
        "compose",
        "conversion",
        "datasets",
        "data",
        "linear",
        "deep",
        "evaluation",
        "exceptions",
        "forest",
        "guarantee",
        "ledger",
        "measures",
        "methods",
        "mlflow",
        "monitor",
        "naive",
        "neighbors",
        "parallel",
        "persist",
        "plot",
        "predictor",
        "preprocessing",
        "receipt",
        "recommend",
        "seeds",
        "select",
        "service",
        "sharded",
        "state",
        "sums",
        "verifier",
    }
)

# Third-party packages that an extra installs.
_EXTRAS = {
    "alembic": "letheon[ledger]",
    "cryptography": "letheon[ledger]",
    "fastapi": "letheon[service]",
    "limits": "letheon[service]",
    "mlflow": "letheon[mlflow]",
    "multipart": "letheon[service]",
    "onnx": "letheon[interop]",
    "prometheus_client": "letheon[service]",
    "psycopg": "letheon[ledger]",
    "sqlalchemy": "letheon[ledger]",
    "torch": "letheon[torch]",
    "uvicorn": "letheon[service]",
}


def _import_module(module: str) -> Any:
    """Import a module of this package.

    Raise `ImportError` with the ``pip install`` command if a required package is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "letheon").partition(".")[0]
        if missing == "letheon":
            raise
        raise ImportError(
            f"{module} needs {missing}, which is not installed: "
            f"pip install '{_EXTRAS.get(missing, missing)}'",
            name=missing,
        ) from error


def __getattr__(name: str) -> Any:
    """Import a public name or module on first use."""
    if name in _EXPORTS:
        value = getattr(_import_module(_EXPORTS[name]), name)
    elif name in _MODULES:
        value = _import_module(f"letheon.{name}")
    else:
        raise AttributeError(f"module 'letheon' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List all public names and modules, including those not imported yet."""
    return sorted({*__all__, *_MODULES})
