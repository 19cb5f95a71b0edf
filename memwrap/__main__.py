"""`python -m memwrap` is the command `memwrap`."""

from memwrap.cli.app import main

main()
