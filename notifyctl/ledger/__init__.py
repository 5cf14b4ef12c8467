"""Every SQL statement of the program, named by what it does; the only place that imports a database driver.

Statements are written once, with three conventions that `dialect` turns into SQLite's or Postgres' own words:
`:name` is a parameter, `:now` the ledger's time, and `{o: id bigint, state text}` a set of rows passed as one JSON
array. So each statement handles a whole group, and none is repeated per row.

No SQLAlchemy: all SQL here is text, so Core would add only its own cost, measured at 0.5 ms of CPU per transaction
against 0.05 ms for the driver, and 23 times an interpreter's start at import; a lone outcome must stay near the cost
of its bare commit.
"""
