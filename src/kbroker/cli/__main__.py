"""`python -m kbroker.cli`: the command, where its script is not on the PATH."""

from kbroker.cli import cli

cli(prog_name="kbroker")
