"""The type of contract with which import-linter checks that modules that decide do no I/O.

The contract lists packages, so that a new module in one of them is checked without a change of the contract. Modules
and packages that do I/O are exceptions, by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grimp import ImportGraph
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.domain import fields
from importlinter.domain.contract import ContractCheck
from importlinter.domain.helpers import module_expressions_to_modules
from importlinter.domain.imports import ModuleExpression


class DecidingContract(ForbiddenContract):
    """Forbids imports, also indirect ones, for the modules of some packages except for the named exceptions.

    Configuration options:
        - source_modules: Modules and packages that must not import the forbidden modules.
        - exceptions: Modules and packages among them that may import the forbidden modules. An exception that is not
          needed is an error.
        - forbidden_modules: Modules that must not be imported.
    """

    type_name = "deciding"

    exceptions: Any = fields.SetField(subfield=fields.ModuleExpressionField())
    as_packages = fields.BooleanField(required=False, default=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - import-linter's signature
        """Check the graph. Only modules that break the contract are searched for chains of imports, to save time."""
        options: Any = self
        breaking: set[str] = set()
        for forbidden in options.forbidden_modules:
            if forbidden.expression in graph.modules:
                breaking |= graph.find_downstream_modules(forbidden.expression)
        breaking &= _names(graph, options.source_modules)
        for exception in options.exceptions:
            excepted = _names(graph, [exception]) & breaking
            if not excepted:
                raise ValueError(f"The exception {exception} is not needed. Remove it.")
            breaking -= excepted
        options.source_modules = {ModuleExpression(name) for name in breaking}
        return super().check(graph, verbose)


def _names(graph: ImportGraph, expressions: Iterable[ModuleExpression]) -> set[str]:
    modules = module_expressions_to_modules(
        graph, expressions, as_packages=True, raise_if_unmatched=True
    )
    return {module.name for module in modules}
