"""Sends records again, with new headers and a bounded number of times each, or answers those of dead letters."""

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.ops.cli.dead_letters.dead_letter import DeadLetter, LocalRecord
from penstock.ops.cli.dead_letters.record_sender import RecordSender
from penstock.ops.cli.terminal import EXIT_PROBLEM, BadUsage, say
from penstock.ops.logs.text import printable
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.errors import PenstockError
from penstock.producer.wire.headers import Headers, num_replays, position, replay_headers
from penstock.producer.wire.topics import check_topic

if TYPE_CHECKING:
    from penstock.ops.cli.dead_letters.answerer import Answerer  # loads what only `penstock dlq answer` needs

Position = tuple[str, int, int]  # topic, partition, offset

Execute = Annotated[
    bool, typer.Option("--execute", help="Send the records. Otherwise only count them; with --json, list them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, on stdout.")]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of the commands that send records again, or replies to them."""

    deadline_s: Annotated[
        float | None, typer.Option("--deadline-s", min=0.001, help="New deadline, so long from now. Default: none.")
    ] = None
    reply_topic: Annotated[
        str | None, typer.Option("--to-reply-topic", help="Topic for the replies. Default: as in the record.")
    ] = None
    reply_partition: Annotated[
        int | None,
        typer.Option("--to-reply-partition", min=0, help="With --to-reply-topic. Default: by the replies' key."),
    ] = None
    max_replays: Annotated[
        int, typer.Option("--max-replays", min=1, help="Skip records that were sent again so often: they would loop.")
    ] = 3
    as_json: AsJson = False

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
    """Sends records again. It takes one at a time."""

    def __init__(self, options: ReplayOptions, sender: RecordSender) -> None:
        """The caller opens and closes the sender."""
        self._options = options
        self._sender = sender

    async def offer(self, source: Position, key: bytes | None, value: bytes | None, headers: Headers, to: str) -> None:
        """Send a record to topic `to`. `source`: where a worker read it, or would."""
        if UNREADABLE_BATCH in dict(headers):
            self.skip(source, "in a batch that cannot be read")
            return
        count = num_replays(headers)
        if count >= self._options.max_replays:
            self.skip(source, f"sent again {count} times already")
            return
        self._report(source, to=to)
        await self._sender.send_alike(to, source[1], key, value, headers_again(headers, source, self._options))

    def skip(self, source: Position, reason: str) -> None:
        """Leave a record out."""
        self._sender.skipped[reason] += 1
        self._report(source, skipped=reason)

    async def finish(self) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code."""
        code = await self._sender.finish("record", "record")
        if self._sender.has_any:
            return code
        say("No record matches.")
        return EXIT_PROBLEM

    def _report(self, source: Position, **what: str) -> None:
        if self._options.as_json:
            print(json.dumps({"source": position(*source).decode(), **what}))


class LetterAnswers:
    """Answers dead letters, and prints the outcome of each. It takes one at a time."""

    def __init__(self, options: ReplayOptions, answerer: "Answerer", sender: RecordSender) -> None:
        """The caller opens and closes both."""
        self._options = options
        self._answerer = answerer
        self._sender = sender

    async def add(self, letter: DeadLetter) -> None:
        """Answer a letter. One that fails again gets no second error reply and no second letter."""
        source = letter.position
        if letter.obstacle or source is None:
            self._sender.skipped[letter.obstacle] += 1
            self._report(letter, "skipped", reason=letter.obstacle)
            return
        try:
            headers = headers_again(letter.original_headers, source, self._options)
            original = LocalRecord(*source, letter.sent_ms, letter.original_key, letter.record.value, headers)
            reply = await self._answerer.answer(original, letter.topic_id, bulk=letter.is_bulk)
        except PenstockError as error:
            self._sender.failed[error.code] += 1
            self._report(letter, "failed", code=error.code, message=error.message)
            return
        address = reply.address
        what = {"task": reply.task, "sequences": reply.num_sequences, "bytes": len(reply.value)}
        self._report(letter, "answered", **what, to=address.topic)
        await self._sender.send(address.topic, address.partition, reply.key, reply.value, address.headers())

    async def finish(self) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code."""
        code = await self._sender.finish("reply", "letter")
        if not self._sender.has_any:
            say("No dead letter matches.")
        return code

    def _report(self, letter: DeadLetter, outcome: str, **what: Any) -> None:
        if self._options.as_json:
            print(json.dumps({"id": letter.id, "source": letter.source, "outcome": outcome, **what}))
            return
        details = ", ".join(f"{name} {value}" for name, value in what.items())
        print(printable(f"{letter.id}  {outcome}: {details}"))
