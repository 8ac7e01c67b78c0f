"""Write `docs/definitions.md`: the meaning of the digests and codes in a certificate.

Digests come from the definition texts. Run ``python docs/make_definitions.py`` after changing one,
or after adding a code; tests compare.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path

from letheon import MethodFacts, NaiveUnlearner
from letheon.ledger.certificates.explanations import NOT_CLAIMED, PURGE_NOT_CLAIMED
from letheon.ledger.certificates.facts import NO_MONITOR

ROOT = Path(__file__).resolve().parents[1]

HEAD = """\
# Digests and codes in a certificate

Made by `docs/make_definitions.py`; do not edit. A certificate contains no free text. This
page explains its codes.

## Definitions

`method.definition` is the SHA-256 of a text in the package, `letheon/definitions/NAME.md`: claim,
assumptions, pseudo-code, proof or reference. The same text is rendered in [methods](methods.md).
With the digest a third party knows the exact text of the claimed theorem:

```python
from letheon import NaiveUnlearner

facts = NaiveUnlearner.facts
print(facts.definition.splitlines()[0])
print(facts.definition_digest == "{naive}")
```

```text
# Naive retraining
True
```

"""

# Texts are rendered under the name of the method; `retrain` quotes that of `naive`.
RETRAIN = "naive"

RULES = {
    "exact-history-independent-v1": (
        "Exact: the model is a function of seed and remaining rows, so nothing adds up."
    ),
    "retrain-fresh-fit-v1": "Retraining: a fresh fit on the remaining rows.",
    "guo2020-residual-sum": (
        "Influence: sum of the bounds of residual gradients (or the measured gradient); "
        "the budget is what the noise hides."
    ),
    "golatkar2020-closeness-per-request": (
        "Fisher: noise is fresh in every request; spent is the share of the proved limit, "
        "and the budget is 1."
    ),
    "neel2020-residual": (
        "Descent-to-Delete, residual stop: distance to the optimum by the measured gradient."
    ),
    "neel2020-theorem-3.1": "Descent-to-Delete by theorem 3.1 (basic, secret state).",
    "neel2020-theorem-3.2": "Descent-to-Delete by theorem 3.2 (basic, published state).",
    "neel2020-theorem-3.4": "Descent-to-Delete by theorem 3.4 (regularized, strong).",
    "neel2020-theorem-3.5": "Descent-to-Delete by theorem 3.5 (regularized, weak).",
    "neel2020-distributed": "Descent-to-Delete, distributed, distances tracked.",
    "none-empirical": "No budget: nothing is proved.",
    "declared-by-method": "A method outside letheon; its definition text says how it counts.",
}
MECHANISMS = {
    "grid-release-discrete-gaussian": (
        "Parameters on a grid, plus whole steps of it: exact discrete Gaussian noise."
    ),
    "grid-release-discrete-laplace": "The same with discrete Laplace noise, for delta = 0.",
    "grid-release-fisher-gaussian": (
        "Parameters on a grid, plus normal noise that F^(-1/4) shapes, rounded to whole steps."
    ),
    "objective-perturbation-gaussian": (
        "A random linear term in the objective, normal. Empirical; withdrawn as certified."
    ),
    "objective-perturbation-gamma-ball": "The same with density exp(-|b| / scale), for delta = 0.",
    "output-perturbation-gaussian": (
        "Normal noise, added in floats. Empirical; withdrawn as certified."
    ),
    "output-perturbation-gamma-ball": "Noise of density exp(-|b| / scale), in floats: withdrawn.",
    "output-perturbation-fisher-gaussian": "Normal noise shaped by F^(-1/4), in floats: withdrawn.",
    "parameter-perturbation-fisher-gaussian": (
        "The same for a network, in `forget` only; nothing is proved."
    ),
    "declared-by-method": "A method outside letheon.",
}
REPLAYS = {
    "bitwise": "A fresh fit gives the same bytes on any machine.",
    "bitwise-same-kernel": (
        "The same bytes with the same libraries and the same kernel of BLAS or device."
    ),
    "tolerance": (
        "Not the same bytes: noise that is not stored, an approximate removal, or kernels "
        "that add in any order."
    ),
}
SEEDS = {
    "hkdf-sha256-epoch-v1": (
        "Seed = HKDF(key committed to in the log, digest of a checkpoint signed after that)."
    ),
    "caller-seed-v1": "The operator who registered the model chose the seed.",
}
METRICS = {
    "speedup": (
        "Time of retraining, scaled to the remaining rows, over time of this removal; rounded down."
    ),
    "acc-diff": "Difference of performance from a retrained model: 0 by proof.",
    "metric-diff": "The monitor's upper estimate of it, in the metric that its policy names.",
    "true-label-probability-diff": (
        "Difference of the mean probability of the true label on the test set, from the "
        "last retrained model; `accuracy-diff` and `r2-diff` are analogous."
    ),
    "param-l2": "Distance of parameters from a retrained model.",
    "sape": "Symmetric absolute percentage error of the performances on the erased rows.",
    "epsilon": "The certified epsilon.",
    "not-measured": "Not measured; the value means nothing.",
}
BASES = {
    "by-proof": "Follows from the theorem of the method; nothing was measured.",
    "proxy-estimate": "An observable quantity that replaces the true one and can mislead.",
    "measured-vs-retrain": "Measured against a retrained model.",
}

SECTIONS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    (
        "Rules of accounting",
        "`guarantee.accounting.rule`. `budget` is rounded up; earlier certificates state `spent`.",
        RULES,
    ),
    ("Noise", "`method.noise.mechanism`. The nonce of the commitment is not stored.", MECHANISMS),
    ("Seeds of training", "`method.trainingRandomness.rule`.", SEEDS),
    ("Replay", "`execution.replay`.", REPLAYS),
    (
        "Measures",
        "`measurements.*.metric`. Figures have few digits: more would reveal single rows.",
        METRICS,
    ),
    ("What a measure rests on", "`measurements.*.basis`.", BASES),
    ("Not claimed", "`notClaimed`: what must not be concluded from the certificate.", NOT_CLAIMED),
    (
        "Not claimed of a purge",
        "`notClaimed` of an attestation: what must not be concluded from it.",
        PURGE_NOT_CLAIMED,
    ),
)


def texts() -> dict[str, MethodFacts]:
    """Return every definition text of the package, by name."""
    folder = resources.files("letheon.definitions")
    names = sorted(file.name[:-3] for file in folder.iterdir() if file.name.endswith(".md"))
    return {name: replace(NaiveUnlearner.facts, definition_name=name) for name in names}


def page() -> str:
    """Return the whole page."""
    known = texts()
    lines = ["| method | text | SHA-256 |", "|---|---|---|"]
    lines += [_line(name, name, facts) for name, facts in known.items()]
    lines.append(_line("retrain", RETRAIN, known[RETRAIN]))
    policy = f"\nThe policy digest of a model without a monitor is\n`{NO_MONITOR}`.\n"
    head = HEAD.replace("{naive}", known[RETRAIN].definition_digest)
    return head + "\n".join(lines) + "\n" + "".join(_section(*each) for each in SECTIONS) + policy


def _line(method: str, name: str, facts: MethodFacts) -> str:
    return f"| `{method}` | [{name}](methods.md#{name}) | `{facts.definition_digest}` |"


def _section(title: str, lead: str, codes: Mapping[str, str]) -> str:
    lines = {code: meaning.replace("|", "\\|") for code, meaning in codes.items()}
    rows = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in lines.items())
    return f"\n## {title}\n\n{lead}\n\n| code | meaning |\n|---|---|\n{rows}\n"


def main() -> None:
    """Write the page."""
    (ROOT / "docs" / "definitions.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
