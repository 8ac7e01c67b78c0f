"""What is known about a dataset before any file of it is opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

__all__ = ["NOBODY", "UNVERIFIED", "DataFile", "DatasetInfo", "Encoding", "SurveyRow", "Task"]

Task = Literal["classification", "regression"]
Encoding = Literal["one-hot", "ordinal"]
NOBODY = "none"  # subject_id where every row is a person of its own
UNVERIFIED = "unverified"
_COUNTED = "counted in the provider's files"
_LISTED = "list of terms that came with our copy of the files"
_KRIZHEVSKY = "https://huggingface.co/datasets/uoft-cs/cifar10 (licence: unknown)"
# Where the licence and the row counts of a data set were looked up; others are unverified.
_LICENCE_SOURCES = {
    **dict.fromkeys(("adult", "census", "covtype", "diabetes", "higgs", "mnist"), _LISTED),
    **dict.fromkeys(("cifar-2", "cifar-10"), _KRIZHEVSKY),
    "ctr": "https://huggingface.co/datasets/criteo/CriteoClickLogs",
    "svhn": "https://huggingface.co/datasets/ufldl-stanford/svhn (custom, non-commercial)",
}
_ROW_SOURCES = {
    **dict.fromkeys(("adult", "census", "cifar-2", "cifar-10", "diabetes", "mnist"), _COUNTED),
    **dict.fromkeys(("covtype", "higgs"), f"sample: {_COUNTED}; full file: {UNVERIFIED}"),
    "bank": (
        "https://www.rdocumentation.org/packages/FFTrees/versions/1.1.4/topics/bank (bank-full), "
        "https://github.com/nguyentruonglau/bank-marketing (bank-additional-full)"
    ),
    "credit-card": (
        "the provider's description, as quoted by "
        "https://baselight.app/u/kaggle/dataset/saurabhbadole_credit_card_dataset"
    ),
    "epsilon": "https://catboost.ai/docs/en/concepts/python-reference_datasets_epsilon",
}


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """A row of the survey's table of datasets (Mercuri et al. 2022, Table 1), as printed.

    Attributes
    ----------
    dimensionality, size, classes, balance : str
        Number of features, of rows, of classes, and the share of positive labels.
    """

    dimensionality: str
    size: str
    classes: str
    balance: str = "N/A"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of the provider, or several spellings of it of which one is enough.

    Attributes
    ----------
    names : tuple of str
        Names without ``.gz``, ``.xz`` or ``.bz2``; a compressed file is read as it is. A name that
        ends with ``/`` is a folder.
    sha256 : mapping of str to str
        Digests of the content (decompressed) by name, where we have seen the real file.
    rows : mapping of str to int
        Number of rows by name; it is compared where there is no digest.
    optional : bool
        Whether the dataset can be read without it.
    variants : tuple of str
        Variants that need the file; empty: all of them.
    """

    names: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=_nothing)
    rows: Mapping[str, int] = field(default_factory=dict)
    optional: bool = False
    variants: tuple[str, ...] = ()

    def is_needed(self, variant: str) -> bool:
        """Say whether a variant cannot be read without the file."""
        return not self.optional and (not self.variants or variant in self.variants)

    def __str__(self) -> str:
        """Name the spellings: ``a or b``."""
        return " or ".join(self.names) + (" (optional)" if self.optional else "")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Where a dataset comes from, under which terms, and how its rows belong to people.

    Attributes
    ----------
    name, title : str
        Name for `load`, and the full one.
    folder : str
        Folder below ``$LETHEON_DATA`` in which the files are looked for.
    files : tuple of DataFile
        What has to be in that folder.
    provider, page : str
        Who gives the files out, and the address of the page that says how.
    licence, citation : str
        Terms of use, and the work to cite.
    subject_id : str
        Column that says whose row it is, or ``"none"``: then every row is a person of its own.
    survey : SurveyRow
        The survey's row as printed.
    note : str
        What one has to know: where the survey's numbers are wrong, what the encoding fixes.
    variants : mapping of str to str
        Names for ``load(..., variant=)``, and what they are. The first is the default.
    image_shape : tuple of int or None
        Channels, height and width of an image; rows of X are images laid out flat in this order.
    has_words : bool
        Whether ``encode=`` makes a difference.
    task : {"classification", "regression"}
        Kind of y.
    """

    name: str
    title: str
    folder: str
    files: tuple[DataFile, ...]
    provider: str
    page: str
    licence: str
    citation: str
    survey: SurveyRow
    subject_id: str = NOBODY
    note: str = ""
    variants: Mapping[str, str] = field(default_factory=_nothing)
    image_shape: tuple[int, int, int] | None = None
    has_words: bool = False
    task: Task = "classification"

    @property
    def licence_source(self) -> str:
        """Where the licence was looked up, or "unverified": ask the provider."""
        return _LICENCE_SOURCES.get(self.name, UNVERIFIED)

    @property
    def rows_source(self) -> str:
        """Where the numbers of rows were looked up, or "unverified"."""
        return _ROW_SOURCES.get(self.name, UNVERIFIED)

    def how_to_get(self, home: str, variant: str = "") -> str:
        """Say in words which files are needed, from whom, and where they go."""
        files = "\n".join(
            f"  {home}/{self.folder}/{file}"
            for file in self.files
            if file.optional or file.is_needed(variant)
        )
        return (
            f"files of {self.name!r} ({self.title}) are not there. Needed, compressed "
            f"(.gz, .xz, .bz2) or not:\n{files}\n"
            f"Provider: {self.provider}, {self.page}\n"
            f"Terms: {self.licence} ({self.licence_source})\n"
            + (f"Note: {self.note}\n" if self.note else "")
            + "Another folder: set the environment variable LETHEON_DATA, or give folder=. "
            'A made-up table of the same shape: synthetic="if-absent".'
        )
