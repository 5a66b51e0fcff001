"""`kbroker completion`: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script for completion in a shell.

    \b
    bash: echo 'eval "$(kbroker completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(kbroker completion zsh)"' >> ~/.zshrc
    fish: kbroker completion fish > ~/.config/fish/completions/kbroker.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"expected a shell that click completes, got {shell}; upgrade click")
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "kbroker", "_KBROKER_COMPLETE").source())
