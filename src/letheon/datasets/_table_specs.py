"""Specifications of the tables of numbers and words: census, bank, hospitals, athletes."""

from collections.abc import Callable

from letheon.datasets._spec import (
    COUNTED,
    LISTED,
    DatasetInfo,
    Job,
    Loaded,
    StandIn,
    SurveyRow,
    make_file,
)
from letheon.datasets._tables import TableReader, is_known, is_one, read_vaccine, word

__all__ = ["ADULT", "CENSUS", "CENSUS_NUMBERS", "TABLE_SPECS", "diagnosis_group"]

KAGGLE = "Kaggle (an account is needed)"
UCI = "UCI Machine Learning Repository"
CC_BY = "CC BY 4.0"
_FIXED = "Fixed: the lists of words, those of the published file."
_FIXED_BOTH = "Fixed: the lists of words, those of the published files."

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


TABLE_SPECS = (
    DatasetInfo(
        name="surgical",
        title="Surgical dataset, binary classification",
        files=(make_file("Surgical-deepnet.csv", rows=14_635),),
        provider=KAGGLE,
        page=(
            "https://www.kaggle.com/datasets/omnamahshivai/surgical-dataset-binary-classification"
        ),
        licence="not stated by the provider",
        citation="omnamahshivai (2018), Dataset surgical binary classification",
        survey=SurveyRow(dimensionality="25", size="14,635", classes="2", balance="25.24%"),
        note=f"The survey's dimensionality counts the label. {_FIXED}",
        has_words=True,
        # Columns that are no numbers are codes, taken as words.
        reader=TableReader(numbers=_SURGICAL_NUMBERS, target="complication", is_positive=is_one),
        stand_ins={
            "": StandIn(14_635, n_numbers=7, n_words=_SURGICAL_SIZES, shares=(0.7476, 0.2524))
        },
    ),
    DatasetInfo(
        name="vaccine",
        title="Flu Shot Learning (National 2009 H1N1 Flu Survey)",
        files=(
            make_file("training_set_features.csv", rows=26_707),
            make_file("training_set_labels.csv"),
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
        reader=read_vaccine,
        stand_ins={
            "seasonal": StandIn(26_707, n_words=(*_VACCINE_SIZES, 2), shares=(0.5344, 0.4656)),
            "h1n1": StandIn(26_707, n_words=_VACCINE_SIZES, shares=(0.7875, 0.2125)),
        },
    ),
    DatasetInfo(
        name="adult",
        title="Adult (census income)",
        files=(
            make_file(
                "adult.data",
                sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            make_file(
                "adult.test",
                sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/2/adult",
        licence=CC_BY,
        licence_source=LISTED,
        rows_source=COUNTED,
        citation="Becker, Kohavi (1996), Adult, doi:10.24432/C5XW20",
        survey=SurveyRow(dimensionality="14", size="48,842", classes="2", balance="23.92%"),
        note=f"The survey's size counts both files; 32,561 are to train on. {_FIXED_BOTH}",
        has_words=True,
        # "?" is a word. The list of words is that of adult.names: all of them occur in the files.
        reader=TableReader(
            files=(0, 1),
            names=ADULT,
            skip="|",
            numbers=_ADULT_NUMBERS,
            target="income",
            is_positive=_is_label(">50K"),
        ),
        stand_ins={
            "": StandIn(
                32_561,
                16_281,
                n_numbers=6,
                n_words=(9, 16, 7, 15, 6, 5, 2, 42),
                shares=(0.7607, 0.2393),
            )
        },
    ),
    DatasetInfo(
        name="bank",
        title="Bank Marketing",
        files=(
            make_file(
                "bank-additional-full.csv",
                "bank-additional/bank-additional-full.csv",
                rows=41_188,
                variants=("additional",),
            ),
            make_file("bank-full.csv", rows=45_211, variants=("full",)),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/222/bank+marketing",
        licence=CC_BY,
        rows_source=(
            "https://www.rdocumentation.org/packages/FFTrees/versions/1.1.4/topics/bank "
            "(bank-full), https://github.com/nguyentruonglau/bank-marketing (bank-additional-full)"
        ),
        citation="Moro, Rita, Cortez (2014), Bank Marketing, doi:10.24432/C5K306",
        survey=SurveyRow(dimensionality="17", size="45,211", classes="2", balance="11.30%"),
        note=(
            "The survey mixes two files: 45,211 rows is bank-full (16 features, 11.70 % "
            "positive), 11.30 % is bank-additional-full (41,188 rows, 20 features), which "
            f"Brophy and Lowd used; its dimensionality counts the label. {_FIXED_BOTH}"
        ),
        variants={
            "additional": "bank-additional-full.csv, with 5 figures of the economy",
            "full": "bank-full.csv, the older one with more rows",
        },
        has_words=True,
        reader=_read_bank,
        stand_ins={
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
    DatasetInfo(
        name="diabetes",
        title="Diabetes 130-US hospitals, 1999-2008",
        files=(
            make_file(
                "diabetic_data.csv",
                sha256="0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97",
            ),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/296",
        licence=CC_BY,
        licence_source=LISTED,
        rows_source=COUNTED,
        citation="Strack et al. (2014), BioMed Research International, doi:10.1155/2014/781670",
        subject_id="patient_nbr",
        survey=SurveyRow(dimensionality="20", size="101,766", classes="2", balance="46.10%"),
        note=(
            "The survey links to another dataset of that name and prints 20 features; the file "
            f"has 47 beside label, patient and encounter. {_FIXED}"
        ),
        has_words=True,
        # Codes of admission and discharge are words; a diagnosis is one of the nine groups of
        # Strack et al., because its 900 codes would be a column each. y: readmitted at all?
        reader=TableReader(
            numbers=_DIABETES_NUMBERS,
            cells={name: (name, diagnosis_group) for name in ("diag_1", "diag_2", "diag_3")},
            dropped=("encounter_id",),
            target="readmitted",
            is_positive=lambda text: text != "NO",
            ids="patient_nbr",
        ),
        stand_ins={
            "": StandIn(
                101_766,
                n_numbers=8,
                n_words=_DIABETES_SIZES,
                shares=(0.5391, 0.4609),
                rows_per_person=1.42,
            )
        },
    ),
    DatasetInfo(
        name="no-show",
        title="Medical appointment no shows",
        files=(make_file("KaggleV2-May-2016.csv", rows=110_527),),
        provider=KAGGLE,
        page="https://www.kaggle.com/datasets/joniarroba/noshowappointments",
        licence="CC BY-NC-SA 4.0",
        citation="Hoppen (2016), Medical Appointment No Shows",
        subject_id="PatientId",
        survey=SurveyRow(dimensionality="14", size="110,527", classes="2", balance="20.19%"),
        note=f"The survey's dimensionality counts the label. {_FIXED}",
        has_words=True,
        # Some numbers of patients have a fraction in the file, so ids are texts.
        reader=TableReader(
            numbers=(*_NO_SHOW_NUMBERS, *_TIMES),
            words=("Gender", "Neighbourhood"),
            cells=_TIMES,
            target="No-show",
            is_positive=lambda text: text == "Yes",
            ids="PatientId",
            ids_type=str,
        ),
        stand_ins={
            "": StandIn(
                110_527,
                n_numbers=15,
                n_words=(2, 81),
                shares=(0.7981, 0.2019),
                rows_per_person=1.77,
            )
        },
    ),
    DatasetInfo(
        name="olympics",
        title="120 years of Olympic history",
        files=(make_file("athlete_events.csv", rows=271_116),),
        provider=KAGGLE,
        page=(
            "https://www.kaggle.com/datasets/heesoo37/"
            "120-years-of-olympic-history-athletes-and-results"
        ),
        licence="CC0 1.0",
        citation="Griffin (2018), 120 years of Olympic history; data by sports-reference.com",
        subject_id="ID",
        survey=SurveyRow(dimensionality="15", size="206,165", classes="2", balance="14.60%"),
        note=(
            "206,165 of 271,116 rows have age, height and weight; the survey's dimensionality "
            f"counts the label. {_FIXED} One-hot X takes 1 GB."
        ),
        variants={
            "measured": "rows with age, height and weight: 206,165",
            "all": "every row; a missing number is -1",
        },
        has_words=True,
        # Names and teams of athletes are left out; y is any medal.
        reader=TableReader(
            numbers=("Age", "Height", "Weight", "Year"),
            words=("Sex", "NOC", "Games", "Season", "City", "Sport", "Event"),
            measured=("Age", "Height", "Weight"),
            target="Medal",
            is_positive=is_known,
            ids="ID",
        ),
        stand_ins={
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
    DatasetInfo(
        name="census",
        title="Census-Income (KDD)",
        files=(
            make_file(
                "census-income.data",
                sha256="3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
            ),
            make_file(
                "census-income.test",
                sha256="98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
            ),
        ),
        provider=UCI,
        page="https://archive.ics.uci.edu/dataset/117/census+income+kdd",
        licence=CC_BY,
        licence_source=LISTED,
        rows_source=COUNTED,
        citation="US Census Bureau (2000), Census-Income (KDD), doi:10.24432/C5N30T",
        survey=SurveyRow(dimensionality="40", size="299,285", classes="2", balance="6.20%"),
        note=f"The survey's size counts both files; 199,523 are to train on. {_FIXED_BOTH}",
        has_words=True,
        # Codes of industry, occupation, business, benefits and year are words.
        reader=TableReader(
            files=(0, 1),
            names=CENSUS,
            numbers=CENSUS_NUMBERS,
            dropped=("instance weight",),
            target="income",
            is_positive=_is_label("50000+"),
        ),
        stand_ins={
            "": StandIn(199_523, 99_762, n_numbers=7, n_words=_CENSUS_SIZES, shares=(0.938, 0.062))
        },
    ),
)
