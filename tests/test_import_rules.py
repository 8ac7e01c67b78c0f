"""The rules of import-linter find what they are made for."""

from typing import Any

import pytest
from grimp import ImportGraph

from tools.import_rules import PublicImports

OPTIONS: dict[str, Any] = {"public_modules": ["letheon.ledger.schemas"]}


def broken(importer: str, imported: str) -> list[tuple[str, str]]:
    graph = ImportGraph()
    graph.add_import(importer=importer, imported=imported)
    contract = PublicImports("rule", {"root_packages": ["letheon"]}, OPTIONS)
    imports: list[tuple[str, str]] = contract.check(graph, verbose=False).metadata["broken"]
    return imports


@pytest.mark.parametrize("imported", ["letheon.state._tags", "letheon.ledger.requests.intake"])
def test_a_private_module_of_another_package_is_found(imported: str) -> None:
    assert broken("letheon.cli.app", imported) == [("letheon.cli.app", imported)]


@pytest.mark.parametrize("imported", ["letheon.state", "letheon.ledger.schemas"])
def test_public_modules_may_be_imported(imported: str) -> None:
    assert broken("letheon.cli.app", imported) == []


def test_a_package_may_import_its_own_modules() -> None:
    assert broken("letheon.state._encode", "letheon.state._tags") == []
