"""Wires the stages: run, resume, judge, waive, report, compare; the only code that knows all of them."""
