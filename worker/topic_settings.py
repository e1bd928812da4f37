"""The settings that say which topics a worker reads, and what it makes of their records."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from penstock.producer.settings import RequestTopic
from penstock.producer.settings_sources import FILE_ONLY
from penstock.worker.routes.registry_settings import RegistrySettings
from penstock.worker.routes.settings import RouteFields, RouteSettings, check_routes, read_json_setting, route_of


class TopicSettings(RegistrySettings, RouteFields):
    """A topic of requests, routes, or both, and the consumer group that reads them."""

    table: ClassVar[str] = "worker"

    topic: RequestTopic = Field(
        None,
        description="Request topic. Bulk requests use the topic <topic>.bulk. Default: penstock.requests.<served "
        "name>; none where there are routes.",
    )
    routes: Annotated[tuple[RouteSettings, ...], NoDecode, BeforeValidator(read_json_setting)] = Field(
        (),
        json_schema_extra={"metavar": FILE_ONLY},
        description="Routes, in place of the one that input_topic begins: tables [[routes]] of the configuration file.",
    )
    group_id: str | None = Field(
        None,
        min_length=1,
        description="Consumer group. Default: penstock.<served name>, and of a worker with one route and no request "
        "topic penstock.<served name>.<output topic>. Others with routes must name it.",
    )

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        given = [
            name for name in RouteFields.model_fields if getattr(self, name) != RouteFields.model_fields[name].default
        ]
        if given and self.input_topic is None:
            raise ValueError(f"{given[0]} is of a route, which begins with input_topic")
        if given and self.routes:
            raise ValueError("input_topic and [[routes]]: give one of them")
        routes = check_routes(self.all_routes, self.topic)
        if routes and self.group_id is None and (len(routes) > 1 or self.topic is not None):
            raise ValueError("group_id must be given with several routes, or with a route and a request topic")
        has_schemas = any(route.has_schemas for route in routes)
        if has_schemas != (self.schema_registry_url is not None):
            raise ValueError(
                "schema_registry_url is the registry of routes in avro, protobuf and json-schema, which need it"
            )
        return self

    @property
    def all_routes(self) -> Sequence[RouteSettings]:
        """The routes of the file, or the one that the options say."""
        return self.routes if self.input_topic is None else (route_of(self),)

    @property
    def route_parts(self) -> Sequence[RouteSettings]:
        """The routes that the worker runs: all of these, and those of their replays."""
        return [part for route in self.all_routes for part in route.parts]
