"""Checks of conduct: errors change nothing, receipts tell the truth, predictions are pure."""

from typing import Any

import numpy as np

from letheon.checks._files import saved_bytes
from letheon.checks._people import answers, fit, fit_in_secret, has_noise, make_people, refit
from letheon.exceptions import EmptyModelError, UnknownIdError


def _raises(error: type[Exception], model: Any, ids: list[Any], what: str) -> None:
    try:
        model.forget(ids)
    except error:
        return
    raise AssertionError(f"{what} must raise {error.__name__}")


def check_forget_unknown_id_raises(estimator: Any) -> None:
    """An id that nobody has is refused by name, whatever its kind."""
    model = fit(estimator, make_people(estimator))
    _raises(UnknownIdError, model, ["nobody"], "an unknown id")
    _raises(UnknownIdError, model, [17], "an int id where ids are str")


def check_forget_twice_raises(estimator: Any) -> None:
    """A forgotten person is unknown afterwards."""
    people = make_people(estimator)
    model = fit(estimator, people)
    model.forget(people.names[:1])
    _raises(UnknownIdError, model, people.names[:1], "forgetting the same person again")


def check_forget_failure_leaves_model_unchanged(estimator: Any) -> None:
    """After every kind of refusal the model and its file are as they were."""
    people = make_people(estimator)
    model = fit(estimator, people)
    digest, file, said = model.digest(), saved_bytes(model), answers(model, people.X)
    refusals: list[tuple[type[Exception], list[Any]]] = [
        (UnknownIdError, [people.names[0], "nobody"]),
        (EmptyModelError, people.names),
        (TypeError, [people.names[0], None]),
        (TypeError, [1.5]),
    ]
    for error, ids in refusals:
        _raises(error, model, ids, f"forgetting {len(ids)} id(s) that cannot be forgotten")
        assert model.digest() == digest, f"a refused forget changed the digest ({error.__name__})"
        assert saved_bytes(model) == file, f"a refused forget changed the file ({error.__name__})"
        assert np.array_equal(answers(model, people.X), said), "a refused forget changed answers"
        assert sorted(model.ids_.tolist()) == sorted(people.names), "a refused forget lost people"


def check_forget_nobody_is_a_no_op(estimator: Any) -> None:
    """An empty request changes nothing and has a receipt."""
    model = fit(estimator, make_people(estimator))
    digest = model.digest()
    receipt = model.forget([])
    assert (receipt.n_ids, receipt.n_rows, receipt.work) == (0, 0, 0.0), f"not empty: {receipt}"
    assert model.digest() == digest, "an empty forget changed the model"


def check_forget_removes_all_rows_of_a_person(estimator: Any) -> None:
    """Every row of a person goes and stays away, and repeated ids count once."""
    people = make_people(estimator)
    name = max(people.names, key=people.ids.tolist().count)
    model = fit(estimator, people)
    receipt = model.forget([name, name])
    owned = people.ids.tolist().count(name)
    assert (receipt.n_ids, receipt.n_rows) == (1, owned), f"wrong numbers in {receipt}"
    assert model.n_rows_ == len(people.ids) - owned, "some rows of the person are still held"
    assert name not in model.ids_.tolist(), "the person is still in ids_"
    next_one = next(other for other in people.names if other != name)
    model.forget([next_one])
    expected = sorted(set(people.names) - {name, next_one})
    assert model.ids_.tolist() == expected, "after another request, ids_ are not those remaining"
    n_rows = len(people.without([name, next_one]).ids)
    assert model.n_rows_ == n_rows, "after another request, rows of forgotten people are back"


def check_receipt_digest_matches_model(estimator: Any) -> None:
    """Digests in a receipt are those of the model before and after, and only when asked for."""
    people = make_people(estimator)
    model = fit(estimator, people)
    before = model.digest()
    receipt = model.forget(people.names[:2], digest=True)
    assert receipt.digest_before == before, "digest_before is not that of the model before"
    assert receipt.digest_after == model.digest(), "digest_after is not that of the model after"
    assert receipt.digest_after != before, "the digest did not change though rows left"
    plain = model.forget(people.names[2:3])
    assert plain.digest_before is None, "a digest nobody asked for"
    assert plain.digest_after is None, "a digest nobody asked for"
    assert people.names[0] not in repr(receipt), "the receipt names a person"


def check_forget_last_of_class(estimator: Any) -> None:
    """When the last row of a class leaves, `classes_` shrinks as in a retrain."""
    people = make_people(estimator)
    assert people.y is not None
    gone = people.y[0]
    holders = [name for name in people.names if gone in people.y[people.ids == name]]
    model = fit(estimator, people)
    model.forget(holders)
    fresh = refit(model, people.without(holders))
    assert gone not in model.classes_.tolist(), f"class {gone!r} has no row but is in classes_"
    assert np.array_equal(model.classes_, fresh.classes_), "classes_ differ from a fresh fit"
    said, expected = answers(model, people.X), answers(fresh, people.X)
    assert said.shape == expected.shape, "answers still have room for the class"


def check_predict_is_pure(estimator: Any) -> None:
    """Asking the model changes neither it nor its answers."""
    people = make_people(estimator)
    model = fit(estimator, people)
    digest, file, said = model.digest(), saved_bytes(model), answers(model, people.X)
    assert np.array_equal(answers(model, people.X), said), "the second answer differs"
    assert model.digest() == digest, "predict changed the digest"
    assert saved_bytes(model) == file, "predict changed the saved file"


def check_guarantee_is_honest(estimator: Any) -> None:
    """No model claims more than its method declares, with repeatable noise or without."""
    for heading in ("Claim", "Assumptions", "Removal"):
        assert f"**{heading}" in estimator.facts.definition, f"the definition has no {heading}"
    people = make_people(estimator)
    for train in (fit, fit_in_secret) if has_noise(estimator) else (fit,):
        model = train(estimator, people)
        _require_permitted_claim(model)
        receipt = model.forget(people.names[:1])
        assert receipt.guarantee == model.guarantee_, "receipt and model differ"
        _require_permitted_claim(model)


def _require_permitted_claim(model: Any) -> None:
    claim, facts = model.guarantee_, model.facts
    assert facts.exact or claim.kind != "exact", "an approximate method claims to be exact"
    assert claim.requests == "oblivious" or facts.requests == "adaptive", "claims adaptive requests"
    assert claim.releases in (facts.releases, "latest-only"), "claims more releases than permitted"
    overdrawn = None not in (claim.spent, claim.budget) and claim.spent > claim.budget
    assert not overdrawn, f"spent {claim.spent} of {claim.budget}, and still claims a certificate"
