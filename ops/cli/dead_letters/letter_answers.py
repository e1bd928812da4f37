"""Answers dead letters, prints the outcome of each, and sends the replies, or in a dry run none."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from penstock.ops.cli.dead_letters.answerer import Answerer
from penstock.ops.cli.dead_letters.dead_letter import DeadLetter
from penstock.ops.cli.dead_letters.record_sender import RecordSender
from penstock.ops.cli.dead_letters.replayer import (
    DRY_RUN,
    Position,
    ReplayOptions,
    headers_again,
    num_of,
    refusals,
    say_refused,
)
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, say
from penstock.ops.logs.lines.event import printable
from penstock.producer.errors import PenstockError
from penstock.producer.wire.headers import Headers


@dataclass(slots=True)
class _Original:
    """A `KafkaRecord`: the original of a letter, with the headers with which it would be sent again."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, letter: DeadLetter, source: Position, options: ReplayOptions) -> "_Original":
        record = letter.record
        headers = headers_again(letter.original_headers, source, options)
        return cls(*source, letter.sent_ms, record.key, record.value, headers)


class LetterAnswers:
    """Takes letters one at a time."""

    def __init__(self, options: ReplayOptions, answerer: Answerer, sender: RecordSender | None) -> None:
        """Without a `sender` this is a dry run. The caller opens and closes both."""
        self._options = options
        self._answerer = answerer
        self._sender = sender
        self._answered: Counter[str] = Counter()  # by reply topic
        self._failed: Counter[str] = Counter()  # by error code
        self._skipped: Counter[str] = Counter()  # by reason

    async def add(self, letter: DeadLetter) -> None:
        """Answer a letter. One that fails again gets no second error reply and no second letter."""
        source = letter.position
        if letter.obstacle or source is None:
            self._skipped[letter.obstacle] += 1
            self._report(letter, "skipped", reason=letter.obstacle)
            return
        try:
            original = _Original.of(letter, source, self._options)
            reply = await self._answerer.answer(original, letter.topic_id, bulk=letter.is_bulk)
        except PenstockError as error:
            self._failed[error.code] += 1
            self._report(letter, "failed", code=error.code, message=error.message)
            return
        address = reply.address
        self._answered[address.topic] += 1
        what = {"task": reply.task, "sequences": reply.num_sequences, "bytes": len(reply.value)}
        self._report(letter, "answered", **what, to=address.topic)
        if self._sender is not None:
            await self._sender.send(address.topic, address.partition, reply.key, reply.value, address.headers())

    async def finish(self) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code."""
        refused = await refusals(self._sender)
        done = "Would send" if self._sender is None else "Sent"
        for topic, count in self._answered.items():
            replies = f"{count - refused[topic]:,} repl{'y' if count - refused[topic] == 1 else 'ies'}"
            say(f"{done} {replies} to {topic}.")
        for code, count in self._failed.items():
            say(f"{num_of('letter', count)} failed again: {code}.", "yellow")
        for reason, count in self._skipped.items():
            say(f"Skipped {num_of('letter', count)}: {reason}.", "yellow")
        say_refused(self._sender)
        if not (self._answered or self._failed or self._skipped):
            say("No dead letter matches.")
        elif self._sender is None:
            say(DRY_RUN)
        return EXIT_PROBLEM if refused or self._failed else EXIT_OK

    def _report(self, letter: DeadLetter, outcome: str, **what: Any) -> None:
        if self._options.as_json:
            print(json.dumps({"id": letter.id, "source": letter.source, "outcome": outcome, **what}))
            return
        details = ", ".join(f"{name} {value}" for name, value in what.items())
        print(printable(f"{letter.id}  {outcome}: {details}"))
