"""Diabetes, No Show, Surgical and Vaccine: tables of patients."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.datasets._tables import Column, Columns, Plan, encode, number, read_columns, word
from letheon.exceptions import DatasetFormatError

__all__ = ["SOURCES", "diagnosis_group"]

_DIABETES_NUMBERS = (
    "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications",
    "number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses",
)  # fmt: skip
_DIAGNOSES = ("diag_1", "diag_2", "diag_3")
_NO_SHOW_NUMBERS = (
    "Age", "Scholarship", "Hipertension", "Diabetes", "Alcoholism", "Handcap", "SMS_received",
)  # fmt: skip
# Places of year, month, day and hour in "2016-04-29T18:38:08Z".
_TIME_PARTS = {
    "year": slice(0, 4),
    "month": slice(5, 7),
    "day": slice(8, 10),
    "hour": slice(11, 13),
}
_SURGICAL_NUMBERS = (
    "bmi", "Age", "ccsComplicationRate", "ccsMort30Rate", "complication_rsi", "hour",
    "mortality_rsi",
)  # fmt: skip


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
    for group, first, last in _GROUPS:
        if first <= value <= last:
            return group
    return "other"


_GROUPS = (
    ("neoplasms", 140, 239),
    ("diabetes", 250, 250),
    ("circulatory", 390, 459),
    ("circulatory", 785, 785),
    ("respiratory", 460, 519),
    ("respiratory", 786, 786),
    ("digestive", 520, 579),
    ("digestive", 787, 787),
    ("genitourinary", 580, 629),
    ("genitourinary", 788, 788),
    ("musculoskeletal", 710, 739),
    ("injury", 800, 999),
)


def read_diabetes(job: Job) -> Loaded:
    """Read Diabetes 130-US: 8 numbers, 39 columns of words, and the patient of every encounter.

    Codes of admission and discharge are words; a diagnosis is one of the nine groups of Strack et
    al., because its 900 codes would be a column each. y: was the patient readmitted at all?
    """
    with job.text() as lines:
        table = read_columns(lines)
    job.count(0, len(table))
    left_out = {"encounter_id", "patient_nbr", "readmitted", *_DIABETES_NUMBERS}
    words: dict[str, tuple[str, Callable[[str], str]]] = {
        name: (name, diagnosis_group if name in _DIAGNOSES else word)
        for name in table.columns
        if name not in left_out
    }
    plan = Plan({name: (name, number) for name in _DIABETES_NUMBERS}, words)
    X, features = encode(table, plan, job.encode)
    y = table["readmitted"].map(lambda text: text != "NO", np.int64)
    return Loaded(X, y, table["patient_nbr"].map(int, np.int64), feature_names=features)


def read_no_show(job: Job) -> Loaded:
    """Read No Show: 7 numbers, the parts of two dates, sex and neighbourhood; ids are patients.

    Some numbers of patients have a fraction in the file, so ids are texts as they stand there.
    """
    with job.text() as lines:
        table = read_columns(lines)
    job.count(0, len(table))
    numbers: dict[str, tuple[str, Callable[[str], float]]] = {
        name: (name, number) for name in _NO_SHOW_NUMBERS
    }
    for column in ("ScheduledDay", "AppointmentDay"):
        for part, place in _TIME_PARTS.items():
            numbers[f"{column} {part}"] = (column, _part_of_time(place))
    plan = Plan(numbers, {name: (name, word) for name in ("Gender", "Neighbourhood")})
    X, features = encode(table, plan, job.encode)
    y = table["No-show"].map(lambda text: text == "Yes", np.int64)
    return Loaded(X, y, table["PatientId"].map(str, np.str_), feature_names=features)


def _part_of_time(place: slice) -> Callable[[str], float]:
    return lambda text: float(text[place])


def read_surgical(job: Job) -> Loaded:
    """Read Surgical: 7 numbers; the other 17 columns are codes, taken as words."""
    with job.text() as lines:
        table = read_columns(lines)
    job.count(0, len(table))
    words = [name for name in table.columns if name not in (*_SURGICAL_NUMBERS, "complication")]
    X, features = encode(table, Plan.of(_SURGICAL_NUMBERS, words), job.encode)
    y = table["complication"].map(lambda text: float(text) == 1, np.int64)
    return Loaded(X, y, feature_names=features)


def read_vaccine(job: Job) -> Loaded:
    """Read Vaccine: answers, all taken as words, "missing" among them; ids are respondents.

    The seasonal variant has the other vaccination among its features, as in Brophy and Lowd.
    """
    with job.text(0) as lines:
        answers = read_columns(lines)
    with job.text(1) as lines:
        labels = read_columns(lines)
    job.count(0, len(answers))
    people = answers["respondent_id"].map(int, np.int64)
    rows = _rows_of(people.tolist(), labels)
    columns = {name: each for name, each in answers.columns.items() if name != "respondent_id"}
    if job.variant == "seasonal":
        other = labels["h1n1_vaccine"]
        columns["h1n1_vaccine"] = Column(other.texts, other.codes[rows])
    X, features = encode(Columns(columns), Plan.of((), columns), job.encode)
    y = labels[f"{job.variant}_vaccine"].map(lambda text: float(text) == 1, np.int64)[rows]
    return Loaded(X, y, people, feature_names=features)


def _rows_of(people: list[int], labels: Columns) -> NDArray[np.int64]:
    """Return where each of the people stands in the file of labels."""
    labelled = labels["respondent_id"].map(int, np.int64).tolist()
    places = {person: row for row, person in enumerate(labelled)}
    lacking = [person for person in people if person not in places]
    if lacking:
        raise DatasetFormatError(f"no label for {len(lacking)} respondents: {lacking[:3]} ...")
    return np.array([places[person] for person in people], np.int64)


# Different words of race, sex, age, weight, admission, discharge, source, payer, specialty, three
# diagnoses, two tests, 23 medicines, a change of them, and any medicine at all.
_DIABETES_SIZES = (
    6, 3, 10, 10, 8, 26, 17, 18, 73, 10, 10, 10, 4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 2, 4, 4, 4, 4, 2,
    3, 1, 1, 4, 4, 2, 2, 2, 2, 2, 2,
)  # fmt: skip
# Age group, education, race, sex, income, marriage, home, work, region, city, adults, children,
# industry, occupation.
_VACCINE_REST = (5, 5, 4, 2, 4, 3, 3, 4, 10, 3, 5, 5, 22, 24)
KAGGLE = "Kaggle (an account is needed)"
_FIXED = "Fixed: the lists of words, those of the published file."

SOURCES = (
    Source(
        info=DatasetInfo(
            name="diabetes",
            title="Diabetes 130-US hospitals, 1999-2008",
            folder="diabetes",
            files=(
                DataFile(
                    names=("diabetic_data.csv",),
                    sha256={
                        "diabetic_data.csv": (
                            "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97"
                        )
                    },
                ),
            ),
            provider="UCI Machine Learning Repository",
            page="https://archive.ics.uci.edu/dataset/296",
            licence="CC BY 4.0",
            citation="Strack et al. (2014), BioMed Research International, doi:10.1155/2014/781670",
            subject_id="patient_nbr",
            survey=SurveyRow(dimensionality="20", size="101,766", classes="2", balance="46.10%"),
            note=(
                "The survey links to another dataset of that name and prints 20 features; the file "
                f"has 47 beside label, patient and encounter. {_FIXED}"
            ),
            has_words=True,
        ),
        read=read_diabetes,
        stand_ins={
            "": StandIn(
                n_rows=101_766,
                n_numbers=8,
                n_words=_DIABETES_SIZES,
                shares=(0.5391, 0.4609),
                rows_per_person=1.42,
            )
        },
    ),
    Source(
        info=DatasetInfo(
            name="no-show",
            title="Medical appointment no shows",
            folder="no-show",
            files=(
                DataFile(names=("KaggleV2-May-2016.csv",), rows={"KaggleV2-May-2016.csv": 110_527}),
            ),
            provider=KAGGLE,
            page="https://www.kaggle.com/datasets/joniarroba/noshowappointments",
            licence="CC BY-NC-SA 4.0",
            citation="Hoppen (2016), Medical Appointment No Shows",
            subject_id="PatientId",
            survey=SurveyRow(dimensionality="14", size="110,527", classes="2", balance="20.19%"),
            note=f"The survey's dimensionality counts the label. {_FIXED}",
            has_words=True,
        ),
        read=read_no_show,
        stand_ins={
            "": StandIn(
                n_rows=110_527,
                n_numbers=15,
                n_words=(2, 81),
                shares=(0.7981, 0.2019),
                rows_per_person=1.77,
            )
        },
    ),
    Source(
        info=DatasetInfo(
            name="surgical",
            title="Surgical dataset, binary classification",
            folder="surgical",
            files=(
                DataFile(names=("Surgical-deepnet.csv",), rows={"Surgical-deepnet.csv": 14_635}),
            ),
            provider=KAGGLE,
            page=(
                "https://www.kaggle.com/datasets/omnamahshivai/"
                "surgical-dataset-binary-classification"
            ),
            licence="not stated by the provider",
            citation="omnamahshivai (2018), Dataset surgical binary classification",
            survey=SurveyRow(dimensionality="25", size="14,635", classes="2", balance="25.24%"),
            note=f"The survey's dimensionality counts the label. {_FIXED}",
            has_words=True,
        ),
        read=read_surgical,
        stand_ins={
            "": StandIn(
                n_rows=14_635,
                n_numbers=7,
                n_words=(3, 2, 14, 2, 2, 2, 2, 2, 2, 2, 22, 5, 2, 12, 4, 2, 3),
                shares=(0.7476, 0.2524),
            )
        },
    ),
    Source(
        info=DatasetInfo(
            name="vaccine",
            title="Flu Shot Learning (National 2009 H1N1 Flu Survey)",
            folder="vaccine",
            files=(
                DataFile(
                    names=("training_set_features.csv",),
                    rows={"training_set_features.csv": 26_707},
                ),
                DataFile(names=("training_set_labels.csv",)),
            ),
            provider="DrivenData (an account is needed)",
            page="https://www.drivendata.org/competitions/66/flu-shot-learning/",
            licence="terms of the competition; may not be passed on",
            citation="DrivenData (2020), Flu Shot Learning; data by US NCHS (2012)",
            subject_id="respondent_id (one row each)",
            survey=SurveyRow(dimensionality="36", size="26,707", classes="2", balance="46.40%"),
            note=(
                "36 features are the 35 answers and the other vaccination, as in Brophy and Lowd. "
                f"{_FIXED}"
            ),
            variants={
                "seasonal": "was the person vaccinated against the seasonal flu?",
                "h1n1": "was the person vaccinated against H1N1? (35 features)",
            },
            has_words=True,
        ),
        read=read_vaccine,
        stand_ins={
            "seasonal": StandIn(
                n_rows=26_707,
                n_words=(5, 4, *(3,) * 13, *(6,) * 6, *_VACCINE_REST, 2),
                shares=(0.5344, 0.4656),
            ),
            "h1n1": StandIn(
                n_rows=26_707,
                n_words=(5, 4, *(3,) * 13, *(6,) * 6, *_VACCINE_REST),
                shares=(0.7875, 0.2125),
            ),
        },
    ),
)
