"""Options of a loop, the names of its parts, and the configuration of the two connectors, as a user writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.ops.loop.postgres import USER

PREFIX = "shop"
SOURCE_TABLE, TARGET_TABLE = "articles", "vectors"
COLUMNS = ("id", "title", "body", "views")  # of both tables; the target has the two of the result too
INPUT_TOPIC, OUTPUT_TOPIC = f"{PREFIX}.public.{SOURCE_TABLE}", "articles.enriched"
RESULT, REVISION = "embedding", "embedding_revision"
ROUTE = {
    "input-topic": INPUT_TOPIC,
    "output-topic": OUTPUT_TOPIC,
    "text": "/after/body",
    "result-field": f"/after/{RESULT}",
    "revision-field": f"/after/{REVISION}",
    "task": "embed",
    "missing-text": "null",  # an upsert without the column would leave the vector of the text before
}


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Options of a run. Equal settings write the same rows."""

    model: Path  # a directory that sentence-transformers reads
    rows: int = 10_000
    kills: int = 2  # of the worker by SIGKILL, each while it has work
    seed: int = 1
    partitions: int = 4
    timeout_s: float = 1800.0  # of the whole, without the starts


def source_config(port: int) -> Mapping[str, str]:
    """Debezium's connector for PostgreSQL, with its defaults: an envelope for each change, and a tombstone."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": USER,
        "database.password": "",
        "database.dbname": "postgres",
        "topic.prefix": PREFIX,
        "table.include.list": f"public.{SOURCE_TABLE}",
    }


def sink_config(port: int) -> Mapping[str, str]:
    """Debezium's JDBC sink: rows by the record's key, deletes by tombstone, transactions once they are committed."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": OUTPUT_TOPIC,
        "connection.url": f"jdbc:postgresql://127.0.0.1:{port}/postgres",
        "connection.username": USER,
        "connection.password": "",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "primary.key.fields": "id",
        "collection.name.format": f"public.{TARGET_TABLE}",
        "field.include.list": ",".join(f"{OUTPUT_TOPIC}:{name}" for name in (*COLUMNS, RESULT, REVISION)),
        "schema.evolution": "none",
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
    }
