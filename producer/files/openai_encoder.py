"""Encoder of the output of OpenAI's batch files, one line for each line of the input, in order.

https://platform.openai.com/docs/api-reference/batch/request-output
"""

import base64
from collections.abc import Sequence
from typing import Any

from penstock.producer.answer_stream import Result
from penstock.producer.errors import Expired, InvalidRequest, Overloaded, PenstockError, ShuttingDown
from penstock.producer.files.encoders import TableEncoder, json_bytes
from penstock.producer.files.openai_reader import LineFault, OtherModel
from penstock.producer.files.row_blocks import Block, Object
from penstock.producer.row_inputs import RowInputs

_EXPIRED = "batch_expired"  # OpenAI's code of a request that was not answered in its time


class OpenAiEncoder(TableEncoder):
    """Lines of responses. A request at fault has a response of status 4xx; a line that is no request has none."""

    def encode(self, block: Block, results: Sequence[Result]) -> bytes:
        rows: Any = block.source
        lines = [json_bytes(_line(*one)) for one in zip(rows, block.texts, results, strict=True)]
        return b"".join([line + b"\n" for line in lines])


def _line(row: Object, inputs: Any, result: Any) -> Object:
    """The output of one line of the input."""
    response: Object | None
    error = None
    if isinstance(result, LineFault | Expired):
        code = _EXPIRED if isinstance(result, Expired) else result.code
        response, error = None, {"code": code, "message": result.message}
    else:
        status, body = _failed(result) if isinstance(result, PenstockError) else (200, _answered(row, inputs, result))
        response = {"status_code": status, "request_id": row["request_id"], "body": body}
    return {"id": row["id"], "custom_id": row["custom_id"], "response": response, "error": error}


def _answered(row: Object, inputs: RowInputs, vectors: Any) -> Object:
    """The body of a response with vectors, [n, dim]."""
    numbers = vectors.astype("<f4", copy=False)
    shown = [base64.b64encode(one.tobytes()).decode() for one in numbers] if row["is_base64"] else numbers.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)],
        "model": row["model"],
        "usage": {"prompt_tokens": inputs.num_tokens, "total_tokens": inputs.num_tokens},
    }


def _failed(error: PenstockError) -> tuple[int, Object]:
    """The status and the body of a request that was not answered."""
    status = 500
    if isinstance(error, InvalidRequest):
        status = 404 if isinstance(error, OtherModel) else 400
    elif isinstance(error, Overloaded | ShuttingDown):
        status = 503
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return status, {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}
