"""The survey's data sets, and distributions of deletion requests.

`load` reads every data set of the survey's Table 1 (Mercuri et al., 2022) from the provider's files
under ``$LETHEON_DATA``, or generates a synthetic table of the same shape. Nothing is downloaded.
"""

from letheon.datasets._dataset import Dataset, info, load, names, present
from letheon.datasets._deletions import Requests
from letheon.datasets._spec import DataFile, DatasetInfo, SurveyRow, data_home
from letheon.exceptions import DatasetFormatError, DatasetMissingError

__all__ = [
    "DataFile",
    "Dataset",
    "DatasetFormatError",
    "DatasetInfo",
    "DatasetMissingError",
    "Requests",
    "SurveyRow",
    "data_home",
    "info",
    "load",
    "names",
    "present",
]
