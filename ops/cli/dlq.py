"""`penstock dlq`: list, show and replay the dead letters of a model's topics."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from pydantic import AfterValidator, Field

from penstock.ops.cli.dead_letter import DeadLetter, letters_topic, parse_id
from penstock.ops.cli.letter_table import print_letters
from penstock.ops.cli.options import takes
from penstock.ops.cli.replayer import (
    AsJson,
    DeadlineS,
    Execute,
    MaxReplays,
    Replayer,
    ReplayOptions,
    ReplyPartition,
    ReplyTopicName,
    check_range,
)
from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, BadUsage, fail, narrate_logs, say
from penstock.ops.cli.topic_reader import TopicReader, open_reader
from penstock.producer.settings import KafkaSettings, RequestTopic
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox
from penstock.producer.wire.headers import original_headers
from penstock.producer.wire.topics import check_served_name, request_topic, served_name_of

dlq = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show and replay the dead letters of a model's topics."
)

_MAX_LISTED = 100

Reason = Annotated[str | None, typer.Option("--reason", help="Only letters with these error codes, by commas.")]
Ids = Annotated[str | None, typer.Option("--id", help="Only letters with these ids, by commas.")]
Letters = Annotated[Literal["all", "online", "bulk"], typer.Option("--letters", help="Of which request topic.")]
Partition = Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition of the letters' topic.")]
First = Annotated[int, typer.Option("--from", min=0, help="First offset in the letters' topic.")]
Last = Annotated[int | None, typer.Option("--to", min=0, help="Last offset in the letters' topic. Default: its end.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Most letters. Default: 100 in a table.")]


class DlqSettings(KafkaSettings):
    """Which letters' topics, and where."""

    model: Annotated[str | None, AfterValidator(lambda name: check_served_name(name and served_name_of(name)))] = Field(
        None, description="The model's served name, or its checkpoint's path or id, whose last part is the name."
    )
    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<model>.")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters a command is about."""

    reasons: frozenset[str] | None
    ids: frozenset[str] | None
    kinds: tuple[bool, ...]  # whether bulk
    partition: int | None
    first: int
    last: int | None

    @classmethod
    def of(
        cls, reason: str | None, ids: str | None, letters: str, partition: int | None, first: int, last: int | None
    ) -> "Selection":
        """From the command line. Raises BadUsage for a malformed id, or a range that ends before it begins."""
        check_range(first, last)
        kinds = {"all": (False, True), "online": (False,), "bulk": (True,)}[letters]
        chosen = None if ids is None else frozenset(ids.split(","))
        for one in chosen or ():
            parse_id(one)
        return cls(None if reason is None else frozenset(reason.split(",")), chosen, kinds, partition, first, last)

    def holds(self, letter: DeadLetter) -> bool:
        """Whether a letter of the range is among them."""
        return (self.reasons is None or letter.code in self.reasons) and (self.ids is None or letter.id in self.ids)

    def ranges(self, bulk: bool, num_partitions: int) -> Iterable[tuple[int, int, int | None]]:
        """The parts of one dead-letter topic to read: partition, first and last offset."""
        if self.ids is not None:
            places = [(partition, offset) for of_bulk, partition, offset in map(parse_id, self.ids) if of_bulk == bulk]
            return [(partition, offset, offset) for partition, offset in sorted(places) if partition < num_partitions]
        chosen = range(num_partitions) if self.partition is None else [self.partition]
        return [(partition, self.first, self.last) for partition in chosen if partition < num_partitions]


@dlq.command("ls")
@takes(DlqSettings)
def list_letters(
    settings: DlqSettings,
    reason: Reason = None,
    letters: Letters = "all",
    partition: Partition = None,
    first: First = 0,
    last: Last = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> int:
    """List dead letters, and count them by error code.

    $ penstock dlq ls --model intents --reason backend

    Exit code 0, also if there is none.
    """
    selection = Selection.of(reason, None, letters, partition, first, last)
    return _run(settings, lambda topic: _list(settings, topic, selection, limit, as_json))


@dlq.command()
@takes(DlqSettings)
def show(
    settings: DlqSettings, letter: Annotated[str, typer.Argument(metavar="ID", help="As `dlq ls` prints it.")]
) -> int:
    """Print one dead letter as JSON: why it was written, and its original's headers, key and value (base64).

    $ penstock dlq show --model intents 3:17

    Exit code 1: there is no such letter.
    """
    selection = Selection.of(None, letter, "all", None, 0, None)
    return _run(settings, lambda topic: _show(settings, topic, selection))


@dlq.command()
@takes(DlqSettings)
def replay(
    settings: DlqSettings,
    reason: Reason = None,
    ids: Ids = None,
    letters: Letters = "all",
    partition: Partition = None,
    first: First = 0,
    last: Last = None,
    execute: Execute = False,
    deadline_s: DeadlineS = None,
    reply_topic: ReplyTopicName = None,
    reply_partition: ReplyPartition = None,
    max_replays: MaxReplays = 3,
    as_json: AsJson = False,
) -> int:
    """Send the originals of dead letters to their request topics again.

    Without --execute: only count them; with --json, list them.

    $ penstock dlq replay --model intents --reason backend --execute

    A replayed record has the header penstock-replay-of. Its reply has the key of a reply to the original, by which
    readers can drop duplicates. The letters stay in their topic.

    Exit code 1: the broker refused some.
    """
    selection = Selection.of(reason, ids, letters, partition, first, last)
    options = ReplayOptions(execute, deadline_s, reply_topic, reply_partition, max_replays, as_json)
    return _run(settings, lambda topic: _replay(settings, topic, selection, options))


def _run(settings: DlqSettings, body: Any) -> int:
    narrate_logs(settings.bootstrap_servers)
    if settings.topic is None and settings.model is None:
        raise BadUsage("Give --model or --topic.")
    code: int = asyncio.run(body(settings.topic or request_topic(settings.model or "")))
    return code


async def _list(settings: DlqSettings, topic: str, selection: Selection, limit: int | None, as_json: bool) -> int:
    counts: Counter[str] = Counter()
    listed = []
    most = limit or (sys.maxsize if as_json else _MAX_LISTED)
    async with open_reader(KafkaCluster.of(settings)) as reader, aclosing(_read(reader, topic, selection)) as found:
        async for letter in found:
            counts[letter.code] += 1
            if counts.total() > most:
                continue
            if as_json:
                print(json.dumps(letter.summary()))
            else:
                listed.append(letter.summary())
    if not as_json and listed:
        print_letters(listed)
    codes = ", ".join(f"{code} {count:,}" for code, count in counts.most_common())
    plural = "s" if counts.total() > 1 else ""
    say(f"{counts.total():,} dead letter{plural}: {codes}." if counts else f"No dead letter of {topic} matches.")
    if counts.total() > most:
        say(f"{most:,} of them are listed. --limit lists more; --reason, --partition, --from and --to list others.")
    return EXIT_OK


async def _show(settings: DlqSettings, topic: str, selection: Selection) -> int:
    async with open_reader(KafkaCluster.of(settings)) as reader, aclosing(_read(reader, topic, selection)) as found:
        async for letter in found:
            print(json.dumps(letter.details(), indent=2, ensure_ascii=False))
            return EXIT_OK
    fail(f"There is no such dead letter of {topic}.")
    return EXIT_PROBLEM


async def _replay(settings: DlqSettings, topic: str, selection: Selection, options: ReplayOptions) -> int:
    cluster = KafkaCluster.of(settings)
    outbox = Outbox(cluster, client_id="penstock-replay")
    await outbox.start()
    try:
        replayer = Replayer(options, outbox)
        async with open_reader(cluster) as reader, aclosing(_read(reader, topic, selection)) as found:
            async for letter in found:
                source = letter.position
                if letter.missing or source is None:
                    replayer.skip((letter.record.topic, letter.record.partition, letter.record.offset), letter.missing)
                else:
                    await replayer.offer(source, letter.record, original_headers(letter.record.headers), source[0])
        return await replayer.finish()
    finally:
        await outbox.stop()


async def _read(reader: TopicReader, topic: str, selection: Selection) -> AsyncGenerator[DeadLetter]:
    """The chosen letters of both dead-letter topics. A topic that does not exist has none."""
    for bulk in selection.kinds:
        letters = letters_topic(topic, bulk=bulk)
        for partition, first, last in selection.ranges(bulk, await reader.num_partitions(letters) or 0):
            async with aclosing(reader.records(letters, partition, first, last)) as records:
                async for record in records:
                    letter = DeadLetter.of(record, bulk=bulk)
                    if selection.holds(letter):
                        yield letter
