"""The model check: random histories of the whole tool on both databases, judged by one small oracle.

`truth` is the outside world (clock, providers, what they really took), `bench` a fresh ledger, `owner` one running
process, `machine` the operations, `oracle` the invariants. Only `counting` and the parts that drive the tool know the
state machine; the oracle does not import it.
"""
