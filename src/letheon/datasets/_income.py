"""Adult, Census-Income (KDD) and Bank Marketing: tables of numbers and words from UCI."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.datasets._tables import Columns, Plan, encode, read_columns

__all__ = ["ADULT", "ADULT_NUMBERS", "CENSUS", "CENSUS_NUMBERS", "SOURCES"]

UCI = "UCI Machine Learning Repository"
BY = "CC BY 4.0"

ADULT_NUMBERS = (
    "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week",
)  # fmt: skip
ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
CENSUS_NUMBERS = (
    "age", "wage per hour", "capital gains", "capital losses", "dividends from stocks",
    "num persons worked for employer", "weeks worked in year",
)  # fmt: skip
CENSUS = (
    "age", "class of worker", "detailed industry recode", "detailed occupation recode",
    "education", "wage per hour", "enroll in edu inst last wk", "marital stat",
    "major industry code", "major occupation code", "race", "hispanic origin", "sex",
    "member of a labor union", "reason for unemployment", "full or part time employment stat",
    "capital gains", "capital losses", "dividends from stocks", "tax filer stat",
    "region of previous residence", "state of previous residence",
    "detailed household and family stat", "detailed household summary in household",
    "instance weight", "migration code-change in msa", "migration code-change in reg",
    "migration code-move within reg", "live in this house 1 year ago",
    "migration prev res in sunbelt", "num persons worked for employer",
    "family members under 18", "country of birth father", "country of birth mother",
    "country of birth self", "citizenship", "own business or self employed",
    "fill inc questionnaire for veteran's admin", "veterans benefits", "weeks worked in year",
    "year", "income",
)  # fmt: skip
_CENSUS_SIZES = (
    9, 52, 47, 17, 3, 7, 24, 15, 5, 10, 2, 3, 6, 8, 6, 6, 51, 38, 8, 10, 9, 10, 3, 4, 5, 43, 43,
    43, 5, 3, 3, 3, 2,
)  # fmt: skip
_BANK_NUMBERS = {
    "additional": (
        "age", "duration", "campaign", "pdays", "previous", "emp.var.rate", "cons.price.idx",
        "cons.conf.idx", "euribor3m", "nr.employed",
    ),
    "full": ("age", "balance", "day", "duration", "campaign", "pdays", "previous"),
}  # fmt: skip


def read_adult(job: Job) -> Loaded:
    """Read Adult: 6 numbers and 8 columns of words; "?" is a word, and y is income over 50K.

    The list of words is that of ``adult.names``: every word in it occurs in the two files.
    """
    return _two_files(job, ADULT, ADULT_NUMBERS, dropped=(), positive=">50K", skip="|")


def read_census(job: Job) -> Loaded:
    """Read Census-Income: 7 numbers and 33 columns of words; the sampling weight is left out.

    Codes of industry, occupation, business, benefits and year are words.
    """
    weight = ("instance weight",)
    return _two_files(job, CENSUS, CENSUS_NUMBERS, dropped=weight, positive="50000+")


def _two_files(
    job: Job,
    names: tuple[str, ...],
    numbers: tuple[str, ...],
    *,
    dropped: tuple[str, ...],
    positive: str,
    skip: str | None = None,
) -> Loaded:
    """Read training and test file as one table, so that both have the same list of words."""
    tables = []
    for part in (0, 1):
        with job.text(part) as lines:
            tables.append(read_columns(lines, names=names, skip=skip))
        job.count(part, len(tables[-1]))
    table = tables[0] + tables[1]
    words = [name for name in names[:-1] if name not in (*numbers, *dropped)]
    X, features = encode(table, Plan.of(numbers, words), job.encode)
    y = _is(table, names[-1], positive)
    n = len(tables[0])
    return Loaded(X[:n], y[:n], X_test=X[n:], y_test=y[n:], feature_names=features)


def _is(table: Columns, column: str, positive: str) -> NDArray[Any]:
    # The test files write a dot after the label.
    return table[column].map(lambda text: text.strip().rstrip(".") == positive, np.int64)


def read_bank(job: Job) -> Loaded:
    """Read Bank Marketing: numbers as they are, "unknown" is a word, y is a subscription."""
    number = 0 if job.variant == "additional" else 1
    with job.text(number) as lines:
        table = read_columns(lines, delimiter=";")
    job.count(number, len(table))
    numbers = _BANK_NUMBERS[job.variant]
    words = [name for name in table.columns if name not in (*numbers, "y")]
    X, features = encode(table, Plan.of(numbers, words), job.encode)
    return Loaded(X, _is(table, "y", "yes"), feature_names=features)


_FIXED = "Fixed: the lists of words, those of the published files."

SOURCES = (
    Source(
        info=DatasetInfo(
            name="adult",
            title="Adult (census income)",
            folder="adult",
            files=(
                DataFile(
                    names=("adult.data",),
                    sha256={
                        "adult.data": (
                            "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
                        )
                    },
                ),
                DataFile(
                    names=("adult.test",),
                    sha256={
                        "adult.test": (
                            "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
                        )
                    },
                ),
            ),
            provider=UCI,
            page="https://archive.ics.uci.edu/dataset/2/adult",
            licence=BY,
            citation="Becker, Kohavi (1996), Adult, doi:10.24432/C5XW20",
            survey=SurveyRow(dimensionality="14", size="48,842", classes="2", balance="23.92%"),
            note=f"The survey's size counts both files; 32,561 are to train on. {_FIXED}",
            has_words=True,
        ),
        read=read_adult,
        stand_ins={
            "": StandIn(
                n_rows=32_561,
                n_test=16_281,
                n_numbers=6,
                n_words=(9, 16, 7, 15, 6, 5, 2, 42),
                shares=(0.7607, 0.2393),
            )
        },
    ),
    Source(
        info=DatasetInfo(
            name="census",
            title="Census-Income (KDD)",
            folder="census",
            files=(
                DataFile(
                    names=("census-income.data",),
                    sha256={
                        "census-income.data": (
                            "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86"
                        )
                    },
                ),
                DataFile(
                    names=("census-income.test",),
                    sha256={
                        "census-income.test": (
                            "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c"
                        )
                    },
                ),
            ),
            provider=UCI,
            page="https://archive.ics.uci.edu/dataset/117/census+income+kdd",
            licence=BY,
            citation="US Census Bureau (2000), Census-Income (KDD), doi:10.24432/C5N30T",
            survey=SurveyRow(dimensionality="40", size="299,285", classes="2", balance="6.20%"),
            note=f"The survey's size counts both files; 199,523 are to train on. {_FIXED}",
            has_words=True,
        ),
        read=read_census,
        stand_ins={
            "": StandIn(
                n_rows=199_523,
                n_test=99_762,
                n_numbers=7,
                n_words=_CENSUS_SIZES,
                shares=(0.938, 0.062),
            )
        },
    ),
    Source(
        info=DatasetInfo(
            name="bank",
            title="Bank Marketing",
            folder="bank",
            files=(
                DataFile(
                    names=(
                        "bank-additional-full.csv",
                        "bank-additional/bank-additional-full.csv",
                    ),
                    rows={
                        "bank-additional-full.csv": 41_188,
                        "bank-additional/bank-additional-full.csv": 41_188,
                    },
                    variants=("additional",),
                ),
                DataFile(
                    names=("bank-full.csv",), rows={"bank-full.csv": 45_211}, variants=("full",)
                ),
            ),
            provider=UCI,
            page="https://archive.ics.uci.edu/dataset/222/bank+marketing",
            licence=BY,
            citation="Moro, Rita, Cortez (2014), Bank Marketing, doi:10.24432/C5K306",
            survey=SurveyRow(dimensionality="17", size="45,211", classes="2", balance="11.30%"),
            note=(
                "The survey mixes two files: 45,211 rows is bank-full (16 features, 11.70 % "
                "positive), 11.30 % is bank-additional-full (41,188 rows, 20 features), which "
                f"Brophy and Lowd used; its dimensionality counts the label. {_FIXED}"
            ),
            variants={
                "additional": "bank-additional-full.csv, with 5 figures of the economy",
                "full": "bank-full.csv, the older one with more rows",
            },
            has_words=True,
        ),
        read=read_bank,
        stand_ins={
            "additional": StandIn(
                n_rows=41_188,
                n_numbers=10,
                n_words=(12, 4, 8, 3, 3, 3, 2, 10, 5, 3),
                shares=(0.8873, 0.1127),
            ),
            "full": StandIn(
                n_rows=45_211,
                n_numbers=7,
                n_words=(12, 3, 4, 2, 2, 2, 3, 12, 4),
                shares=(0.883, 0.117),
            ),
        },
    ),
)
