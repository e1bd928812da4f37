"""`penstock replay`: send records of a topic again: a range of requests, or those of a route."""

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer

from penstock.ops.cli.dead_letters.record_sender import open_sender
from penstock.ops.cli.dead_letters.replayer import Execute, Replayer, ReplayOptions
from penstock.ops.cli.dead_letters.topic_reader import open_reader
from penstock.ops.cli.replays.route_command import RecordRange, RouteOptions, replay_route
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import BadUsage, narrate_logs
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic

Topic = Annotated[str | None, typer.Option("--topic", help="Request topic to read, or its bulk topic.")]
ToBulk = Annotated[
    bool, typer.Option("--to-bulk", help="Send to the bulk topic of --topic, or to --topic if it is one.")
]


@takes(KafkaSettings)
def replay(
    settings: KafkaSettings,
    topic: Topic = None,
    to_bulk: ToBulk = False,
    *,
    records: RecordRange,
    route: RouteOptions,
    execute: Execute = False,
    options: ReplayOptions,
) -> int:
    """Send records again: of a request topic, from offset --from to --to, or of a route.

    Without --execute: only count them; with --json, list those of a request topic.

    $ penstock replay --topic penstock.requests.intents --partition 3 --from 1200 --to 1300 --to-bulk --execute
    $ penstock replay --route orders --group-id enrichment --execute

    A replayed request has the header penstock-replay-of. Its reply has it too, and a key
    of its own: a reader that trusts the senders can tell by it that two answers are to one record.
    `penstock dlq replay` sends dead letters again.

    Of a route, the newest record of each key, and all without keys, are
    enriched again beside live ones, by workers with --accept-replays. The
    command ends when their group has finished them, and each key has the
    result of its newest record. After an interruption, --resume goes on; the
    exit code is 0 also where nothing is left.

    Exit code 1: there is no record, or the broker refused some. 2: there is no such topic or partition.
    """
    narrate_logs(settings.bootstrap_servers)
    if route.input_topic is not None:
        if topic is not None or to_bulk or options != ReplayOptions(as_json=options.as_json):
            raise BadUsage(
                "--route goes with --group-id, --resume, --partition, --from, --to, --execute and --json alone."
            )
        return replay_route(settings, route, records, execute=execute, as_json=options.as_json)
    if topic is None or records.partition is None or records.first is None:
        raise BadUsage("Give --topic, --partition and --from; or --route.")
    route.check_unused()
    if topic.endswith(dead_letter_topic("")):
        raise BadUsage(f"{topic} holds dead letters, which `penstock dlq replay` sends again.")
    is_bulk = topic.endswith(bulk_topic(""))
    target = bulk_topic(topic) if to_bulk and not is_bulk else topic
    source = topic, records.partition
    cluster = KafkaCluster.of(settings)
    return asyncio.run(_replay(cluster, source, records.first, records.last, target, options, execute))


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
