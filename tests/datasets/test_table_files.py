"""Tables in the providers' formats, written by hand, and the numbers that must come out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from letheon.datasets import Dataset, DatasetFormatError, _tables, load
from letheon.datasets._tables import diagnosis_group
from tests.datasets.providers import svm_lines, write

ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, {}\n"
    "50, ?, 83311, HS-grad, 9, Divorced, ?, Husband, Black, Female, 0, 7, 13, Cuba, {}\n\n"
)


def read(name: str, home: Path, **options: Any) -> Dataset:
    return load(name, folder=home, check=False, **options)


def column(data: Dataset, name: str) -> list[float]:
    values: list[float] = data.X[:, data.feature_names.index(name)].tolist()
    return values


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_adult(ending: str, tmp_path: Path) -> None:
    write(tmp_path / "adult" / f"adult.data{ending}", ADULT.format("<=50K", ">50K"))
    test = "|1x3 Cross validator\n" + ADULT.format("<=50K.", ">50K.")
    write(tmp_path / "adult" / f"adult.test{ending}", test.replace("Cuba", "Peru"))
    data = read("adult", tmp_path)
    assert data.y.tolist() == [0, 1]
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1]
    assert column(data, "capital-loss") == [0, 7]
    assert column(data, "workclass=missing") == [0, 1]
    # Both files have the columns of both.
    assert column(data, "native-country=Peru") == [0, 0]
    assert data.X_test[:, data.feature_names.index("native-country=Peru")].tolist() == [0, 1]
    ordinal = read("adult", tmp_path, encode="ordinal")
    assert ordinal.X.shape == (2, 14)
    assert column(ordinal, "education") == [0, 1]


def test_census_leaves_the_weight_out(tmp_path: Path) -> None:
    cells = [str(place) for place in range(41)]
    rows = "".join(", ".join([*cells, label]) + "\n" for label in (" - 50000.", " 50000+."))
    for part in ("data", "test"):
        write(tmp_path / "census" / f"census-income.{part}.xz", rows)
    data = read("census", tmp_path, encode="ordinal")
    assert data.X.shape == (2, 40)
    assert data.y.tolist() == [0, 1]
    assert column(data, "capital gains") == [16, 16]
    assert "instance weight" not in data.feature_names


BANK = {
    "additional": (
        '"age";"job";"marital";"education";"default";"housing";"loan";"contact";"month";'
        '"day_of_week";"duration";"campaign";"pdays";"previous";"poutcome";"emp.var.rate";'
        '"cons.price.idx";"cons.conf.idx";"euribor3m";"nr.employed";"y"\n'
        '56;"housemaid";"married";"basic.4y";"no";"no";"no";"telephone";"may";"mon";261;1;999;0;'
        '"nonexistent";1.1;93.994;-36.4;4.857;5191;"no"\n'
        '37;"services";"married";"high.school";"no";"yes";"no";"telephone";"may";"mon";226;1;999;'
        '0;"nonexistent";1.1;93.994;-36.4;4.857;5191;"yes"\n'
    ),
    "full": (
        '"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";'
        '"month";"duration";"campaign";"pdays";"previous";"poutcome";"y"\n'
        '58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;'
        '"unknown";"no"\n'
        '44;"technician";"single";"secondary";"no";29;"yes";"no";"unknown";5;"may";151;1;-1;0;'
        '"unknown";"yes"\n'
    ),
}


@pytest.mark.parametrize(
    ("variant", "file", "width"),
    [("additional", "bank-additional-full.csv", 20), ("full", "bank-full.csv", 16)],
)
def test_bank(variant: str, file: str, width: int, tmp_path: Path) -> None:
    write(tmp_path / "bank" / file, BANK[variant])
    data = read("bank", tmp_path, variant=variant, encode="ordinal")
    assert data.X.shape == (2, width)
    assert data.y.tolist() == [0, 1]
    assert column(data, "campaign") == [1, 1]
    assert column(data, "job") == [0, 1]


def test_diabetes_has_patients(tmp_path: Path) -> None:
    head = (
        "encounter_id,patient_nbr,race,time_in_hospital,num_lab_procedures,num_procedures,"
        "num_medications,number_outpatient,number_emergency,number_inpatient,diag_1,diag_2,diag_3,"
        "number_diagnoses,readmitted\n"
    )
    rows = "1,77,?,1,41,0,1,0,0,0,250.83,?,V57,1,NO\n2,77,Asian,3,59,0,18,0,0,0,428,8,999,9,>30\n"
    write(tmp_path / "diabetes" / "diabetic_data.csv.gz", head + rows)
    data = read("diabetes", tmp_path)
    assert data.ids is not None
    assert data.ids.tolist() == [77, 77]
    assert data.y.tolist() == [0, 1]
    assert column(data, "num_medications") == [1, 18]
    assert column(data, "diag_1=circulatory") == [0, 1]
    assert column(data, "race=missing") == [1, 0]
    assert not {"patient_nbr", "encounter_id", "patient_nbr=77"} & set(data.feature_names)


@pytest.mark.parametrize(
    ("code", "group"),
    [
        ("390", "circulatory"), ("459.81", "circulatory"), ("785", "circulatory"),
        ("460", "respiratory"), ("519", "respiratory"), ("786", "respiratory"),
        ("520", "digestive"), ("579", "digestive"), ("787", "digestive"),
        ("250", "diabetes"), ("250.01", "diabetes"), ("249", "other"), ("251", "other"),
        ("800", "injury"), ("999", "injury"), ("710", "musculoskeletal"), ("140", "neoplasms"),
        ("239", "neoplasms"), ("580", "genitourinary"), ("788", "genitourinary"),
        ("E909", "other"), ("V45", "other"), ("?", "missing"),
    ],
)  # fmt: skip
def test_diagnoses_are_grouped_as_published(code: str, group: str) -> None:
    assert diagnosis_group(code) == group


def test_no_show_has_patients_and_parts_of_dates(tmp_path: Path) -> None:
    write(
        tmp_path / "no-show" / "KaggleV2-May-2016.csv",
        "PatientId,AppointmentID,Gender,ScheduledDay,AppointmentDay,Age,Neighbourhood,"
        "Scholarship,Hipertension,Diabetes,Alcoholism,Handcap,SMS_received,No-show\n"
        "29872499824296,5642903,F,2016-04-29T18:38:08Z,2016-05-02T00:00:00Z,62,"
        "JARDIM DA PENHA,0,1,0,0,0,0,No\n"
        "93779.52927,5642904,M,2015-12-03T08:36:51Z,2016-05-02T00:00:00Z,-1,CENTRO,0,0,0,0,0,1,"
        "Yes\n",
    )
    data = read("no-show", tmp_path)
    assert data.ids is not None
    assert data.ids.tolist() == ["29872499824296", "93779.52927"]
    assert data.y.tolist() == [0, 1]
    assert column(data, "ScheduledDay month") == [4, 12]
    assert column(data, "ScheduledDay hour") == [18, 8]
    assert data.X.shape == (2, 15 + 2 + 2)


def test_surgical(tmp_path: Path) -> None:
    write(
        tmp_path / "surgical" / "Surgical-deepnet.csv",
        "bmi,Age,asa_status,baseline_cancer,baseline_charlson,baseline_cvd,baseline_dementia,"
        "baseline_diabetes,baseline_digestive,baseline_osteoart,baseline_psych,"
        "baseline_pulmonary,ahrq_ccs,ccsComplicationRate,ccsMort30Rate,complication_rsi,dow,"
        "gender,hour,month,moonphase,mort30,mortality_rsi,race,complication\n"
        "19.31,59.2,1,1,0,0,0,0,0,0,0,0,19,0.18337,0.0074,-0.57,3,0,7.63,6,1,0,-0.43,1,0\n"
        "18.73,59.1,0,0,0,0,0,0,0,0,0,0,1,0.31203,0.0167,0.21,0,0,12.93,0,1,0,-0.41,1,1\n",
    )
    data = read("surgical", tmp_path, encode="ordinal")
    assert data.X.shape == (2, 24)
    assert data.y.tolist() == [0, 1]
    assert column(data, "hour") == pytest.approx([7.63, 12.93])


def test_vaccine_joins_answers_and_labels_by_respondent(tmp_path: Path) -> None:
    write(
        tmp_path / "vaccine" / "training_set_features.csv",
        "respondent_id,h1n1_concern,age_group\n0,1.0,55 - 64 Years\n1,,35 - 44 Years\n",
    )
    write(
        tmp_path / "vaccine" / "training_set_labels.csv",
        "respondent_id,h1n1_vaccine,seasonal_vaccine\n1,1,1\n0,0,0\n",
    )
    data = read("vaccine", tmp_path)
    assert data.y.tolist() == [0, 1]
    assert data.ids is not None
    assert data.ids.tolist() == [0, 1]
    assert column(data, "h1n1_concern=missing") == [0, 1]
    assert column(data, "h1n1_vaccine=1") == [0, 1]
    other = read("vaccine", tmp_path, variant="h1n1")
    assert not [name for name in other.feature_names if "vaccine" in name]


def test_vaccine_without_a_label_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "vaccine" / "training_set_features.csv", "respondent_id,a\n0,1\n1,2\n")
    labels = "respondent_id,h1n1_vaccine,seasonal_vaccine\n0,0,0\n"
    write(tmp_path / "vaccine" / "training_set_labels.csv", labels)
    with pytest.raises(DatasetFormatError, match="1 respondents have no label"):
        read("vaccine", tmp_path)


OLYMPICS = (
    '"ID","Name","Sex","Age","Height","Weight","Team","NOC","Games","Year","Season","City",'
    '"Sport","Event","Medal"\n'
    '"1","A Dijiang","M",24,180,80,"China","CHN","1992 Summer",1992,"Summer","Barcelona",'
    '"Basketball","Basketball Men\'s Basketball",NA\n'
    '"2","A Lamusi","M",23,NA,60,"China","CHN","2012 Summer",2012,"Summer","London","Judo",'
    '"Judo Men\'s Extra-Lightweight",NA\n'
    '"2","A Lamusi","M",23,170,60,"China","CHN","2012 Summer",2012,"Summer","London","Judo",'
    '"Judo Men\'s Half, Lightweight",Gold\n'
)


def test_olympics_filter(tmp_path: Path) -> None:
    write(tmp_path / "olympics" / "athlete_events.csv", OLYMPICS)
    data = read("olympics", tmp_path)
    assert data.ids is not None
    assert data.ids.tolist() == [1, 2]
    assert data.y.tolist() == [0, 1]
    assert column(data, "Height") == [180, 170]
    all_athletes = read("olympics", tmp_path, variant="all")
    assert column(all_athletes, "Height") == [180, -1, 170]
    assert all_athletes.feature_names == data.feature_names


def test_credit_card(tmp_path: Path) -> None:
    rows = '"Time","V1","V2","Amount","Class"\n0,-1.35,2.5,149.62,"0"\n1,1.19,0.1,2.69,"1"\n'
    write(tmp_path / "credit-card" / "creditcard.csv", rows)
    data = read("credit-card", tmp_path)
    assert data.feature_names == ("Time", "V1", "V2", "Amount")
    assert data.y.tolist() == [0, 1]
    assert data.X[1].tolist() == pytest.approx([1, 1.19, 0.1, 2.69])


def test_ctr_takes_the_first_rows_and_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = "\t".join(["68fd1e64"] * 26)
    lines = [f"{i % 2}\t{i}\t" + "\t" * 11 + f"{-i}\t{hashes}\n" for i in range(5)]
    write(tmp_path / "ctr" / "day_0.gz", "".join(lines))
    monkeypatch.setattr(_tables, "FIRST", 3)
    data = read("ctr", tmp_path)
    assert data.X.shape == (3, 13)
    assert data.y.tolist() == [0, 1, 0]
    assert data.X[2].tolist() == [2, *[-1] * 11, -2]


@pytest.mark.parametrize(("file", "mark"), [("hspam14.tsv", "\t"), ("comments.csv", ",")])
def test_twitter_counts_marks(
    file: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        ("com_id", "user_id", "text", "label", "pagerank"),
        ("1", "7", "RT @a: #win http://x #now \\u2026", "spam", "0.5"),
        ("2", "9", "hello", "ham", "0.25"),
        ("3", "7", "again", "0", ""),
        ("4", "7", "later", "1", "1"),
    ]
    write(tmp_path / "twitter" / file, "".join(mark.join(row) + "\n" for row in rows))
    monkeypatch.setattr(_tables, "FIRST", 3)
    data = read("twitter", tmp_path)
    names = ("pagerank", "num_chs", "num_hsh", "num_men", "num_lnk", "num_rtw", "num_uni")
    assert data.feature_names == (*names, "usr_msg_cnt")
    assert data.X[0].tolist() == [0.5, 32, 2, 1, 1, 1, 1, 0]
    assert column(data, "usr_msg_cnt") == [0, 0, 1]
    assert column(data, "pagerank") == [0.5, 0.25, -1]
    assert data.y.tolist() == [1, 0, 0]
    assert data.ids is not None
    assert data.ids.tolist() == [7, 9, 7]


def test_twitter_without_authors_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "twitter" / "comments.csv", "text,label\nhi,1\n")
    with pytest.raises(DatasetFormatError, match="user_id"):
        read("twitter", tmp_path)


def test_purchase_takes_what_is_sold_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "id,chain,dept,category,company,brand,date,productsize,productmeasure,"
    sold = [(86246, 907), (86246, 9753), (86246, 9753), (5, 9753), (86252, 44), (5, 44), (86252, 1)]
    lines = "".join(f"{who},205,7,{what},1,1,2012-03-02,16,OZ,2,5.28\n" for who, what in sold)
    folder = tmp_path / "purchase"
    write(folder / "transactions.csv.gz", head + "purchasequantity,purchaseamount\n" + lines)
    write(
        folder / "trainHistory.csv",
        "id,chain,offer,market,repeattrips,repeater,offerdate\n"
        "86246,205,1208251,34,5,t,2013-04-24\n86252,205,1197502,34,0,f,2013-03-27\n",
    )
    monkeypatch.setattr(_tables, "TOP", 2)
    data = read("purchase", tmp_path)
    assert data.feature_names == ("category 9753", "category 44")
    assert data.X.tolist() == [[1, 0], [0, 1]]
    assert data.y.tolist() == [1, 0]
    assert data.ids is not None
    assert data.ids.tolist() == [86246, 86252]


def test_covtype_with_and_without_a_header(tmp_path: Path) -> None:
    row = ",".join(map(str, range(54)))
    write(tmp_path / "covtype" / "covtype.data.gz", f"{row},2\n{row},7\n")
    data = read("covtype", tmp_path)
    assert data.X.tolist() == [list(range(54))] * 2
    assert data.y.tolist() == [1, 6]
    assert read("covtype", tmp_path, variant="binary").y.tolist() == [1, 0]
    head = ",".join([*data.feature_names, "Cover_Type"])
    write(tmp_path / "other" / "covtype" / "covtype.random15k.csv", f"{head}\n{row},2\n")
    assert read("covtype", tmp_path / "other").y.tolist() == [1]


def test_higgs_has_the_label_first(tmp_path: Path) -> None:
    cells = ",".join(f"{place}e-01" for place in range(28))
    write(tmp_path / "higgs" / "HIGGS.csv.gz", f"1.0e+00,{cells}\n0.0e+00,{cells}\n")
    data = read("higgs", tmp_path)
    assert data.y.tolist() == [1, 0]
    assert data.X[1].tolist() == pytest.approx([place / 10 for place in range(28)])
    assert len(data.feature_names) == 28


def test_svmlight_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.zeros((5, 2000), np.float32)
    X[np.arange(5), [0, 1999, 7, 7, 3]] = [0.5, -1.25, 2, 4, 8]
    labels = [1, -1, -1, 1, 1]
    write(tmp_path / "epsilon" / "epsilon_normalized.bz2", svm_lines(X, labels))
    monkeypatch.setattr(_tables, "_SVM_LINES", 2)
    dense = read("epsilon", tmp_path)
    np.testing.assert_array_equal(dense.X, X)
    assert dense.X.flags.c_contiguous
    assert dense.y.tolist() == [1, 0, 0, 1, 1]
    assert dense.X_test is None
    for name in ("rcv1_train.binary", "rcv1_test.binary"):
        write(tmp_path / "rcv1" / f"{name}.bz2", svm_lines(X, labels))
    data = read("rcv1", tmp_path)
    assert sparse.issparse(data.X)
    assert data.X.shape == data.X_test.shape == (5, 47_236)
    np.testing.assert_array_equal(data.X.toarray()[:, :2000], X)
    assert data.sample(2).X.shape == (2, 47_236)


def test_sst_reads_trees(tmp_path: Path) -> None:
    trees = "(3 (2 It) (4 (2 's) (3 Good)))\n(2 (2 It) (2 it))\n(0 (1 Bad) (2 .))\n"
    write(tmp_path / "sst" / "trees" / "train.txt", trees)
    write(tmp_path / "sst" / "trees" / "test.txt", "(1 (2 So) (1 bad))\n(2 so)\n")
    data = read("sst", tmp_path)
    assert data.feature_names == ("'s", ".", "bad", "good", "it", "so")
    assert data.X.toarray().tolist() == [[1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 2, 0], [0, 1, 1, 0, 0, 0]]
    assert data.y.tolist() == [3, 2, 0]
    pair = read("sst", tmp_path, variant="binary")
    assert pair.y.tolist() == [1, 0]
    assert pair.y_test is not None
    assert pair.y_test.tolist() == [0]
    assert pair.feature_names == data.feature_names


def test_sst_refuses_other_texts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / "sst" / f"{part}.txt", "no tree\n")
    with pytest.raises(DatasetFormatError, match="not a tree"):
        read("sst", tmp_path)
