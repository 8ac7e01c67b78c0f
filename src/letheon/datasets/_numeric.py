"""Covtype, HIGGS, Epsilon and RCV1: nothing but numbers, dense or sparse."""

import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.datasets._tables import first_line, numbers_of
from letheon.exceptions import DatasetFormatError

__all__ = ["SOURCES"]

_HIGGS = (
    "lepton_pT", "lepton_eta", "lepton_phi", "missing_energy_magnitude", "missing_energy_phi",
    *(f"jet_{jet}_{what}" for jet in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "btag")),
    "m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb",
)  # fmt: skip
_COVTYPE = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology", "Horizontal_Distance_To_Roadways", "Hillshade_9am",
    "Hillshade_Noon", "Hillshade_3pm", "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{area}" for area in range(1, 5)),
    *(f"Soil_Type{soil}" for soil in range(1, 41)),
)  # fmt: skip
_SVM_LINES = 5_000  # of a dense file, turned into numbers at a time


def read_covtype(job: Job) -> Loaded:
    """Read Covertype: 10 numbers and 44 indicators; y is the cover type less 1.

    ``"binary"``: lodgepole pine (type 2) against the rest.
    """
    with job.text() as lines:
        table = numbers_of(_without_header(lines))
    job.count(0, len(table))
    cover = table[:, -1].astype(np.int64)
    y = (cover == 2).astype(np.int64) if job.variant == "binary" else cover - 1
    return Loaded(np.ascontiguousarray(table[:, :-1]), y, feature_names=_COVTYPE)


def read_higgs(job: Job) -> Loaded:
    """Read HIGGS: 21 kinematic properties and 7 functions of them; y is 1 for a signal.

    The provider's file has the label first and no header; a sample with a header has it last.
    """
    with job.text() as lines:
        first = first_line(lines)
        label_first = not first[:1].isalpha()
        table = numbers_of(chain([first] if label_first else [], lines))
    job.count(0, len(table))
    y, X = (table[:, 0], table[:, 1:]) if label_first else (table[:, -1], table[:, :-1])
    return Loaded(np.ascontiguousarray(X), y.astype(np.int64), feature_names=_HIGGS)


def _without_header(lines: Iterator[str]) -> Iterable[str]:
    first = first_line(lines)
    return lines if first[:1].isalpha() else chain([first], lines)


def read_epsilon(job: Job) -> Loaded:
    """Read Epsilon: 2,000 dense columns of unit rows in svmlight's format; labels -1 and 1."""
    X, y = _dense_svm(job, 0, 2_000)
    if job.maybe(1) is None:
        return Loaded(X, y)
    return Loaded(X, y, None, *_dense_svm(job, 1, 2_000))


def read_rcv1(job: Job) -> Loaded:
    """Read RCV1: a sparse table of 47,236 word weights in svmlight's format; labels -1 and 1."""
    X, y = _sparse_svm(job, 0, 47_236)
    if job.maybe(1) is None:
        return Loaded(X, y)
    return Loaded(X, y, None, *_sparse_svm(job, 1, 47_236))


def _sparse_svm(job: Job, number: int, width: int) -> tuple[Any, NDArray[np.int64]]:
    with job.open(number) as stream:
        X, y = _svm(stream, width)
    if not len(y):
        raise DatasetFormatError(f"{job.where_unchecked(number)[1]} has no rows")
    job.count(number, len(y))
    return X, y


def _dense_svm(job: Job, number: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read some lines at a time: as one sparse table a dense file takes three times its room."""
    tables, labels = [], []
    with job.open(number) as stream:
        while lines := list(islice(stream, _SVM_LINES)):
            X, y = _svm(io.BytesIO(b"".join(lines)), width)
            tables.append(X.toarray())
            labels.append(y)
    if not labels:
        raise DatasetFormatError(f"{job.where_unchecked(number)[1]} has no rows")
    job.count(number, sum(map(len, labels)))
    return np.concatenate(tables), np.concatenate(labels)


def _svm(stream: IO[bytes], width: int) -> tuple[Any, NDArray[np.int64]]:
    from sklearn.datasets import load_svmlight_file

    try:
        X, y = load_svmlight_file(stream, n_features=width, dtype=np.float32, zero_based=False)
    except ValueError as error:
        raise DatasetFormatError(f"not lines of svmlight: {error}") from error
    return sparse.csr_array(X), (np.asarray(y) > 0).astype(np.int64)


LIBSVM = "LIBSVM Data (Chang, Lin)"
_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_COVER_SHARES = (0.3646, 0.4876, 0.0615, 0.0047, 0.0163, 0.0299, 0.0354)

SOURCES = (
    Source(
        info=DatasetInfo(
            name="covtype",
            title="Covertype",
            folder="covtype",
            files=(
                DataFile(
                    names=("covtype.data", "covtype.random15k.csv"),
                    sha256={
                        "covtype.random15k.csv": (
                            "f8e8661a50096cbdd70f5706953777efceda260dbf92bfc358ce041c233728dd"
                        )
                    },
                    rows={"covtype.data": 581_012},
                ),
            ),
            provider="UCI Machine Learning Repository",
            page="https://archive.ics.uci.edu/dataset/31/covertype",
            licence="CC BY 4.0",
            citation="Blackard (1998), Covertype, doi:10.24432/C50K5N",
            survey=SurveyRow(dimensionality="54", size="581,012", classes="7"),
            note=(
                "covtype.random15k.csv is a random sample of 15,000 rows with a header. Provider's "
                "indicators are columns already. No split: see Dataset.split."
            ),
            variants={
                "multiclass": "seven cover types",
                "binary": "cover type 2 against the rest, as in Mahadevan and Mathioudakis",
            },
        ),
        read=read_covtype,
        stand_ins={
            "multiclass": StandIn(
                n_rows=581_012, n_numbers=10, n_words=(4, 40), shares=_COVER_SHARES
            ),
            "binary": StandIn(
                n_rows=581_012, n_numbers=10, n_words=(4, 40), shares=(0.5124, 0.4876)
            ),
        },
    ),
    Source(
        info=DatasetInfo(
            name="higgs",
            title="HIGGS",
            folder="higgs",
            files=(
                DataFile(
                    names=("HIGGS.csv", "higgs.csv"),
                    sha256={
                        "higgs.csv": (
                            "21f8b95e4aaed9e631a76d69c724bb0ca94456bc1ac01e18fd81b968dd3c9724"
                        )
                    },
                    rows={"HIGGS.csv": 11_000_000},
                ),
            ),
            provider="UCI Machine Learning Repository",
            page="https://archive.ics.uci.edu/dataset/280/higgs",
            licence="CC BY 4.0",
            citation="Whiteson (2014), HIGGS, doi:10.24432/C5V312",
            survey=SurveyRow(dimensionality="28", size="11,000,000", classes="2", balance="53.00%"),
            note=(
                "higgs.csv is a random sample of 10,984 rows with a header and the label last. The "
                "provider's habit of testing on the last 500,000 rows is not followed: see "
                "Dataset.split."
            ),
        ),
        read=read_higgs,
        stand_ins={"": StandIn(n_rows=11_000_000, n_numbers=28, shares=(0.47, 0.53))},
    ),
    Source(
        info=DatasetInfo(
            name="epsilon",
            title="Epsilon (PASCAL Large Scale Learning Challenge 2008)",
            folder="epsilon",
            files=(
                DataFile(names=("epsilon_normalized",), rows={"epsilon_normalized": 400_000}),
                DataFile(
                    names=("epsilon_normalized.t",),
                    rows={"epsilon_normalized.t": 100_000},
                    optional=True,
                ),
            ),
            provider=LIBSVM,
            page=f"{_LIBSVM_PAGE}#epsilon",
            licence="not stated by the provider",
            citation="Sonnenburg et al. (2008), PASCAL Large Scale Learning Challenge",
            survey=SurveyRow(dimensionality="2,000", size="400,000", classes="2", balance="50.00%"),
            note="X takes 3.2 GB.",
        ),
        read=read_epsilon,
        stand_ins={"": StandIn(n_rows=400_000, n_test=100_000, n_numbers=2_000)},
    ),
    Source(
        info=DatasetInfo(
            name="rcv1",
            title="Reuters Corpus Volume 1, two classes",
            folder="rcv1",
            files=(
                DataFile(names=("rcv1_train.binary",), rows={"rcv1_train.binary": 20_242}),
                DataFile(
                    names=("rcv1_test.binary",),
                    rows={"rcv1_test.binary": 677_399},
                    optional=True,
                ),
            ),
            provider=LIBSVM,
            page=f"{_LIBSVM_PAGE}#rcv1.binary",
            licence="vectors only; the texts are under Reuters' agreement",
            citation="Lewis, Yang, Rose, Li (2004), JMLR 5:361-397",
            survey=SurveyRow(dimensionality="47,236", size="20,242", classes="2", balance="52.00%"),
            note="X is a sparse table. Fixed: the provider's list of words and their weights.",
        ),
        read=read_rcv1,
        stand_ins={"": StandIn(n_rows=20_242, n_test=20_000, n_sparse=47_236, shares=(0.48, 0.52))},
    ),
)
