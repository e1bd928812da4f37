"""Sends records again: with new headers, a bounded number of times each, or not at all in a dry run."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.ops.cli.dead_letters.record_sender import RecordSender
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, say
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.wire.headers import Headers, content_key, num_replays, position, replay_headers
from penstock.producer.wire.topics import check_topic

DRY_RUN = "This was a dry run. Add --execute to send."

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
    """Options of sending records again."""

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


def headers_again(headers: Headers, source: Position, options: ReplayOptions) -> list[tuple[str, bytes]]:
    """The headers with which a record is sent again. `source`: where a worker read it, or would."""
    return replay_headers(
        [header for header in headers if header[0] != UNREADABLE],  # a worker would reject the record for it again
        position(*source),
        deadline_ms=None if options.deadline_s is None else int((time.time() + options.deadline_s) * 1000),
        reply_topic=options.reply_topic,
        reply_partition=options.reply_partition,
    )


class Replayer:
    """Takes records one at a time."""

    def __init__(self, options: ReplayOptions, sender: RecordSender | None) -> None:
        """Without a `sender` this is a dry run. The caller opens and closes it."""
        self._options = options
        self._sender = sender
        self._sent: Counter[str] = Counter()  # by topic; in a dry run, what would be sent
        self._skipped: Counter[str] = Counter()  # by reason

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
        if self._sender is not None:
            key = content_key(record.value or b"") if record.key is None else record.key
            again = headers_again(headers, source, self._options)
            await self._sender.send_alike(to, source[1], key, record.value, again)

    def skip(self, source: Position, reason: str) -> None:
        """Leave a record out."""
        self._skipped[reason] += 1
        self._report(source, skipped=reason)

    async def finish(self) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code."""
        refused = await refusals(self._sender)
        done = "Would send" if self._sender is None else "Sent"
        for topic, count in self._sent.items():
            say(f"{done} {num_of('record', count - refused[topic])} to {topic}.")
        for reason, count in self._skipped.items():
            say(f"Skipped {num_of('record', count)}: {reason}.", "yellow")
        say_refused(self._sender)
        if not self._sent and not self._skipped:
            say("No record matches.")
            return EXIT_PROBLEM
        if self._sender is None:
            say(DRY_RUN)
        return EXIT_PROBLEM if refused else EXIT_OK

    def _report(self, source: Position, **what: str) -> None:
        if self._options.as_json:
            print(json.dumps({"source": position(*source).decode(), **what}))


async def refusals(sender: RecordSender | None) -> Counter[str]:
    """Wait until all records are acknowledged or refused. Returns the number of refused ones by topic."""
    if sender is None:
        return Counter()
    await sender.flush()
    return sender.refused


def say_refused(sender: RecordSender | None) -> None:
    """Print how many records each topic has refused, and why the first."""
    if sender is not None:
        for topic, count in sender.refused.items():
            say(f"{topic} refused {num_of('record', count)}. {sender.reason(topic)}", "red")


def num_of(noun: str, count: int) -> str:
    """`3 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
