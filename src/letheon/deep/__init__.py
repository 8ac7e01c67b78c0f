"""Neural networks that forget: any PyTorch module, trained by one deterministic loop.

This package needs torch: ``pip install 'letheon[torch]'``.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "letheon.deep needs torch, which is not installed: pip install 'letheon[torch]'",
        name="torch",
    ) from error

from typing import TYPE_CHECKING, Any

from letheon.deep._adapters import LoRA, save_adapters
from letheon.deep._augment import RowGenerator
from letheon.deep._backbone import Backbone
from letheon.deep._deltagrad import DeltaGradNetClassifier
from letheon.deep._fisher import FisherNetClassifier
from letheon.deep._head import CertifiedHeadClassifier
from letheon.deep._information import gaussian_kl
from letheon.deep._loop import Progress
from letheon.deep._nets import CNN, MLP, ResNet
from letheon.deep._obliviate import DeepObliviateClassifier
from letheon.deep._sisa import SISANetClassifier, SISANetRegressor

if TYPE_CHECKING:
    from letheon.deep._exact_head import ExactHeadClassifier

__all__ = [
    "CNN",
    "MLP",
    "Backbone",
    "CertifiedHeadClassifier",
    "DeepObliviateClassifier",
    "DeltaGradNetClassifier",
    "ExactHeadClassifier",
    "FisherNetClassifier",
    "LoRA",
    "Progress",
    "ResNet",
    "RowGenerator",
    "SISANetClassifier",
    "SISANetRegressor",
    "gaussian_kl",
    "save_adapters",
]


def __getattr__(name: str) -> Any:
    """Import the exact head when it is used: only its sums need the compiled core."""
    if name == "ExactHeadClassifier":
        from letheon.deep._exact_head import ExactHeadClassifier

        return ExactHeadClassifier
    raise AttributeError(f"module 'letheon.deep' has no attribute {name!r}")
