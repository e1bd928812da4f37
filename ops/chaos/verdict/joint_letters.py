"""Dead letters that stand for several records, as the wire format describes them. Shares no code with the worker."""

import zlib
from collections.abc import Iterator

import msgpack

from penstock.ops.bench.load.records import Record


def alone(letter: Record) -> Iterator[Record]:
    """The letter, or one in the form of a letter of its own for each record that it stands for."""
    if not letter.headers or letter.headers[-1][0] != "penstock-records":
        yield letter
        return
    shared = dict(letter.headers)
    place = shared["__dlq.errors.topic"] + b"-" + shared["__dlq.errors.partition"] + b"-"
    for record in msgpack.unpackb(zlib.decompress(letter.value or b"")):
        offset, timestamp, key, value, headers, code, message, kind, attempts = record
        own = {
            "penstock-error-code": code.encode(),
            "penstock-error-message": message.encode(),
            "penstock-error-type": kind.encode(),
            "penstock-error-attempts": b"%d" % attempts,
            "penstock-source": place + b"%d" % offset,
            "penstock-source-timestamp-ms": b"%d" % timestamp,
            "__dlq.errors.offset": b"%d" % offset,
            "__dlq.errors.delivery.count": b"%d" % attempts,
            "__dlq.errors.message": message.encode(),
        }
        named = [(name, raw) for name, raw in headers]
        yield letter._replace(key=key or letter.key, value=value, headers=(*named, *(shared | own).items()))
