"""`headrace completion`: scripts that complete commands, options, topics and groups in a shell."""

from __future__ import annotations

import click

from headrace.cli.arguments.options import preformatted
from headrace.cli.command_group import argument, command

HOW_TO = preformatted(
    """To enable completion in every new shell:

            bash (4.4 or newer)  eval "$(headrace completion bash)"    in ~/.bashrc
            zsh                  eval "$(headrace completion zsh)"     in ~/.zshrc, after compinit
            fish                 headrace completion fish > ~/.config/fish/completions/headrace.fish
"""
)


@command("completion", epilog=HOW_TO)
@argument("shell", "The shell.", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands, options, and names of topics, groups and contexts.

    Names come from the broker that -b, --context or the environment names; it has one second to answer. Internal topics
    and groups are offered only if the typed text is a prefix of their names.
    """
    from click.shell_completion import get_completion_class

    from headrace.cli import VARIABLE, bash_completion

    bash_completion.register()
    root = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    assert found is not None, "click supports these shells"
    click.echo(found(root, {}, "headrace", VARIABLE).source())
