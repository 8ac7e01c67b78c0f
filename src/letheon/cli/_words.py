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


def size_text(n_bytes: float) -> str:
    """Return a number of bytes in a unit that is read at once."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"


def factor_text(factor: float) -> str:
    """Return a factor with at most one decimal and no exponent: ``27.5x``, ``10,010x``."""
    return f"{factor:,.1f}".removesuffix(".0") + "x"


def time_text(seconds: float) -> str:
    """Return a time in seconds or milliseconds, three digits."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
