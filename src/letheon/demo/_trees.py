"""Demo steps about trees: a forest, gradient boosting, and a pipeline on a mixed table."""

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import letheon
from letheon.boosting import BoostingClassifier
from letheon.demo._context import DemoContext, measure_seconds
from letheon.forest import DaREForestClassifier
from letheon.table_pipeline import list_treatments


def forget_in_forest(demo: DemoContext) -> None:
    """Forget six people in a forest lazily, rebuild the subtrees, and compare with a fresh fit."""
    forest = demo.fit(DaREForestClassifier(random_state=demo.seed))
    leaving = demo.pick_ids(6)
    receipts = [forest.forget([person]) for person in leaving]
    settling = measure_seconds(forest.settle)
    fresh = DaREForestClassifier(random_state=forest.seed_)
    refit = measure_seconds(lambda: demo.fit(fresh, leaving))
    demo.print_text(
        f"A forest of {forest.n_estimators} trees on the same rows, "
        f"{demo.accuracy_text(forest)} accurate on the test rows. It forgets the same six people, "
        "one after the other. Subtrees that would be different without them are dropped "
        "immediately and rebuilt later: when they are needed, or all at once (settle):"
    )
    demo.print_quote(str(receipts[-1]))
    forgetting = sum(receipt.seconds for receipt in receipts)
    demo.show_times(
        {
            "a refit": refit,
            "one person, lazy": forgetting / len(receipts),
            "one person, with settle": (forgetting + settling) / len(receipts),
        }
    )
    exact = demo.check(fresh.digest() == forest.digest(), "a forest forgets exactly")
    demo.print_text(
        f"Equal to a fresh fit without the six: {exact}. This data set is small: with more rows "
        "one person affects a smaller share of the forest."
    )


def forget_in_boosting(demo: DemoContext) -> None:
    """Forget six people in gradient boosting, and compare with a fresh fit."""
    model = demo.fit(BoostingClassifier.preset("fast", random_state=demo.seed))
    leaving = demo.pick_ids(6)
    receipts = [model.forget([person]) for person in leaving]
    demo.print_text(
        f"Gradient boosting with {model.n_estimators} rounds on the same rows, "
        f"{demo.accuracy_text(model)} accurate on the test rows. The splits come from a sample of "
        f"people, the values of the leaves from all. It forgets the same six people; the call is "
        "short because the work is done later, when the model is used:"
    )
    demo.print_quote(str(receipts[-1]))
    fresh = demo.fit(clone(model).set_params(random_state=model.seed_), leaving)
    exact = demo.check(fresh.digest() == model.digest(), "gradient boosting forgets exactly")
    demo.print_text(
        f"Equal to a fresh fit without the six: {exact}. With so few rows, all people are in the "
        "sample and a request costs about as much as a fit; with 50,000 rows or more, most people "
        "are not."
    )


def forget_in_pipeline(demo: DemoContext) -> None:
    """Convert a scikit-learn pipeline on a mixed table, forget a person, compare with a refit."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    draw = np.random.default_rng(demo.seed)
    table = pd.DataFrame(
        {"age": draw.normal(40, 12, 400), "city": draw.choice(["Rome", "Oslo"], 400)}
    )
    buys = (table.age + 20 * (table.city == "Rome") > 50).to_numpy()
    table.loc[::9, "age"] = np.nan
    parts = [("age", SimpleImputer(), ["age"]), ("city", OneHotEncoder(), ["city"])]
    ordinary = make_pipeline(ColumnTransformer(parts), RandomForestClassifier(n_estimators=10))
    model, fresh = (
        letheon.convert(ordinary, return_report=True, random_state=demo.seed)[0] for _ in range(2)
    )
    receipt = model.fit(table, buys).forget([0])
    fresh.fit(table[1:], buys[1:], ids=np.arange(1, 400))
    demo.print_text(
        "A table with missing values and categories, and a pipeline of scikit-learn that "
        "letheon.convert has converted. One person leaves:"
    )
    demo.show_table(("column", "preprocessing"), list_treatments(model))
    demo.print_quote(str(receipt))
    exact = demo.check(model.digest() == fresh.digest(), "a whole pipeline forgets exactly")
    demo.print_text(f"Equal to a fresh fit without this person, in every step: {exact}.")
