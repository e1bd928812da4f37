"""Parts of an AsyncAPI 3 document: channels, operations and messages."""

from dataclasses import dataclass
from typing import Any, Literal

from penstock.ops.cli.development import asyncapi_schemas as schemas

BINDING = "0.5.0"  # version of AsyncAPI's Kafka bindings
MSGPACK = "application/vnd.msgpack"


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part that refers to itself alone. Each maps names to objects of AsyncAPI."""

    channels: dict[str, Any]
    operations: dict[str, Any]
    messages: dict[str, Any]


def channel(address: str | None, messages: list[str], description: str) -> dict[str, Any]:
    """A topic and the names of its messages. address None: it is not known before a message names it."""
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in messages}
    return {"address": address, "description": description, "messages": references}


def operation(action: Literal["send", "receive"], channel_name: str, message_name: str) -> dict[str, Any]:
    """An operation: a worker sends the messages of a channel, or receives them."""
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel_name}"},
        "messages": [{"$ref": f"#/channels/{channel_name}/messages/{message_name}"}],
    }


def message(summary: str, header: schemas.Schema, payload: schemas.Schema) -> dict[str, Any]:
    """A record, by the schemas of its headers and of its value. Empty payload: any bytes."""
    key = {"type": "string", "format": "binary"}
    return {
        "summary": summary,
        "contentType": MSGPACK if payload else "application/octet-stream",
        "headers": header,
        **({"payload": payload} if payload else {}),
        "bindings": {"kafka": {"key": key, "bindingVersion": BINDING}},
    }


def dead_letter_message() -> dict[str, Any]:
    """The message of all topics of dead letters."""
    return message(
        "A record that could not be processed, as it was, with the reason in its headers.",
        schemas.dead_letter_headers_schema(),
        {},
    )
