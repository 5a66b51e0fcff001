"""`python -m kbroker.cli`: the same as `python -m kbroker`."""

from kbroker.__main__ import main

main()
