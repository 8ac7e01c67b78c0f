"""A recommender in the ledger: erased by request, certified, and audited from its rows."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from letheon.audit import audit
from letheon.ledger import Ledger
from letheon.recommend import EASE, ItemKNN

PEOPLE = [f"person-{row // 2}" for row in range(40)]


@pytest.mark.parametrize("model", [ItemKNN(random_state=3), EASE(l2=2.0, random_state=3)])
def test_request_certificate_and_audit(model: ItemKNN | EASE, tmp_path: Path) -> None:
    X = sp.csr_array((np.random.default_rng(1).random((40, 12)) < 0.3).astype(np.float32))
    with Ledger.create(tmp_path / "home", name="shop") as ledger:
        ledger.models.register(model.fit(X, ids=PEOPLE), X, None, ids=PEOPLE, name="items")
        ledger.requests.submit(["person-4"], model="items", verified=True)
        steps = ledger.run_once(force=True, model="items")
        assert [step.what for step in steps] == ["applied", "certified", "purged"]
        served = ledger.models.load("items")
        assert "person-4" not in served.ids_.tolist()
        stay = np.array([person != "person-4" for person in PEOPLE])
        fresh = type(model)(**model.get_params()).fit(
            X[stay], ids=[person for person in PEOPLE if person != "person-4"]
        )
        assert served.digest() == fresh.digest()
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        report = audit(bundle, key=ledger.public_key)
    assert [str(result) for result in report if result.verdict != "pass"] == []
    assert "V4" in {result.level for result in report}
