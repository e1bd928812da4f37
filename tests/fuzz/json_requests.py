"""The decoder of JSON requests."""

import json
from pathlib import Path

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.json_codec import Defaults, decode_json_request, is_json
from tests.fuzz.decoder import Decoder
from tests.fuzz.mutations import mutated_bytes, mutated_json

_GOLDEN = json.loads((Path(__file__).parent.parent / "producer" / "golden" / "json_records.json").read_text())


def _request(value: bytes) -> None:
    """A value that is read can be written: it is a request that a client could have sent."""
    if is_json(value):
        encode_request(decode_json_request(value, Defaults("m", "embed")))


JSON_REQUESTS = (
    Decoder(
        "JSON request",
        [value.encode() for name, value in _GOLDEN.items() if name.startswith("request-")],
        _request,
        (InvalidRequest,),
        (mutated_bytes, mutated_json),
    ),
)
