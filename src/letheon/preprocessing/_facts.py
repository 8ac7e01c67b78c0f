"""Facts about the methods of this package."""

from letheon.guarantee import MethodFacts, Replay


def make_facts(
    applicability: str, method: str = "stable-preprocessing", replay: Replay = "bitwise"
) -> MethodFacts:
    """Return the facts of a transformer made of exact counts or sums."""
    return MethodFacts(
        method=method,
        applicability=applicability,
        exact=True,
        strength="strong",
        definition_name=method,
        batches=True,
        replay=replay,
    )
