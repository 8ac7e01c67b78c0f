"""``letheon serve`` and ``letheon token``: the desk of a ledger, and who may come in."""

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from letheon.cli._command import (
    Answer,
    Home,
    Listing,
    UsageError,
    argument,
    disable_core_dump,
    find_home,
    flag,
    ledger_command,
    make_group,
    report_errors,
    usage_errors,
    value,
)
from letheon.exceptions import LedgerMissingError

if TYPE_CHECKING:
    from letheon.ledger import Ledger
    from letheon.service import Tokens

__all__ = ["serve", "tokens"]

tokens = make_group("token", "Tokens of the desk: who may come in, and what they may do.")


def serve(
    host: Annotated[
        str, value("ADDRESS", "Where to listen; others than loopback need HTTPS.")
    ] = "127.0.0.1",
    port: Annotated[int, value("N", "Port; 0 for any that is free.", min=0, max=65535)] = 8311,
    database: Annotated[
        str | None,
        value(
            "URL",
            "PostgreSQL database of a new ledger.",
            show_default="a SQLite file in the folder",
        ),
    ] = None,
    worker: Annotated[
        bool, flag("--worker/--no-worker", "Whether a worker runs beside the server.")
    ] = True,
    certfile: Annotated[Path | None, value("FILE", "Certificate of the server, for HTTPS.")] = None,
    keyfile: Annotated[Path | None, value("FILE", "Private key of the certificate.")] = None,
    insecure: Annotated[
        bool, flag("--insecure", "Serve others without HTTPS all the same.")
    ] = False,
    demo: Annotated[
        bool, flag("--demo", "Show a filled example, in a folder that is new.")
    ] = False,
    ledger: Home = None,
    as_json: Annotated[
        bool, flag("--json", "Print address and new tokens as one JSON document.")
    ] = False,
) -> None:
    """Serve the desk: API, pages and a worker over one ledger.

    The first start makes the ledger if the folder is empty or not there, and prints one token of an
    admin: it is shown this once. The desk listens on this machine only unless --host says
    otherwise. SIGTERM and Ctrl-C stop it after the calls and the step in hand; a kill at
    any moment loses nothing. More is set in service.toml in the folder of the ledger.

    Example: letheon serve --ledger erasures
    """
    with report_errors(as_json), contextlib.ExitStack() as stack:
        import letheon

        desk = letheon.service  # by the package: it says what to install if the extra is missing
        home = _demo_home(ledger, stack) if demo else _home(ledger)
        settings = desk.ServiceSettings.read(home)
        binding = desk.Binding(host, port, certfile, keyfile)
        with usage_errors():
            binding.require_safe(settings, insecure=insecure)
            binding.require_certificate()
        # Before anything is made: what is printed once must not be lost to an address in use.
        listening = stack.enter_context(binding.listen())
        opening = _example(home, quiet=as_json) if demo else _opened(home, database)
        opened = stack.enter_context(opening.ledger)

        def said(url: str) -> None:
            document = {"url": url, "tokens": opening.tokens, "receipt_code": opening.receipt_code}
            Answer(document, *_greeting(opening, url)).print(as_json)

        desk.serve(
            opened,
            settings,
            binding,
            listening=listening,
            with_worker=worker,
            is_demo=demo,
            said=said,
        )


class _Opening(NamedTuple):
    """A ledger that was opened, and what is told once: new tokens by role, a receipt code."""

    ledger: "Ledger"
    tokens: dict[str, str]
    receipt_code: str | None = None


def _greeting(opening: _Opening, url: str) -> Iterator[str]:
    if opening.receipt_code is None:
        for text in opening.tokens.values():
            yield f"Token of the admin, shown this once: {text}"
    else:
        for role, text in opening.tokens.items():
            yield f"Token of the {role}: {text}"
        yield f"A person's receipt code, for /receipt: {opening.receipt_code}"
    if not opening.tokens:
        yield "Log in with a token; `letheon token add NAME --role admin` makes one"
    if found := opening.ledger.database_differences():
        yield (
            f"Nothing can be recorded: the files are newer than the database ({'; '.join(found)}). "
            "Restore the newest database; `letheon ledger adopt` says what else can be done"
        )
    yield f"The desk is open at {url} (Ctrl-C closes it)"


def _opened(home: Path, database: str | None) -> _Opening:
    """Open the ledger, or make it with a token of an admin."""
    disable_core_dump()
    from letheon.service.server import admin_token, open_or_create

    with usage_errors():
        opened = open_or_create(home, database=database)
    token = admin_token(opened, days=365)
    return _Opening(opened, {} if token is None else {"admin": token})


def _demo_home(folder: Path | None, stack: contextlib.ExitStack) -> Path:
    """Return the folder of the example: as given, or one that is gone at the end."""
    if folder is not None:
        return folder
    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="letheon-desk-"))
    return Path(place) / "ledger"


def _example(home: Path, *, quiet: bool) -> _Opening:
    import letheon
    from letheon.demo.desk import make_demo

    disable_core_dump()
    if not quiet:
        typer.echo("Filling an example ledger; this takes some seconds.")
    made = make_demo(home)
    return _Opening(letheon.Ledger.open(home), dict(made.tokens), made.receipt_code)


def _home(folder: Path | None) -> Path:
    try:
        return find_home(folder)
    except LedgerMissingError:
        raise LedgerMissingError(
            "no ledger here: give --ledger DIR or set LETHEON_LEDGER; a folder that is new becomes "
            "one. `letheon serve --demo` shows a filled example"
        ) from None


def _tokens_of(opened: "Ledger") -> "Tokens":
    import letheon

    return letheon.service.Tokens(opened, opened._core.clock)


@ledger_command(tokens, "add")
def add(
    opened: "Ledger",
    name: Annotated[str, argument("NAME", "What it is called in lists.")],
    role: Annotated[str, value("ROLE", "requester, operator, approver, auditor or admin.")],
    scopes: Annotated[
        str | None, value("A,B", "Fewer scopes than the role has.", show_default="all of the role")
    ] = None,
    tenant: Annotated[
        str | None, value("NAME", "Whose things it sees.", show_default="everybody's")
    ] = None,
    days: Annotated[int, value("N", "How long it is valid.", min=1)] = 90,
) -> Answer:
    """Make a token and print it; it is shown this once.

    Example: letheon token add reviewer --role auditor --days 30
    """
    wanted = None if scopes is None else [one.strip() for one in scopes.split(",")]
    with usage_errors():
        text, token = _tokens_of(opened).mint(name, role, scopes=wanted, tenant=tenant, days=days)
    return Answer({"token": text} | _facts(token), text)


@ledger_command(tokens, "list")
def list_all(opened: "Ledger") -> Answer:
    """Show the tokens, newest first; their texts are not kept.

    Example: letheon token list
    """
    facts = [_facts(token) for token in _tokens_of(opened).listed(limit=10_000)]
    rows = [
        (
            one["id"],
            one["name"],
            one["role"],
            one["tenant"] or "all",
            one["expires_at"][:10],
            (one["revoked_at"] or "")[:10],
        )
        for one in facts
    ]
    columns = ("id", "name", "role", "tenant", "expires", "revoked")
    return Answer(
        facts, Listing(columns, rows, empty="no token yet; `letheon token add` makes one")
    )


@ledger_command(tokens, "revoke")
def revoke(
    opened: "Ledger",
    token: Annotated[str, argument("ID", "Id of the token, from the list.")],
    descendants: Annotated[
        bool, flag("--descendants", "Those too that were made with it.")
    ] = False,
) -> Answer:
    """Take a token back at once, with the browsers that were logged in with it.

    Of a token that was stolen, take back what was made with it as well.

    Example: letheon token revoke 0123456789abcdef --descendants
    """
    done = _tokens_of(opened).revoke(token, descendants=descendants)
    if not done:
        raise UsageError("no such token, or it is revoked already; see `letheon token list`")
    return Answer({"revoked": done}, f"revoked {done}")


def _facts(token: Any) -> dict[str, Any]:
    def when(moment: datetime | None) -> str | None:
        return None if moment is None else moment.isoformat()

    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "scopes": sorted(token.scopes),
        "tenant": token.tenant,
        "created_at": when(token.created_at),
        "expires_at": when(token.expires_at),
        "revoked_at": when(token.revoked_at),
    }
