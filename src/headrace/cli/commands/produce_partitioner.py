"""The partitioner named by --partitioner: built in, of an installed package, or a class in a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click


def chosen_partitioner(name: str | None, parameters: str | None) -> Any:
    """Return the value for `Producer(partitioner=)`; None for the partitioner of the topic.

    Args:
        name: A name, or MODULE:CLASS, where MODULE may be in the current directory.
        parameters: A JSON object with arguments of the partitioner; None without.

    Raises:
        ConfigError: No partitioner has this name, or it does not accept the parameters.
        UsageError: The module or class does not exist.
    """
    from headrace.clients.partitioners import partitioner_factory
    from headrace.registers import Given, Named

    if name is None:
        if parameters is not None:
            raise click.UsageError("--partitioner-parameters needs --partitioner")
        return None
    given = Given(_imported(name)) if ":" in name else None
    named = Named(name, parameters or "", given)
    partitioner_factory(named)(lambda _count: 0)  # a mistake ends the command before it reads input
    return named


def _imported(target: str) -> Any:
    from headrace.errors import ConfigError

    module_name, _, attribute = target.partition(":")
    here = Path.cwd()
    sys.path.insert(0, str(here))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and module_name.startswith(missing):
            raise click.UsageError(
                f"--partitioner: there is no module {module_name!r} below {here}"
            ) from None
        raise ConfigError(
            f"--partitioner: {module_name!r} cannot be imported: {error!r}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise click.UsageError(f"--partitioner: {module_name} has no {attribute!r}")
    return found
