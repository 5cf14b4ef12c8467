"""Faults that people reported, each run from outside; the id of the report is in the test's name."""
