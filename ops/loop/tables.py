"""The two tables: seeded changes of the source, and how far the target is from it."""

import random
from collections.abc import Callable, Sequence

import psycopg

from penstock.ops.loop.loop_settings import COLUMNS, RESULT, REVISION, SOURCE_TABLE, TARGET_TABLE

# Debezium has a text that is stored out of line, and that an update of another column leaves as it was, only where the
# replica identity is full. PostgreSQL looks for what to store so in rows of two kilobytes: those with notes.
_SOURCE = f"""
CREATE TABLE {SOURCE_TABLE} (
    id bigint PRIMARY KEY, title text NOT NULL, body text, notes text, views integer NOT NULL DEFAULT 0,
    price numeric(10, 2) DEFAULT 9.5, labels text[], updated timestamptz NOT NULL DEFAULT now()
) WITH (toast_tuple_target = 128);
ALTER TABLE {SOURCE_TABLE} ALTER body SET STORAGE EXTERNAL, ALTER notes SET STORAGE EXTERNAL;
ALTER TABLE {SOURCE_TABLE} REPLICA IDENTITY FULL;
"""
_TARGET = """
CREATE EXTENSION vector;
CREATE TABLE {table} (
    id bigint PRIMARY KEY, title text, body text, views integer, {result} vector({dimension}), {revision} text
);
"""
_DIFFERENT = f"""
SELECT coalesce(a.id, v.id) FROM {SOURCE_TABLE} a FULL JOIN {TARGET_TABLE} v USING (id)
WHERE ({", ".join(f"a.{name}" for name in COLUMNS)}) IS DISTINCT FROM ({", ".join(f"v.{name}" for name in COLUMNS)})
   OR (a.body IS NULL) <> (v.{RESULT} IS NULL) OR (a.body IS NULL) <> (v.{REVISION} IS NULL)
ORDER BY 1
"""
_LONG_CHARS = 190
_NOTES = "A note. " * 300
_COMMIT_EVERY = 20


def create_tables(source: psycopg.Connection, dimension: int) -> None:
    """Create both tables, empty."""
    source.execute(_SOURCE)
    source.execute(_TARGET.format(table=TARGET_TABLE, result=RESULT, revision=REVISION, dimension=dimension))


def different_rows(connection: psycopg.Connection) -> list[int]:
    """The ids of rows that one table lacks or has otherwise, or whose vector or revision is missing, or has no text."""
    return [found for (found,) in connection.execute(_DIFFERENT)]


class SourceWriter:
    """Writes the source table, some statements a transaction: rows, then changes of every kind. Its calls block."""

    def __init__(self, connection: psycopg.Connection, texts: Sequence[str], seed: int) -> None:
        self._connection = connection
        self._texts = texts
        self._random = random.Random(seed)
        self._ids: list[int] = []
        self._next_id = 1
        self.num_changes = 0

    def write(self, rows: int, changes: int) -> None:
        """Insert rows, then change some, a few of them several times."""
        kinds = self._kinds
        steps = [*[self._insert] * rows, *self._random.choices([*kinds], [*kinds.values()], k=changes)]
        for start in range(0, len(steps), _COMMIT_EVERY):
            with self._connection.transaction():
                for step in steps[start : start + _COMMIT_EVERY]:
                    step()

    @property
    def _kinds(self) -> dict[Callable[[], object], int]:
        """The kinds of changes, and how often each comes among the others."""
        return {
            self._insert: 3,
            self._new_body: 6,
            self._new_views: 4,
            self._no_body: 1,
            self._new_key: 1,
            self._delete: 2,
            self._replace: 1,
        }

    def _execute(self, statement: str, *values: object) -> None:
        self._connection.execute(statement, values)
        self.num_changes += 1

    def _insert(self) -> None:
        self._insert_as(self._new_id())

    def _insert_as(self, key: int) -> None:
        self._ids.append(key)
        body = self._body()
        notes = _NOTES if len(body) == _LONG_CHARS else None
        statement = (
            f"INSERT INTO {SOURCE_TABLE} (id, title, body, notes, price, labels) VALUES (%s, %s, %s, %s, 9.5, %s)"
        )
        self._execute(statement, key, f"Article {key}", body, notes, ["a", "b"])

    def _new_body(self) -> None:
        self._execute(f"UPDATE {SOURCE_TABLE} SET body = %s WHERE id = %s", self._body(), self._one())

    def _new_views(self) -> None:
        self._execute(f"UPDATE {SOURCE_TABLE} SET views = views + 1 WHERE id = %s", self._one())

    def _no_body(self) -> None:
        self._execute(f"UPDATE {SOURCE_TABLE} SET body = NULL WHERE id = %s", self._one())

    def _new_key(self) -> None:
        old, new = self._removed(), self._new_id()
        self._ids.append(new)
        self._execute(f"UPDATE {SOURCE_TABLE} SET id = %s WHERE id = %s", new, old)

    def _delete(self) -> int:
        key = self._removed()
        self._execute(f"DELETE FROM {SOURCE_TABLE} WHERE id = %s", key)
        return key

    def _replace(self) -> None:
        self._insert_as(self._delete())

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _one(self) -> int:
        return self._random.choice(self._ids)

    def _removed(self) -> int:
        """An id that is taken from those of rows."""
        place = self._random.randrange(len(self._ids))
        self._ids[place], self._ids[-1] = self._ids[-1], self._ids[place]
        return self._ids.pop()

    def _body(self) -> str:
        """One text, or one in five times several, which are long."""
        count = 1 if self._random.random() < 0.8 else 6
        return " ".join(self._random.choices(self._texts, k=count))[:_LONG_CHARS]
