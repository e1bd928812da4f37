"""`penstock asyncapi`: topics, headers and values as an AsyncAPI 3 document."""

import json
from importlib.metadata import version
from typing import Annotated, Any

import typer

from penstock.ops.cli.development import asyncapi_schemas as schemas
from penstock.ops.cli.development.asyncapi_json import json_error_schema, json_reply_schema, json_request_schema
from penstock.producer.wire import headers
from penstock.producer.wire.envelope import VERSION
from penstock.producer.wire.topics import (
    DEAD_LETTER_PARTITIONS,
    NUM_PARTITIONS,
    REPLY_TOPIC,
    REPLY_TOPIC_PATTERN,
    bulk_topic,
    dead_letter_topic,
    request_topic,
    served_name_of,
)

_CONTENT_TYPE = "application/vnd.msgpack"
_JSON_TYPE = headers.JSON_TYPE.decode()
_REQUESTS = ["request", "jsonRequest"]
_JSON_REPLIES = ["jsonReply", "jsonErrorReply"]
_BINDING = "0.5.0"  # version of AsyncAPI's Kafka bindings
_ERROR = "error"

Model = Annotated[
    str | None, typer.Option("--model", help="Served name, or checkpoint. Default: a parameter of the addresses.")
]


def asyncapi(model: Model = None) -> None:
    """Print an AsyncAPI 3 document (JSON) of the topics, headers and values of a model.

    $ penstock asyncapi --model intents > asyncapi.json

    The document is written from the worker's side: it receives requests and sends replies.
    """
    typer.echo(json.dumps(document(None if model is None else served_name_of(model)), indent=2, ensure_ascii=False))


def document(model: str | None = None) -> dict[str, Any]:
    """The AsyncAPI document of a served model. None: its name is a parameter of the addresses."""
    topic = request_topic("") + "{model}" if model is None else request_topic(model)
    replies = {task: f"{_camel(task)}Reply" for task in schemas.reply_schemas()} | {_ERROR: "errorReply"}
    sent = [*replies.values(), *_JSON_REPLIES]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "penstock" if model is None else f"penstock: {model}",
            "version": f"{VERSION}.0.0",
            "description": f"Wire format, version {VERSION}, of penstock {version('penstock')}: requests and replies "
            "are Kafka records. Values are MessagePack maps or JSON objects, in which unknown keys are ignored.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": _CONTENT_TYPE,
        "channels": _channels(topic, model, sent),
        "operations": {
            "answerRequests": _answers("requests", sent),
            "answerBulkRequests": _answers("bulkRequests", sent),
            "keepDeadLetters": _sends("deadLetters"),
            "keepBulkDeadLetters": _sends("bulkDeadLetters"),
            "enrichRecords": _sends("enrichedRecords", "enrichedRecord"),
            "replayRecords": _sends("replayedRecords", "replayedRecord"),
        },
        "components": {"messages": _messages(replies)},
    }


def _channels(topic: str, model: str | None, replies: list[str]) -> dict[str, Any]:
    """`replies`: their messages' names."""
    parameters = {"parameters": {"model": {"description": "Served name of the model."}}} if model is None else {}

    def channel(address: str, messages: list[str], partitions: int, description: str) -> dict[str, Any]:
        bindings = {"kafka": {"partitions": partitions, "bindingVersion": _BINDING}}
        return _channel(address, messages, description) | parameters | {"bindings": bindings}

    bulk = bulk_topic(topic)
    any_topic = (
        f"Replies. Each request names its topic, {REPLY_TOPIC} or another one that the workers allow: by default those "
        f"that match {REPLY_TOPIC_PATTERN}."
    )
    return {
        "requests": channel(topic, _REQUESTS, NUM_PARTITIONS, "Requests."),
        "bulkRequests": channel(bulk, _REQUESTS, NUM_PARTITIONS, "Requests that use what online requests leave."),
        "replies": _channel(None, replies, any_topic),
        "enrichedRecords": _channel(
            None, ["enrichedRecord"], "The output topic of a route, which its worker's settings name."
        ),
        "replayedRecords": _channel(
            None, ["replayedRecord"], "`<input topic>.replay` of a route that accepts replays, which it reads too."
        ),
        "deadLetters": channel(dead_letter_topic(topic), ["deadLetter"], DEAD_LETTER_PARTITIONS, "Failed requests."),
        "bulkDeadLetters": channel(
            dead_letter_topic(bulk), ["deadLetter"], DEAD_LETTER_PARTITIONS, "Failed bulk requests."
        ),
    }


def _channel(address: str | None, messages: list[str], description: str) -> dict[str, Any]:
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in messages}
    return {"address": address, "description": description, "messages": references}


def _answers(channel: str, replies: list[str]) -> dict[str, Any]:
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in _REQUESTS],
        "reply": {
            "address": {"location": f"$message.header#/{headers.REPLY_TOPIC}"},
            "channel": {"$ref": "#/channels/replies"},
            "messages": [{"$ref": f"#/channels/replies/messages/{name}"} for name in replies],
        },
    }


def _sends(channel: str, message: str = "deadLetter") -> dict[str, Any]:
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
    }


_CORRELATED = {"correlationId": {"location": f"$message.header#/{headers.CORRELATION_ID}"}}


def _messages(replies: dict[str, str]) -> dict[str, Any]:
    """Name -> message."""
    request = _message(
        "Sequences for one task. The key is the client's to choose; equal keys go to one worker.",
        schemas.request_headers_schema(),
        schemas.request_schema(),
    )
    letter = _message(
        "A record that could not be processed, as it was, with the reason in its headers.",
        schemas.dead_letter_headers_schema(),
        {},
    )
    enriched = _message(
        "A record of a route's input topic, with a result in its value.",
        schemas.enriched_headers_schema(),
        {},
    )
    replayed = _message(
        "A copy of a record of a route's input topic, to be enriched again.",
        schemas.replayed_headers_schema(),
        {},
    )
    others = {"deadLetter": letter, "enrichedRecord": enriched, "replayedRecord": replayed}
    messages = {"request": request | _CORRELATED, **others, **_json_messages()}
    values = {**schemas.reply_schemas(), _ERROR: schemas.error_schema()}
    for kind, name in replies.items():
        summary = "A refused or failed request." if kind == _ERROR else f"The answer to `{kind}`."
        messages[name] = _message(summary, schemas.reply_headers_schema(), values[kind]) | _CORRELATED
    return messages


def _json_messages() -> dict[str, Any]:
    request, reply = schemas.request_headers_schema(), schemas.reply_headers_schema()
    messages = {
        "jsonRequest": _message("As `request`, in JSON.", request, json_request_schema()),
        "jsonReply": _message("The answer to `jsonRequest`.", reply, json_reply_schema()),
        "jsonErrorReply": _message("A refused or failed `jsonRequest`.", reply, json_error_schema()),
    }
    return {name: message | _CORRELATED | {"contentType": _JSON_TYPE} for name, message in messages.items()}


def _message(summary: str, header: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    key = {"type": "string", "format": "binary"}
    return {
        "summary": summary,
        "contentType": _CONTENT_TYPE if payload else "application/octet-stream",
        "headers": header,
        **({"payload": payload} if payload else {}),
        "bindings": {"kafka": {"key": key, "bindingVersion": _BINDING}},
    }


def _camel(task: str) -> str:
    """`token_classify` -> `tokenClassify`."""
    first, *rest = task.split("_")
    return first + "".join(word.title() for word in rest)
