"""`penstock drift`: compare what two versions of a model answered to the same records."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import AfterValidator, Field

from penstock.ops.cli.checks.answer_topics import num_partitions, sample_topic
from penstock.ops.cli.checks.drift_screen import show_drift
from penstock.ops.cli.checks.progress_bar import progress_bar
from penstock.ops.cli.dead_letters.topic_reader import TopicReader, open_reader
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, narrate_logs
from penstock.ops.logs.text import printable
from penstock.ops.parity.answer_files import sample_file
from penstock.ops.parity.answer_places import FieldPlace, JobColumns
from penstock.ops.parity.drift import DriftBounds, compare
from penstock.ops.parity.keyed_sample import KeyedSample
from penstock.ops.parity.recorded_answers import NotComparable
from penstock.producer.files import TableError
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import check_topic
from penstock.worker.routes.pointer import Pointer

_SIDE_HELP = "A route's output topic, or a file (.jsonl or .parquet)."
First = Annotated[str, typer.Argument(metavar="A", help=_SIDE_HELP, show_default=False)]
Second = Annotated[str, typer.Argument(metavar="B", help="The other.", show_default=False)]
_FILES = (".jsonl", ".parquet")
AsJson = Annotated[bool, typer.Option("--json", help="The report as JSON, on stdout.")]


def _check_pointer(text: str | None) -> str | None:
    if text is not None:
        Pointer.parse(text)
    return text


class DriftSettings(KafkaSettings):
    """Settings of the comparison."""

    sample: int = Field(
        10_000, ge=1, le=1_000_000, description="Most keys that are compared, chosen by their hash: the same of both."
    )
    result_field: Annotated[str | None, AfterValidator(_check_pointer)] = Field(
        None,
        description="Field of the answers, or a JSON pointer. Empty: the value is the answer. Default: result in "
        "topics; in files the columns that penstock embed, classify and rerank add.",
    )
    key_column: str | None = Field(
        None, description="Column by which the rows of files are paired. Default: their place in the file."
    )
    max_label_changes: float | None = Field(
        None, ge=0, le=1, description="Largest share of labels that may differ, such as 0.02."
    )
    min_cosine: float | None = Field(None, ge=-1, le=1, description="Least cosine that a pair of vectors may have.")


@takes(DriftSettings)
def drift(settings: DriftSettings, a: First, b: Second, as_json: AsJson = False) -> int:
    """Compare what two versions of a model answered to the same records: output topics of two routes, or files.

    $ penstock drift orders.labels orders.labels-new --max-label-changes 0.02
    $ penstock drift january.parquet february.parquet --min-cosine 0.99

    Records of topics are paired by key, the latest of each, or without keys
    by the position of their input; rows of files by their place. A pair counts
    if both answers are to the same input: what stands beside them is equal.

    Of labels, the share that differs is shown, and from which label to which;
    of vectors the cosines of the pairs, and the share of the 10 nearest
    neighbours that both versions have in common, which can be compared across
    models; of scores the correlation of their ranks, and how far ranks move.

    A bound fails too if fewer than half of the keys that have an answer have a
    pair. Nothing is written, and no consumer group is joined.

    Exit code 0: compared, within the bounds. 1: a bound is missed, or Kafka
    cannot be read. 2: what cannot be compared, such as topics without a common
    key or without the field, answers of two kinds, NaN.
    """
    narrate_logs(settings.bootstrap_servers)
    try:
        found = compare(*asyncio.run(_samples(settings, [a, b])))
        bounds = DriftBounds(settings.max_label_changes, settings.min_cosine)
        missed = bounds.missed(found)
    except (NotComparable, TableError) as error:
        raise BadUsage(printable(str(error))) from error  # it quotes records
    if as_json:
        print(json.dumps({**asdict(found), "passed": not missed if bounds.are_given else None, "missed": missed}))
    else:
        show_drift(found, missed, is_bounded=bounds.are_given)
    return EXIT_PROBLEM if missed else EXIT_OK


async def _samples(settings: DriftSettings, names: Sequence[str]) -> list[KeyedSample]:
    """The samples of both. What does not exist is found before the first is read."""
    files = [name for name in names if _is_file(name)]
    if len(files) == len(names):
        return [_sample_file(settings, name) for name in names]
    async with open_reader(KafkaCluster.of(settings)) as reader:
        topics = {name: await num_partitions(reader, name) for name in names if name not in files}
        return [
            await _sample_topic(settings, reader, name, topics[name])
            if name in topics
            else _sample_file(settings, name)
            for name in names
        ]


async def _sample_topic(settings: DriftSettings, reader: TopicReader, topic: str, partitions: int) -> KeyedSample:
    field = "result" if settings.result_field is None else settings.result_field
    with progress_bar(f"Reading {topic}") as show:
        return await sample_topic(reader, topic, partitions, FieldPlace(Pointer.parse(field)), settings.sample, show)


def _sample_file(settings: DriftSettings, name: str) -> KeyedSample:
    field = settings.result_field
    place = JobColumns() if field is None else FieldPlace(Pointer.parse(field))
    with progress_bar(f"Reading {name}") as show:
        return sample_file(Path(name), place, settings.key_column, settings.sample, show)


def _is_file(name: str) -> bool:
    """Whether a file is named, and not a topic. Raises NotComparable for a missing file, and for other names."""
    if name.endswith(_FILES):
        if not Path(name).is_file():
            raise NotComparable(f"There is no file {name}.")
        return True
    try:
        check_topic(name)
    except ValueError as error:
        raise NotComparable(f"{name} is neither a file ({', '.join(_FILES)}) nor a topic: {error}.") from error
    return False
