"""Write `docs/commands.md` from the commands themselves: words, options, defaults, examples.

Run ``python docs/make_commands.py`` after changing a command; a test compares.
"""

from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from letheon.cli import app

PAGE = Path(__file__).resolve().parent / "commands.md"

HEAD = """\
# Commands

Made by `docs/make_commands.py` from the commands; do not edit. [cli.md](cli.md) shows what `demo`,
`plan`, `inspect`, `datasets` and `bench` print. The others are about the erasure ledger and need
`pip install 'letheon[ledger]'`.

**Where the ledger is.** `--ledger DIR`, or `$LETHEON_LEDGER`, or the current folder if it has a
`letheon.toml`. `audit` needs none, only an exported bundle and the public key.

**The public key.** `ledger.pub` in the examples is a file with the ledger's first public key: the
operator's `DIR/public/keys/root.pub`, whose digits `letheon init` and `letheon key list` print. Get
it from the operator on another way than the bundle. It is not the *id* of a key.

**For scripts.** With `--json` a command of the ledger prints one JSON document on standard output
and nothing else (`worker`: one per line and step). An error is
`{"error": {"kind": ..., "text": ...}}` on standard error. Ids of people are never printed.

| exit status | means |
|---|---|
| 0 | done; or checked, and it holds |
| 1 | checked, and it does not hold: audit, certificate, chain, damaged file, failed step |
| 2 | wrong usage |
| 3 | not found: ledger, model, request, certificate, person, file; `audit`: incomplete |
| 4 | refused: state of a request, idempotency key, clock, claim, key file, blocked people, rights |
| 5 | try again: another worker or process is at it; the disk or the database failed |
| 70 | internal error: a bug in letheon, please report it; acknowledged requests are kept |

An internal error says where it happened and not what its own text was, which may hold values of
rows; with `LETHEON_TRACEBACK=1` it is shown in full.

"""


def page() -> str:
    """Return the whole page."""
    root: Any = get_command(app)
    return HEAD + "\n".join(_entries("letheon", root, depth=1)) + "\n"


def _entries(name: str, entry: Any, depth: int) -> Iterator[str]:
    """Yield the texts of a command, or of a group and then of its commands."""
    if depth > 1:
        yield f"{'#' * depth} {name}\n"
        yield from _about(entry)
        yield from _table(entry)
    for word, child in getattr(entry, "commands", {}).items():
        yield from _entries(f"{name} {word}", child, depth + 1)


def _about(entry: Any) -> Iterator[str]:
    for part in (entry.help or "").split("\n\n"):
        text = " ".join(part.split())
        before, is_example, example = text.partition("Example: ")
        if before:
            yield fill(before.strip(), 100, break_long_words=False, break_on_hyphens=False) + "\n"
        if is_example:
            yield f"```sh\n{example}\n```\n"


def _table(entry: Any) -> Iterator[str]:
    shown = [parameter for parameter in entry.params if "--help" not in parameter.opts]
    if shown:
        hints = signature(entry.callback).parameters
        yield "| | default | meaning |\n|---|---|---|"
        yield from (_row(parameter, hints[parameter.name].annotation) for parameter in shown)
        yield ""


def _row(parameter: Any, hint: Any) -> str:
    word = parameter.metavar or " or ".join(_choices(hint))
    if parameter.param_type_name == "option":
        names = " / ".join([parameter.opts[0], *parameter.secondary_opts])
        word = f"{names} {word}".strip()
    return f"| `{word}` | {_default(parameter)} | {parameter.help} |"


def _choices(hint: Any) -> list[str]:
    """Return the words that an option can have, if its annotation lists them."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for part in get_args(hint) for word in _choices(part)]


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    value = parameter.default
    return "" if value is None or value is False or callable(value) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
