"""A ledger from `init` to the audit that notices one changed byte, by commands alone."""

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from letheon import verifier
from tests.cli.ledgers import LEAVING, PEOPLE, call, done, files_in


class LedgerStory(NamedTuple):
    home: Path
    bundle: Path
    public: Path
    key: str
    request: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> LedgerStory:
    """Play it: a model, a request of two people, a batch, a bundle."""
    folder = tmp_path_factory.mktemp("story")
    home, files = folder / "home", files_in(folder)
    key = done("init", home, "--name", "demo")["public_key"]
    here = ("--ledger", home)
    words = ("model", "add", files.model, "--rows", files.rows, "--target", "kind", "--ids", "who")
    added = done(*words, "--name", "m", "--test", files.rows, *here)
    assert (added["n_rows"], added["method"]) == (len(PEOPLE), "naive")
    ids = "\r\n".join((*LEAVING, "", ""))
    asked = done("request", "add", "--model", "m", "--ids-file", "-", *here, stdin=ids)
    assert (asked["state"], asked["n_ids"]) == ("received", 2)
    assert done("request", "verify", asked["id"], *here)["state"] == "queued"
    (plan,) = done("batch", "plan", *here)
    assert (plan["n_requests"], plan["decision"]["seal"]) == (1, False)
    assert done("batch", "apply", *here) == []
    steps = done("batch", "apply", "--force", *here)
    assert [step["what"] for step in steps] == ["applied", "certified", "purged"]
    done("ledger", "export", folder / "bundle", "--tier", "auditor", *here)
    done("ledger", "export", folder / "public", *here)
    return LedgerStory(home, folder / "bundle", folder / "public", key, asked["id"])


def test_the_home_is_closed_to_others(story: LedgerStory) -> None:
    assert stat.S_IMODE(story.home.stat().st_mode) == 0o700


def test_the_person_is_answered(story: LedgerStory) -> None:
    shown = done("request", "show", story.request, "--ledger", story.home)
    assert (shown["state"], shown["certificate"]) == ("purged", 1)
    assert {"received", "queued", "applied", "purged"} <= {
        item["kind"] for item in shown["timeline"]
    }
    assert shown["timeline"][0].keys() == {"at", "kind", "details", "log_index"}


def test_the_certificate_holds_by_number_and_by_file(story: LedgerStory) -> None:
    by_number = done("cert", "verify", "1", "--ledger", story.home)
    file = story.public / "certificates" / "000001.json"
    by_file = done("cert", "verify", file, "--key", story.key)
    assert by_number == by_file
    assert by_file["verified"]
    purge = story.public / "purges" / "000001.json"
    assert done("cert", "verify", purge, "--key", story.key)["kind"] == "attestation"


def test_the_certificate_is_shown_with_what_it_does_not_claim(story: LedgerStory) -> None:
    said = call("cert", "show", "1", "--ledger", story.home).output
    assert re.search(r"^erased +2 rows of data set m; 38 remain$", said, re.MULTILINE)
    assert "no-copy-kept-outside-inventory" in said
    assert re.search("^estimated +efficiency", said, re.MULTILINE)
    assert re.search("^by proof +consistency", said, re.MULTILINE)
    statement = done("cert", "show", story.bundle / "certificates" / "000001.json")["statement"]
    assert statement["predicate"]["guarantee"]["kind"] == "exact"


def test_the_chain_is_listed_and_verified(story: LedgerStory) -> None:
    document = done("cert", "chain", "--ledger", story.home)
    (link,) = document["certificates"]
    assert document["verified"]
    assert (link["model"], link["kind"], link["rows"], link["purged"]) == ("m", "erase", 2, True)


@pytest.mark.parametrize("level", ["replay", "report"])
def test_the_audit_passes(story: LedgerStory, level: str) -> None:
    report = done("audit", level, story.bundle, "--key", story.key)
    assert report["passed"]
    assert {result["level"] for result in report["results"]} >= {"V0", "V4"}


def test_the_id_of_a_key_is_no_key(story: LedgerStory) -> None:
    (key,) = done("key", "list", "--ledger", story.home)
    result = call("audit", "report", story.public, "--key", key["keyid"])
    assert result.exit_code == 2
    assert "is the id of a key" in result.stderr


def test_the_key_that_a_bundle_brings_is_not_used(story: LedgerStory, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(story.public, tmp_path / "bundle"))
    (bundle / "keys" / "root.pub").write_bytes(b"\xff" * 64)
    result = call("audit", "report", bundle, "--key", story.key, "--json")
    failed = [
        result_item
        for result_item in json.loads(result.stdout)["results"]
        if result_item["verdict"] == "fail"
    ]
    assert [item["reason"] for item in failed] == [
        "index.json: keys/root.pub is not the file that was signed"
    ]


def test_the_key_may_be_a_file_and_the_report_a_page(story: LedgerStory, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(story.key + "\n")
    words = ("audit", "report", story.public, "--key", tmp_path / "key")
    result = call(*words, "--html", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert "</html>" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "code"), [(("replay",), 3), (("bound",), 3), (("report", "--strict"), 1)]
)
def test_what_could_not_be_shown_is_no_success(
    story: LedgerStory, words: tuple[str, ...], code: int
) -> None:
    result = call("audit", *words, story.public, "--key", story.key)
    assert result.exit_code == code
    assert "a public bundle contains no models" in " ".join(result.output.split())


def test_an_incomplete_audit_has_its_own_exit_status(story: LedgerStory, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(story.bundle, tmp_path / "bundle"))
    for name in verifier.INDEX_FILES:
        (bundle / name).unlink()
    words = ("audit", "report", bundle, "--key", story.key)
    result = call(*words)
    assert result.exit_code == 3
    assert result.output.startswith("audit of demo: INCOMPLETE\nscope: an auditor's bundle, ")
    document = json.loads(call(*words, "--json").stdout)
    assert (document["verdict"], document["passed"]) == ("incomplete", False)


def test_an_exact_model_has_no_bound_to_show(story: LedgerStory) -> None:
    words = ("audit", "bound", story.bundle, "--key", story.key)
    result = call(*words)
    assert result.exit_code == 3
    assert result.output.startswith("audit of demo: INCOMPLETE\n")
    assert json.loads(call(*words, "--json").stdout)["passed"] is False


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "level"),
    [
        ("certificates/000001.json", "V0"),
        ("log.json", "V1"),
        ("models/default/m/model.blob", "V4"),
        ("models/default/m/rows.blob", "V2"),
    ],
)
def test_one_changed_byte_fails_the_audit(
    story: LedgerStory, tmp_path: Path, file: str, level: str
) -> None:
    bundle = Path(shutil.copytree(story.bundle, tmp_path / "bundle"))
    flip(bundle / file, 60)
    result = call("audit", "report", bundle, "--key", story.key, "--json")
    failed = [
        result_item["level"]
        for result_item in json.loads(result.stdout)["results"]
        if result_item["verdict"] == "fail"
    ]
    assert result.exit_code == 1
    assert level in failed


def test_a_changed_certificate_is_not_verified(story: LedgerStory, tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    shutil.copy(story.public / "certificates" / "000001.json", file)
    flip(file, 60)
    result = call("cert", "verify", file, "--key", story.key)
    assert result.exit_code == 1
    assert "NOT valid" in result.output
    other = call("cert", "verify", "1", "--key", "0" * 63 + "1", "--ledger", story.home, "--json")
    assert other.exit_code == 1
    assert json.loads(other.stdout)["verified"] is False


def test_a_changed_file_in_the_home_is_noticed(story: LedgerStory) -> None:
    file = story.home / "certificates" / "000001.json"
    before = file.read_bytes()
    assert call("ledger", "verify", "--ledger", story.home).exit_code == 0
    try:
        flip(file, 60)
        for words in (("ledger", "verify"), ("doctor",)):
            assert call(*words, "--ledger", story.home).exit_code == 1
    finally:
        file.write_bytes(before)
    wrong = call("ledger", "verify", "--key", "0" * 63 + "1", "--ledger", story.home)
    assert wrong.exit_code == 1
    assert call("cert", "chain", "--key", "0" * 63 + "1", "--ledger", story.home).exit_code == 1


def test_residue_is_found_and_never_printed(story: LedgerStory, tmp_path: Path) -> None:
    (tmp_path / "export.csv").write_text(f"a,{LEAVING[0]},1\n")
    markers = "\n".join(LEAVING)
    words = ("audit", "residue", "--store", f"copies={tmp_path}", "--markers", "-")
    result = call(*words, stdin=markers)
    assert result.exit_code == 1
    assert "export.csv" in result.output
    assert LEAVING[0] not in result.output
    clean = call(*words, story.public, "--key", story.key, stdin=PEOPLE[1])
    assert clean.exit_code == 0, clean.output


def test_a_short_marker_is_searched_as_a_whole_value(tmp_path: Path) -> None:
    words = ("audit", "residue", "--store", tmp_path, "--markers", "-")
    (tmp_path / "export.csv").write_text("id,age\n71,40\n")
    assert call(*words, stdin="7\n").exit_code == 0
    result = call(*words, stdin="71\n")
    assert result.exit_code == 3
    assert "'export.csv' (ambiguous-value)" in result.output
    (tmp_path / "notes.txt").write_text("seven")
    result = call(*words, stdin=f"7\n{LEAVING[0]}\n")
    assert result.exit_code == 3
    assert "'notes.txt' (file-kind)" in result.output


def test_the_verifier_runs_without_letheon(story: LedgerStory, tmp_path: Path) -> None:
    file = tmp_path / "verifier.py"
    document = done("audit", "verifier", file)
    assert file.read_bytes() == Path(str(verifier.__file__)).read_bytes()
    assert document["bytes"] == file.stat().st_size
    words = [sys.executable, str(file), str(story.public), "--key", story.key]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert call("audit", "verifier", file).exit_code == 4


READ = [
    ("model", "list"),
    ("model", "show", "m"),
    ("request", "list"),
    ("request", "show", "REQUEST"),
    ("batch", "plan"),
    ("cert", "show", "1"),
    ("cert", "show", "1", "--purge"),
    ("cert", "verify", "1"),
    ("cert", "chain"),
    ("ledger", "verify"),
    ("key", "list"),
    ("store", "list"),
    ("doctor",),
]


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_answers_fit_80_columns_without_ids(story: LedgerStory, words: tuple[str, ...]) -> None:
    filled = [story.request if word == "REQUEST" else word for word in words]
    result = call(*filled, "--ledger", story.home)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    as_json = call(*filled, "--ledger", story.home, "--json")
    json.loads(as_json.stdout)
    assert as_json.stderr == ""
    assert not any(person in result.output + as_json.output for person in PEOPLE)


def test_the_plan_says_why_in_words(story: LedgerStory) -> None:
    assert "nothing queued" in call("batch", "plan", "--ledger", story.home).stdout
