"""Values by one Protobuf schema: reading them, and adding a result behind the bytes of the message."""

import base64
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from penstock.producer.errors import InvalidRequest, WrongArgument
from penstock.producer.wire.plain_rows import PlainRow
from penstock.worker.routes.pointer import Pointer
from penstock.worker.routes.result_types import AvroType, plain_values
from penstock.worker.routes.revision_field import RevisionField

FIELD_TYPES = {"float": FieldDescriptorProto.TYPE_FLOAT, "int": FieldDescriptorProto.TYPE_INT32}
FIELD_TYPES["string"] = FieldDescriptorProto.TYPE_STRING
_RESULT_NUMBER = 100_000  # of the result's field: later versions of the message take the numbers behind its own
_MOST_NUMBER = (1 << 29) - 1
_IMPLEMENTATION = range(19_000, 20_000)  # field numbers that Protobuf keeps for itself
_FILE = "schema.proto"


class ProtobufSchema:
    """A writer's schema, and the one that is derived from it: of the file's first message, with a field or two more.

    Bytes of a field that follow those of a message are of the message: what the record holds stays as it is.
    """

    def __init__(
        self,
        text: str,
        referenced: Sequence[tuple[str, str]],
        place: Pointer,
        result: AvroType,
        revision: RevisionField | None = None,
    ) -> None:
        """`referenced`: the files that it imports, by name. `result`: the type of the result, which goes to `place`.

        Raises WrongArgument: the schema is none, or has no place for the result.
        """
        if len(place.names) != 1:
            raise WrongArgument("The result of a record in Protobuf must be a field of the message itself.")
        (self._name,) = place.names
        files = compiled([*referenced, (_FILE, text)])
        file = files[-1]
        if not file.message_type:
            raise WrongArgument("The schema has no message.")
        self._message = message_class(files)
        _add_field(file, self._name, result)
        self._revised = {} if revision is None else {revision.name: revision.model}
        for name in self._revised:
            _add_field(file, name, "string")
        self._enriched = message_class(files)
        self.output = base64.b64encode(file.SerializeToString()).decode()

    def read(self, body: bytes) -> Any:
        """The document, by the names of the fields. Those that have their default values are absent, as in Protobuf.

        Raises InvalidRequest: the bytes are not of the schema's first message.
        """
        return self._document(body, all_fields=False)

    def write(self, body: bytes, result: PlainRow | None) -> bytes:
        """The bytes with the result. Without one they are of the derived schema, too."""
        if result is None:
            return body
        added = {self._name: plain_values(result), **self._revised}
        message = self._enriched()
        set_fields(message, added)
        fields: bytes = message.SerializePartialToString()
        return body + fields

    def json(self, body: bytes) -> bytes:
        """The document as Protobuf's JSON: integers of 64 bits are strings, bytes in base64."""
        return json.dumps(self._document(body, all_fields=True), ensure_ascii=False).encode()

    def _document(self, body: bytes, *, all_fields: bool) -> Any:
        # The indexes of the message in its file: a single zero is the first message of it.
        if not body or body[0] != 0:
            raise InvalidRequest("The record must be of the first message of its schema.")
        try:
            message = self._message.FromString(body[1:])
            _check_texts(message)
            return MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=all_fields
            )
        except (DecodeError, TypeError, ValueError) as error:
            raise InvalidRequest(f"The record is not what its Protobuf schema describes: {error}") from error


def _check_texts(message: Message) -> None:
    """Raises ValueError for a string that is not UTF-8, which proto2 reads as bytes."""
    for field, value in message.ListFields():
        values = value.values() if isinstance(value, Mapping) else value if field.is_repeated else [value]
        for one in values:
            if isinstance(one, Message):
                _check_texts(one)
            elif field.type == field.TYPE_STRING and isinstance(one, bytes):
                raise ValueError(f"{field.name} is not UTF-8")


def set_fields(message: Any, values: Mapping[str, Any]) -> None:
    """Set fields of a message to parts of a result. ParseDict takes a microsecond for each number of a vector."""
    for name, value in values.items():
        if isinstance(value, dict):
            getattr(message, name).SetInParent()
            set_fields(getattr(message, name), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for one in value:
                set_fields(getattr(message, name).add(), one)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)


def compiled(sources: Sequence[tuple[str, str]]) -> list[FileDescriptorProto]:
    """The last file, and before it those that it imports, each after its own imports.

    Its text may be a descriptor in base64, as some serializers register it.

    Raises WrongArgument: it is none of these, or imports what is not there.
    """
    descriptor = _descriptor(sources[-1][1])
    if descriptor is None:
        return _run_protoc(sources)
    imports = "".join([f'import "{name}";' for name in descriptor.dependency])
    return [*_run_protoc([*sources[:-1], (_FILE, f'syntax = "proto3";{imports}')])[:-1], descriptor]


def _descriptor(text: str) -> FileDescriptorProto | None:
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def _run_protoc(sources: Sequence[tuple[str, str]]) -> list[FileDescriptorProto]:
    from grpc_tools import protoc

    included = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="penstock-schema-") as folder:
        for name, text in sources:
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise WrongArgument(f"The schema imports {name!r}, which is no name of a file.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        target = Path(folder, "set")
        command = ["protoc", f"-I{folder}", f"-I{included}", f"--descriptor_set_out={target}", "--include_imports"]
        if protoc.main([*command, sources[-1][0]]) != 0:
            raise WrongArgument("The schema is not one that protoc takes.")
        return list(FileDescriptorSet.FromString(target.read_bytes()).file)


def message_class(files: Sequence[FileDescriptorProto]) -> type[Message]:
    """The class of the first message of the last file. Raises WrongArgument: the files do not go together."""
    pool = DescriptorPool()
    last = files[-1]
    name = ".".join([*filter(None, [last.package]), last.message_type[0].name])
    try:
        for file in files:
            pool.Add(file)
        found: type[Message] = GetMessageClass(pool.FindMessageTypeByName(name))
    except (TypeError, KeyError) as error:  # as where a name is another's already
        raise WrongArgument(f"The schema cannot be used: {error}") from error
    return found


def _add_field(file: FileDescriptorProto, name: str, result: AvroType) -> None:
    message = file.message_type[0]
    if any(field.name == name for field in message.field):
        raise WrongArgument(f"The message {message.name} has a field {name!r} already.")
    scope = ".".join(["", *filter(None, [file.package]), message.name])
    _fill(message, name, ["null", result], _free_number(message), scope, is_proto3=file.syntax == "proto3")


def _free_number(message: DescriptorProto) -> int:
    """The number of the result, or one behind it; where none of these is free, one behind the message's own fields."""
    own = [field.number for field in message.field]
    taken = [_IMPLEMENTATION, *[range(number, number + 1) for number in own]]
    taken += [range(one.start, one.end) for one in [*message.reserved_range, *message.extension_range]]
    for number in (_RESULT_NUMBER, max(own, default=0) + 1):
        while (within := next((one for one in taken if number in one), None)) is not None:
            number = within.stop
        if number <= _MOST_NUMBER:
            return number
    raise WrongArgument(f"The message {message.name} has no number that is free for the field of the result.")


def _fill(message: DescriptorProto, name: str, kind: AvroType, number: int, scope: str, *, is_proto3: bool) -> None:
    """Give a message a field of a type, with the messages that it is made of. `scope`: the message's whole name."""
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    is_nullable = isinstance(kind, list)
    if is_nullable:  # null, and another
        kind = kind[1]
    if isinstance(kind, dict) and kind["type"] == "array":
        field.label, kind = FieldDescriptorProto.LABEL_REPEATED, kind["items"]
    if isinstance(kind, str):
        field.type = FIELD_TYPES[kind]
        if is_nullable and is_proto3 and field.label == FieldDescriptorProto.LABEL_OPTIONAL:
            _tell_absent(message, field)
        return
    nested = message.nested_type.add(name="".join([part.title() for part in kind["name"].split("_")]))
    field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{scope}.{nested.name}"
    for n, one in enumerate(kind["fields"]):
        _fill(nested, one["name"], one["type"], n + 1, field.type_name, is_proto3=is_proto3)


def _tell_absent(message: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Make a scalar of proto3 `optional`, as protoc does: else one that is absent reads as zero."""
    name, taken = f"_{field.name}", {one.name for one in [*message.field, *message.oneof_decl]}
    while name in taken:
        name = f"X{name}"
    message.oneof_decl.add(name=name)
    field.oneof_index, field.proto3_optional = len(message.oneof_decl) - 1, True
