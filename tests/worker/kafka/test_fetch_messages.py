"""Fetch requests and answers are, byte for byte and field by field, those of aiokafka."""

import random
import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v11, FetchResponse_v11

from penstock.worker.kafka.fetching.fetch_messages import FetchMessage

TOPICS = [("requests.ü", [(number, 7 * number, 262_144) for number in range(48)]), ("bulk", [(5, 2**40, 1)]), ("", [])]
BOUNDS = 100, 1, 4 * 1024 * 1024, 1


def answer(partitions: dict[str, list[tuple[Any, ...]]]) -> FetchResponse_v11:
    return FetchResponse_v11(3, 0, 9, list(partitions.items()))


def decoded(raw: bytes) -> Any:
    return FetchMessage(*BOUNDS, TOPICS).build(FetchRequest_v11).RESPONSE_TYPE.decode(BytesIO(raw))


@pytest.mark.parametrize("rack", ["", "a"])
def test_a_request_is_that_of_aiokafka(rack: str) -> None:
    ours, theirs = (
        kind(*BOUNDS, TOPICS, rack_id=rack).build(FetchRequest_v11) for kind in (FetchMessage, FetchRequest)
    )
    assert ours.encode() == theirs.encode()
    assert ours.API_VERSION == 11


def test_a_broker_without_the_version_is_asked_in_aiokafkas_way() -> None:
    ours, theirs = (kind(*BOUNDS, TOPICS).build(FetchRequest_v4) for kind in (FetchMessage, FetchRequest))
    assert type(ours) is FetchRequest_v4
    assert ours.encode() == theirs.encode()


def test_partitions_with_records_or_an_error_are_those_of_aiokafka() -> None:
    chosen = random.Random(1)
    partitions = [
        (
            number,
            chosen.choice([0, 6]),
            50,
            40,
            3,
            chosen.choice([None, [], [(1, 2), (3, 4)]]),
            -1,
            chosen.randbytes(size),
        )
        for number, size in enumerate(chosen.choices([0, 1, 500], k=60))
    ]
    theirs = answer({"requests.ü": partitions, "bulk": [(2, 0, 1, 1, 0, None, 4, None)], "": []})
    ours = decoded(theirs.encode())
    told = [(*fields[:5], fields[5] or [], *fields[6:]) for fields in partitions if fields[1] or fields[7]]
    assert ours.topics == [("requests.ü", told), ("bulk", []), ("", [])]
    assert (ours.throttle_time_ms, ours.error_code, ours.session_id) == (3, 0, 9)
    assert 0 < len(told) < len(partitions)


def test_an_answer_that_ends_early_is_an_error() -> None:
    raw = answer({"requests": [(1, 0, 1, 1, 0, None, -1, b"records")]}).encode()
    for size in range(len(raw)):
        with pytest.raises((struct.error, UnicodeDecodeError)):
            decoded(raw[:size])


def test_a_negative_length_ends_an_answer() -> None:
    """Read as a step back, it would name one topic again and again, 2³¹ times."""
    no_partitions = struct.pack(">hi", 0, 0)
    with pytest.raises(struct.error):
        decoded(struct.pack(">ihii", 0, 0, 0, 2_000_000) + no_partitions + struct.pack(">h", -6))
