"""The fields of sequences, as a worker with a model made of cells unfolds them."""

import contextlib

from penstock.engine.cells.graph import GraphLimits
from penstock.engine.cells.models.layers import weights_of
from penstock.producer.errors import InvalidRequest
from penstock.producer.wire import codec
from penstock.producer.wire.messages import Request
from penstock.worker.stepping.cell_model import SequenceChecks
from tests.engine.cells.test_loading import CASES
from tests.fuzz.decoder import Decoder
from tests.fuzz.mutations import mutated_bytes, mutated_msgpack

_NUM_SLOTS = 64
_CHECKS = [
    SequenceChecks(make(weights_of(**parts)), _NUM_SLOTS, GraphLimits(max_nodes=256, max_depth=64, max_steps=512))
    for _, parts, make, _ in CASES.values()
]
_FIELDS = tuple(fields for *_, fields in CASES.values())


def _unfolded(value: bytes) -> None:
    """A sequence is work that an engine can run, or the request is at fault."""
    for fields in codec.decode_request(value).sequences or ():
        for checks in _CHECKS:
            with contextlib.suppress(InvalidRequest):
                work = checks.work(fields)
                if not (1 <= work.num_steps <= 512 and work.graph.num_slots <= _NUM_SLOTS):
                    raise AssertionError(f"{work}")


_REQUESTS = [
    codec.encode_request(Request("m", "sequence", sequences=_FIELDS)),
    *[codec.encode_request(Request("m", "sequence", sequences=(fields,))) for fields in _FIELDS],
]

CELLS = (Decoder("fields of cells", _REQUESTS, _unfolded, (InvalidRequest,), (mutated_bytes, mutated_msgpack)),)
