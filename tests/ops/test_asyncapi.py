"""The AsyncAPI document is of the wire format as the codec writes it, and its own tool accepts it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.ops.cli.development.asyncapi import document
from penstock.ops.cli.main import app
from penstock.ops.cli.terminal import EXIT_OK, EXIT_USAGE
from penstock.producer.errors import ERRORS_BY_CODE
from penstock.producer.wire import headers
from penstock.producer.wire.messages import TASKS, Options
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic, request_topic
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent.parent
ORDERS = RouteSettings.model_validate(
    {"input_topic": "orders", "output_topic": "orders.enriched", "record_format": "text", "accept_replays": True}
)
GOLDEN = Path(__file__).parent.parent / "producer" / "golden" / "vectors.json"
VECTORS = {vector["name"]: vector for vector in json.loads(GOLDEN.read_text(encoding="utf-8"))}
ALL_MESSAGES: dict[str, Any] = document()["components"]["messages"]
MESSAGES = {name: message for name, message in ALL_MESSAGES.items() if message["contentType"] != "application/json"}
JSON_RECORDS = json.loads(GOLDEN.with_name("json_records.json").read_text(encoding="utf-8"))
PARSE = """
const { Parser } = require('@asyncapi/parser');
const text = require('fs').readFileSync(0, 'utf8');
new Parser().parse(text).then(({ document, diagnostics }) => {
  console.log(JSON.stringify(diagnostics.filter((found) => found.severity < 2)));
  process.exit(document ? 0 : 1);
});
"""
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a JSON schema accepts a value, for the keywords that the document uses; others are an error."""
    known = {
        "type",
        "const",
        "enum",
        "required",
        "properties",
        "items",
        "oneOf",
        "anyOf",
        "not",
        "additionalProperties",
    }
    bounds = {"minItems", "maxItems", "minLength", "minimum", "maximum"}
    assert schema.keys() <= known | bounds | {"description", "default", "examples", "format"}
    kind = schema.get("type")
    if kind and (not isinstance(value, _JSON_TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))):
        return False
    size = len(value) if isinstance(value, list | str) else value
    low = [schema[name] for name in ("minItems", "minLength", "minimum") if name in schema]
    high = [schema[name] for name in ("maxItems", "maximum") if name in schema]
    parts = [(schema.get("properties", {}).get(name), item) for name, item in value.items()] if kind == "object" else []
    if kind == "array" and "items" in schema:
        items = schema["items"]
        parts = list(zip(items if isinstance(items, list) else [items] * len(value), value, strict=True))
    return (
        all(bound <= size for bound in low)
        and all(size <= bound for bound in high)
        and ("const" not in schema or schema["const"] == value)
        and ("enum" not in schema or value in schema["enum"])
        and all(name in value for name in schema.get("required", ()))
        and all(accepts(part or schema.get("additionalProperties", {}), item) for part, item in parts)
        and ("oneOf" not in schema or sum(accepts(option, value) for option in schema["oneOf"]) == 1)
        and ("anyOf" not in schema or any(accepts(option, value) for option in schema["anyOf"]))
        and ("not" not in schema or not accepts(schema["not"], value))
    )


def acceptors(value: Any) -> list[str]:
    """The messages whose payload may be this value."""
    return [name for name, message in MESSAGES.items() if "payload" in message and accepts(message["payload"], value)]


EXPECTED = {
    "reply-float32": "embedReply",
    "reply-float16": "embedReply",
    "reply-ubinary": "embedReply",
    "reply-sparse": "embedSparseReply",
    "reply-token-vectors": "embedTokensReply",
    "reply-all": "embedAllReply",
    "reply-classes": "classifyReply",
    "reply-scores": "rerankReply",
    "reply-tokens": "tokenClassifyReply",
    "reply-tokens-of-ids": "tokenClassifyReply",
    "reply-emissions": "sequenceReply",
    "reply-generations": "generateReply",
    "reply-partial": "generateReply",
    "reply-generations-of-text": "generateReply",
}


@pytest.mark.parametrize("name", VECTORS)
def test_each_golden_record_is_one_message_of_the_document(name: str) -> None:
    kind = {"request": "request", "error": "errorReply"}.get(VECTORS[name]["kind"]) or EXPECTED[name]
    value = VECTORS[name]["value"]
    assert acceptors(value) == [kind]
    described = MESSAGES[kind]["payload"]["properties"]
    assert value.keys() <= described.keys()
    assert value.get("opts", {}).keys() <= described.get("opts", {}).get("properties", {}).keys()


@pytest.mark.parametrize("name", VECTORS)
def test_a_golden_record_without_a_required_field_is_no_message(name: str) -> None:
    (kind,) = acceptors(VECTORS[name]["value"])
    for field in MESSAGES[kind]["payload"]["required"]:
        cut = {key: item for key, item in VECTORS[name]["value"].items() if key != field}
        assert kind not in acceptors(cut), field


@pytest.mark.parametrize("name", sorted(JSON_RECORDS.keys() - {"request-nulls", "request-repeated-name"}))
def test_each_golden_json_record_is_a_json_message(name: str) -> None:
    kind = {"request": "jsonRequest", "reply": "jsonReply", "error": "jsonErrorReply"}[name.partition("-")[0]]
    value = json.loads(JSON_RECORDS[name])
    assert accepts(ALL_MESSAGES[kind]["payload"], value)
    assert not accepts(ALL_MESSAGES[kind]["payload"], {**value, "v": 2})


def test_json_messages_are_where_those_of_msgpack_are() -> None:
    channels = document()["channels"]
    for channel in ("requests", "bulkRequests"):
        assert list(channels[channel]["messages"]) == ["request", "jsonRequest"]
    assert {"jsonReply", "jsonErrorReply"} <= channels["replies"]["messages"].keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 2},
        {"task": "translate"},
        {"text": []},
        {"text": [["a", "b", "c"]]},
        {"text": None},
        {"ids": "hex:00", "lens": "hex:00"},
        {"opts": {"pooling": "best"}},
        {"opts": {"top_k": "3"}},
        {"opts": {"truncate": 1}},
    ],
)
def test_what_the_codec_refuses_is_no_request(wrong: dict[str, Any]) -> None:
    assert acceptors({**VECTORS["request-text"]["value"], **wrong}) == []


def test_it_has_every_task_option_and_error_code() -> None:
    request = MESSAGES["request"]["payload"]["properties"]
    assert request["task"]["enum"] == list(TASKS)
    assert set(request["opts"]["properties"]) == set(Options._fields)
    assert all(schema["description"] for schema in request["opts"]["properties"].values())
    assert MESSAGES["errorReply"]["payload"]["properties"]["error"]["properties"]["code"]["examples"] == list(
        ERRORS_BY_CODE
    )
    replies = {re.sub("([A-Z])", r"_\1", name.removesuffix("Reply")).lower() for name in MESSAGES if "Reply" in name}
    assert replies == {*TASKS, "error"}


def test_it_has_every_header_of_the_code() -> None:
    constants = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    messages = document(topic="requests", routes=[ORDERS])["components"]["messages"]
    documented = {name for message in messages.values() for name in message["headers"].get("properties", ())}
    assert constants <= documented
    for names in (headers.request_headers(b"", "r", 0, 1), headers.ReplyAddress("r", 0, b"c", b"t").headers()):
        assert {name for name, _ in names} <= documented


def test_the_addresses_are_those_of_the_model() -> None:
    topic = request_topic("intents")
    channels = document("intents")["channels"]
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "requests": topic,
        "bulkRequests": bulk_topic(topic),
        "replies": None,  # each request names it
        "deadLetters": dead_letter_topic(topic),
        "bulkDeadLetters": dead_letter_topic(bulk_topic(topic)),
    }
    assert not any("parameters" in channel for channel in channels.values())
    general = document()["channels"]["requests"]
    assert (general["address"], list(general["parameters"])) == ("penstock.requests.{model}", ["model"])


def test_the_addresses_and_formats_of_routes_are_those_of_the_settings() -> None:
    fields = {"input_topic": "notes", "output_topic": "notes.avro", "text": "body"}
    avro = RouteSettings.model_validate({**fields, "record_format": "avro", "output_format": "json"})
    whole = document("intents", routes=[ORDERS, avro])
    assert {name: channel["address"] for name, channel in whole["channels"].items()} == {
        "route1Input": "orders",
        "route1InputDeadLetters": "orders.dead-letter",
        "route1Replay": "orders.replay",
        "route1ReplayDeadLetters": "orders.replay.dead-letter",
        "route1Output": "orders.enriched",
        "route2Input": "notes",
        "route2InputDeadLetters": "notes.dead-letter",
        "route2Output": "notes.avro",
    }
    messages = whole["components"]["messages"]
    assert {name: message["contentType"] for name, message in messages.items()} == {
        "deadLetter": "application/octet-stream",
        "route1InputRecord": "text/plain",
        "route1ReplayRecord": "text/plain",
        "route1OutputRecord": "application/json",
        "route2InputRecord": "application/vnd.apache.avro",
        "route2OutputRecord": "application/json",
    }
    framed = [name for name, one in messages.items() if "schemaIdLocation" in one["bindings"]["kafka"]]
    assert framed == ["route2InputRecord"]
    actions = {one["channel"]["$ref"].rpartition("/")[2]: one["action"] for one in whole["operations"].values()}
    assert actions == {name: "receive" if name.endswith(("Input", "Replay")) else "send" for name in whole["channels"]}


def test_a_worker_with_a_topic_and_a_route_has_the_messages_of_both() -> None:
    both = document("intents", topic="questions", routes=[ORDERS])["channels"]
    assert {name: both[name]["address"] for name in ("requests", "bulkRequests", "route1Input")} == {
        "requests": "questions",
        "bulkRequests": "questions.bulk",
        "route1Input": "orders",
    }


@pytest.mark.parametrize("routes", [[], [ORDERS]])
def test_every_reference_leads_somewhere(routes: list[RouteSettings]) -> None:
    whole = document(routes=routes)
    found = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(whole))
    assert found
    for reference in found:
        target: Any = whole
        for part in reference.split("/"):
            target = target[part]


def test_the_command_prints_it() -> None:
    assert json.loads(printed("--model", "./checkpoints/intents")) == document("intents")


def test_the_command_reads_the_routes_of_a_workers_file() -> None:
    file = ROOT / "ops" / "examples" / "route" / "penstock.toml"
    [route] = WorkerSettings.model_validate({"config": file, "model": "m"}).all_routes
    assert json.loads(printed("--config", str(file))) == document(routes=[route])
    topics = [one["address"] for one in document(routes=[route])["channels"].values()]
    assert {route.input_topic, route.output_topic} <= set(topics)


def test_the_command_takes_a_route_as_a_worker_does_and_refuses_what_that_would() -> None:
    route = ("--input-topic", "orders", "--output-topic", "orders.enriched", "--text", "note")
    channels = json.loads(printed(*route))["channels"]
    assert [one["address"] for one in channels.values()] == ["orders", "orders.dead-letter", "orders.enriched"]
    assert "input_topic needs output_topic" in printed(*route[:2], exit_code=EXIT_USAGE)


def printed(*options: str, exit_code: int = EXIT_OK) -> str:
    result = CliRunner().invoke(app, ["asyncapi", *options], prog_name="penstock")
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, "intents"])
@pytest.mark.parametrize("routes", [[], [ORDERS]])
def test_the_parser_of_asyncapi_finds_no_fault(model: str | None, routes: list[RouteSettings]) -> None:
    """Node finds the package by NODE_PATH, as after `npm install --global @asyncapi/parser`."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "require('@asyncapi/parser')"], capture_output=True).returncode:
        pytest.skip("needs Node.js and its package @asyncapi/parser")
    done = subprocess.run(
        [node, "-e", PARSE], input=json.dumps(document(model, routes=routes)), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
