"""The requests of a model in an AsyncAPI document: their topics, replies and dead letters."""

from typing import Any

from penstock.ops.cli.development import asyncapi_schemas as schemas
from penstock.ops.cli.development.asyncapi_json import json_error_schema, json_reply_schema, json_request_schema
from penstock.ops.cli.development.asyncapi_parts import (
    BINDING,
    DocumentPart,
    channel,
    dead_letter_message,
    message,
    operation,
)
from penstock.producer.wire import headers
from penstock.producer.wire.topics import (
    DEAD_LETTER_PARTITIONS,
    NUM_PARTITIONS,
    REPLY_TOPIC,
    REPLY_TOPIC_PATTERN,
    bulk_topic,
    dead_letter_topic,
    request_topic,
)

ANY_MODEL = request_topic("") + "{model}"
_JSON_TYPE = headers.JSON_TYPE.decode()
_REQUESTS = ["request", "jsonRequest"]
_JSON_REPLIES = ["jsonReply", "jsonErrorReply"]
_ERROR = "error"


def request_part(topic: str) -> DocumentPart:
    """The requests of a topic. ANY_MODEL: the topics of all models, whose name is a parameter."""
    replies = {task: f"{_camel(task)}Reply" for task in schemas.reply_schemas()} | {_ERROR: "errorReply"}
    sent = [*replies.values(), *_JSON_REPLIES]
    return DocumentPart(
        channels=_channels(topic, sent),
        operations={
            "answerRequests": _answers("requests", sent),
            "answerBulkRequests": _answers("bulkRequests", sent),
            "keepDeadLetters": operation("send", "deadLetters", "deadLetter"),
            "keepBulkDeadLetters": operation("send", "bulkDeadLetters", "deadLetter"),
        },
        messages=_messages(replies),
    )


def _channels(topic: str, replies: list[str]) -> dict[str, Any]:
    """`replies`: their messages' names."""
    parameters = {"parameters": {"model": {"description": "Served name of the model."}}} if topic == ANY_MODEL else {}

    def made(address: str, messages: list[str], partitions: int, description: str) -> dict[str, Any]:
        bindings = {"kafka": {"partitions": partitions, "bindingVersion": BINDING}}
        return channel(address, messages, description) | parameters | {"bindings": bindings}

    bulk = bulk_topic(topic)
    any_topic = (
        f"Replies. Each request names its topic, {REPLY_TOPIC} or another one that the workers allow: by default those "
        f"that match {REPLY_TOPIC_PATTERN}."
    )
    return {
        "requests": made(topic, _REQUESTS, NUM_PARTITIONS, "Requests."),
        "bulkRequests": made(bulk, _REQUESTS, NUM_PARTITIONS, "Requests that use what online requests leave."),
        "replies": channel(None, replies, any_topic),
        "deadLetters": made(dead_letter_topic(topic), ["deadLetter"], DEAD_LETTER_PARTITIONS, "Failed requests."),
        "bulkDeadLetters": made(
            dead_letter_topic(bulk), ["deadLetter"], DEAD_LETTER_PARTITIONS, "Failed bulk requests."
        ),
    }


def _answers(name: str, replies: list[str]) -> dict[str, Any]:
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{request}"} for request in _REQUESTS],
        "reply": {
            "address": {"location": f"$message.header#/{headers.REPLY_TOPIC}"},
            "channel": {"$ref": "#/channels/replies"},
            "messages": [{"$ref": f"#/channels/replies/messages/{reply}"} for reply in replies],
        },
    }


_CORRELATED = {"correlationId": {"location": f"$message.header#/{headers.CORRELATION_ID}"}}


def _messages(replies: dict[str, str]) -> dict[str, Any]:
    """Name -> message."""
    request = message(
        "Sequences for one task. The key is the client's to choose; equal keys go to one worker.",
        schemas.request_headers_schema(),
        schemas.request_schema(),
    )
    messages = {"request": request | _CORRELATED, "deadLetter": dead_letter_message(), **_json_messages()}
    values = {**schemas.reply_schemas(), _ERROR: schemas.error_schema()}
    for kind, name in replies.items():
        summary = "A refused or failed request." if kind == _ERROR else f"The answer to `{kind}`."
        messages[name] = message(summary, schemas.reply_headers_schema(), values[kind]) | _CORRELATED
    return messages


def _json_messages() -> dict[str, Any]:
    request, reply = schemas.request_headers_schema(), schemas.reply_headers_schema()
    messages = {
        "jsonRequest": message("As `request`, in JSON.", request, json_request_schema()),
        "jsonReply": message("The answer to `jsonRequest`.", reply, json_reply_schema()),
        "jsonErrorReply": message("A refused or failed `jsonRequest`.", reply, json_error_schema()),
    }
    return {name: one | _CORRELATED | {"contentType": _JSON_TYPE} for name, one in messages.items()}


def _camel(task: str) -> str:
    """`token_classify` -> `tokenClassify`."""
    first, *rest = task.split("_")
    return first + "".join(word.title() for word in rest)
