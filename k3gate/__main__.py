"""`python -m k3gate`."""

from k3gate.cli import main

main()
