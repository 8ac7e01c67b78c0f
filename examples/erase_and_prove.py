"""A clinic erases two patients and proves it to an auditor.

The clinic registers its model in a ledger. Two patients request erasure. The ledger applies the
requests, signs a certificate, deletes remaining copies and signs an attestation of the deletion. An
auditor gets a bundle and a public key, verifies everything, and trains the model again to compare
the bytes. Then one byte of the certificate is changed, and the audit fails. Needs the ledger extra:
``pip install 'letheon[ledger]'``. Run: ``python examples/erase_and_prove.py``.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from letheon import DaREForestClassifier, Ledger
from letheon.audit import audit

ROWS_PER_PATIENT = 3
LEAVING = ["patient-017", "patient-042"]


def erase(folder: Path) -> str:
    """Run the clinic's part; return the public key, which auditors must get from another source."""
    X, y = load_breast_cancer(return_X_y=True)
    ids = np.array([f"patient-{row // ROWS_PER_PATIENT:03d}" for row in range(len(X))])
    with Ledger.create(folder / "home", name="clinic-1") as ledger:
        # The seed is derived from a key in the log, so the clinic cannot choose it.
        ledger.models.train(DaREForestClassifier(n_estimators=20), X, y, ids=ids, name="tumours")
        for number, patient in enumerate(LEAVING):
            # The idempotency key makes it safe to repeat the call.
            request = ledger.requests.submit(
                [patient], model="tumours", key=f"letter-{number}", verified=True
            )
        print(f"{len(LEAVING)} requests, due on {request.due_on}")
        for step in ledger.run_once(force=True):
            print(f"  {step.what}: {step.detail}")

        served, stay = ledger.models.load("tumours"), ~np.isin(ids, LEAVING)
        fresh = DaREForestClassifier(n_estimators=20, random_state=served.seed_)
        fresh.fit(X[stay], y[stay], ids=ids[stay])
        print("equal to a fresh fit:", fresh.digest() == served.digest())

        ledger.export(folder / "bundle", tier="auditor")
        return ledger.public_key


def prove(bundle: Path, key: str) -> None:
    """Run the auditor's part, with only the bundle and the public key."""
    report = audit(bundle, key=key)
    for result in report:
        print(f"  {result.level} {result.verdict}: {result.reason}")
    print(f"verdict: {report.verdict} ({report.scope})")

    certificate = bundle / "certificates" / "000001.json"
    data = bytearray(certificate.read_bytes())
    data[len(data) // 2] ^= 1
    certificate.write_bytes(data)
    print("with one changed byte:", audit(bundle, key=key, levels=["V0"]).verdict)


def main() -> None:
    """Erase, then prove."""
    with tempfile.TemporaryDirectory() as folder:
        key = erase(Path(folder))
        prove(Path(folder) / "bundle", key)


if __name__ == "__main__":
    main()
