"""Ways out: one provider per module, each knowing one wire format and nothing of the ledger.

`base` is what all share (the boundary, and what an exchange proves), `registry` lists the kinds without importing
them, README.md says how to add one. Importing this package imports nothing else.
"""
