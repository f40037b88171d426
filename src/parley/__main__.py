"""`python -m parley` is the `parley` command."""

from parley.cli import main

main()
