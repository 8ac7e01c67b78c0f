"""Rules for import-linter: methods form one layer, and packages know only public modules."""

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.contracts.layers import LayersContract, ModuleTail

from letheon.methods import METHODS


class MethodLayers(LayersContract):
    """Layers in which every registered method is in the layer of `naive`, unless it is listed."""

    type_name = "method-layers"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Add the modules of methods to their layer, then check."""
        layers: Any = self.layers
        listed = {tail.name for layer in layers for tail in layer.module_tails}
        naive_layer = next(layer for layer in layers if _NAIVE in layer.module_tails)
        modules = {method.module.removeprefix("letheon.") for method in METHODS}
        naive_layer.module_tails.update(ModuleTail(name) for name in modules - listed)
        return super().check(graph, verbose)


_NAIVE = ModuleTail("naive", is_optional=True)


class PublicImports(Contract):
    """No package imports a private module of another.

    The public modules of ``letheon.x`` are ``letheon.x`` itself and those listed in
    `public_modules`; all others are private. A name with an underscore cannot be listed.
    """

    type_name = "public"

    public_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002
        """Return the imports that break the rule."""
        broken = [
            (importer, imported)
            for importer in sorted(graph.modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if self._is_private(imported) and _package_of(importer) != _package_of(imported)
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: Any) -> None:
        """Print one line per import."""
        for importer, imported in check.metadata["broken"]:
            output.print_error(f"{importer} imports {imported}, which is private", bold=False)
            output.new_line()

    def _is_private(self, module: str) -> bool:
        public: Any = self.public_modules
        return "._" in module or (module.count(".") > 1 and module not in public)


def _package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])
