"""What commands read from and say to people: lists of numbers, refusals, sizes, times."""

from collections.abc import Callable
from typing import Any, NoReturn

import typer


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a list such as ``1,5,20``; refuse anything else in plain words."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise typer.BadParameter(
            f"{text!r}; expected whole numbers from 1, with commas: 1,5,20", param_hint=option
        )
    return [int(word) for word in words]


def whole_number(least: int) -> Callable[[str], int]:
    """Return a reader of one whole number that repeats in its refusal what was given."""

    # Typer converts defaults too, and a default is a number already.
    def whole_number(given: Any) -> int:
        word = str(given).strip()
        if not (word.isascii() and word.isdigit() and int(word) >= least):
            raise typer.BadParameter(
                f"{word!r}; expected a whole number from {least}, digits only: 100000"
            )
        return int(word)

    return whole_number


def refuse(message: str) -> NoReturn:
    """Say on the error stream why nothing was done, and leave with status 1."""
    typer.echo(f"letheon: {message}", err=True)
    raise typer.Exit(1)
