"""Two answered requests of each second are logged: the first, and the slowest online one."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.requests.request import PendingRequest
from penstock.worker.telemetry.request_samples import RequestSamples, correlation_text
from tests.worker.conftest import MakeSequences

STATS = BatchStats("timeout", "fifo", 0.0, Sums(30, 300, 20, 2), 0.01, 0.008, number=5)


def request_at(make_sequences: MakeSequences, arrived: float, **settings: Any) -> PendingRequest:
    request = make_sequences([1, 2], **settings)[0].request
    request.times.arrived = request.times.queued = arrived
    return request


def logged(samples: RequestSamples, now: float) -> list[Any]:
    with capture_logs() as logs:
        samples.log(now)
    return [one for one in logs if one["event"] == "request_done"]


def offer(samples: RequestSamples, *requests: PendingRequest, now: float) -> None:
    online = [now - one.times.arrived for one in requests if not one.bulk]
    samples.offer(requests, max(online, default=-1.0), STATS, now)


def test_the_first_and_the_slowest_of_a_second(make_sequences: MakeSequences) -> None:
    samples = RequestSamples()
    first, quick, slow = (request_at(make_sequences, arrived) for arrived in (1.0, 1.3, 0.5))
    offer(samples, first, now=1.1)
    offer(samples, quick, slow, now=1.4)
    one, other = logged(samples, 2.0)
    assert (one["sample"], one["total_ms"], one["ago_ms"]) == ("first", pytest.approx(100), pytest.approx(900))
    assert (other["sample"], other["total_ms"]) == ("slowest", pytest.approx(900))
    assert (other["schedule_ms"], other["compute_ms"]) == (pytest.approx(892), pytest.approx(8))
    assert (other["batch"], other["trigger"], other["batch_sequences"], other["batch_tokens"]) == (5, "timeout", 2, 30)
    assert (other["partition"], other["offset"]) == (slow.record.original.partition, slow.record.original.offset)
    assert logged(samples, 3.0) == []


def test_one_request_is_logged_once(make_sequences: MakeSequences) -> None:
    samples = RequestSamples()
    offer(samples, request_at(make_sequences, 1.0), now=1.1)
    assert [one["sample"] for one in logged(samples, 2.0)] == ["first"]


def test_bulk_is_never_the_slowest(make_sequences: MakeSequences) -> None:
    samples = RequestSamples()
    offer(samples, request_at(make_sequences, 2.0), request_at(make_sequences, -500.0, bulk=True), now=2.1)
    offer(samples, request_at(make_sequences, -500.0, bulk=True), now=2.2)
    offer(samples, request_at(make_sequences, 1.0), now=2.3)
    assert [(one["class"], round(one["total_ms"])) for one in logged(samples, 3.0)] == [
        ("online", 100),
        ("online", 1300),
    ]


def test_an_answer_from_the_cache_has_no_batch(make_sequences: MakeSequences) -> None:
    samples = RequestSamples()
    samples.offer([request_at(make_sequences, 1.0, deadline=1.5)], 0.1, None, 1.1)
    [one] = logged(samples, 2.0)
    assert one["left_ms"] == pytest.approx(400)
    assert "trigger" not in one


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (b"order-7", "order-7"),
        (b"", ""),
        (b"\x00\xff" * 8, "00ff" * 8),
        (b"two\nlines", b"two\nlines".hex()),
        (b"x" * 500, "x" * 64),
    ],
)
def test_correlation_ids_as_text(given: bytes | None, expected: str | None) -> None:
    assert correlation_text(given) == expected
