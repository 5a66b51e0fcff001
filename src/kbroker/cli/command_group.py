"""A group of commands that says what was meant: a similar name for a wrong one."""

from __future__ import annotations

import difflib

import click


class CommandGroup(click.Group):
    """A click group whose "No such command" names the most similar one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names. Raises: click.UsageError."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            similar = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if similar:
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{similar[0]}'?")
        return super().resolve_command(ctx, args)
