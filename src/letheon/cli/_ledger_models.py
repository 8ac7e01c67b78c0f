"""`letheon model`: register models and see which there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli._ledger_common import (
    AsJson,
    Home,
    LedgerCommand,
    Tenant,
    UsageError,
    group,
    open_ledger,
    reported,
    require_file,
    say,
    say_table,
    taken_at_their_word,
    warnings_said,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Model, ModelFiles

__all__ = ["models"]

models = group("model", "Models that people can be erased from.")


@models.command("add", cls=LedgerCommand)
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model that letheon.save wrote.")],
    rows: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Its training rows: .npz with X, y and ids, .csv or .parquet."
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the model in the ledger.")],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the target, in a table.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the ids, in a table.")
    ] = None,
    tenant: Tenant = "default",
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the data.", show_default="NAME")
    ] = None,
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", metavar="CLASS", help="A class that the file may use, with any settings."
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rows by which effectiveness is estimated, in the same form."
        ),
    ] = None,
    releases: Annotated[
        Literal["labels-only", "latest-only", "every-version"] | None,
        typer.Option(
            help="What of the model leaves the house.", show_default="what its guarantee covers"
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="Memory that loading the model may take.",
            show_default="64 MiB + 4 x FILE",
        ),
    ] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Register a saved model with the rows that it was fitted on.

    An exact model is trained once more and compared.

    Example: letheon model add churn.letheon --name churn --rows train.csv --target churned
    --ids customer
    """
    with reported(as_json), open_ledger(ledger) as opened:
        from letheon.ledger import ModelFiles

        files = ModelFiles(
            model=require_file(file).read_bytes(),
            rows=_table(rows),
            target=target,
            ids=ids,
            test=None if test is None else _table(test),
            trusted=tuple(trusted or ()),
            max_memory=max_memory,
        )
        options = {"name": name, "tenant": tenant, "dataset": dataset, "releases": releases}
        with taken_at_their_word(), warnings_said():
            info = _register(opened, files, **options)
        text = f"registered {info.name}: {info.method}, {info.n_rows:,} rows"
        say(as_json, info.to_dict(), text)


def _register(opened: "Ledger", files: "ModelFiles", **options: Any) -> "Model":
    from letheon.sandbox import EndedError, TimeLimitError

    try:
        return opened.models.register_files(files, **options)
    except TimeLimitError as error:
        raise UsageError("reading and training took longer than an hour and was ended") from error
    except EndedError as error:
        raise UsageError(
            f"reading the files and training the model again failed ({error}); give the rows as "
            "they were given to fit, in that order"
        ) from error


def _table(path: Path) -> tuple[str, bytes]:
    return path.name, require_file(path).read_bytes()


@models.command("list", cls=LedgerCommand)
def show_all(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Of this tenant only.")] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """List the registered models.

    Example: letheon model list --json
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.models.list(tenant=tenant)
    lines = [
        (
            one.name,
            one.tenant,
            one.method,
            f"{one.n_rows:,}",
            str(one.head.number),
            "" if one.head.sequence is None else str(one.head.sequence),
        )
        for one in found
    ]
    columns = ("model", "tenant", "method", "rows", "version", "certificate")
    documents = [one.to_dict() for one in found]
    say_table(as_json, documents, columns, lines, empty="no model is registered yet", folds="model")


@models.command("show", cls=LedgerCommand)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.")],
    tenant: Tenant = "default",
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show the versions of a model, and what became of each.

    Example: letheon model show churn
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.models.versions(name, tenant=tenant)
    lines = [
        (
            str(one.number),
            "" if one.sequence is None else str(one.sequence),
            f"{one.live:,}",
            f"{one.published_at:%Y-%m-%d %H:%M}",
            _fate(one),
            f"{one.address[:16]}…",
        )
        for one in found
    ]
    columns = ("version", "certificate", "rows", "published", "is", "SHA-256")
    documents = [one.to_dict() for one in found]
    say_table(as_json, documents, columns, lines, empty="no version")


def _fate(version: Any) -> str:
    if version.purged_at is not None:
        return "purged"
    if version.sequence is None:
        return "registered"
    return "published" if version.certified_at is None else "certified"
