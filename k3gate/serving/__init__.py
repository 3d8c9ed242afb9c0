"""A runtime that serves the model: what is installed, and what it says it can load. Nothing found is imported or run,
but `--version` of a program."""
