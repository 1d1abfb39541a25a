"""The contract of import-linter for modules that decide: new modules are checked, exceptions are named and needed."""

from __future__ import annotations

import pytest
from grimp import ImportGraph
from importlinter.configuration import configure

from tools.import_contracts import DecidingContract

OPTIONS = {
    "source_modules": ["app.core", "app.clients"],
    "exceptions": ["app.clients.driver"],
    "forbidden_modules": ["socket", "time"],
}


def check(*imports: tuple[str, str], **options: list[str]) -> bool:
    configure()
    graph = ImportGraph()
    for module in ("app", "app.core", "app.core.log", "app.clients", "app.clients.driver"):
        graph.add_module(module)
    graph.add_module("socket", is_squashed=True)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported, line_number=1, line_contents="")
    contract = DecidingContract(
        "deciding", {"root_packages": ["app"], "include_external_packages": True}, OPTIONS | options
    )
    return contract.check(graph, verbose=False).kept


def test_a_named_exception_may_do_io() -> None:
    assert check(("app.clients.driver", "socket"))


def test_a_new_module_of_a_package_is_checked() -> None:
    assert not check(("app.clients.driver", "socket"), ("app.core.new", "socket"))


def test_a_module_may_not_import_an_exception() -> None:
    assert not check(("app.clients.driver", "socket"), ("app.core.log", "app.clients.driver"))


def test_an_exception_without_io_is_refused() -> None:
    with pytest.raises(ValueError, match=r"app\.clients\.driver is not needed"):
        check()


def test_an_exception_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"app\.clients\.gone"):
        check(
            ("app.clients.driver", "socket"), exceptions=["app.clients.driver", "app.clients.gone"]
        )
