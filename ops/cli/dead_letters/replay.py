"""`penstock replay`: send a range of records of a topic again."""

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer

from penstock.ops.cli.dead_letters.record_sender import open_sender
from penstock.ops.cli.dead_letters.replayer import Execute, Replayer, ReplayOptions, check_range
from penstock.ops.cli.dead_letters.topic_reader import open_reader
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import BadUsage, narrate_logs
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic

Topic = Annotated[str, typer.Option("--topic", help="Request topic to read, or its bulk topic.")]
Partition = Annotated[int, typer.Option("--partition", min=0, help="Partition to read.")]
First = Annotated[int, typer.Option("--from", min=0, help="First offset.")]
Last = Annotated[int | None, typer.Option("--to", min=0, help="Last offset. Default: the partition's present end.")]
ToBulk = Annotated[
    bool, typer.Option("--to-bulk", help="Send to the bulk topic of --topic, or to --topic if it is one.")
]


@takes(KafkaSettings)
def replay(
    settings: KafkaSettings,
    topic: Topic,
    partition: Partition,
    first: First,
    last: Last = None,
    to_bulk: ToBulk = False,
    *,
    execute: Execute = False,
    options: ReplayOptions,
) -> int:
    """Send a range of records of a request topic again, from offset --from to --to.

    Without --execute: only count them; with --json, list them.

    $ penstock replay --topic penstock.requests.intents --partition 3 --from 1200 --to 1300 --to-bulk --execute

    A replayed record has the header penstock-replay-of. Its reply has it too, and a key
    of its own: a reader that trusts the senders can tell by it that two answers are to one record.
    `penstock dlq replay` sends dead letters again.

    Exit code 1: there is no record, or the broker refused some. 2: there is no such topic or partition.
    """
    narrate_logs(settings.bootstrap_servers)
    check_range(first, last)
    if topic.endswith(dead_letter_topic("")):
        raise BadUsage(f"{topic} holds dead letters, which `penstock dlq replay` sends again.")
    is_bulk = topic.endswith(bulk_topic(""))
    target = bulk_topic(topic) if to_bulk and not is_bulk else topic
    return asyncio.run(_replay(KafkaCluster.of(settings), (topic, partition), first, last, target, options, execute))


async def _replay(
    cluster: KafkaCluster,
    source: tuple[str, int],
    first: int,
    last: int | None,
    target: str,
    options: ReplayOptions,
    execute: bool,
) -> int:
    async with open_reader(cluster) as reader:
        num_partitions = await reader.num_partitions(source[0])
        if num_partitions is None:
            raise BadUsage(f"There is no topic {source[0]}. Check --topic.")
        if source[1] >= num_partitions:
            raise BadUsage(f"{source[0]} has {num_partitions} partitions. Given: {source[1]}")
        found = aclosing(reader.records(*source, first, last))
        async with open_sender(cluster, execute=execute) as sender, found as records:
            replayer = Replayer(options, sender)
            async for record in records:
                await replayer.offer((*source, record.offset), record.key, record.value, record.headers, target)
            return await replayer.finish()
