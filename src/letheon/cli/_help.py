"""Help pages in the usual notation: ``ROWS`` instead of ``{rows}``, flags without a type."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    """What commands and their group share; goes before typer's class."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line without braces."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``, shown as the flag it is."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class PlainCommand(_Plain, TyperCommand):
    """A command."""


class PlainGroup(_Plain, TyperGroup):
    """The group of commands."""
