"""`letheon model`: register models and see which there are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli._command import (
    Answer,
    Listing,
    Tenant,
    UsageError,
    argument,
    ledger_command,
    make_group,
    print_warnings,
    require_file,
    usage_errors,
    value,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Model, ModelFiles

__all__ = ["models"]

models = make_group("model", "Models that people can be erased from.")


@ledger_command(models, "add")
def add(
    opened: "Ledger",
    file: Annotated[Path, argument("FILE", "A model that letheon.save wrote.")],
    rows: Annotated[
        Path, value("FILE", "Its training rows: .npz with X, y and ids, .csv or .parquet.")
    ],
    name: Annotated[str, value("NAME", "Name of the model in the ledger.")],
    target: Annotated[str | None, value("COLUMN", "Column of the target, in a table.")] = None,
    ids: Annotated[str | None, value("COLUMN", "Column of the ids, in a table.")] = None,
    tenant: Tenant = "default",
    dataset: Annotated[str | None, value("NAME", "Name of the data.", show_default="NAME")] = None,
    trusted: Annotated[
        list[str] | None,
        value("CLASS", "A class that the file may use, with any settings.", "--trust"),
    ] = None,
    test: Annotated[
        Path | None, value("FILE", "Rows by which effectiveness is estimated, in the same form.")
    ] = None,
    releases: Annotated[
        Literal["labels-only", "latest-only", "every-version"] | None,
        typer.Option(
            help="What of the model leaves the house.", show_default="what its guarantee covers"
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        value(
            "BYTES",
            "Memory that loading the model may take.",
            min=1,
            show_default="64 MiB + 4 x FILE",
        ),
    ] = None,
) -> Answer:
    """Register a saved model with the rows that it was fitted on.

    An exact model is trained once more and compared.

    Example: letheon model add churn.letheon --name churn --rows train.csv --target churned
    --ids customer
    """
    from letheon.ledger import ModelFiles

    files = ModelFiles(
        model=require_file(file).read_bytes(),
        rows=_read_table(rows),
        target=target,
        ids=ids,
        test=None if test is None else _read_table(test),
        trusted=tuple(trusted or ()),
        max_memory=max_memory,
    )
    options = {"name": name, "tenant": tenant, "dataset": dataset, "releases": releases}
    with usage_errors(), print_warnings():
        info = _register(opened, files, **options)
    text = f"registered {info.name}: {info.method}, {info.n_rows:,} rows"
    return Answer(info.to_dict(), text)


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


def _read_table(path: Path) -> tuple[str, bytes]:
    return path.name, require_file(path).read_bytes()


@ledger_command(models, "list")
def list_all(
    opened: "Ledger",
    tenant: Annotated[str | None, value("NAME", "Of this tenant only.")] = None,
) -> Answer:
    """List the registered models.

    Example: letheon model list --json
    """
    found = opened.models.list(tenant=tenant)
    rows = [
        (one.name, one.tenant, one.method, f"{one.n_rows:,}", one.head.number, one.head.sequence)
        for one in found
    ]
    columns = ("model", "tenant", "method", "rows", "version", "certificate")
    shown = Listing(columns, rows, empty="no model is registered yet", folds="model")
    return Answer([one.to_dict() for one in found], shown)


@ledger_command(models, "show")
def show(
    opened: "Ledger",
    name: Annotated[str, argument("NAME", "Name of the model.")],
    tenant: Tenant = "default",
) -> Answer:
    """Show the versions of a model, and what became of each.

    Example: letheon model show churn
    """
    found = opened.models.versions(name, tenant=tenant)
    rows = [
        (
            one.number,
            one.sequence,
            f"{one.live:,}",
            f"{one.published_at:%Y-%m-%d %H:%M}",
            _state_of(one),
            f"{one.address[:16]}…",
        )
        for one in found
    ]
    columns = ("version", "certificate", "rows", "published", "is", "SHA-256")
    return Answer([one.to_dict() for one in found], Listing(columns, rows, empty="no version"))


def _state_of(version: Any) -> str:
    if version.purged_at is not None:
        return "purged"
    if version.sequence is None:
        return "registered"
    return "published" if version.certified_at is None else "certified"
