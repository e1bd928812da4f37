"""`penstock asyncapi`: topics, headers and values as an AsyncAPI 3 document."""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

import typer
from pydantic import AfterValidator, Field

from penstock.ops.cli.development.asyncapi_parts import MSGPACK
from penstock.ops.cli.development.asyncapi_requests import ANY_MODEL, request_part
from penstock.ops.cli.development.asyncapi_routes import route_part
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK
from penstock.producer.wire.envelope import VERSION
from penstock.producer.wire.topics import check_served_name, request_topic, served_name_of
from penstock.worker.routes.settings import RouteSettings
from penstock.worker.topic_settings import TopicSettings


class DocumentSettings(TopicSettings):
    """The topics of a worker, whose model may be left open."""

    table: ClassVar[str] = "worker"

    model: str | None = Field(
        None, min_length=1, description="Served name, or checkpoint. Default: a parameter of the addresses."
    )
    served_name: Annotated[str | None, AfterValidator(check_served_name)] = Field(
        None, description="Name that requests use. Default: the last part of the checkpoint's path."
    )

    @property
    def name(self) -> str | None:
        """The served name, if it is known."""
        return self.served_name or (None if self.model is None else served_name_of(self.model))


@takes(DocumentSettings)
def asyncapi(settings: DocumentSettings) -> int:
    """Print an AsyncAPI 3 document (JSON) of the topics, headers and values of a worker.

    $ penstock asyncapi --model intents > asyncapi.json

    $ penstock asyncapi --config penstock.toml

    The document is written from the worker's side: it receives requests and sends replies. Topics and
    routes are those of a worker with the same settings.
    """
    made = document(settings.name, settings.topic, settings.all_routes)
    typer.echo(json.dumps(made, indent=2, ensure_ascii=False))
    return EXIT_OK


def document(
    model: str | None = None, topic: str | None = None, routes: Sequence[RouteSettings] = ()
) -> dict[str, Any]:
    """The AsyncAPI document of a worker. model None: its name is a parameter of the addresses.

    topic None: that of the model's requests, and none where there are routes.
    """
    if topic is None and not routes:
        topic = ANY_MODEL if model is None else request_topic(model)
    parts = [] if topic is None else [request_part(topic)]
    parts += [route_part(route, number) for number, route in enumerate(routes, 1)]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "penstock" if model is None else f"penstock: {model}",
            "version": f"{VERSION}.0.0",
            "description": f"Wire format, version {VERSION}, of penstock {version('penstock')}: requests and replies "
            "are Kafka records. Values are MessagePack maps or JSON objects, in which unknown keys are ignored.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": MSGPACK,
        "channels": _joined(part.channels for part in parts),
        "operations": _joined(part.operations for part in parts),
        "components": {"messages": _joined(part.messages for part in parts)},
    }


def _joined(maps: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {name: one for objects in maps for name, one in objects.items()}
