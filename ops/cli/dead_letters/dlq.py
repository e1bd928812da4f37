"""`penstock dlq`: list, show, replay and answer the dead letters of a model's topics.

Any client may have written a letter: no control character of it is printed.
"""

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import AfterValidator, Field
from rich.console import Console
from rich.table import Table

from penstock.ops.cli.dead_letters.letter_selection import Selection, read_letters
from penstock.ops.cli.dead_letters.record_sender import open_sender
from penstock.ops.cli.dead_letters.replayer import AsJson, Execute, LetterAnswers, Replayer, ReplayOptions
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, fail, narrate_logs, say
from penstock.ops.logs.text import printable
from penstock.producer.settings import KafkaSettings, RequestTopic
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import check_served_name, request_topic, served_name_of
from penstock.worker.model_settings import ModelSettings
from penstock.worker.settings import RequestSettings

dlq = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, show, replay and answer the dead letters of a model's topics.",
)

_MAX_LISTED = 100
_SHOWN_CHARS = 80  # of a message in the table

ExecuteReplies = Annotated[bool, typer.Option("--execute", help="Send the replies. Otherwise only compute them.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Most letters. Default: 100 in a table.")]


class DlqSettings(KafkaSettings):
    """Settings of the commands that read letters."""

    model: Annotated[str | None, AfterValidator(lambda name: check_served_name(name and served_name_of(name)))] = Field(
        None, description="The model's served name, or its checkpoint's path or id, whose last part is the name."
    )
    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<model>.")


class AnswerSettings(ModelSettings, RequestSettings, KafkaSettings):
    """Settings of `penstock dlq answer`."""

    topic: RequestTopic = Field(None, description="Request topic. Default: penstock.requests.<served name>.")


@dlq.command("ls")
@takes(DlqSettings, without=("ids",))
def list_letters(settings: DlqSettings, selection: Selection, limit: Limit = None, as_json: AsJson = False) -> int:
    """List dead letters, and count them by error code.

    $ penstock dlq ls --model intents --reason backend

    Exit code 0, also if there is none. 2: there is no such topic of letters.
    """
    return _run(settings, lambda topic: _list(settings, topic, selection, limit, as_json))


@dlq.command()
@takes(DlqSettings)
def show(
    settings: DlqSettings, letter: Annotated[str, typer.Argument(metavar="ID", help="As `dlq ls` prints it.")]
) -> int:
    """Print a dead letter as JSON: why it was written, and its original's headers, key and value (base64).

    Originals that share a letter are printed one after another.

    $ penstock dlq show --model intents 3:17

    Exit code 1: there is no such letter. 2: there is no such topic of letters.
    """
    return _run(settings, lambda topic: _show(settings, topic, Selection(ids=letter)))


@dlq.command()
@takes(DlqSettings)
def replay(settings: DlqSettings, selection: Selection, *, execute: Execute = False, options: ReplayOptions) -> int:
    """Send the originals of dead letters to their request topics again.

    Without --execute: only count them; with --json, list them.

    $ penstock dlq replay --model intents --reason backend --execute

    A replayed record has the header penstock-replay-of. Its reply has it too, and a key
    of its own: a reader that trusts the senders can tell by it that two answers are to one record.
    The letters stay in their topic.

    Exit code 1: no letter matches, or the broker refused some. 2: there is no such topic of letters.
    """
    return _run(settings, lambda topic: _replay(settings, topic, selection, options, execute))


@dlq.command()
@takes(AnswerSettings, without=("deadline_s", "max_replays"))
def answer(
    settings: AnswerSettings, selection: Selection, *, execute: ExecuteReplies = False, options: ReplayOptions
) -> int:
    """Answer dead letters in this process, which loads the worker's model, and send the replies.

    Without --execute: compute the replies and print the outcomes, but send nothing.

    $ penstock dlq answer --model ./checkpoint --served-name intents --reason backend --execute

    A reply goes to the letter's reply address and has the key of a reply to the original, by which readers can drop
    duplicates. A letter that fails again gets no second error reply. The letters stay in their topic.

    Exit code 1: letters failed again, or the broker refused replies. 2: there is no such topic of letters.
    """
    if options.reply_topic is not None:  # the operator's choice needs no allow-list
        settings = settings.model_copy(update={"reply_topics": re.escape(options.reply_topic)})
    narrate_logs(settings.bootstrap_servers)
    return asyncio.run(_answer(settings, selection, options, execute))


def _run(settings: DlqSettings, body: Any) -> int:
    narrate_logs(settings.bootstrap_servers)
    if settings.topic is None and settings.model is None:
        raise BadUsage("Give --model or --topic.")
    code: int = asyncio.run(body(settings.topic or request_topic(settings.model or "")))
    return code


async def _list(settings: DlqSettings, topic: str, selection: Selection, limit: int | None, as_json: bool) -> int:
    counts: Counter[str] = Counter()
    listing = Listing(most=limit or (sys.maxsize if as_json else _MAX_LISTED))
    async with aclosing(read_letters(KafkaCluster.of(settings), topic, selection)) as found:
        async for letter in found:
            counts[letter.code] += 1
            if as_json and counts.total() <= listing.most:
                print(json.dumps(letter.summary()))
            elif not as_json:
                listing.add(letter.summary())
    listing.print()
    codes = ", ".join(f"{code} {count:,}" for code, count in counts.most_common())
    plural = "s" if counts.total() > 1 else ""
    say(f"{counts.total():,} dead letter{plural}: {codes}." if counts else f"No dead letter of {topic} matches.")
    num_listed = min(counts.total(), listing.most) if as_json else listing.num_records
    if counts.total() > num_listed:
        others = "--limit lists more; --reason, --partition, --from and --to list others."
        say(f"{num_listed:,} of them are listed. {others}")
    return EXIT_OK


async def _show(settings: DlqSettings, topic: str, selection: Selection) -> int:
    async with aclosing(read_letters(KafkaCluster.of(settings), topic, selection)) as found:
        letters = [letter.details() async for letter in found]
    if not letters:
        fail(f"There is no such dead letter of {topic}.")
        return EXIT_PROBLEM
    for letter in letters:
        print(shown_as_json(letter))
    return EXIT_OK


async def _replay(
    settings: DlqSettings, topic: str, selection: Selection, options: ReplayOptions, execute: bool
) -> int:
    cluster = KafkaCluster.of(settings)
    letters = aclosing(read_letters(cluster, topic, selection))
    async with open_sender(cluster, execute=execute) as sender, letters as found:
        replayer = Replayer(options, sender)
        async for letter in found:
            source = letter.position
            if letter.obstacle or source is None:
                replayer.skip((letter.record.topic, letter.record.partition, letter.record.offset), letter.obstacle)
            else:
                await replayer.offer(
                    source, letter.original_key, letter.record.value, letter.original_headers, source[0]
                )
        return await replayer.finish()


async def _answer(settings: AnswerSettings, selection: Selection, options: ReplayOptions, execute: bool) -> int:
    settings.require_model()
    from penstock.ops.cli.dead_letters.answerer import open_answerer  # loads what the other commands do not need

    cluster = KafkaCluster.of(settings)
    async with open_answerer(settings, settings) as answerer, open_sender(cluster, execute=execute) as sender:
        answers = LetterAnswers(options, answerer, sender)
        topic = settings.topic or request_topic(answerer.served_name)
        async with aclosing(read_letters(cluster, topic, selection)) as found:
            async for letter in found:
                await answers.add(letter)
        return await answers.finish()


class Listing:
    """Lines of a table: one a letter, or for each error code of a letter of several originals."""

    def __init__(self, most: int) -> None:
        self.most = most  # lines
        self.num_records = 0  # originals in the lines
        self._lines: list[tuple[Mapping[str, Any], int]] = []  # the first original's summary, and their number
        self._places: dict[tuple[str, str], int] = {}  # of the lines of the last letter, by its id and the code

    def add(self, letter: Mapping[str, Any]) -> None:
        """Add an original; those of a letter follow each other. Does nothing if it needs a line more than allowed."""
        key = letter["id"], letter["code"]
        if (place := self._places.get(key)) is None:
            if len(self._lines) == self.most:
                return
            if self._lines and self._lines[-1][0]["id"] != letter["id"]:
                self._places.clear()
            place = self._places[key] = len(self._lines)
            self._lines.append((letter, 0))
        first, count = self._lines[place]
        self._lines[place] = first, count + 1
        self.num_records += 1

    def print(self) -> None:
        """Print the lines on stdout; nothing without any."""
        if not self._lines:
            return
        table = Table("id", "original", "code", "tried", "written (UTC)", "message", box=None, header_style="bold")
        for one, count in self._lines:
            source = one["source"] if count == 1 else f"{one['source']} and {count - 1:,} more"
            texts = one["id"], source, one["code"], str(one["attempts"] or ""), written_utc(one["written_ms"])
            table.add_row(*map(printable, (*texts, one["message"][:_SHOWN_CHARS])))
        Console(highlight=False, markup=False, soft_wrap=True).print(table)


def shown_as_json(letter: Mapping[str, Any]) -> str:
    """A letter as JSON, readable and indented; characters that control the terminal are escaped."""
    text = json.dumps(letter, indent=2, ensure_ascii=False)
    return "".join([one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text])


def written_utc(timestamp_ms: int) -> str:
    """UTC date and time; `?` for a number that is no time, as a producer may write any."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"
