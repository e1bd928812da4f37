"""Sends records again: with new headers, a bounded number of times each, or not at all in a dry run."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from aiokafka.errors import KafkaError

from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, BadUsage, say
from penstock.producer.transport.batches import UNREADABLE_BATCH
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.headers import Headers, content_key, num_replays, position, replay_headers
from penstock.producer.wire.topics import check_topic

_MAX_UNSENT, _MAX_UNSENT_BYTES = 500, 8 * 1024 * 1024

Position = tuple[str, int, int]  # topic, partition, offset

Execute = Annotated[
    bool, typer.Option("--execute", help="Send the records. Otherwise only count them; with --json, list them.")
]
DeadlineS = Annotated[
    float | None, typer.Option("--deadline-s", min=0.001, help="New deadline, so long from now. Default: none.")
]
ReplyTopicName = Annotated[
    str | None, typer.Option("--to-reply-topic", help="Topic for the replies. Default: as in the record.")
]
ReplyPartition = Annotated[
    int | None, typer.Option("--to-reply-partition", min=0, help="With --to-reply-topic. Default: by the replies' key.")
]
MaxReplays = Annotated[
    int, typer.Option("--max-replays", min=1, help="Skip records that were sent again so often: they would loop.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, on stdout.")]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How records are sent again."""

    execute: bool
    deadline_s: float | None
    reply_topic: str | None  # None: each record's own address
    reply_partition: int | None
    max_replays: int
    as_json: bool

    def __post_init__(self) -> None:
        """Check the address. Raises BadUsage."""
        if self.reply_partition is not None and self.reply_topic is None:
            raise BadUsage("Give --to-reply-topic with --to-reply-partition.")
        try:
            check_topic(self.reply_topic)
        except ValueError as error:
            raise BadUsage(f"--to-reply-topic {error}. Given: {self.reply_topic!r}") from error


def check_range(first: int, last: int | None) -> None:
    """Check the offsets of --from and --to. Raises BadUsage."""
    if last is not None and last < first:
        raise BadUsage(f"--to must not be before --from, which is {first}. Given: {last}")


class Replayer:
    """Takes records one at a time, and holds few: `offer` waits while many are on their way."""

    def __init__(self, options: ReplayOptions, outbox: Outbox) -> None:
        """`outbox` is used only where the options say `execute`; the caller starts and stops it."""
        self._options = options
        self._outbox = outbox
        self._sent: Counter[str] = Counter()  # by topic; in a dry run, what would be sent
        self._skipped: Counter[str] = Counter()  # by reason
        self._refused: Counter[str] = Counter()  # by what the broker said
        self._partitions: dict[str, int] = {}
        self._unsent = self._unsent_bytes = 0

    async def offer(self, source: Position, record: Any, headers: Headers, to: str) -> None:
        """Send a record to topic `to`. `source`: where a worker read it, or would."""
        if UNREADABLE_BATCH in dict(headers):
            self.skip(source, "in a batch that cannot be read")
            return
        count = num_replays(headers)
        if count >= self._options.max_replays:
            self.skip(source, f"sent again {count} times already")
            return
        self._report(source, to=to)
        self._sent[to] += 1
        if self._options.execute:
            await self._send(source, record, headers, to)

    def skip(self, source: Position, reason: str) -> None:
        """Leave a record out."""
        self._skipped[reason] += 1
        self._report(source, skipped=reason)

    async def finish(self) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code."""
        await self._outbox.flush()
        done = "Sent" if self._options.execute else "Would send"
        for topic, count in self._sent.items():
            say(f"{done} {_records(count - self._refused[topic])} to {topic}.")
        for reason, count in self._skipped.items():
            say(f"Skipped {_records(count)}: {reason}.", "yellow")
        for topic, count in self._refused.items():
            say(f"{topic} refused {_records(count)}.", "red")
        if not self._sent and not self._skipped:
            say("No record matches.")
        elif not self._options.execute:
            say("This was a dry run. Add --execute to send.")
        return EXIT_PROBLEM if self._refused else EXIT_OK

    async def _send(self, source: Position, record: Any, headers: Headers, to: str) -> None:
        options = self._options
        again = replay_headers(
            headers,
            position(*source),
            deadline_ms=None if options.deadline_s is None else int((time.time() + options.deadline_s) * 1000),
            reply_topic=options.reply_topic,
            reply_partition=options.reply_partition,
        )

        def done(_: Sequence[Any], error: KafkaError | None) -> None:
            if error is not None:
                self._refused[to] += 1

        key = content_key(record.value or b"") if record.key is None else record.key
        try:
            partition = source[1] % await self._num_partitions(to)  # whatever rule chose it, equal keys stay together
        except KafkaError:  # the topic is gone, or was never there: a letter's header names it
            self._refused[to] += 1
            return
        self._outbox.put(to, partition, [OutRecord(key, record.value, again, done)])
        self._unsent += 1
        self._unsent_bytes += len(record.value or b"")
        if self._unsent >= _MAX_UNSENT or self._unsent_bytes >= _MAX_UNSENT_BYTES:
            await self._outbox.flush()
            self._unsent = self._unsent_bytes = 0

    async def _num_partitions(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = await self._outbox.partitions(topic)
        return self._partitions[topic]

    def _report(self, source: Position, **what: str) -> None:
        if self._options.as_json:
            print(json.dumps({"source": position(*source).decode(), **what}))


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"
