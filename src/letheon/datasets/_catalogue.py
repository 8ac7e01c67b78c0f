"""Every data set: what `catalogue.toml` says of it, its reader, the shapes of its stand-ins."""

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from letheon.datasets._formats import (
    FIRST,
    TOP,
    read_ctr,
    read_purchase,
    read_sst,
    read_svm,
    read_twitter,
)
from letheon.datasets._pictures import (
    read_cifar10,
    read_cifar100,
    read_imagenet,
    read_lacuna,
    read_lsun,
    read_mnist,
    read_svhn,
)
from letheon.datasets._spec import DataFile, DatasetInfo, Job, Loaded, StandIn, SurveyRow
from letheon.datasets._tables import (
    TableReader,
    is_known,
    is_one,
    read_covtype,
    read_credit_card,
    read_higgs,
    read_vaccine,
    word,
)

ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
_ADULT_NUMBERS = (
    "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week",
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
CENSUS_NUMBERS = (
    "age", "wage per hour", "capital gains", "capital losses", "dividends from stocks",
    "num persons worked for employer", "weeks worked in year",
)  # fmt: skip
_CENSUS_SIZES = (
    9, 52, 47, 17, 3, 7, 24, 15, 5, 10, 2, 3, 6, 8, 6, 6, 51, 38, 8, 10, 9, 10, 3, 4, 5, 43, 43,
    43, 5, 3, 3, 3, 2,
)  # fmt: skip
_DIABETES_NUMBERS = (
    "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications",
    "number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses",
)  # fmt: skip
# Different words of race, sex, age, weight, admission, discharge, source, payer, specialty, three
# diagnoses, two tests, 23 medicines, a change of them, and any medicine at all.
_DIABETES_SIZES = (
    6, 3, 10, 10, 8, 26, 17, 18, 73, 10, 10, 10, 4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 2, 4, 4, 4, 4, 2,
    3, 1, 1, 4, 4, 2, 2, 2, 2, 2, 2,
)  # fmt: skip
# First and last ICD-9 code of the groups of Strack et al. (2014), Table 2.
_DIAGNOSES = (
    (140, 239, "neoplasms"), (250, 250, "diabetes"), (390, 459, "circulatory"),
    (785, 785, "circulatory"), (460, 519, "respiratory"), (786, 786, "respiratory"),
    (520, 579, "digestive"), (787, 787, "digestive"), (580, 629, "genitourinary"),
    (788, 788, "genitourinary"), (710, 739, "musculoskeletal"), (800, 999, "injury"),
)  # fmt: skip
_BANK_NUMBERS = {
    "additional": (
        "age", "duration", "campaign", "pdays", "previous", "emp.var.rate", "cons.price.idx",
        "cons.conf.idx", "euribor3m", "nr.employed",
    ),
    "full": ("age", "balance", "day", "duration", "campaign", "pdays", "previous"),
}  # fmt: skip
_SURGICAL_NUMBERS = (
    "bmi", "Age", "ccsComplicationRate", "ccsMort30Rate", "complication_rsi", "hour",
    "mortality_rsi",
)  # fmt: skip
_NO_SHOW_NUMBERS = (
    "Age", "Scholarship", "Hipertension", "Diabetes", "Alcoholism", "Handcap", "SMS_received",
)  # fmt: skip
# Places of year, month, day and hour in "2016-04-29T18:38:08Z".
_TIME_PARTS = (("year", 0, 4), ("month", 5, 7), ("day", 8, 10), ("hour", 11, 13))
# Age group, education, race, sex, income, marriage, home, work, region, city, adults, children,
# industry, occupation.
_VACCINE_SIZES = (
    5, 4, *(3,) * 13, *(6,) * 6, 5, 5, 4, 2, 4, 3, 3, 4, 10, 3, 5, 5, 22, 24,
)  # fmt: skip
_SURGICAL_SIZES = (3, 2, 14, 2, 2, 2, 2, 2, 2, 2, 22, 5, 2, 12, 4, 2, 3)


def diagnosis_group(code: str) -> str:
    """Return the group of an ICD-9 code, one of nine (Strack et al. 2014, Table 2), or missing.

    Examples
    --------
    >>> [diagnosis_group(code) for code in ("250.83", "428", "V57", "?")]
    ['diabetes', 'circulatory', 'other', 'missing']
    """
    code = word(code)
    if code == "missing" or not code[:1].isdigit():
        return "missing" if code == "missing" else "other"
    value = int(float(code))
    return next((group for first, last, group in _DIAGNOSES if first <= value <= last), "other")


def _is_label(label: str) -> Callable[[str], bool]:
    # Test files of UCI write a dot after the label.
    return lambda text: text.strip().rstrip(".") == label


def _cut_number(start: int, end: int) -> Callable[[str], float]:
    return lambda text: float(text[start:end])


_TIMES = {
    f"{column} {part}": (column, _cut_number(start, end))
    for column in ("ScheduledDay", "AppointmentDay")
    for part, start, end in _TIME_PARTS
}
_BANK = {
    variant: TableReader(
        files=(file,), delimiter=";", numbers=numbers, target="y", is_positive=_is_label("yes")
    )
    for file, (variant, numbers) in enumerate(_BANK_NUMBERS.items())
}


def _read_bank(job: Job) -> Loaded:
    return _BANK[job.variant](job)


_COVTYPE_SHARES = (0.3646, 0.4876, 0.0615, 0.0047, 0.0163, 0.0299, 0.0354)
_ADULT_SIZES = (9, 16, 7, 15, 6, 5, 2, 42)
_SVHN_SHARES = (0.068, 0.189, 0.144, 0.116, 0.102, 0.094, 0.078, 0.076, 0.069, 0.064)


def _even(n_classes: int) -> tuple[float, ...]:
    return (1 / n_classes,) * n_classes


class _Recipe(NamedTuple):
    """How the files of a data set are read, and the shapes of its stand-ins by variant."""

    reader: Callable[[Job], Loaded]
    stand_ins: Mapping[str, StandIn]


_RECIPES = {
    "mnist": _Recipe(
        read_mnist,
        {
            "ten": StandIn(60_000, 10_000, shares=_even(10)),
            "3-vs-8": StandIn(11_982, 1_984, shares=(0.5117, 0.4883)),
        },
    ),
    "covtype": _Recipe(
        read_covtype,
        {
            "multiclass": StandIn(581_012, n_numbers=10, n_words=(4, 40), shares=_COVTYPE_SHARES),
            "binary": StandIn(581_012, n_numbers=10, n_words=(4, 40), shares=(0.5124, 0.4876)),
        },
    ),
    "higgs": _Recipe(read_higgs, {"": StandIn(11_000_000, n_numbers=28, shares=(0.47, 0.53))}),
    "epsilon": _Recipe(
        partial(read_svm, width=2_000, is_dense=True),
        {"": StandIn(400_000, 100_000, n_numbers=2_000)},
    ),
    "cifar-2": _Recipe(
        partial(read_cifar10, kinds=("cat", "ship")),
        {"": StandIn(10_000, 2_000, shares=_even(2))},
    ),
    "cifar-10": _Recipe(read_cifar10, {"": StandIn(50_000, 10_000, shares=_even(10))}),
    "cifar-100": _Recipe(read_cifar100, {"": StandIn(50_000, 10_000, shares=_even(100))}),
    "lsun": _Recipe(read_lsun, {"": StandIn(1_000_000, 3_000, shares=_even(10))}),
    "sst": _Recipe(
        read_sst,
        {
            "five": StandIn(8_544, 2_210, n_sparse=16_000, shares=(0.128, 0.26, 0.19, 0.272, 0.15)),
            "binary": StandIn(6_920, 1_821, n_sparse=16_000, shares=(0.478, 0.522)),
        },
    ),
    "svhn": _Recipe(read_svhn, {"": StandIn(73_257, 26_032, shares=_SVHN_SHARES)}),
    "rcv1": _Recipe(
        partial(read_svm, width=47_236, is_dense=False),
        {"": StandIn(20_242, 20_000, n_sparse=47_236, shares=(0.48, 0.52))},
    ),
    "purchase": _Recipe(read_purchase, {"": StandIn(160_057, n_flags=TOP, shares=(0.729, 0.271))}),
    "imagenet": _Recipe(read_imagenet, {"": StandIn(1_281_167, 50_000, shares=_even(1_000))}),
    "mini-imagenet": _Recipe(read_imagenet, {"": StandIn(128_545, 5_000, shares=_even(100))}),
    # Columns that are no numbers are codes, taken as words.
    "surgical": _Recipe(
        TableReader(numbers=_SURGICAL_NUMBERS, target="complication", is_positive=is_one),
        {"": StandIn(14_635, n_numbers=7, n_words=_SURGICAL_SIZES, shares=(0.7476, 0.2524))},
    ),
    "vaccine": _Recipe(
        read_vaccine,
        {
            "seasonal": StandIn(26_707, n_words=(*_VACCINE_SIZES, 2), shares=(0.5344, 0.4656)),
            "h1n1": StandIn(26_707, n_words=_VACCINE_SIZES, shares=(0.7875, 0.2125)),
        },
    ),
    # "?" is a word. The list of words is that of adult.names: all of them occur in the files.
    "adult": _Recipe(
        TableReader(
            files=(0, 1),
            names=ADULT,
            skip="|",
            numbers=_ADULT_NUMBERS,
            target="income",
            is_positive=_is_label(">50K"),
        ),
        {"": StandIn(32_561, 16_281, n_numbers=6, n_words=_ADULT_SIZES, shares=(0.7607, 0.2393))},
    ),
    "bank": _Recipe(
        _read_bank,
        {
            "additional": StandIn(
                41_188,
                n_numbers=10,
                n_words=(12, 4, 8, 3, 3, 3, 2, 10, 5, 3),
                shares=(0.8873, 0.1127),
            ),
            "full": StandIn(
                45_211, n_numbers=7, n_words=(12, 3, 4, 2, 2, 2, 3, 12, 4), shares=(0.883, 0.117)
            ),
        },
    ),
    # Codes of admission and discharge are words; a diagnosis is one of the nine groups of Strack
    # et al., because its 900 codes would be a column each. y: was the patient readmitted at all?
    "diabetes": _Recipe(
        TableReader(
            numbers=_DIABETES_NUMBERS,
            cells={name: (name, diagnosis_group) for name in ("diag_1", "diag_2", "diag_3")},
            dropped=("encounter_id",),
            target="readmitted",
            is_positive=lambda text: text != "NO",
            ids="patient_nbr",
        ),
        {
            "": StandIn(
                101_766,
                n_numbers=8,
                n_words=_DIABETES_SIZES,
                shares=(0.5391, 0.4609),
                rows_per_person=1.42,
            )
        },
    ),
    # Some numbers of patients have a fraction in the file, so ids are texts.
    "no-show": _Recipe(
        TableReader(
            numbers=(*_NO_SHOW_NUMBERS, *_TIMES),
            words=("Gender", "Neighbourhood"),
            cells=_TIMES,
            target="No-show",
            is_positive=lambda text: text == "Yes",
            ids="PatientId",
            ids_type=str,
        ),
        {
            "": StandIn(
                110_527,
                n_numbers=15,
                n_words=(2, 81),
                shares=(0.7981, 0.2019),
                rows_per_person=1.77,
            )
        },
    ),
    # Names and teams of athletes are left out; y is any medal.
    "olympics": _Recipe(
        TableReader(
            numbers=("Age", "Height", "Weight", "Year"),
            words=("Sex", "NOC", "Games", "Season", "City", "Sport", "Event"),
            measured=("Age", "Height", "Weight"),
            target="Medal",
            is_positive=is_known,
            ids="ID",
        ),
        {
            variant: StandIn(
                n_rows,
                n_numbers=4,
                n_words=(2, 230, 51, 2, 42, 66, 765),
                shares=(0.854, 0.146),
                rows_per_person=2.1,
            )
            for variant, n_rows in (("measured", 206_165), ("all", 271_116))
        },
    ),
    # Codes of industry, occupation, business, benefits and year are words.
    "census": _Recipe(
        TableReader(
            files=(0, 1),
            names=CENSUS,
            numbers=CENSUS_NUMBERS,
            dropped=("instance weight",),
            target="income",
            is_positive=_is_label("50000+"),
        ),
        {"": StandIn(199_523, 99_762, n_numbers=7, n_words=_CENSUS_SIZES, shares=(0.938, 0.062))},
    ),
    "credit-card": _Recipe(
        read_credit_card, {"": StandIn(284_807, n_numbers=30, shares=(0.99827, 0.00173))}
    ),
    "ctr": _Recipe(read_ctr, {"": StandIn(FIRST, n_numbers=13, shares=(0.9709, 0.0291))}),
    "twitter": _Recipe(
        read_twitter,
        {"": StandIn(FIRST, n_numbers=14, shares=(0.8307, 0.1693), rows_per_person=2.0)},
    ),
    "lacuna-10": _Recipe(
        read_lacuna, {"": StandIn(4_000, 1_000, shares=_even(10), class_is_person=True)}
    ),
    "lacuna-100": _Recipe(
        read_lacuna, {"": StandIn(40_000, 10_000, shares=_even(100), class_is_person=True)}
    ),
}


def _make_file(entry: dict[str, Any]) -> DataFile:
    """Return a file; one digest or number of rows is that of every spelling."""
    names = tuple(entry["names"])
    for key in ("sha256", "rows"):
        value = entry.get(key, {})
        entry[key] = value if isinstance(value, dict) else dict.fromkeys(names, value)
    return DataFile(**{**entry, "names": names, "variants": tuple(entry.get("variants", ()))})


def _make_spec(name: str, entry: dict[str, Any]) -> DatasetInfo:
    shape = entry.pop("image_shape", None)
    return DatasetInfo(
        name=name,
        files=tuple(map(_make_file, entry.pop("files"))),
        survey=SurveyRow(**entry.pop("survey")),
        image_shape=shape and tuple(shape),
        **_RECIPES[name]._asdict(),
        **entry,
    )


_CATALOGUE = tomllib.loads(files("letheon.datasets").joinpath("catalogue.toml").read_text("utf-8"))
SPECS = {name: _make_spec(name, entry) for name, entry in _CATALOGUE.items()}
