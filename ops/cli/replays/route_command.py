"""`penstock replay --route`."""

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.ops.cli.checks.progress_bar import progress_bar
from penstock.ops.cli.dead_letters.record_sender import RecordSender, open_sender
from penstock.ops.cli.dead_letters.replayer import check_range
from penstock.ops.cli.dead_letters.topic_reader import TopicReader, open_reader
from penstock.ops.cli.replays.group_progress import GroupProgress, open_progress
from penstock.ops.cli.replays.partition_replay import PartitionReplay
from penstock.ops.cli.replays.route_replay import ReplayTopics, RouteReplay
from penstock.ops.cli.terminal import EXIT_PROBLEM, BadUsage, say
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import check_request_topic, replay_topic


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Options that say which records are sent again."""

    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Partition to read. With --route the default is all.")
    ] = None
    first: Annotated[int | None, typer.Option("--from", min=0, help="First offset.")] = None
    last: Annotated[
        int | None, typer.Option("--to", min=0, help="Last offset. Default: the partition's present end.")
    ] = None

    def __post_init__(self) -> None:
        """Raises BadUsage for a range that ends before it begins."""
        check_range(self.first or 0, self.last)


@dataclass(frozen=True, slots=True)
class RouteOptions:
    """Options of the command that are for a route alone."""

    input_topic: Annotated[
        str | None, typer.Option("--route", help="Input topic of a route whose records are enriched again.")
    ] = None
    group_id: Annotated[str | None, typer.Option("--group-id", help="With --route: its workers' consumer group.")] = (
        None
    )
    resume: Annotated[
        bool, typer.Option("--resume", help="With --route: go on with the last run, and leave out what it has sent.")
    ] = False

    def __post_init__(self) -> None:
        """Raises BadUsage for a name that is none of an input topic."""
        try:
            check_request_topic(self.input_topic)
        except ValueError as error:
            raise BadUsage(f"--route {error}. Given: {self.input_topic!r}") from error

    def check_unused(self) -> None:
        """Raises BadUsage if there is one of them."""
        if self != RouteOptions():
            raise BadUsage("--group-id and --resume go with --route.")


def replay_route(
    settings: KafkaSettings, route: RouteOptions, records: RecordRange, *, execute: bool, as_json: bool
) -> int:
    """Run the command. Returns its exit code. Raises BadUsage."""
    if route.group_id is None:
        raise BadUsage("--route needs --group-id: the consumer group of the workers that have the route.")
    if records.partition is None and (records.first is not None or records.last is not None):
        raise BadUsage("--from and --to are offsets of one partition: give --partition.")
    return asyncio.run(_replay(KafkaCluster.of(settings), route, records, execute=execute, as_json=as_json))


async def _replay(
    cluster: KafkaCluster, route: RouteOptions, records: RecordRange, *, execute: bool, as_json: bool
) -> int:
    async with (
        open_reader(cluster) as reader,
        open_progress(cluster, str(route.group_id)) as group,
        open_sender(cluster, execute=execute) as sender,
    ):
        topics = await _topics(reader, str(route.input_topic))
        await _check_group(topics, reader, group)
        run = RouteReplay(topics, reader, sender, _replays(topics, records), records.first or 0)
        if route.resume:
            await run.recall()
        with progress_bar(f"Reading {topics.source}") as show:
            await run.survey(show)
        if execute and (run.num_wanted or run.is_resumed):  # what a last run has sent may not be finished yet
            with progress_bar(f"Enriching {topics.source} again") as show:
                await run.run(group, show)
        return await _finish(run, sender, topics, execute=execute, as_json=as_json)


def _replays(topics: ReplayTopics, records: RecordRange) -> dict[int, PartitionReplay]:
    if records.partition is None:
        return {partition: PartitionReplay() for partition in range(topics.num_partitions)}
    if records.partition >= topics.num_partitions:
        raise BadUsage(f"{topics.source} has {topics.num_partitions} partitions. Given: {records.partition}")
    return {records.partition: PartitionReplay(records.first or 0, records.last)}


async def _topics(reader: TopicReader, source: str) -> ReplayTopics:
    target = replay_topic(source)
    num_partitions, num_targets = await reader.num_partitions(source), await reader.num_partitions(target)
    if num_partitions is None:
        raise BadUsage(f"There is no topic {source}. Check --route, which is the input topic of a route.")
    if num_targets is None:
        raise BadUsage(f"There is no topic {target}. The route's workers make and read it with --accept-replays.")
    return ReplayTopics(source, num_partitions, target, num_targets)


async def _check_group(topics: ReplayTopics, reader: TopicReader, group: GroupProgress) -> None:
    """Raises BadUsage for a group that has never finished a record of the topic: another one has the route."""
    ends = await reader.ends(topics.source, topics.num_partitions)
    if any(ends) and not any(await group.committed(topics.source, topics.num_partitions)):
        raise BadUsage(f"The group {group.group_id} has finished no record of {topics.source}. Check --group-id.")


async def _finish(run: RouteReplay, sender: RecordSender, topics: ReplayTopics, *, execute: bool, as_json: bool) -> int:
    """Print what was done. Returns the exit code."""
    counts = {"records": run.num_read, "wanted": run.num_wanted, "done": run.num_done, "again": run.num_again}
    if as_json:
        print(json.dumps({"topic": topics.source, "executed": execute, **counts}))
    code = await sender.finish("record", "record")
    if left := run.num_read - run.num_wanted:
        say(
            f"{left:,} of {run.num_read:,} records are left out: they have a newer one of their key, or were sent "
            "before, or are not chosen."
        )
    if run.num_again:
        say(f"{run.num_again:,} were sent because they came while an older one of their key was enriched again.")
    if not run.num_wanted and run.is_resumed:
        say(f"Nothing is left: the last run has sent all{', and the group has finished it' if execute else ''}.")
        return code
    if not run.num_wanted:
        say("No record matches.")
        return EXIT_PROBLEM
    if not execute:
        say(f"Would send {run.num_wanted:,} records to {topics.target}. This was a dry run. Add --execute to send.")
    return code
