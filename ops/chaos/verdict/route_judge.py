"""The verdict on a run with routes, from records alone: each has come out once, in its key's order, with its result."""

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.engine.types import Float32Array
from penstock.ops.bench.load.records import Partition, Record
from penstock.ops.chaos.load.route_load import CODE, JSON, TEXT
from penstock.ops.chaos.verdict.judge import alone

RESULT = "vector"  # the field
_HEAD = struct.calcsize(">bI")  # the id of a schema, before a record of Avro
_SOURCE = "penstock-source"
_MOST_SHOWN = 20  # violations of one kind that a report names


@dataclass(slots=True)
class _Input:
    record: Record
    num_outputs: int = 0
    num_letters: int = 0


class RouteJudge:
    """Takes all inputs, then all outputs and letters. `violations` is the verdict."""

    def __init__(
        self, outputs: Mapping[str, str], expected: Callable[[str], Float32Array], *, may_repeat: bool
    ) -> None:
        """`outputs`: the output topic of each input topic. `expected`: the result of a text, as the engine has it.

        Without `may_repeat` nothing comes twice.
        """
        self.violations: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self._outputs, self._expected, self._may_repeat = outputs, expected, may_repeat
        self._inputs: dict[bytes, _Input] = {}
        self._last: dict[tuple[str, bytes], int] = {}  # topic and key of inputs -> offset of the newest output

    def inputs(self, records: Iterable[Record], acknowledged: Iterable[tuple[str, int, int]]) -> None:
        """All records of the input topics, and those among them that brokers have acknowledged."""
        for record in records:
            self._inputs[_place(record.topic, record.partition, record.offset)] = _Input(record)
            self.counts["inputs"] += 1
        for one in acknowledged:
            if _place(*one) not in self._inputs:
                self.complain("input_lost_by_brokers", str(one))

    def output(self, record: Record) -> None:
        """One record of the output topics; those of a partition in their order."""
        self.counts["outputs"] += 1
        source = dict(record.headers).get(_SOURCE, b"")
        found = self._inputs.get(source)
        if found is None or self._outputs[found.record.topic] != record.topic:
            self.complain("output_of_nothing", f"{record.position}: {source!r}")
            return
        original = found.record
        found.num_outputs += 1
        if found.num_outputs == 1 and original.key is not None:
            line = original.topic, original.key
            if self._last.get(line, -1) > original.offset:
                self.complain("out_of_order", f"{source.decode()} after offset {self._last[line]}")
            self._last[line] = original.offset
        if (record.key, record.timestamp) != (original.key, original.timestamp) or not self._is_right(original, record):
            self.complain("wrong_output", f"{source.decode()}: {record.value!r}")

    def letter(self, record: Record) -> None:
        """One record of the dead-letter topics, which may stand for several inputs."""
        for letter in alone(record):
            self.counts["dead_letters"] += 1
            headers = dict(letter.headers)
            found = self._inputs.get(headers.get(_SOURCE, b""))
            if found is None:
                self.complain("letter_of_nothing", f"{headers.get(_SOURCE)!r}")
                continue
            found.num_letters += 1
            code = headers.get("penstock-error-code")
            wanted = dict(found.record.headers).get(CODE)
            if wanted != code or letter.value != found.record.value:
                told = (
                    f"{headers[_SOURCE].decode()}: {code!r} and not {wanted!r}, {headers['penstock-error-message']!r}"
                )
                self.complain("wrong_letter", told)

    def check_outcomes(self, committed: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
        """Each input has its outcome, and is committed. After all records."""
        for place, one in self._inputs.items():
            is_bad = CODE in dict(one.record.headers)
            num, num_others = one.num_outputs, one.num_letters
            if is_bad:
                num, num_others = num_others, num
            self.counts["bad_inputs"] += is_bad
            self.counts["came_twice"] += num > 1
            if not num:
                self.complain("lost", place.decode())
            if num > 1 and not self._may_repeat:
                self.complain("doubled", f"{place.decode()}: {num} times")
            if num_others:
                self.complain("wrong_outcome", place.decode())
        for source, end in ends.items():
            if end and committed.get(source, 0) != end:
                self.complain("left_behind", f"{source}: {committed.get(source)} of {end}")

    def complain(self, kind: str, example: str) -> None:
        """Count a violation."""
        self.violations[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _MOST_SHOWN:
            examples.append(example)

    def _is_right(self, original: Record, output: Record) -> bool:
        text = dict(original.headers).get(TEXT)
        if text is None:
            return output.value == original.value
        value, came = original.value or b"", output.value or b""
        vector = self._expected(text.decode()).astype("<f4")
        if original.topic == JSON:
            return bool(json.loads(came) == {**json.loads(value), RESULT: np.asarray(vector, float).tolist()})
        # A union's second branch, and an array: one block, and the end of blocks. Small numbers are doubled.
        added = bytes([2, 2 * len(vector)]) + vector.tobytes() + b"\0"
        return came[_HEAD:] == value[_HEAD:] + added


def _place(topic: str, partition: int, offset: int) -> bytes:
    return f"{topic}-{partition}-{offset}".encode()
