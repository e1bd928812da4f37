"""Dead letters hold what anybody has written: neither the list nor a replay ends with one of them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import UnknownTopicOrPartitionError

from penstock.ops.cli.dead_letter import DeadLetter
from penstock.ops.cli.letter_table import print_letters
from penstock.ops.cli.replayer import Replayer, ReplayOptions
from penstock.ops.cli.screen import EXIT_PROBLEM
from penstock.producer.transport.batches import UNREADABLE_BATCH

RECORD = SimpleNamespace(key=None, value=b"x", headers=[])


def letter(timestamp: int, *headers: tuple[str, bytes]) -> DeadLetter:
    record = SimpleNamespace(
        topic="t.dead-letter", partition=0, offset=1, key=None, value=b"x", timestamp=timestamp, headers=list(headers)
    )
    return DeadLetter.of(record, bulk=False)


@pytest.mark.parametrize("timestamp", [-1, 2**62, 253_402_300_800_000, -(10**15)])
def test_a_letter_with_any_timestamp_is_listed(timestamp: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_letters([letter(timestamp).summary()])
    assert "0:1" in capsys.readouterr().out


def test_no_letter_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_letters([letter(0, ("penstock-error-message", b"\x1b[2J\x1b]0;title\x07text")).summary()])
    shown = capsys.readouterr().out
    assert "text" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


class Broker:
    """An outbox whose broker has one topic."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def partitions(self, topic: str) -> int:
        if topic != "there":
            raise UnknownTopicOrPartitionError(topic)
        return 2

    def put(self, topic: str, partition: int, records: Sequence[Any]) -> None:
        self.sent.append(topic)

    async def flush(self) -> None: ...


async def test_a_record_that_cannot_be_sent_again_is_counted_and_the_others_are_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = Broker()
    replayer = Replayer(ReplayOptions(True, None, None, None, 3, False), broker)  # type: ignore[arg-type]
    for topic in ("there", "gone", "there"):
        await replayer.offer((topic, 0, 1), RECORD, [], topic)
    await replayer.offer(("there", 0, 2), RECORD, [(UNREADABLE_BATCH, b"a bomb")], "there")
    assert await replayer.finish() == EXIT_PROBLEM
    assert broker.sent == ["there", "there"]
    shown = capsys.readouterr()
    assert "gone refused 1 record." in shown.out + shown.err
    assert "Skipped 1 record: in a batch that cannot be read." in shown.out + shown.err
