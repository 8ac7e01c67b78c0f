"""Forged bundles: the operator holds the signing key, chooses every number and signs it all anew.

None may pass. Where the bundle itself shows that something is wrong the verdict is "failed"; where
something is only left out that cannot be told from an honest gap it is "incomplete".
"""

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from letheon import (
    NaiveUnlearner,
    state,
)
from letheon.audit import AuditReport, audit
from letheon.ledger.models.commitment import RowSlots
from letheon.verifier import INDEX_FILES, canonical
from tests.audit.bundles import erase, payload_of, reindex, resign
from tests.audit.honest import IDS, HonestModel, N, new_ledger, place
from tests.audit.people import table


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestModel]:
    folder = tmp_path_factory.mktemp("forged")
    with new_ledger(folder / "other-home", "bayes") as other:
        erase(other, "bayes", 3)
        strange = other.export(folder / "other", tier="auditor")
    with new_ledger(folder / "home", "bayes", "forest", "newton") as ledger:
        erase(ledger, "bayes", 3)
        erase(ledger, "forest", 4)
        older = ledger.export(folder / "older", tier="auditor")
        erase(ledger, "newton", 5)
        erase(ledger, "bayes", 7)
        bundle = ledger.export(folder / "bundle", tier="auditor")
        public = ledger.export(folder / "public")
        yield HonestModel(ledger, bundle, public, older, strange)


def test_honest_bundles_pass(honest: HonestModel) -> None:
    report = audit(honest.bundle, key=honest.ledger.public_key)
    assert (report.verdict, report.skipped) == ("passed", ())
    assert report.scope == "an auditor's bundle, all levels of its tier, all its models"
    public = audit(honest.public, key=honest.ledger.public_key)
    assert public.verdict == "passed"
    assert public.scope == "a public bundle, without models, all levels of its tier"
    assert {one.level for one in public.skipped} == {"V2", "V4"}


# Bundles whose files were changed, and signed for again.

Forge = Callable[[Path, HonestModel], Any]
FAILED: dict[str, Forge] = {}
INCOMPLETE: dict[str, Forge] = {}


def failed(forge: Forge) -> Forge:
    FAILED[forge.__name__] = forge
    return forge


def incomplete(forge: Forge) -> Forge:
    INCOMPLETE[forge.__name__] = forge
    return forge


def describe(bundle: Path, **changes: Any) -> None:
    path = bundle / "bundle.json"
    path.write_bytes(canonical(json.loads(path.read_bytes()) | changes))


def listed_without(bundle: Path, model: str) -> list[Any]:
    models = json.loads((bundle / "bundle.json").read_bytes())["models"]
    return [one for one in models if one["name"] != model]


@failed
def dropped_model(bundle: Path, _: HonestModel) -> None:
    shutil.rmtree(place(bundle, "bayes"))


@failed
def dropped_model_and_its_entry(bundle: Path, _: HonestModel) -> None:
    describe(bundle, models=listed_without(bundle, "bayes"))
    shutil.rmtree(place(bundle, "bayes"))


@failed
def dropped_model_that_another_scope_hides_badly(bundle: Path, _: HonestModel) -> None:
    describe(bundle, scope={"tenant": "default"}, models=listed_without(bundle, "bayes"))
    shutil.rmtree(place(bundle, "bayes"))


@incomplete
def limited_to_an_honest_model(bundle: Path, _: HonestModel) -> None:
    for kind in ("bayes", "newton"):
        describe(bundle, scope={"model": "forest"}, models=listed_without(bundle, kind))
        shutil.rmtree(place(bundle, kind))


@failed
def dropped_rows(bundle: Path, _: HonestModel) -> None:
    place(bundle, "bayes", "rows.blob").unlink()


@failed
def dropped_salts(bundle: Path, _: HonestModel) -> None:
    place(bundle, "forest", "vault.blob").unlink()


@failed
def dropped_training_key(bundle: Path, _: HonestModel) -> None:
    place(bundle, "forest", "training.json").unlink()


@failed
def dropped_model_file(bundle: Path, _: HonestModel) -> None:
    place(bundle, "newton", "model.blob").unlink()


@failed
def an_erased_row_is_kept(bundle: Path, _: HonestModel) -> None:
    rows = state.decode(place(bundle, "bayes", "rows.blob").read_bytes()[32:])
    vault = RowSlots(**state.decode(place(bundle, "bayes", "vault.blob").read_bytes()[32:]))
    empty = np.setdiff1d(np.arange(64), vault.slots)[:1]
    again = RowSlots(
        np.concatenate([vault.slots, empty]),
        np.vstack([vault.salts, np.zeros((1, 32), np.uint8)]),
        np.append(vault.places, N),
        np.empty((len(vault.slots) + 1, 0), np.int64),
    )
    more = state.encode(rows.concat(rows.take(np.array([0]))))
    place(bundle, "bayes", "rows.blob").write_bytes(bytes(32) + more)
    place(bundle, "bayes", "vault.blob").write_bytes(bytes(32) + state.encode(again._asdict()))


@failed
def permuted_rows(bundle: Path, _: HonestModel) -> None:
    path = place(bundle, "bayes", "rows.blob")
    rows = state.decode(path.read_bytes()[32:])
    path.write_bytes(bytes(32) + state.encode(rows.take(np.arange(len(rows))[::-1])))


@failed
def swapped_models(bundle: Path, _: HonestModel) -> None:
    place(bundle, "bayes").rename(bundle / "aside")
    place(bundle, "forest").rename(place(bundle, "bayes"))
    (bundle / "aside").rename(place(bundle, "forest"))


@failed
def older_model(bundle: Path, honest: HonestModel) -> None:
    data = place(honest.older, "bayes", "model.blob").read_bytes()
    place(bundle, "bayes", "model.blob").write_bytes(data)


@failed
def another_nonce(bundle: Path, _: HonestModel) -> None:
    path = place(bundle, "bayes", "model.blob")
    path.write_bytes(bytes(32) + path.read_bytes()[32:])


@failed
def model_of_another_class(bundle: Path, _: HonestModel) -> None:
    X, y = table(N)
    other = NaiveUnlearner(DecisionTreeClassifier(), random_state=1).fit(X, y, ids=IDS)
    place(bundle, "bayes", "model.blob").write_bytes(bytes(32) + state.encode(other))


@failed
def newest_certificate_removed(bundle: Path, _: HonestModel) -> None:
    for kind in ("certificates", "purges"):
        max((bundle / kind).iterdir()).unlink()
    log = json.loads((bundle / "log.json").read_bytes())
    log["certificates"].pop()
    (bundle / "log.json").write_bytes(canonical(log))


@failed
def certificate_removed_from_the_middle(bundle: Path, _: HonestModel) -> None:
    (bundle / "certificates" / "000002.json").unlink()


@failed
def all_certificates_removed(bundle: Path, _: HonestModel) -> None:
    for kind in ("certificates", "purges", "models"):
        shutil.rmtree(bundle / kind)
    describe(bundle, models=[])


@failed
def signed_certificate_of_another_claim(bundle: Path, honest: HonestModel) -> None:
    def flatter(statement: dict[str, Any]) -> None:
        statement["predicate"]["measurements"]["efficiency"]["value"] = "9999"

    resign(honest.ledger, bundle / "certificates" / "000004.json", flatter)


@failed
def auditor_bundle_called_public(bundle: Path, _: HonestModel) -> str:
    describe(bundle, tier="public")
    return "public"


@failed
def auditor_bundle_without_what_makes_it_one(bundle: Path, _: HonestModel) -> None:
    for kind in ("models", "proofs", "definitions"):
        shutil.rmtree(bundle / kind)
    (bundle / "events.jsonl").unlink()


@failed
def auditor_bundle_without_proofs(bundle: Path, _: HonestModel) -> None:
    shutil.rmtree(bundle / "proofs")


@failed
def auditor_bundle_without_events(bundle: Path, _: HonestModel) -> None:
    (bundle / "events.jsonl").unlink()


@failed
def another_training_key(bundle: Path, _: HonestModel) -> None:
    path = place(bundle, "forest", "training.json")
    path.write_bytes(canonical(json.loads(path.read_bytes()) | {"key": "11" * 32}))


@failed
def another_rule_of_the_seed(bundle: Path, _: HonestModel) -> None:
    path = place(bundle, "forest", "training.json")
    path.write_bytes(canonical(json.loads(path.read_bytes()) | {"rule": "caller-seed-v2"}))


@failed
def description_of_another_size(bundle: Path, _: HonestModel) -> None:
    describe(bundle, size=1)


@failed
def description_of_another_version(bundle: Path, _: HonestModel) -> None:
    models = json.loads((bundle / "bundle.json").read_bytes())["models"]
    describe(bundle, models=[model | {"sequence": 1} for model in models])


@failed
def description_of_another_ledger(bundle: Path, _: HonestModel) -> None:
    describe(bundle, ledger="another")


@failed
def description_with_a_model_without_a_certificate(bundle: Path, _: HonestModel) -> None:
    models = json.loads((bundle / "bundle.json").read_bytes())["models"]
    describe(bundle, models=[*models, {"tenant": "default", "name": "ghost", "sequence": 1}])


@failed
def changed_definition(bundle: Path, _: HonestModel) -> None:
    path = min((bundle / "definitions").iterdir())
    path.write_bytes(path.read_bytes() + b"\nor something weaker\n")


@failed
def dropped_definition(bundle: Path, _: HonestModel) -> None:
    certificate = payload_of((bundle / "certificates" / "000004.json").read_bytes())
    digest = certificate["predicate"]["method"]["definition"]["sha256"]
    (bundle / "definitions" / f"{digest}.md").unlink()


@failed
def more_files_in_a_model(bundle: Path, _: HonestModel) -> None:
    place(bundle, "bayes", "note.blob").write_bytes(b"the erased row")


@failed
def more_files_in_the_bundle(bundle: Path, _: HonestModel) -> None:
    (bundle / "note.txt").write_bytes(b"the erased row")


@failed
def symlinked_model(bundle: Path, honest: HonestModel) -> None:
    path = place(bundle, "bayes", "model.blob")
    path.unlink()
    path.symlink_to(place(honest.bundle, "bayes", "model.blob"))


@failed
def symlinked_rows(bundle: Path, honest: HonestModel) -> None:
    path = place(bundle, "bayes", "rows.blob")
    path.unlink()
    path.symlink_to(place(honest.bundle, "bayes", "rows.blob"))


@failed
def symlinked_certificate(bundle: Path, honest: HonestModel) -> None:
    path = bundle / "certificates" / "000001.json"
    path.unlink()
    path.symlink_to(honest.bundle / "certificates" / "000001.json")


@failed
def symlinked_folder(bundle: Path, honest: HonestModel) -> None:
    shutil.rmtree(place(bundle, "bayes"))
    place(bundle, "bayes").symlink_to(place(honest.bundle, "bayes"))


@failed
def folder_in_the_place_of_a_file(bundle: Path, _: HonestModel) -> None:
    place(bundle, "bayes", "rows.blob").unlink()
    place(bundle, "bayes", "rows.blob").mkdir()


@failed
def changed_proof(bundle: Path, _: HonestModel) -> None:
    """A slot that was empty already is erased a second time."""
    path = min((bundle / "proofs").iterdir())
    proof = json.loads(path.read_bytes())
    proof["erased"][0]["leaf"] = "00" * 32
    path.write_bytes(canonical(proof))


@failed
def dropped_purge(bundle: Path, _: HonestModel) -> None:
    (bundle / "purges" / "000004.json").unlink()


@failed
def purge_of_another_certificate(bundle: Path, _: HonestModel) -> None:
    data = (bundle / "purges" / "000001.json").read_bytes()
    (bundle / "purges" / "000004.json").write_bytes(data)


@failed
def shortened_log(bundle: Path, _: HonestModel) -> None:
    max((bundle / "checkpoints").iterdir()).unlink()


@failed
def shortened_events(bundle: Path, _: HonestModel) -> None:
    lines = (bundle / "events.jsonl").read_bytes().splitlines(keepends=True)
    (bundle / "events.jsonl").write_bytes(b"".join(lines[:-1]))


@failed
def checkpoint_of_another_ledger(bundle: Path, honest: HonestModel) -> None:
    newest = max((honest.other / "checkpoints").iterdir())
    (bundle / "checkpoints" / newest.name).write_bytes(newest.read_bytes())


@failed
def key_of_another_ledger(bundle: Path, honest: HonestModel) -> None:
    for path in (honest.other / "certificates").iterdir():
        (bundle / "certificates" / path.name).write_bytes(path.read_bytes())


@pytest.mark.parametrize("name", FAILED)
def test_a_forged_bundle_fails(name: str, honest: HonestModel, tmp_path: Path) -> None:
    report = forged(FAILED[name], honest, tmp_path)
    assert report.verdict == "failed"
    assert not report.passed


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_bundle_with_less_in_it_is_incomplete(
    name: str, honest: HonestModel, tmp_path: Path
) -> None:
    report = forged(INCOMPLETE[name], honest, tmp_path)
    assert (report.verdict, bool(report.open_results)) == ("incomplete", True)


def forged(forge: Forge, honest: HonestModel, tmp_path: Path) -> AuditReport:
    bundle = Path(shutil.copytree(honest.bundle, tmp_path / "bundle"))
    tier = forge(bundle, honest)
    reindex(honest.ledger, bundle, tier)
    return audit(bundle, key=honest.ledger.public_key)


# Bundles whose index does not fit.


def test_a_public_bundle_called_auditor_fails(honest: HonestModel, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(honest.public, tmp_path / "bundle"))
    describe(bundle, tier="auditor")
    reindex(honest.ledger, bundle)
    assert audit(bundle, key=honest.ledger.public_key).verdict == "failed"


def test_a_bundle_without_an_index_is_incomplete(honest: HonestModel, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(honest.bundle, tmp_path / "bundle"))
    for name in INDEX_FILES:
        (bundle / name).unlink()
    report = audit(bundle, key=honest.ledger.public_key)
    assert report.verdict == "incomplete"
    assert "no signed index" in report.open_results[0].reason
    assert audit(bundle, key=honest.ledger.public_key, levels=["V4"]).verdict == "incomplete"
    shutil.rmtree(place(bundle, "bayes"))
    assert audit(bundle, key=honest.ledger.public_key).verdict == "incomplete"


def test_an_index_of_another_bundle_fails(honest: HonestModel, tmp_path: Path) -> None:
    for number, source in enumerate((honest.older, honest.other)):
        bundle = Path(shutil.copytree(honest.bundle, tmp_path / str(number)))
        for name in INDEX_FILES:
            (bundle / name).write_bytes((source / name).read_bytes())
        assert audit(bundle, key=honest.ledger.public_key).verdict == "failed"


def test_a_wrong_key_fails(honest: HonestModel) -> None:
    assert audit(honest.bundle, key="11" * 32).verdict == "failed"


def test_a_pipe_does_not_hold_up_the_audit(honest: HonestModel, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(honest.bundle, tmp_path / "bundle"))
    for path in (place(bundle, "bayes", "rows.blob"), bundle / "events.jsonl"):
        path.unlink()
        os.mkfifo(path)
        assert audit(bundle, key=honest.ledger.public_key).verdict == "failed"


def test_a_ledger_without_erasures_is_incomplete(tmp_path: Path) -> None:
    with new_ledger(tmp_path / "home", "bayes") as ledger:
        for number, tier in enumerate(("auditor", "public")):
            bundle = ledger.export(tmp_path / str(number), tier=tier)  # type: ignore[arg-type]
            report = audit(bundle, key=ledger.public_key)
            assert report.verdict == "incomplete"
            assert "no certificate" in report.open_results[0].reason


# What an auditor asks for.


def test_levels_that_were_asked_for_are_what_the_verdict_is_about(honest: HonestModel) -> None:
    key = honest.ledger.public_key
    report = audit(honest.bundle, key=key, levels=["V0", "V4"], model="forest")
    assert report.verdict == "passed"
    assert report.scope == (
        "an auditor's bundle, only the selected levels (V0, V4), only the model forest"
    )
    # The certified model is not shown by V4 alone.
    assert audit(honest.bundle, key=key, levels=["V0", "V4"]).verdict == "incomplete"
    assert audit(honest.bundle, key=key, levels=["V0", "V4", "V5"]).verdict == "passed"
    assert audit(honest.public, key=key, levels=["V0", "V4"]).verdict == "incomplete"
    assert audit(honest.public, key=key, levels=["V0", "V1", "V3"]).verdict == "passed"


def test_a_bundle_of_one_model_passes_for_that_model_only(
    honest: HonestModel, tmp_path: Path
) -> None:
    key = honest.ledger.public_key
    bundle = honest.ledger.export(tmp_path / "one", tier="auditor", model="forest")
    assert audit(bundle, key=key, model="forest").verdict == "passed"
    report = audit(bundle, key=key)
    assert report.verdict == "incomplete"
    assert "limited to" in report.open_results[0].reason


def test_there_are_enough_kinds() -> None:
    assert len(FAILED) + len(INCOMPLETE) >= 25
    assert copy.copy(FAILED).keys().isdisjoint(INCOMPLETE)
