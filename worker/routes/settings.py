"""The settings of routes: which topics, what of a record is the text, and where the result goes."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import NoDecode

from penstock.producer.errors import PenstockError
from penstock.producer.wire.messages import Options
from penstock.producer.wire.options import check_options
from penstock.producer.wire.topics import bulk_topic, check_request_topic, check_topic, dead_letter_topic, replay_topic
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.text_source import TextSource

_NOT_OF_ROUTES = {"stream"}  # an enriched record is one record


def _check_text(text: str | None) -> str | None:
    if text is not None:
        TextSource.parse(text)
    return text


def _check_pointer(text: str | None) -> str | None:
    if text is not None:
        Pointer.parse(text)
    return text


def read_json_setting(value: object) -> object:
    """A setting that comes as text: of the command line, or of an environment variable."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON: {error}") from error


def _check_options(given: dict[str, Any]) -> dict[str, Any]:
    known = set(Options._fields) - _NOT_OF_ROUTES
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"has no {unknown[0]!r}; the options of a route are {', '.join(sorted(known))}")
    try:
        check_options(given)
    except PenstockError as error:
        raise ValueError(error.message) from error
    return given


class RouteFields(BaseModel):
    """The fields of one route. A worker's options say one; the tables [[routes]] of its file say any number."""

    table: ClassVar[str] = "worker"  # where a file has the one that its options could say

    input_topic: Annotated[str | None, AfterValidator(check_request_topic)] = Field(
        None,
        description="Topic whose records are enriched, in place of requests. They need no headers of this project. "
        "Several routes: tables [[routes]] in the configuration file.",
    )
    output_topic: Annotated[str | None, AfterValidator(check_topic)] = Field(
        None,
        description="Topic of the enriched records. Each has the key, the headers and the time of the record that it "
        "was.",
    )
    text: Annotated[str | None, AfterValidator(_check_text)] = Field(
        None,
        description="Where a record has its text: a field, a JSON pointer such as /after/description, or a template "
        "such as '{title}: {body}'. Records of plain text need none.",
    )
    task: Literal["embed", "embed_sparse", "classify", "rerank", "token_classify", "generate"] | None = Field(
        None, description="Task of the route. Default: that of the model's head, as of a request; else embed."
    )
    query: str | None = Field(None, description="rerank: the query that each record's text is scored against.")
    request_options: Annotated[
        dict[str, Any], NoDecode, BeforeValidator(read_json_setting), AfterValidator(_check_options)
    ] = Field(
        {},
        json_schema_extra={"metavar": "JSON"},
        description='Options of the task, as in a request, such as {"truncate": true, "top_k": 3}.',
    )
    chunk_tokens: int | None = Field(
        None,
        ge=8,
        description="Most tokens of a chunk, special tokens included: a longer text becomes chunks, which end at "
        "sentences where they can. The result is then a list: each chunk with its start and end in the text. Default: "
        "no chunks.",
    )
    chunk_overlap: int = Field(0, ge=0, description="Most tokens that a chunk has in common with the one before it.")
    chunk_output: Literal["list", "records"] = Field(
        "list",
        description="list: the chunks of a record are one list in its output record. records: each is a record, with "
        "the key <key>#0, <key>#1 and so on, and those that the record no longer has are deleted.",
    )
    result_field: Annotated[str, AfterValidator(_check_pointer)] = Field(
        "result",
        description="Where the result goes: a field of the record, or a JSON pointer. Empty: the result is the whole "
        "value.",
    )
    revision_field: Annotated[str | None, AfterValidator(_check_pointer)] = Field(
        None,
        description="Where the model of the result is named, as name@revision: a field beside the result, or a JSON "
        "pointer to one. Default: in the record's headers only.",
    )
    missing_text: Literal["pass", "null", "reject"] = Field(
        "pass",
        description="What happens to a record whose text is absent or null. pass: it goes to the output topic as it "
        "is. null: so it does, with null as its result, as a sink needs that would else keep the vector of an earlier "
        "text. reject: it becomes a dead letter. Deletes are passed as they are.",
    )
    route_class: Literal["online", "bulk"] = Field(
        "online", description="Class of the route's records. bulk: they use what others leave, as bulk requests do."
    )
    max_age_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Age at which a record is no longer enriched, and becomes a dead letter. Default: any age.",
    )
    accept_replays: bool = Field(
        False,
        description="Whether the route reads <input topic>.replay too, as bulk. `penstock replay --route` writes there "
        "what is to be enriched again.",
    )
    record_format: Literal["json", "text", "avro", "protobuf", "json-schema"] = Field(
        "json",
        description="Format of the input topic's values. text: the value is the text, and the output is a JSON object "
        "with it as `text`. avro, protobuf, json-schema: with the id of a schema of the registry, as Confluent's "
        "serializers write them.",
    )
    output_format: Literal["json", "avro", "protobuf", "json-schema"] | None = Field(
        None,
        description="Format of the output topic's values: the input's, json, or of json and text avro or protobuf. "
        "Default: the input's; of text, json.",
    )


class RouteSettings(RouteFields):
    """One route, checked as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    input_topic: Annotated[str, AfterValidator(check_request_topic)]
    output_topic: Annotated[str, AfterValidator(check_topic)]

    @property
    def has_schemas(self) -> bool:
        """Whether records that it reads or writes have schemas of a registry."""
        return bool({self.record_format, self.output_format} & {"avro", "protobuf", "json-schema"})

    @property
    def writes_json(self) -> bool:
        """Whether numbers of results are written in decimal digits."""
        return (self.output_format or self.record_format) not in ("avro", "protobuf")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.output_topic == self.input_topic:
            raise ValueError("output_topic must be another topic than input_topic: a record would be enriched again")
        if self.record_format != "text" and not self.text:
            raise ValueError("text must say where a record has its text, such as /description")
        plain = ("avro", "protobuf") if self.record_format in ("json", "text") else ()
        if self.output_format not in (None, "json", self.record_format, *plain):
            others = "".join([f", or {one}" for one in plain])
            raise ValueError(f"output_format must be json, or the format of the records: {self.record_format}{others}")
        if self.record_format == "text" and self.text:
            raise ValueError("text is for records with fields; the value of a record of plain text is its text")
        if (self.task == "rerank") != (self.query is not None):
            raise ValueError("query is the query of the task rerank, which needs it")
        if self.revision_field is not None:
            _check_beside(Pointer.parse(self.revision_field), Pointer.parse(self.result_field))
        places = {Pointer.parse(one) for one in (self.result_field, self.revision_field) if one is not None}
        if self.record_format == "text" and Pointer(("text",)) in places:
            raise ValueError("the field text of a record of plain text is its text")
        if self.accept_replays:
            check_request_topic(replay_topic(self.input_topic))
        return self

    @model_validator(mode="after")
    def _chunks_fit(self) -> Self:
        if self.chunk_overlap >= (self.chunk_tokens or 1):
            raise ValueError("chunk_overlap must be less than chunk_tokens")
        if self.chunk_output == "records":
            if self.chunk_tokens is None:
                raise ValueError("chunk_output records needs chunk_tokens")
            if self.missing_text == "null":
                raise ValueError(
                    "missing_text null is for one output record; with chunk_output records chunks are deleted"
                )
            check_topic(chunk_bounds_topic(self.output_topic))
        return self

    @property
    def parts(self) -> Sequence["RouteSettings"]:
        """The routes that a worker runs: this, and one of class bulk for its replays, whose records have any age."""
        if not self.accept_replays:
            return (self,)
        of_replays = {"input_topic": replay_topic(self.input_topic), "route_class": "bulk", "max_age_ms": None}
        return (self, self.model_copy(update={**of_replays, "accept_replays": False}))


def _check_beside(revision: Pointer, result: Pointer) -> None:
    if not result.names:
        raise ValueError("revision_field needs a result_field: the result is the whole value")
    if len(revision.names) != len(result.names) or revision.parent != result.parent or revision == result:
        beside = Pointer((*result.parent.names, f"{result.names[-1]}_revision"))
        raise ValueError(f"revision_field must be a field beside result_field, such as {beside}")


def chunk_bounds_topic(output_topic: str) -> str:
    """The topic of a route whose chunks are records, which says how many there may be of a key."""
    return f"{output_topic}.chunk-bounds"


def check_routes(routes: Sequence[RouteSettings], request_topic: str | None) -> Sequence[RouteSettings]:
    """The routes of one worker, and its request topic if it has one.

    Raises ValueError for two routes with one input or one output, for a circle, and for a topic of requests, of
    replays or of dead letters.
    """
    requests = () if request_topic is None else (request_topic, bulk_topic(request_topic))
    inputs = [part.input_topic for route in routes for part in route.parts]
    replays = [replay_topic(route.input_topic) for route in routes if route.accept_replays]
    taken = {*requests, *replays, *map(dead_letter_topic, [*requests, *inputs])}
    for place in ("input_topic", "output_topic"):
        topics = [getattr(route, place) for route in routes]
        if twice := [topic for topic in topics if topics.count(topic) > 1]:
            raise ValueError(f"two routes have the {place} {twice[0]}")
        if own := [topic for topic in topics if topic in taken]:
            raise ValueError(f"{place} {own[0]} is for requests, replays or dead letters of this worker")
    onward = {route.input_topic: route.output_topic for route in routes}
    for first in onward:
        topic: str | None = onward[first]
        for _ in routes:
            if topic == first:
                raise ValueError(f"the routes from {first} lead back to it")
            topic = onward.get(topic or "")
    return routes


def route_of(fields: RouteFields) -> RouteSettings:
    """The one route that a worker's options say. Raises ValueError that names what is missing or does not fit."""
    if fields.output_topic is None:
        raise ValueError("input_topic needs output_topic")
    try:
        return RouteSettings(**{name: getattr(fields, name) for name in RouteFields.model_fields})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
