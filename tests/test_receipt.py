"""Receipts: numbers for machines and people, never a name."""

import dataclasses
import json
from typing import Any

import pytest
from sklearn.dummy import DummyClassifier

from letheon import NaiveUnlearner, Receipt
from letheon.guarantee import Guarantee

CLAIM = Guarantee(kind="exact", reference="a theorem", assumptions=("one", "two"))


def receipt(**changes: Any) -> Receipt:
    return Receipt(
        **{
            "method": "naive",
            "n_ids": 2,
            "n_rows": 5,
            "guarantee": CLAIM,
            "seconds": 0.5,
            "work": 0.25,
            **changes,
        }
    )


def test_survives_json() -> None:
    made = receipt(rebuilt={"shards": 3}, digest_after="ab")
    plain = json.loads(json.dumps(made.to_dict()))
    assert plain["rebuilt"] == {"shards": 3}
    assert plain["digest_after"] == "ab"
    assert plain["guarantee"]["assumptions"] == ["one", "two"]
    assert set(plain) == {field.name for field in dataclasses.fields(Receipt)}


def test_requesters_see_method_counts_and_claim_only() -> None:
    claim = dataclasses.replace(
        CLAIM, kind="certified", epsilon=1.0, delta=1e-4, spent=0.123, budget=0.456
    )
    made = receipt(
        guarantee=claim,
        seconds=0.789,
        work=0.321,
        rebuilt={"retrains": 654},
        estimates={"tail": 0.987},
        digest_before="before",
        digest_after="after",
    )
    shown = json.loads(json.dumps(made.for_requester()))
    assert set(shown) == {"method", "n_ids", "n_rows", "guarantee"}
    assert shown["guarantee"] | {"epsilon": 1.0, "delta": 1e-4} == shown["guarantee"]
    hidden = ("spent", "0.123", "0.456", "0.789", "0.321", "654", "0.987", "before", "after")
    assert not [word for word in hidden if word in json.dumps(shown)]


def test_to_dict_shares_nothing() -> None:
    made = receipt(rebuilt={"shards": 3}, estimates={"residual_tail": 0.25})
    plain = made.to_dict()
    plain["rebuilt"]["shards"] = plain["estimates"]["residual_tail"] = 99
    assert made.rebuilt == {"shards": 3}
    assert made.estimates == {"residual_tail": 0.25}


def test_estimates_are_for_machines() -> None:
    made = receipt(estimates={"residual_tail": 0.25})
    assert json.loads(json.dumps(made.to_dict()))["estimates"] == {"residual_tail": 0.25}
    assert str(made) == str(receipt())
    assert receipt().estimates == {}


def test_one_line_for_people() -> None:
    assert str(receipt(rebuilt={"shards": 3, "slices": 7})) == (
        "naive: forgot 2 people, 5 rows; call 500 ms, work 25.0% of a retrain "
        "(3 shards, 7 slices); exact"
    )
    assert str(receipt()).endswith("work 25.0% of a retrain; exact")


def test_one_of_a_kind_is_singular() -> None:
    singular = str(receipt(n_ids=1, n_rows=1, rebuilt={"shards": 1, "stages": 1}))
    assert "forgot 1 person, 1 row;" in singular
    assert "(1 shard, 1 stage);" in singular
    parts = {"classes": 1, "batches": 1, "trees": 1, "indexes": 2}
    assert "(1 class, 1 batch, 1 tree, 2 indexes);" in str(receipt(rebuilt=parts))
    assert "forgot 0 people, 0 rows;" in str(receipt(n_ids=0, n_rows=0))


def test_table_for_notebooks_is_escaped() -> None:
    claim = dataclasses.replace(CLAIM, reference="a < b & c")
    page = receipt(method="<b>mine</b>", rebuilt={"shards": 3}, guarantee=claim)._repr_html_()
    assert "<td>&lt;b&gt;mine&lt;/b&gt;</td>" in page
    assert "a &lt; b &amp; c" in page
    assert "<td>2 people, 5 rows</td>" in page
    assert "<td>500 ms</td>" in page
    assert "<td>25.0% of a retrain (3 shards)</td>" in page
    assert page.startswith("<table>")


def test_frozen_with_independent_defaults() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt().n_ids = 0  # type: ignore[misc]
    assert receipt().rebuilt is not receipt().rebuilt
    assert receipt().estimates is not receipt().estimates


def test_no_digest_unless_asked() -> None:
    assert receipt().digest_before is None
    assert receipt().digest_after is None


def test_never_names_a_person() -> None:
    model = NaiveUnlearner(DummyClassifier()).fit([[0.0]] * 3, [0, 1, 1], ids=["ann", "bob", "eve"])
    made = model.forget(["eve"], digest=True)
    texts = (str(made), repr(made), made._repr_html_(), json.dumps(made.to_dict()))
    assert not any("eve" in text for text in texts)
