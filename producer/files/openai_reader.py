"""Reader of OpenAI's batch files: lines of requests to an endpoint, of which /v1/embeddings is answered.

https://platform.openai.com/docs/api-reference/batch/request-input
"""

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.files.jsonl_reader import numbered_lines, read_object
from penstock.producer.files.row_blocks import Content, Object, in_blocks
from penstock.producer.files.seen_ids import SeenIds
from penstock.producer.files.standard_streams import open_input
from penstock.producer.row_inputs import RowInputs
from penstock.producer.wire.messages import Text
from penstock.producer.wire.topics import served_name_of

URL = "/v1/embeddings"
_MOST_INPUTS = 2048  # of a line, as at OpenAI
_INPUT_BYTES = 16 * 1024  # of an input with its answer, about; a block then ends after 512 inputs
_SHOWN_CHARS = 100  # of a value in a message


class LineFault(InvalidRequest):
    """A line that is no request to the endpoint: it has an `error` and no `response`."""


class InvalidJsonLine(LineFault):
    """A line that is no JSON object."""

    code = "invalid_json_line"


class DuplicateCustomId(LineFault):
    """A line with the `custom_id` of an earlier line."""

    code = "duplicate_custom_id"


class UrlMismatch(LineFault):
    """A line for another endpoint."""

    code = "url_mismatch"


class OtherModel(InvalidRequest):
    """A request to another model than the job's."""

    code = "model_not_found"


# `fail_fast`: otherwise each of a million items is an error.
_Several = Field(min_length=1, max_length=_MOST_INPUTS, fail_fast=True)
_Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]


class EmbeddingBody(BaseModel):
    """The body of a request, with the keys of openai's `EmbeddingCreateParams`."""

    model_config = ConfigDict(strict=True)

    model: str
    input: str | Annotated[list[str], _Several] | _Ids | Annotated[list[_Ids], _Several]
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None  # of no effect


def read_openai(path: Path, *, model: str, seen: SeenIds) -> Content:
    """Header and blocks of a file, for a job of `model`. `seen`: the custom_ids of all files so far.

    A row is the line's `custom_id`, its two ids in the output, the model as it is named, and the form of its vectors.
    """
    with open_input(path) as file:
        yield None, None
        rows = (_row(path, number, line, model, seen) for number, line in numbered_lines(file))
        yield from in_blocks(rows, file, path)


def _row(
    path: Path, number: int, line: bytes | None, model: str, seen: SeenIds
) -> tuple[Text | RowInputs | PenstockError, Object, int, int]:
    """The inputs of a line or its error, its row, its size and its number."""
    digest = hashlib.sha256(b"%b\0%d\0%b" % (os.fsencode(path.name), number, line or b"")).hexdigest()
    row: Object = {"custom_id": None, "id": f"batch_req_{digest[:24]}", "request_id": f"req_{digest[24:48]}"}
    num_bytes = len(line or b"")
    try:
        fields = read_object(number, line, parse_int=int)
    except InvalidRequest as error:
        return InvalidJsonLine(error.message), row, num_bytes, number
    if isinstance(fields.get("custom_id"), str):
        row["custom_id"] = fields["custom_id"]
    try:
        _check_line(number, fields, seen)
        body = _checked_body(fields["body"])
        row |= {"model": body.model, "is_base64": body.encoding_format == "base64"}
        if served_name_of(body.model) != model:
            raise OtherModel(f"This job is of the model {model!r}. Given: {body.model[:_SHOWN_CHARS]!r}")
    except InvalidRequest as error:
        return error, row, num_bytes, number
    inputs = _inputs(body)
    return inputs, row, num_bytes + _INPUT_BYTES * len(inputs.lengths), number


def _check_line(number: int, fields: Object, seen: SeenIds) -> None:
    """Raise LineFault for a line that is no request to the endpoint."""
    custom_id, url = fields.get("custom_id"), fields.get("url")
    if not isinstance(custom_id, str):
        raise LineFault(f"Line {number}: 'custom_id' must be a string.")
    if not seen.add(custom_id):
        raise DuplicateCustomId(f"Line {number}: an earlier line has the custom_id {custom_id[:_SHOWN_CHARS]!r}.")
    if fields.get("method") != "POST":
        raise LineFault(f"Line {number}: 'method' must be 'POST'.")
    if url != URL:
        given = f" Given: {url[:_SHOWN_CHARS]!r}" if isinstance(url, str) else ""
        raise UrlMismatch(f"Line {number}: 'url' must be {URL!r}, the one endpoint that a job answers.{given}")
    if not isinstance(fields.get("body"), dict):
        raise LineFault(f"Line {number}: 'body' must be an object.")


def _checked_body(given: dict[str, Any]) -> EmbeddingBody:
    """The body. Raises InvalidRequest, as OpenAI's endpoint answers with status 400."""
    if unknown := next((name for name in given if name not in EmbeddingBody.model_fields), None):
        raise InvalidRequest(f"The body has a key that is not known: {unknown[:_SHOWN_CHARS]!r}.")
    try:
        return EmbeddingBody.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
    name = str(fault["loc"][0])
    if fault["type"] == "missing":
        raise InvalidRequest(f"The body has no {name!r}.")
    wanted = "a string, a list of token ids, or a list of one kind of these, of" if name == "input" else fault["msg"]
    several = f" 1 to {_MOST_INPUTS:,} inputs" if name == "input" else ""
    raise InvalidRequest(f"{name!r} of the body: {wanted}{several}.")


def _inputs(body: EmbeddingBody) -> RowInputs:
    """The inputs of a body, which are of one kind."""
    given: Any = body.input
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    if isinstance(several[0], str):
        return RowInputs(texts=several, dimensions=body.dimensions)
    return RowInputs(ids=several, dimensions=body.dimensions)
