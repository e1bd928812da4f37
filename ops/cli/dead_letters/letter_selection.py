"""Which dead letters a command is about, and reading them."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from penstock.ops.cli.dead_letters.dead_letter import DeadLetter, letters_topic, parse_id
from penstock.ops.cli.dead_letters.replayer import check_range
from penstock.ops.cli.dead_letters.topic_reader import open_reader
from penstock.ops.cli.terminal import BadUsage
from penstock.producer.transport.cluster import KafkaCluster

Reason = Annotated[str | None, typer.Option("--reason", help="Only letters with these error codes, by commas.")]
Ids = Annotated[str | None, typer.Option("--id", help="Only letters with these ids, by commas.")]
Letters = Annotated[
    Literal["all", "online", "bulk"], typer.Option("--letters", help="Letters of the online topic, of bulk, or all.")
]
Partition = Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition of the letters' topic.")]
First = Annotated[int, typer.Option("--from", min=0, help="First offset in the letters' topic.")]
Last = Annotated[int | None, typer.Option("--to", min=0, help="Last offset in the letters' topic. Default: its end.")]


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen letters."""

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


async def read_letters(cluster: KafkaCluster, topic: str, selection: Selection) -> AsyncGenerator[DeadLetter]:
    """The chosen letters, one an original, of both dead-letter topics of a request topic, without those that come now.

    One of them may be missing.

    Raises KafkaUnreachable, KafkaRefused, and BadUsage if no topic that was chosen exists.
    """
    async with open_reader(cluster) as reader:
        topics = {bulk: letters_topic(topic, bulk=bulk) for bulk in selection.kinds}
        sizes = {bulk: await reader.num_partitions(letters) for bulk, letters in topics.items()}
        if all(size is None for size in sizes.values()):
            raise BadUsage(f"There is no topic {' or '.join(topics.values())}. Check --model, --topic and --letters.")
        ranges = [(bulk, *one) for bulk in topics for one in selection.ranges(bulk, sizes[bulk] or 0)]
        ends = [await reader.end(topics[bulk], partition) for bulk, partition, _, _ in ranges]
        for (bulk, partition, first, last), end in zip(ranges, ends, strict=True):
            found = reader.records(topics[bulk], partition, first, end - 1 if last is None else min(last, end - 1))
            async for letter in _letters(found, selection, bulk=bulk):
                yield letter


async def _letters(records: AsyncGenerator[Any], selection: Selection, *, bulk: bool) -> AsyncGenerator[DeadLetter]:
    async with aclosing(records):
        async for record in records:
            for letter in filter(selection.holds, DeadLetter.all_of(record, bulk=bulk)):
                yield letter
