"""`python -m asterism` is the command line."""

from asterism.cli import main

main()
