"""Connections and transactions: durability, the ledger's clock, fair waiting, retry and reconnect.

A transaction is a function that may be run again from its start (`Ledger.transact`): after a deadlock, a
serialization failure, a lock timeout, or a connection that was lost. What it does must therefore be safe to repeat,
also when the lost reply was that of its COMMIT. Nothing here keeps session state on Postgres, so PgBouncer in
transaction mode works: statements are prepared only where the server itself is at the other end.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from notifyctl import clock
from notifyctl.errors import LedgerUnavailable, NotifyctlError
from notifyctl.ledger.connect import connect_postgres, connect_sqlite, is_sqlite, set_up_sqlite, sqlite_path
from notifyctl.ledger.dialect import POSTGRES, SQLITE, Dialect
from notifyctl.ledger.meanwhile import Background
from notifyctl.ledger.trouble import Again, pause, postgres_error, sqlite_error

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

LOCK_TIMEOUT = 5.0  # seconds a Postgres statement waits for a lock, at most, before its transaction is run again
DAY = timedelta(days=1)
_PREPARE = 3  # times that a connection has run a statement before it is prepared
_BEGIN_POSTGRES = (
    "BEGIN; SET LOCAL lock_timeout = '{:g}s'; SET LOCAL TimeZone = 'UTC'; {}SELECT now(), pg_backend_pid()"
)
# Every writing statement reaches its few rows by key. Right after a bulk enqueue, or on a bloated work table, the
# statistics say otherwise and the planner would scan; so the ways that are never right here are closed to it.
_BY_KEY = "".join(
    f"SET LOCAL {name} = off; "
    for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "jit")
)


class Tx:
    """One open transaction. `now` is the ledger's time, `rerun` whether an earlier run of it may have committed."""

    __slots__ = ("_execute", "dialect", "now", "rerun")

    def __init__(self, execute: Callable[[str, Any], Any], dialect: Dialect, now: datetime, rerun: bool) -> None:
        self._execute = execute
        self.dialect = dialect
        self.now = now
        self.rerun = rerun

    def execute(self, sql: str, **parameters: Any) -> list[Any]:
        """Run one statement; rows (if any) as tuples, all fetched. A list parameter is a row set (see dialect)."""
        return self._run(sql, parameters)[0]

    def affected(self, sql: str, **parameters: Any) -> int:
        """Run one write; how many rows it touched."""
        return int(self._run(sql, parameters)[1].rowcount)

    def execute_all(self, statements: Sequence[str], **parameters: Any) -> None:
        """Run writes that do not read what another of them writes: on Postgres in one round trip."""
        if self.dialect is SQLITE:
            for sql in statements:
                self._run(sql, parameters)
        elif statements:
            parts = ", ".join(f"s{number} AS ({sql})" for number, sql in enumerate(statements))
            self._run(f"WITH {parts} SELECT 1", parameters)

    def _run(self, sql: str, parameters: dict[str, Any]) -> tuple[list[Any], Any]:
        text: str
        values: Any
        if self.dialect is POSTGRES:
            POSTGRES.bind(sql, parameters)
            text, values = POSTGRES.sql(sql), parameters
        else:
            parameters["now"] = self.now
            text, values = SQLITE.statement(sql, parameters)
        try:
            cursor = self._execute(text, values)
        except UnicodeEncodeError:  # a name that is no text, from an argument or a row: written out, it names nothing
            cursor = self._execute(text, _written_out(values))
        return (cursor.fetchall() if cursor.description else []), cursor


class Ledger:
    """An open ledger, used by one thread. `run` names the owner of what it claims."""

    def __init__(self, url: str, *, patience: float = 10.0, create: bool = False, connection: Any = None) -> None:
        """Connect; `create`: make a missing SQLite file. Raises ConfigError or LedgerUnavailable."""
        self.url = url
        self.patience = patience
        self.dialect: Dialect
        self._connection: Any = connection
        self._estimate = (clock.wall(), clock.monotonic())
        self._background = Background()
        self.reconnected = 0  # how often a connection was lost: a COMMIT may then have succeeded unheard
        self.wall: Callable[[], datetime] = clock.wall
        if is_sqlite(url):
            self.dialect = SQLITE
            self._path = sqlite_path(url)
            if connection is None:
                self._connection = self._open_sqlite(create)
        else:
            self.dialect = POSTGRES
            if connection is None:
                self._connection = self._wait(self._open_postgres)

    def now(self) -> datetime:
        """The ledger's time, estimated from the last transaction's and the time that passed since."""
        at, since = self._estimate
        return at + timedelta(seconds=clock.monotonic() - since)

    def moment(self, at: datetime) -> float:
        """The point of the monotonic clock that an instant of the ledger's is: never too early."""
        now, since = self._estimate
        return since + (at - now).total_seconds()

    @property
    def connection(self) -> Any:
        """The driver's own connection (autocommit), for the migration runner."""
        return self._connection

    def look(self, question: Callable[[Any], T]) -> T:
        """Ask the bare connection, outside any transaction; again where it was lost or the file was locked."""

        def attempt() -> T:
            if self.dialect is POSTGRES and self._connection.closed:
                self._connection = self._open_postgres()
            return question(self._connection)

        return self._wait(attempt)

    def watch(self, watched: Callable[[Any], Any]) -> None:
        """Put something between this object and its connection (see failpoints)."""
        self._connection = watched(self._connection)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    # -- transactions -------------------------------------------------------------------------------------------

    def transact(self, work: Callable[[Tx], T], meanwhile: Callable[[], bool] | None = None) -> T:
        """Run `work` in a writing transaction and commit it; run it again where the database asks for that.

        `meanwhile` is called during the COMMIT, again and again as long as it returns True; it must not use the ledger.
        """
        return self._transact(work, write=True, meanwhile=meanwhile)

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on one snapshot; nothing is written."""
        return self._transact(work, write=False)

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """A writing transaction as a block, for commands a person runs: not run again once it has begun."""
        tx = self._begin_waiting(write=True)
        try:
            with self._errors():
                yield tx
                self._command("COMMIT")
        except Again as again:
            self._rollback()
            raise again.reported from again.__cause__
        except BaseException:
            self._rollback()
            raise

    def _transact(
        self, work: Callable[[Tx], T], *, write: bool, meanwhile: Callable[[], bool] | None = None
    ) -> T:
        give_up = clock.monotonic() + self.patience
        rerun = False
        while True:
            try:
                with self._errors():
                    tx = self._begin(write=write, rerun=rerun)
                    result = work(tx)
                    if meanwhile is None:
                        self._command("COMMIT")
                    else:
                        self._background.run(lambda: self._command("COMMIT"), meanwhile)
                    return result
            except Again as again:
                self._rollback()
                if clock.monotonic() >= give_up:
                    raise again.reported from again.__cause__
                if again.lost:
                    rerun = True
                    self.reconnected += 1
                    self._connection = self._wait(self._open_postgres)
                else:
                    pause()
            except BaseException:
                self._rollback()
                raise

    def _begin(self, *, write: bool, rerun: bool = False) -> Tx:
        if self.dialect is SQLITE:
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            now = self._sqlite_now(write=write)
            execute = self._connection.execute
        else:
            cursor = self._connection.execute(
                _BEGIN_POSTGRES.format(min(LOCK_TIMEOUT, self.patience), _BY_KEY if write else ""),
                prepare=False,  # several statements at once cannot be
            )
            while cursor.nextset():
                pass
            at, server = cursor.fetchone()
            now = at.astimezone(UTC)
            execute = self._connection.execute
            # A pooler (PgBouncer in transaction mode) names a process of its own to its clients: a statement prepared
            # on one server connection would be missing on the next. Where nothing is between, parsing and planning
            # the same statements in every turn costs more than running them.
            if write and server == self._connection.info.backend_pid:
                self._connection.prepare_threshold = _PREPARE
        self._estimate = (now, clock.monotonic())
        return Tx(execute, self.dialect, now, rerun)

    def _begin_waiting(self, *, write: bool) -> Tx:
        give_up = clock.monotonic() + self.patience
        while True:
            try:
                with self._errors():
                    return self._begin(write=write)
            except Again as again:
                self._rollback()
                if clock.monotonic() >= give_up:
                    raise again.reported from again.__cause__
                if again.lost:
                    self._connection = self._wait(self._open_postgres)
                else:
                    pause()

    def _command(self, sql: str) -> None:
        if self.dialect is POSTGRES:
            self._connection.execute(sql, prepare=False)
        else:
            self._connection.execute(sql)

    def _rollback(self) -> None:
        try:
            if self.dialect is SQLITE:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            elif not self._connection.closed:
                self._connection.execute("ROLLBACK")
        except Exception:  # noqa: S110  (the connection is gone, and with it the transaction)
            pass

    # -- SQLite's clock -----------------------------------------------------------------------------------------

    def _sqlite_now(self, *, write: bool) -> datetime:
        """Ledger time = wall + offset. A wall clock behind the high-water mark raises the offset at once, so that a
        host whose clock jumps back neither steals leases nor keeps them; one that catches up returns it to zero."""
        try:
            values = dict(
                self._connection.execute(
                    "SELECT key, value FROM notify_meta WHERE key IN ('clock_mark', 'clock_offset')"
                ).fetchall()
            )
        except sqlite3.OperationalError:
            return self.wall()  # no ledger yet: the version check will say so
        wall = self.wall()
        mark = SQLITE.instant(values.get("clock_mark") or None)
        offset = timedelta(seconds=float(values.get("clock_offset") or 0))
        if mark is None or wall >= mark:
            now, kept = wall, timedelta(0)
        else:
            if mark - wall > DAY:
                raise LedgerUnavailable(
                    f"this host's clock is {(mark - wall).days} days or more behind the ledger's last write",
                    hint="set the clock; if the ledger's time is the wrong one: notifyctl migrate --reset-clock",
                    code="clock",
                )
            now = wall + offset
            kept = offset
            if now < mark:
                now, kept = mark, mark - wall
        if write and (mark is None or kept != offset or now - mark >= timedelta(seconds=1)):
            pairs = (("clock_mark", SQLITE.time(now)), ("clock_offset", str(kept.total_seconds())))
            self._connection.executemany(
                "INSERT INTO notify_meta (key, value) VALUES (?, ?) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                pairs,
            )
        return now

    # -- opening and waiting ------------------------------------------------------------------------------------

    def _open_sqlite(self, create: bool) -> sqlite3.Connection:
        with self._errors():
            connection = connect_sqlite(self._path, create)
        give_up = clock.monotonic() + self.patience
        while True:
            try:
                with self._errors():
                    set_up_sqlite(connection, create)
                    return connection
            except Again as again:
                if clock.monotonic() >= give_up:
                    raise again.reported from again.__cause__
                pause()

    def _open_postgres(self) -> psycopg.Connection[Any]:
        return connect_postgres(self.url, self.patience)

    def _wait(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` until it succeeds or patience ends: a server that restarts is waited for."""
        give_up = clock.monotonic() + self.patience
        step = 0.05
        while True:
            try:
                with self._errors():
                    return attempt()
            except Again as again:
                if clock.monotonic() + step >= give_up:
                    raise again.reported from again.__cause__
                time.sleep(step * random.uniform(0.5, 1.5))  # noqa: S311  (jitter)
                step = min(step * 2, 1.0)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except NotifyctlError:
            raise
        except sqlite3.Error as error:
            converted = sqlite_error(error, self._path, self.patience)
            if converted is None:
                raise
            raise converted from error
        except Exception as error:
            converted = postgres_error(error, self._connection) if self.dialect is POSTGRES else None
            if converted is None:
                raise
            raise converted from error


def _written_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _written_out(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_written_out(one) for one in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def ids(values: Iterable[int]) -> list[Sequence[int]]:
    """A row set of one sorted column: every statement takes its locks in this order."""
    return [(value,) for value in sorted(values)]
