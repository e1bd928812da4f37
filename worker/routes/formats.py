"""The format of a route: of its input topic, and of its output topic."""

from collections.abc import Callable, Mapping

from penstock.producer.wire.messages import Options
from penstock.worker.routes.chunks import of_chunk, of_chunk_record
from penstock.worker.routes.connect_json import EXAMPLES
from penstock.worker.routes.framed_format import FramedFormat, FramedToJson, SchemaKind
from penstock.worker.routes.json_schema import JsonSchema
from penstock.worker.routes.json_to_framed import JsonToFramed, WriterKind
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.record_format import JsonFormat, RecordFormat, TextFormat
from penstock.worker.routes.result_types import AvroType, chunk_record_type, chunks_type, result_type
from penstock.worker.routes.revision_field import RevisionField
from penstock.worker.routes.schema_registry import SchemaRegistry
from penstock.worker.routes.settings import RouteSettings


def format_of(
    settings: RouteSettings,
    task: str,
    options: Options,
    registry: SchemaRegistry | None,
    revision: RevisionField | None,
    *,
    is_chunked: bool,
) -> RecordFormat:
    """The format that a route's settings name. `registry`: None only where no route needs it."""
    place = Pointer.parse(settings.result_field)
    plain: RecordFormat | None = None
    if settings.record_format == "text":
        plain = TextFormat(place, revision)
    elif settings.record_format == "json":
        one = EXAMPLES[task]
        if is_chunked:
            chunk = of_chunk((0, 0), one)
            one = [chunk] if settings.chunk_output == "list" else of_chunk_record(0, 1, "", chunk)
        plain = JsonFormat(place, one, revision)
    if plain is not None and settings.output_format in (None, "json"):
        return plain
    if registry is None:
        raise RuntimeError("A format with schemas has no registry. This is a bug.")
    name = place.names[-1] if place.names else "value"
    result = result_type(task, options, name)
    if is_chunked:
        chunked = chunks_type if settings.chunk_output == "list" else chunk_record_type
        result = chunked(result, name)
    if plain is not None:
        writer = _writer_kind(settings.output_format)
        return JsonToFramed(registry, writer, plain, settings.output_topic, place, result, revision)
    made = FramedToJson if settings.output_format == "json" else FramedFormat
    kind = _KINDS[settings.record_format](place, result, revision)
    return made(registry, kind, (settings.input_topic, settings.output_topic), place, revision)


def _writer_kind(output_format: str | None) -> WriterKind:
    if output_format == "avro":
        from penstock.worker.routes.json_to_avro import TO_AVRO  # of the extra `registry`, as what Protobuf needs

        return TO_AVRO
    from penstock.worker.routes.json_to_protobuf import TO_PROTOBUF

    return TO_PROTOBUF


def _avro(place: Pointer, result: AvroType, revision: RevisionField | None) -> SchemaKind:
    from penstock.worker.routes.avro_schema import AvroSchema

    return SchemaKind(
        "AVRO", lambda text, referenced: AvroSchema(text, [one for _, one in referenced], place, result, revision)
    )


def _json_schema(place: Pointer, result: AvroType, revision: RevisionField | None) -> SchemaKind:
    return SchemaKind("JSON", lambda text, referenced: JsonSchema(text, place, result, revision))


def _protobuf(place: Pointer, result: AvroType, revision: RevisionField | None) -> SchemaKind:
    from penstock.worker.routes.protobuf_schema import ProtobufSchema

    return SchemaKind("PROTOBUF", lambda text, referenced: ProtobufSchema(text, referenced, place, result, revision))


_KINDS: Mapping[str, Callable[[Pointer, AvroType, RevisionField | None], SchemaKind]] = {
    "avro": _avro,
    "json-schema": _json_schema,
    "protobuf": _protobuf,
}
