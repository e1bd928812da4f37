"""The tables of the loop in a real PostgreSQL: what the source's changes are, and which differences are seen."""

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest

from penstock.ops.demo.banking77 import read_messages
from penstock.ops.loop.loop_settings import COLUMNS, RESULT, REVISION, SOURCE_TABLE, TARGET_TABLE
from penstock.ops.loop.postgres import PostgresServer
from penstock.ops.loop.tables import SourceWriter, create_tables, different_rows
from penstock.ops.loop.verdict import Verdict

pytestmark = pytest.mark.slow

_NAMES = ", ".join(COLUMNS)
_RESULT = "CASE WHEN body IS NULL THEN NULL ELSE '[1,2]'::vector END, CASE WHEN body IS NULL THEN NULL ELSE 'm@1' END"
_COPY = f"INSERT INTO {TARGET_TABLE} SELECT {_NAMES}, {_RESULT}"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def tables(server: PostgresServer) -> Iterator[psycopg.Connection]:
    with server.connect() as connection:
        create_tables(connection, 2)
        yield connection
        connection.execute(f"DROP TABLE {SOURCE_TABLE}, {TARGET_TABLE}; DROP EXTENSION vector")


def write(connection: psycopg.Connection, seed: int) -> list[tuple[object, ...]]:
    SourceWriter(connection, [message.text for message in read_messages()], seed).write(60, 120)
    return connection.execute(f"SELECT {_NAMES} FROM {SOURCE_TABLE} ORDER BY id").fetchall()


def test_equal_seeds_write_equal_rows_and_have_every_kind_of_change(tables: psycopg.Connection) -> None:
    rows = write(tables, seed=1)
    bodies = [body for _, _, body, _ in rows]
    assert None in bodies
    assert max(len(body) for body in bodies if isinstance(body, str)) > 150
    assert any(views != 0 for *_, views in rows)
    assert {*range(1, 61)} - {key for key, *_ in rows}  # deleted, or under another key
    tables.execute(f"TRUNCATE {SOURCE_TABLE}")
    assert write(tables, seed=1) == rows


def test_some_texts_are_stored_out_of_line(tables: psycopg.Connection) -> None:
    write(tables, seed=1)
    statement = f"SELECT count(pg_column_toast_chunk_id(body)) FROM {SOURCE_TABLE} WHERE views > 0"
    ((count,),) = tables.execute(statement).fetchall()
    assert count > 0


@pytest.mark.parametrize(
    "change",
    [
        f"DELETE FROM {TARGET_TABLE} WHERE id = %s",
        f"DELETE FROM {SOURCE_TABLE} WHERE id = %s",
        f"UPDATE {TARGET_TABLE} SET body = 'otherwise' WHERE id = %s",
        f"UPDATE {TARGET_TABLE} SET {RESULT} = NULL WHERE id = %s",
        f"UPDATE {TARGET_TABLE} SET {REVISION} = NULL WHERE id = %s",
    ],
)
def test_a_row_that_differs_is_named(tables: psycopg.Connection, change: str) -> None:
    rows = write(tables, seed=2)
    tables.execute(f"{_COPY} FROM {SOURCE_TABLE}")
    assert different_rows(tables) == []
    key = next(key for key, _, body, _ in rows if body is not None)
    tables.execute(change, (key,))
    assert different_rows(tables) == [key]


def test_neighbours_are_compared_by_their_distances(tables: psycopg.Connection) -> None:
    angles = np.linspace(0.1, 1.5, 40, dtype=np.float32)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rows = [(n, vector.tolist()) for n, vector in enumerate(vectors)]
    with tables.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {TARGET_TABLE} (id, {RESULT}) VALUES (%s, %s::real[]::vector)", rows)
    queries = vectors[::10]
    verdict = Verdict()
    verdict.check_neighbours(tables, range(40), vectors, queries)
    assert verdict.complaints == {}
    verdict.check_neighbours(tables, range(40), vectors[::-1], queries)
    assert "other_neighbours" in verdict.complaints
