"""Bundles of earlier releases: what was certified once must verify for ever.

``python -m tests.verifier.test_golden NAME`` writes one; existing ones are never changed.
"""

import sys
from pathlib import Path

import pytest

from letheon.verifier import certificate_id, overall, verify_bundle
from tests.verifier import maker

GOLDEN_IDS = [
    "211a798aa11c8012",
    "c590b925e1d279b3",
    "5d74f3de69f17714",
    "7b377711108f1f58",
    "4432589fb184a667",
    "abdd7b4239084499",
]
BUNDLES = sorted(path for path in maker.DATA.iterdir() if path.is_dir())


def make() -> maker.Files:
    """A ledger with a retrain, a rotation, a revocation and a witness."""
    statements = maker.rotated(3)
    revoked = maker.revocation(maker.ROOT, 3, statements)
    statements.append(maker.envelope(revoked, maker.SECOND))
    return maker.build(
        statements=statements,
        signer_of=lambda sequence: maker.ROOT if sequence <= 3 else maker.SECOND,
        witness=maker.WITNESS,
    )


@pytest.mark.parametrize("folder", BUNDLES, ids=lambda folder: str(folder.name))
def test_golden_bundle_still_verifies(folder: Path) -> None:
    pinned = (folder / "keys/root.pub").read_text()
    verdicts = verify_bundle(folder, pinned, witnesses=[maker.verifier_key(maker.WITNESS)])
    passed = {verdict.passed for verdict in verdicts if "signed index" not in verdict.reason}
    assert passed == {True}, verdicts
    verdict = overall((item.passed, item.promised) for item in verdicts)
    has_index = (folder / "index.json").exists()
    assert verdict == ("passed" if has_index else "incomplete")


def test_ids_of_the_first_bundle_are_as_they_were() -> None:
    paths = sorted((maker.DATA / "v1" / "certificates").iterdir())
    ids = [certificate_id(path.read_bytes())[:16] for path in paths]
    assert ids == GOLDEN_IDS


if __name__ == "__main__":
    target = maker.DATA / sys.argv[1]
    target.mkdir()
    maker.write(make(), target)
