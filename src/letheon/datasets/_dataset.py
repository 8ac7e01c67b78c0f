"""Data sets by name: rows, labels and ids, from real files or as synthetic tables.

`catalogue.toml` describes each data set.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from letheon.datasets import _pictures, _spec, _tables
from letheon.datasets._spec import DatasetArrays, DatasetInfo, Encoding, ReadJob, Task, data_home
from letheon.datasets._synthetic import make_synthetic
from letheon.exceptions import DatasetFormatError, DatasetMissingError

Synthetic = Literal["never", "if-absent", "always"]

# Readers of files that are not plain tables of numbers and words.
_READERS: dict[str, Callable[[ReadJob], DatasetArrays]] = {
    "mnist": _pictures.read_mnist,
    "covtype": _tables.read_covtype,
    "higgs": _tables.read_higgs,
    "epsilon": partial(_tables.read_svm, width=2_000, is_dense=True),
    "cifar-2": partial(_pictures.read_cifar10, kinds=("cat", "ship")),
    "cifar-10": _pictures.read_cifar10,
    "cifar-100": _pictures.read_cifar100,
    "lsun": _pictures.read_lsun,
    "sst": _tables.read_sst,
    "svhn": _pictures.read_svhn,
    "rcv1": partial(_tables.read_svm, width=47_236, is_dense=False),
    "purchase": _tables.read_purchase,
    "imagenet": _pictures.read_imagenet,
    "mini-imagenet": _pictures.read_imagenet,
    "vaccine": _tables.read_vaccine,
    "credit-card": _tables.read_credit_card,
    "ctr": _tables.read_ctr,
    "twitter": _tables.read_twitter,
    "lacuna-10": _pictures.read_lacuna,
    "lacuna-100": _pictures.read_lacuna,
}


def _make_file(entry: dict[str, Any]) -> _spec.DataFile:
    """Return a file from its entry in the catalogue.

    A single digest or number of rows applies to all alternative names of the file.
    """
    names = tuple(entry["names"])
    for key in ("sha256", "rows"):
        value = entry.get(key, {})
        entry[key] = value if isinstance(value, dict) else dict.fromkeys(names, value)
    return _spec.DataFile(**{**entry, "names": names, "variants": tuple(entry.get("variants", ()))})


def _make_stand_in(entry: dict[str, Any]) -> _spec.StandIn:
    """Return the shape of a synthetic table from its entry in the catalogue.

    If `shares` is a number of classes, all classes are equally frequent.
    """
    shares = entry.pop("shares", 2)
    shares = [1 / shares] * shares if isinstance(shares, int) else shares
    words = tuple(entry.pop("n_words", ()))
    return _spec.StandIn(**entry, n_words=words, shares=tuple(shares))


def _by_variant(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the values of an entry by variant.

    The key `name` has one value for all variants; the plural of `name` has a value for each.
    """
    return entry.pop(f"{name}s", None) or {"": entry.pop(name)}


def _make_spec(name: str, entry: dict[str, Any]) -> DatasetInfo:
    reader, shape = _READERS.get(name), entry.pop("image_shape", None)
    if reader is None:
        tables = _by_variant(entry, "table")
        TABLES[name] = {key: _tables.TableSpec(**table) for key, table in tables.items()}
        reader = partial(_tables.read_table, specs=TABLES[name])
    stand_ins = _by_variant(entry, "stand_in")
    return DatasetInfo(
        name=name,
        files=tuple(map(_make_file, entry.pop("files"))),
        survey=_spec.SurveyRow(**entry.pop("survey")),
        image_shape=shape and tuple(shape),
        reader=reader,
        stand_ins={key: _make_stand_in(values) for key, values in stand_ins.items()},
        **entry,
    )


_CATALOGUE = tomllib.loads(files("letheon.datasets").joinpath("catalogue.toml").read_text("utf-8"))
TABLES: dict[str, dict[str, _tables.TableSpec]] = {}
SPECS = {name: _make_spec(name, entry) for name, entry in _CATALOGUE.items()}


@dataclass(frozen=True, kw_only=True)
class Dataset(DatasetArrays):
    """Training rows, test rows if there is a split, and a description of the data set.

    Attributes
    ----------
    name : str
        Name and variant; contains "synthetic" for a synthetic table.
    X : ndarray of float32, C-contiguous, or scipy.sparse.csr_array of float32
        Training rows. Columns are not scaled, but images are divided by 255.
    y : ndarray of int64
        Labels, starting at 0.
    ids : ndarray or None
        Id of each training row; None if every row belongs to a different person.
    X_test, y_test, test_ids
        The same for the provider's test rows; None if the provider has none. See `split`.
    feature_names : tuple of str
        Names of the columns; empty for images and sparse tables.
    task : {"classification", "regression"}
        Kind of y.
    info : DatasetInfo
        Provider, licence, and the survey's numbers.
    real : bool
        False for a synthetic table.
    note : str
        Remark to publish with every result, such as "JPEG copies, lossy".

    Examples
    --------
    >>> from letheon.datasets import load
    >>> data = load("diabetes", synthetic="always", n_rows=300).split(0.25, seed=0)
    >>> data.describe()
    'diabetes (synthetic): 2... x 292, 1... people, 2 classes, ... positive, ... rows to test'
    >>> bool(set(data.ids) & set(data.test_ids))
    False
    """

    name: str
    task: Task = "classification"
    info: DatasetInfo
    real: bool

    @property
    def people(self) -> NDArray[Any]:
        """Distinct ids of the training rows; row numbers if there are no ids."""
        return np.arange(len(self.y)) if self.ids is None else np.unique(self.ids)

    def split(self, test_share: float = 0.2, seed: int = 0) -> "Dataset":
        """Return the data set with some people held out for testing.

        A data set that already has test rows is returned unchanged.

        Parameters
        ----------
        test_share : float, default=0.2
            Share of the people to hold out, between 0 and 1 (both excluded). At least one person is
            held out, and at least one remains.
        seed : int, default=0
            Seed of the shuffle of people.

        Returns
        -------
        Dataset
            The split data set. No person has both training and test rows.
        """
        if self.X_test is not None:
            return self
        if not 0 < test_share < 1:
            raise ValueError(
                f"test_share={test_share} is not valid; expected a number between 0 "
                f"and 1, both excluded"
            )
        people = np.random.default_rng(seed).permutation(self.people)
        if len(people) < 2:
            raise ValueError(
                "the data set has only one person; a split into training and test rows needs at "
                "least two people"
            )
        n_test = min(max(round(test_share * len(people)), 1), len(people) - 1)
        owners = np.arange(len(self.y)) if self.ids is None else self.ids
        is_test = np.isin(owners, people[:n_test])
        test = np.flatnonzero(is_test)
        return replace(
            self._take_rows(np.flatnonzero(~is_test)),
            X_test=self.X[test],
            y_test=self.y[test],
            test_ids=None if self.ids is None else self.ids[test],
        )

    def sample(self, n_rows: int, seed: int = 0) -> "Dataset":
        """Return the data set with a random sample of the training rows, and all test rows.

        All rows of a sampled person are included, so there may be slightly fewer rows than
        `n_rows`. If the data set has no more than `n_rows` rows, all are returned. Rows keep their
        order.
        """
        if n_rows < 1:
            raise ValueError(f"n_rows={n_rows} is not valid; expected at least 1")
        if n_rows >= len(self.y):
            return self
        rng = np.random.default_rng(seed)
        if self.ids is None:
            return self._take_rows(np.sort(rng.permutation(len(self.y))[:n_rows]))
        people, owners = np.unique(self.ids, return_inverse=True)
        order = rng.permutation(len(people))
        n_owned = np.cumsum(np.bincount(owners)[order])
        n_people = max(1, int(np.searchsorted(n_owned, n_rows, side="right")))
        chosen = np.zeros(len(people), bool)
        chosen[order[:n_people]] = True
        return self._take_rows(np.flatnonzero(chosen[owners]))

    def describe(self) -> str:
        """Return a description of the data set in one line."""
        parts = [f"{self.name}: {self.X.shape[0]:,} x {self.X.shape[1]:,}"]
        if self.ids is not None:
            parts.append(f"{len(self.people):,} people")
        if self.task == "classification":
            classes = np.unique(self.y)
            parts.append(f"{len(classes)} classes")
            if len(classes) == 2:
                parts.append(f"{np.mean(self.y == classes[1]):.1%} positive")
        if self.y_test is not None:
            parts.append(f"{len(self.y_test):,} rows to test")
        return ", ".join(parts) + (f" ({self.note})" if self.note else "")

    def images(self, X: Any = None) -> NDArray[np.float32]:
        """Return the rows of X as images of shape (n, channels, height, width).

        By default, X are the training rows.
        """
        if self.info.image_shape is None:
            raise ValueError(f"the rows of {self.name!r} are not images")
        return np.asarray(self.X if X is None else X).reshape(-1, *self.info.image_shape)

    def _take_rows(self, rows: NDArray[np.int64]) -> "Dataset":
        ids = None if self.ids is None else self.ids[rows]
        return replace(self, X=self.X[rows], y=self.y[rows], ids=ids)


def names() -> tuple[str, ...]:
    """Return the names of all data sets, in the order of the survey's table.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from letheon import datasets
    >>> len(datasets.names())
    27
    """
    return tuple(SPECS)


def info(name: str) -> DatasetInfo:
    """Return the description of a data set; no file is opened.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    DatasetInfo

    Raises
    ------
    ValueError
        There is no data set with this name.

    Examples
    --------
    >>> from letheon import datasets
    >>> datasets.info("diabetes").subject_id
    'patient_nbr'
    """
    if name not in SPECS:
        near = get_close_matches(name, SPECS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(SPECS)}"
        raise ValueError(f"unknown data set {name!r}; {hint}")
    return SPECS[name]


def present(name: str, folder: str | Path | None = None, *, variant: str | None = None) -> bool:
    """Return whether the files of a data set exist; they are not opened.

    Parameters
    ----------
    name : str
        One of `names`.
    folder : path, optional
        Folder that contains one folder per data set; by default ``$LETHEON_DATA`` or
        ``~/.cache/letheon``.
    variant : str, optional
        The variant to check; variants may need different files.

    Returns
    -------
    bool

    Raises
    ------
    ValueError
        There is no such data set or variant.

    Examples
    --------
    >>> from letheon import datasets
    >>> datasets.present("adult", "a-folder-without-files")
    False
    """
    about = info(name)
    return _is_there(about, data_home(folder), _check_variant(about, variant))


def load(
    name: str,
    *,
    variant: str | None = None,
    folder: str | Path | None = None,
    synthetic: Synthetic = "never",
    n_rows: int | None = None,
    seed: int = 0,
    encode: Encoding = "one-hot",
    check: bool = True,
) -> Dataset:
    """Read a data set of the survey's table from the provider's files, or generate one.

    Parameters
    ----------
    name : str
        One of `names`.
    variant : str, optional
        One of ``info(name).variants``; by default the first.
    folder : path, optional
        Folder that contains one folder per data set; by default ``$LETHEON_DATA`` or
        ``~/.cache/letheon``.
    synthetic : {"never", "if-absent", "always"}, default="never"
        Whether to generate a synthetic table of the same shape. Its name contains "synthetic", and
        `real` is False. The table takes at most 256 MiB unless `n_rows` is given.
    n_rows : int, optional
        Size of a random sample of the training rows; all rows of a sampled person are included. All
        test rows are kept, but at most `n_rows` image files are decoded for testing.
    seed : int, default=0
        Seed of the sample and of a synthetic table.
    encode : {"one-hot", "ordinal"}, default="one-hot"
        How columns of words are encoded: "one-hot" for linear models, "ordinal" for forests.
    check : bool, default=True
        Compare the content (SHA-256) or the number of rows with the published value.

    Returns
    -------
    Dataset
        Columns are not scaled, except that images are divided by 255.

    Raises
    ------
    DatasetMissingError
        Files are missing; the message lists them, their provider, and where to put them.
    DatasetFormatError
        A file differs from the published file.
    ValueError
        `n_rows` is below 1, or the name is unknown.

    Examples
    --------
    >>> from letheon.datasets import load
    >>> load("adult", synthetic="always", n_rows=500, encode="ordinal").describe()
    'adult (synthetic): 500 x 14, 2 classes, ... positive, 250 rows to test'
    """
    _check_choice("synthetic", synthetic, get_args(Synthetic))
    _check_choice("encode", encode, get_args(Encoding))
    if n_rows is not None and n_rows < 1:
        raise ValueError(f"n_rows={n_rows} is not valid; expected at least 1")
    about = info(name)
    chosen = _check_variant(about, variant)
    home = data_home(folder)
    is_there = _is_there(about, home, chosen)
    if synthetic == "always" or (synthetic == "if-absent" and not is_there):
        made = make_synthetic(about, chosen, n_rows=n_rows, seed=seed, encode=encode)
        return _make_dataset(about, chosen, made, real=False)
    if not is_there:
        raise DatasetMissingError(about.how_to_get(str(home), chosen))
    job = ReadJob(
        info=about, home=home, variant=chosen, encode=encode, n_rows=n_rows, seed=seed, check=check
    )
    data = _make_dataset(about, chosen, _read_files(job), real=True)
    return data if n_rows is None else data.sample(n_rows, seed)


def _read_files(job: ReadJob) -> DatasetArrays:
    """Read the files of a data set; error messages name the folder."""
    try:
        return job.info.reader(job)
    except DatasetFormatError as error:
        where = str(job.home / job.info.folder)
        if where in str(error):
            raise
        raise DatasetFormatError(f"{where}: {error}") from error


def _make_dataset(
    about: DatasetInfo, variant: str, loaded: DatasetArrays, *, real: bool
) -> Dataset:
    is_default = not about.variants or variant == next(iter(about.variants))
    title = about.name if is_default else f"{about.name} {variant}"
    arrays = vars(loaded)
    for part in ("X", "X_test"):
        if isinstance(arrays[part], np.ndarray):
            arrays = arrays | {part: np.ascontiguousarray(arrays[part])}
    name = title if real else f"{title} (synthetic)"
    return Dataset(name=name, task=about.task, info=about, real=real, **arrays)


def _is_there(about: DatasetInfo, home: Path, variant: str) -> bool:
    needed = (file for file in about.files if file.is_needed(variant))
    return all(file.find(home / about.folder) is not None for file in needed)


def _check_variant(about: DatasetInfo, variant: str | None) -> str:
    if variant is None:
        return next(iter(about.variants), "")
    if variant not in about.variants:
        there_are = ", ".join(map(repr, about.variants)) or "none"
        raise ValueError(
            f"variant={variant!r} is unknown; the variants of {about.name!r} are: {there_are}"
        )
    return variant


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"{what}={value!r} is unknown; expected one of {', '.join(map(repr, allowed))}"
        )
