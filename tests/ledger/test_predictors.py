"""The predictor's digest in certificates: who checks it, and what it does not reveal."""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from sqlalchemy import select, update

import letheon
from letheon import NaiveUnlearner, sandbox, state, verifier
from letheon.audit import audit
from letheon.exceptions import CertificateError, SignerRefusedError
from letheon.ledger import Ledger
from letheon.ledger.certificates import predictors
from letheon.ledger.certificates.certify import certify_next
from letheon.ledger.tables import versions
from letheon.verifier import (
    UNLEARNING,
    UNLEARNING_V1,
    Trust,
    VerificationError,
    check_predictor,
    check_schema,
    open_envelope,
    parse_strict,
    verify_bundle,
)
from tests.ledger.forgetters import SEED, table
from tests.ledger.published import NAME, ask, core_of, new_ledger, publish, published
from tests.ledger.test_outside import files


@dataclass
class Story:
    """A ledger with two certificates, and the predictor before them and after each."""

    ledger: Ledger
    bundle: Path
    files: list[Path]

    def check(self, file: Path) -> verifier.Verdict:
        return verify_bundle(self.bundle, self.ledger.public_key, predictor=file.read_bytes())[-1]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("predictors")
    with new_ledger(folder / "home") as ledger:
        files = [folder / f"{number}.predictor" for number in range(3)]
        ledger.models.save_predictor(NAME, files[0])
        for people, file in zip(([0, 1, 2], [5]), files[1:], strict=True):
            ask(ledger, people)
            ledger.run_once(force=True)
            ledger.models.save_predictor(NAME, file)
        yield Story(ledger, ledger.export(folder / "bundle", tier="public"), files)


def statement_of(ledger: Ledger, number: int) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads(
        base64.b64decode(json.loads(ledger.certificates.envelope(number))["payload"])
    )
    return statement


def stated(ledger: Ledger, number: int = 1) -> dict[str, str]:
    entry: dict[str, str] = statement_of(ledger, number)["predicate"]["model"]["predictor"]
    return entry


def opened(story: Story, number: int) -> verifier.SignedStatement:
    envelope = story.ledger.certificates.envelope(number)
    return open_envelope(envelope, Trust.from_pinned(story.ledger.public_key))


def change_facts(ledger: Ledger, change: Any) -> None:
    with core_of(ledger).database.transaction() as conn:
        newest = select(versions.c.id, versions.c.facts).order_by(versions.c.id.desc()).limit(1)
        number, text = conn.execute(newest).one()
        facts = parse_strict(text.encode())
        change(facts["certificate"])
        changed = verifier.canonical(facts).decode()
        conn.execute(update(versions).where(versions.c.id == number).values(facts=changed))


def test_each_certificate_states_the_file_of_its_version(story: Story) -> None:
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in story.files]
    assert [stated(story.ledger, number)["sha256"] for number in (1, 2)] == digests[1:]
    assert statement_of(story.ledger, 1)["predicateType"] == UNLEARNING
    check_schema(statement_of(story.ledger, 1))


def test_the_file_loads_and_predicts_like_the_model(story: Story) -> None:
    X = table()[0]
    predictor, model = letheon.load(story.files[2]), story.ledger.models.load(NAME)
    assert predictor.digest() == model.predictor().digest()
    np.testing.assert_array_equal(predictor.predict_proba(X), model.predict_proba(X))


def test_inspect_describes_the_file_without_versions(story: Story) -> None:
    info = letheon.persist.inspect(story.files[1])
    assert (info.class_name, info.versions) == ("letheon.predictor.ScorePredictor", {})


@pytest.mark.parametrize("place", [0, 31, 40, -1])
def test_a_changed_byte_is_noticed(story: Story, tmp_path: Path, place: int) -> None:
    data = bytearray(story.files[2].read_bytes())
    data[place] ^= 1
    (tmp_path / "changed").write_bytes(data)
    assert story.check(tmp_path / "changed").passed is False
    if place not in (0, 31):  # these bytes only blind the digest
        with pytest.raises(letheon.exceptions.LetheonError):
            letheon.load(tmp_path / "changed")


def test_only_the_newest_predictor_passes(story: Story) -> None:
    verdicts = [story.check(file) for file in story.files]
    assert [verdict.passed for verdict in verdicts] == [False, False, True]
    assert "no certificate" in verdicts[0].reason
    assert "predictor of certificate 1; certificate 2" in verdicts[1].reason


def test_the_predictor_of_another_ledger_fails(story: Story, tmp_path: Path) -> None:
    with published(tmp_path / "home", [[0, 1, 2], [5]]) as other:
        other.models.save_predictor(NAME, tmp_path / "other")
    same, theirs = (letheon.load(file) for file in (story.files[2], tmp_path / "other"))
    assert same.digest() == theirs.digest()  # equal models; only the 32 bytes differ
    assert story.check(tmp_path / "other").passed is False


def test_one_certificate_is_enough_to_check_a_file(story: Story) -> None:
    first = opened(story, 1)
    check_predictor(story.files[1].read_bytes(), first)
    with pytest.raises(VerificationError, match="not the predictor that certificate 1 states"):
        check_predictor(story.files[2].read_bytes(), first)


def test_the_verifier_alone_checks_a_file(story: Story) -> None:
    def run(file: Path) -> int:
        command = [sys.executable, "-I", str(verifier.__file__), str(story.bundle)]
        command += ["--key", story.ledger.public_key, "--predictor", str(file)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert [run(file) for file in story.files[1:]] == [1, 0]


def test_without_the_nonce_the_digest_does_not_confirm_a_guess(story: Story) -> None:
    predictor = letheon.load(story.files[2])
    guesses = [state.encode(predictor), bytes(32) + state.encode(predictor)]
    guesses += [predictors.make_predictor_file(story.ledger.models.load(NAME), bytes(32))]
    digests = {hashlib.sha256(guess).hexdigest() for guess in guesses}
    assert stated(story.ledger, 2)["sha256"] not in digests | {predictor.digest()}


def test_the_file_does_not_contain_the_nonce_of_the_model(story: Story) -> None:
    ledger = story.ledger
    bundle = ledger.export(story.bundle.with_name("auditor"), tier="auditor")
    raw = next((bundle / "models").rglob("model.blob")).read_bytes()
    assert predictors.make_predictor_file(ledger.models.load(NAME), raw[:32]) == (
        story.files[2].read_bytes()
    )
    assert raw[:32] not in story.files[2].read_bytes()


def test_the_error_names_the_file_that_cannot_be_written(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "churn.predictor"
    with pytest.raises(FileNotFoundError, match=f"{path}'$"):
        story.ledger.models.save_predictor(NAME, path)


def test_a_model_without_predictor_says_so(tmp_path: Path) -> None:
    model = NaiveUnlearner(KNeighborsClassifier(), random_state=SEED)
    with new_ledger(tmp_path / "home", model) as ledger:
        ask(ledger, [0])
        ledger.run_once(force=True)
        assert stated(ledger) == {"reason": "no-predictor"}
        with pytest.raises(TypeError, match="KNeighborsClassifier"):
            ledger.models.save_predictor(NAME, tmp_path / "file")
        statement = open_envelope(
            ledger.certificates.envelope(1), Trust.from_pinned(ledger.public_key)
        )
    with pytest.raises(VerificationError, match="states no predictor: no-predictor"):
        check_predictor(b"", statement)


def test_the_predictor_of_an_uploaded_model_is_stated_and_audited(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "home", name="test-ledger") as ledger:
        ledger.models.register_files(files(tmp_path), name=NAME)
        ledger.requests.submit([1], model=NAME, verified=True)
        ledger.run_once(force=True)
        ledger.models.save_predictor(NAME, tmp_path / "file")
        digest = hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
        assert stated(ledger) == {"sha256": digest}
        assert audit(ledger.export(tmp_path / "b", tier="auditor"), key=ledger.public_key).passed


@pytest.mark.parametrize("forged", [{"sha256": "short"}, {"name": "x"}, None, {}])
def test_a_malformed_digest_of_a_sandboxed_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: Any
) -> None:
    honest = sandbox.call

    def call(function: Any, *given: Any, **options: Any) -> Any:
        answer = honest(function, *given, **options)
        return answer | {"predictor": forged} if "predictor" in answer else answer

    with Ledger.create(tmp_path / "home", name="test-ledger") as ledger:
        ledger.models.register_files(files(tmp_path), name=NAME)
        ledger.requests.submit([1], model=NAME, verified=True)
        monkeypatch.setattr(sandbox, "call", call)
        ledger.run_once(force=True)
        assert len(ledger.models.versions(NAME)) == 1


def test_an_error_of_a_predictor_does_not_stop_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError

    with new_ledger(tmp_path / "home") as ledger:
        monkeypatch.setattr("letheon.base.ForgetMixin.predictor", fail)
        ask(ledger, [0])
        ledger.run_once(force=True)
        assert stated(ledger) == {"reason": "no-predictor"}


@pytest.mark.parametrize("forged", [{"sha256": "ab" * 32}, {"reason": "no-predictor"}])
def test_the_signer_refuses_another_predictor(tmp_path: Path, forged: dict[str, str]) -> None:
    with published(tmp_path / "home", [[0, 1, 2]]) as ledger:
        change_facts(ledger, lambda facts: facts.update(predictor=forged))
        with pytest.raises(SignerRefusedError, match="predictor"):
            certify_next(core_of(ledger))


def test_another_machine_signs_what_the_first_one_computed(tmp_path: Path) -> None:
    with published(tmp_path / "home", [[0, 1, 2]]) as ledger:

        def move(facts: dict[str, Any]) -> None:
            facts["execution"]["kernel"] = "openblas:0.0.0:other"
            facts["predictor"] = {"sha256": "ab" * 32}

        change_facts(ledger, move)
        assert certify_next(core_of(ledger)) == 1
        with pytest.raises(CertificateError, match="this machine computes other bytes"):
            ledger.models.save_predictor(NAME, tmp_path / "file")


def test_a_certificate_without_predictor_after_one_with_it_fails_the_audit(
    tmp_path: Path,
) -> None:
    """The operator goes back to the earlier form, which states no predictor."""
    with published(tmp_path / "home", [[0, 1, 2]]) as ledger:
        assert certify_next(core_of(ledger)) == 1
        ask(ledger, [5])
        publish(ledger)
        change_facts(ledger, lambda facts: facts.pop("predictor"))
        assert certify_next(core_of(ledger)) == 2
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=ledger.public_key, levels=["V0", "V2", "V4"])
    assert [finding.reason for finding in report.failures] == [
        "certificate 2 states no predictor, and an earlier one of the model does"
    ]


def test_a_version_of_an_earlier_letheon_gets_the_earlier_certificate(tmp_path: Path) -> None:
    with published(tmp_path / "home", [[0, 1, 2]]) as ledger:
        change_facts(ledger, lambda facts: facts.pop("predictor"))
        ledger.models.save_predictor(NAME, tmp_path / "file")
        assert certify_next(core_of(ledger)) == 1
        ask(ledger, [5])
        publish(ledger)
        assert certify_next(core_of(ledger)) == 2
        kinds = [statement_of(ledger, number)["predicateType"] for number in (1, 2)]
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=ledger.public_key, levels=["V0", "V2", "V4"])
        earlier = open_envelope(
            ledger.certificates.envelope(1), Trust.from_pinned(ledger.public_key)
        )
    assert kinds == [UNLEARNING_V1, UNLEARNING]
    assert report.passed
    with pytest.raises(VerificationError, match="states no predictor: earlier-version"):
        check_predictor((tmp_path / "file").read_bytes(), earlier)
