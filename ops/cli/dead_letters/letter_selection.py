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


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen letters: options of the commands about them."""

    reason: Annotated[str | None, typer.Option("--reason", help="Only letters with these error codes, by commas.")] = (
        None
    )
    ids: Annotated[str | None, typer.Option("--id", help="Only letters with these ids, by commas.")] = None
    letters: Annotated[
        Literal["all", "online", "bulk"],
        typer.Option("--letters", help="Letters of the online topic, of bulk, or all."),
    ] = "all"
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this partition of the letters' topic.")
    ] = None
    first: Annotated[int, typer.Option("--from", min=0, help="First offset in the letters' topic.")] = 0
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Last offset in the letters' topic. Default: its end.")
    ] = None

    def __post_init__(self) -> None:
        """Raises BadUsage for a malformed id, or a range that ends before it begins."""
        check_range(self.first, self.last)
        self._places()

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Of the topics of letters to read, whether it is that of bulk."""
        return {"all": (False, True), "online": (False,), "bulk": (True,)}[self.letters]

    def holds(self, letter: DeadLetter) -> bool:
        """Whether a letter of the range is among them."""
        has_reason = self.reason is None or letter.code in self.reason.split(",")
        return has_reason and (self.ids is None or letter.id in self.ids.split(","))

    def ranges(self, bulk: bool, num_partitions: int) -> Iterable[tuple[int, int, int | None]]:
        """The parts of one dead-letter topic to read: partition, first and last offset."""
        if self.ids is not None:
            places = {(partition, offset) for of_bulk, partition, offset in self._places() if of_bulk == bulk}
            return [(partition, offset, offset) for partition, offset in sorted(places) if partition < num_partitions]
        chosen = range(num_partitions) if self.partition is None else [self.partition]
        return [(partition, self.first, self.last) for partition in chosen if partition < num_partitions]

    def _places(self) -> list[tuple[bool, int, int]]:
        return [] if self.ids is None else [parse_id(one) for one in self.ids.split(",")]


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
