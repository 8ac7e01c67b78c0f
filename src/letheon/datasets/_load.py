"""Datasets by name: all of the survey's table, real files or made-up stand-ins."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from letheon.datasets import (
    _cifar,
    _digits,
    _events,
    _folders,
    _health,
    _income,
    _numeric,
    _purchase,
    _sst,
)
from letheon.datasets._dataset import Dataset
from letheon.datasets._files import data_home, find
from letheon.datasets._info import NOBODY, DatasetInfo, Encoding
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import make
from letheon.exceptions import DatasetFormatError, DatasetMissingError

__all__ = ["Synthetic", "info", "load", "names", "present"]

Synthetic = Literal["never", "if-absent", "always"]

# In the order of the survey's table.
_ORDER = (
    "mnist", "covtype", "higgs", "epsilon", "cifar-2", "cifar-10", "cifar-100", "lsun", "sst",
    "svhn", "rcv1", "purchase", "imagenet", "mini-imagenet", "surgical", "vaccine", "adult",
    "bank", "diabetes", "no-show", "olympics", "census", "credit-card", "ctr", "twitter",
    "lacuna-10", "lacuna-100",
)  # fmt: skip
_MODULES = (_cifar, _digits, _events, _folders, _health, _income, _numeric, _purchase, _sst)
_BY_NAME: dict[str, Source] = {
    source.info.name: source for module in _MODULES for source in module.SOURCES
}
_SOURCES = {name: _BY_NAME[name] for name in _ORDER}


def names() -> tuple[str, ...]:
    """Return the names of all datasets, in the order of the survey's table.

    Examples
    --------
    >>> from letheon import datasets
    >>> len(datasets.names())
    27
    """
    return tuple(_SOURCES)


def info(name: str) -> DatasetInfo:
    """Return what is known about a dataset; no file is opened.

    Examples
    --------
    >>> from letheon import datasets
    >>> datasets.info("diabetes").subject_id
    'patient_nbr'
    """
    return _source(name).info


def present(name: str, folder: str | Path | None = None, *, variant: str | None = None) -> bool:
    """Say whether the files of a dataset are there; they are not opened.

    Parameters
    ----------
    name : str
        One of `names`.
    folder : path, optional
        Folder of all datasets; default ``$LETHEON_DATA``, else ``~/.cache/letheon``.
    variant : str, optional
        Variants may need different files.
    """
    source = _source(name)
    return _is_there(source.info, data_home(folder), _variant(source.info, variant))


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
    """Read a dataset of the survey's table from the provider's files, or make one up.

    Parameters
    ----------
    name : str
        One of `names`.
    variant : str, optional
        One of ``info(name).variants``; the first of them by default.
    folder : path, optional
        Folder of all datasets, with a folder of each in it; default ``$LETHEON_DATA``, else
        ``~/.cache/letheon``.
    synthetic : {"never", "if-absent", "always"}, default="never"
        Whether a made-up table of the same shape may stand in. Its name says so, and `real` is
        False. It has at most 256 MiB unless `n_rows` is given.
    n_rows : int, optional
        A random sample of so many training rows; people come with all their rows. Test rows stay,
        but of picture files at most as many are decoded.
    seed : int, default=0
        Seed of the sample and of a made-up table.
    encode : {"one-hot", "ordinal"}, default="one-hot"
        How words become numbers: linear models want the first, forests the second.
    check : bool, default=True
        Compare the content (SHA-256) or the number of rows with the published one.

    Returns
    -------
    Dataset
        Columns are not scaled, except that images are divided by 255.

    Raises
    ------
    DatasetMissingError
        Files are not there; the text says which, from whom, and where to put them.
    DatasetFormatError
        A file is not what the provider publishes.

    Examples
    --------
    >>> from letheon.datasets import load
    >>> load("adult", synthetic="always", n_rows=500, encode="ordinal").describe()
    'adult (synthetic): 500 x 14, 2 classes, ... positive, 250 rows to test'
    """
    _one_of("synthetic", synthetic, get_args(Synthetic))
    _one_of("encode", encode, get_args(Encoding))
    if n_rows is not None and n_rows < 1:
        raise ValueError(f"n_rows={n_rows}; expected at least 1")
    source = _source(name)
    chosen = _variant(source.info, variant)
    home = data_home(folder)
    is_there = _is_there(source.info, home, chosen)
    if synthetic == "always" or (synthetic == "if-absent" and not is_there):
        return _made_up(source, chosen, n_rows, seed, encode)
    if not is_there:
        raise DatasetMissingError(source.info.how_to_get(str(home), chosen))
    job = Job(
        info=source.info,
        home=home,
        variant=chosen,
        encode=encode,
        n_rows=n_rows,
        seed=seed,
        check=check,
    )
    data = _dataset(source.info, chosen, _read(source, job), real=True)
    return data if n_rows is None else data.sample(n_rows, seed)


def _read(source: Source, job: Job) -> Loaded:
    """Read the files; what is wrong with them says where they are."""
    try:
        return source.read(job)
    except DatasetFormatError as error:
        where = str(job.home / source.info.folder)
        if where in str(error):
            raise
        raise DatasetFormatError(f"{where}: {error}") from error


def _made_up(
    source: Source, variant: str, n_rows: int | None, seed: int, encode: Encoding
) -> Dataset:
    shape = source.stand_ins[variant]
    # Tables without words have their indicators as columns, whatever the encoding.
    how = encode if source.info.has_words else "one-hot"
    made = make(f"{source.info.name} {variant}", shape, n_rows=n_rows, seed=seed, encode=how)
    n = made.n_train
    loaded = Loaded(made.X[:n], made.y[:n], made.ids[:n], feature_names=made.names)
    if shape.n_test:
        loaded = loaded._replace(X_test=made.X[n:], y_test=made.y[n:], test_ids=made.ids[n:])
    if source.info.subject_id == NOBODY:
        loaded = loaded._replace(ids=None, test_ids=None)
    return _dataset(source.info, variant, loaded, real=False)


def _dataset(about: DatasetInfo, variant: str, loaded: Loaded, *, real: bool) -> Dataset:
    is_default = not about.variants or variant == next(iter(about.variants))
    title = about.name if is_default else f"{about.name} {variant}"
    return Dataset(
        name=title if real else f"{title} (synthetic)",
        X=_tidy(loaded.X),
        y=loaded.y,
        ids=loaded.ids,
        X_test=None if loaded.X_test is None else _tidy(loaded.X_test),
        y_test=loaded.y_test,
        test_ids=loaded.test_ids,
        feature_names=loaded.feature_names,
        task=about.task,
        info=about,
        real=real,
        note=loaded.note,
    )


def _tidy(X: Any) -> Any:
    return np.ascontiguousarray(X) if isinstance(X, np.ndarray) else X


def _is_there(about: DatasetInfo, home: Path, variant: str) -> bool:
    return all(
        find(home, about, file) is not None for file in about.files if file.is_needed(variant)
    )


def _source(name: str) -> Source:
    if name not in _SOURCES:
        near = get_close_matches(name, _SOURCES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_SOURCES)}"
        raise ValueError(f"no dataset {name!r}; {hint}")
    return _SOURCES[name]


def _variant(about: DatasetInfo, variant: str | None) -> str:
    if variant is None:
        return next(iter(about.variants), "")
    if variant not in about.variants:
        there_are = ", ".join(map(repr, about.variants)) or "none"
        raise ValueError(f"no variant {variant!r} of {about.name!r}; there are {there_are}")
    return variant


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}={value!r}; expected one of {', '.join(map(repr, allowed))}")
