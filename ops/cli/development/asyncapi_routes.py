"""A route in an AsyncAPI document: the topics of its records and replays, and of what it makes of them."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from penstock.ops.cli.development import asyncapi_schemas as schemas
from penstock.ops.cli.development.asyncapi_parts import DocumentPart, channel, dead_letter_message, message, operation
from penstock.producer.wire.topics import dead_letter_topic, replay_topic
from penstock.worker.routes.settings import RouteSettings

_CONTENT_TYPES = {
    "json": "application/json",
    "text": "text/plain",
    "avro": "application/vnd.apache.avro",
    "protobuf": "application/x-protobuf",
    "json-schema": "application/json",
}
_SCHEMA_ID = {"schemaIdLocation": "payload", "schemaIdPayloadEncoding": "confluent"}


class _Topic(NamedTuple):
    """A topic of a route, and the form of its records."""

    kind: str  # its part of names
    address: str
    action: Literal["receive", "send"]
    summary: str
    headers: schemas.Schema
    record_format: str


def route_part(route: RouteSettings, number: int) -> DocumentPart:
    """The route with this number in its worker's file, which the names have too."""
    part = DocumentPart({}, {}, {"deadLetter": dead_letter_message()})
    for topic in _topics(route):
        name = f"route{number}{topic.kind}"
        part.messages[f"{name}Record"] = _record(topic)
        part.channels[name] = channel(topic.address, [f"{name}Record"], topic.summary)
        part.operations[f"{topic.action}R{name[1:]}"] = operation(topic.action, name, f"{name}Record")
        if topic.action == "receive":
            letters = f"{name}DeadLetters"
            about = f"Records of {topic.address} that failed."
            part.channels[letters] = channel(dead_letter_topic(topic.address), ["deadLetter"], about)
            part.operations[f"keepR{letters[1:]}"] = operation("send", letters, "deadLetter")
    return part


def _topics(route: RouteSettings) -> Iterator[_Topic]:
    source, written = route.input_topic, route.output_format
    if written is None:
        written = "json" if route.record_format == "text" else route.record_format
    yield _Topic("Input", source, "receive", "Records to be enriched.", {"type": "object"}, route.record_format)
    if route.accept_replays:
        about = f"Copies of records of {source}, to be enriched again."
        headers = schemas.replayed_headers_schema()
        yield _Topic("Replay", replay_topic(source), "receive", about, headers, route.record_format)
    place = f"with the result in {route.result_field}" if route.result_field else "of each the result alone"
    about = f"Records of {source}, {place}."
    yield _Topic("Output", route.output_topic, "send", about, schemas.enriched_headers_schema(), written)


def _record(topic: _Topic) -> dict[str, Any]:
    made = message(topic.summary, topic.headers, {})
    has_id = topic.record_format not in ("json", "text")
    binding = made["bindings"]["kafka"] | (_SCHEMA_ID if has_id else {})
    return made | {"contentType": _CONTENT_TYPES[topic.record_format], "bindings": {"kafka": binding}}
