"""`python -m penstock`: the command line."""

from penstock.ops.cli.main import main

main()
