"""Refusals of the ledger as problems: alone, or as the outcome of one of many."""

from collections.abc import Iterator
from contextlib import contextmanager

from letheon.exceptions import LetheonError
from letheon.service.desk.request_forms import ItemProblem, Outcome, RequestOut
from letheon.service.errors import PREFIX, Problem, problem_of

__all__ = ["as_problem", "outcome_of", "refusals"]


def as_problem(error: BaseException) -> Problem | None:
    """Return an error as it is shown, or None for a mistake in the program.

    A plain `ValueError` of the ledger speaks of codes, days and counts: it is shown as it is.
    """
    known = problem_of(error)
    if known is None and isinstance(error, ValueError | LetheonError):
        return Problem(422, "refused-value", "that cannot be used", str(error))
    return known


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what the ledger refuses into problems."""
    try:
        yield
    except (ValueError, LetheonError) as error:
        problem = as_problem(error)
        if problem is None:
            raise
        raise problem from error


def outcome_of(index: int, result: RequestOut | Exception, *, status: int = 200) -> Outcome:
    """Return what became of one of many.

    Raises
    ------
    Exception
        The result itself, where it is a mistake in the program and no refusal.
    """
    if isinstance(result, RequestOut):
        return Outcome(index=index, status=status, request=result)
    problem = as_problem(result)
    if problem is None:
        raise result
    return Outcome(
        index=index,
        status=problem.status_code,
        problem=ItemProblem(
            type=PREFIX + problem.code, title=problem.title, detail=str(problem.detail)
        ),
    )
