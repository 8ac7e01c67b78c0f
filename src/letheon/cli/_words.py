"""What commands read from and say to people: lists of numbers, refusals, sizes, times."""

from typing import NoReturn

import typer


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a list such as ``1,5,20``; refuse anything else in plain words."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise typer.BadParameter(
            f"{text!r}; expected whole numbers from 1, with commas: 1,5,20", param_hint=option
        )
    return [int(word) for word in words]


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


def time_text(seconds: float) -> str:
    """Return a time in seconds or milliseconds, three digits."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
