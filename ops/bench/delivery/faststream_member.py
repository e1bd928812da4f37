"""A FastStream service with a stand-in: `python -m penstock.ops.bench.delivery.faststream_member <spec as JSON>`.

The subscriber is that of the CPU benchmarks. Its heartbeats are as frequent as a worker's; the session timeout of both
is 10 s.
"""

import json
import sys

import uvloop

from penstock.ops.bench.cpu.faststream_service import Encode, encoder, serve
from penstock.ops.bench.delivery.stand_in import poisonable, sleeping_encode

ACK, ACK_FIRST = "ack", "ack_first"  # after the answer; FastStream's default: every five seconds, answered or not
SUBSCRIBER = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 1000}


def main(spec_json: str) -> None:
    """`spec_json`: bootstrap_servers; ack_policy; model, with its dtype and cores, or null for the stand-in."""
    spec = json.loads(spec_json)
    encode: Encode = sleeping_encode
    if spec["model"] is not None:
        encode = poisonable(encoder(spec["model"], spec["dtype"], spec["cores"]))
    uvloop.run(serve(spec["bootstrap_servers"], encode, spec["ack_policy"], **SUBSCRIBER))


if __name__ == "__main__":
    main(sys.argv[1])
