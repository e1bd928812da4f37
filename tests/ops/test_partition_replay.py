"""No key ends with an older record, however live records and replays interleave, and whenever the command looks."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.cli.replays.partition_replay import InputRecord, PartitionReplay


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None = b""
    partition: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


def records(*keys: bytes | None) -> list[Record]:
    return [Record(offset, key) for offset, key in enumerate(keys)]


def surveyed(found: Sequence[Record], first: int = 0, last: int | None = None) -> PartitionReplay:
    replay = PartitionReplay(first, last)
    for one in found:
        replay.survey(one)
    return replay


def wanted(replay: PartitionReplay, found: Sequence[Record]) -> list[int]:
    chosen = [one.offset for one in found if replay.is_wanted(one)]
    assert len(chosen) == replay.count_wanted()
    return chosen


def test_the_newest_of_each_key_and_all_without_keys_are_wanted() -> None:
    found = records(b"a", b"b", None, b"a", None)
    assert wanted(surveyed(found), found) == [1, 2, 3, 4]


def test_a_record_of_the_range_is_not_wanted_if_its_key_has_a_newer_one_behind_it() -> None:
    found = records(b"a", b"b", b"c", None, b"b", None)
    assert wanted(surveyed(found[1:], 1, 3), found) == [2, 3]


def test_what_an_interrupted_run_has_sent_is_not_wanted_unless_a_newer_one_came() -> None:
    found = records(b"a", None, b"b", None, b"a")
    replay = PartitionReplay()
    for at, one in enumerate(found[:3]):
        replay.note_sent(one.key, one.offset, at, 0.0)
    for one in found:
        replay.survey(one)
    assert wanted(replay, found) == [3, 4]
    assert not replay.is_idle
    replay.finish(3, 1.0)
    assert replay.is_idle


def test_a_key_that_changes_all_the_time_does_not_hold_a_replay_up() -> None:
    """The worker enriches what comes later after the replay, so nothing more is sent for the key."""
    found = records(b"a")
    replay = surveyed(found)
    replay.send(found[0])
    replay.seal(1, 0.0)
    replay.follow(Record(1, b"a"))
    assert replay.finish(1, 3.0) == 1
    assert (list(replay.due(5.9)), replay.is_idle) == ([], False)
    replay.follow(Record(2, b"a"))
    assert (list(replay.due(6.0)), replay.is_idle) == ([], True)


def test_a_resumed_replay_of_a_range_sends_a_newer_record_behind_the_range_after_what_it_had_sent() -> None:
    """The worker may have enriched the newer one before the copy that was on its way when the run ended."""
    found = records(b"a", b"b", b"a", b"b")
    replay = PartitionReplay(0, 0)
    replay.note_sent(b"a", 0, 0, 0.0)
    for one in found:
        replay.survey(one)
    assert wanted(replay, found) == [2]


class Simulation:
    """An input topic, a topic of replays, a worker that takes of either what it likes, and the command."""

    def __init__(self, history: Sequence[int]) -> None:
        self.input = records(*map(_key, history))
        self.replays: list[InputRecord] = []
        self.outputs: list[InputRecord] = list(self.input)
        self.num_live = len(self.input)  # enriched
        self.num_replayed = self.committed = 0
        self.replay = surveyed(self.input)
        self.surveyed_end = self.followed = len(self.input)
        self.cursor = 0
        self.now = 0.0
        self.seen = self.committed

    def step(self, what: str) -> None:
        match what:
            case "a" | "b":
                self.input.append(Record(len(self.input), what.encode()))
            case "live" if self.num_live < len(self.input):
                self.outputs.append(self.input[self.num_live])
                self.num_live += 1
            case "replay" if self.num_replayed < len(self.replays):
                self.outputs.append(self.replays[self.num_replayed])
                self.num_replayed += 1
            case "commit":
                self.committed = self.num_replayed
            case "read committed":
                self.seen = self.committed
            case "look":
                self.look()
            case "send" if self.cursor < self.surveyed_end:
                one = self.input[self.cursor]
                self.cursor += 1
                if self.replay.is_wanted(one):
                    self.send([one])

    def look(self) -> None:
        """`seen` was read before the end of the input is."""
        self.now += 1
        for one in self.input[self.followed :]:
            self.replay.follow(one)
        self.followed = len(self.input)
        self.replay.finish(self.seen, self.now)
        self.send(self.replay.due(self.now))

    def send(self, found: Sequence[InputRecord]) -> None:
        for one in found:
            self.replay.send(one)
            self.replays.append(one)
        self.replay.seal(len(self.replays), self.now)

    def end(self) -> None:
        """No more live records come, and the command ends. Then the worker finishes the live ones."""
        for _ in range(1000):
            if self.cursor == self.surveyed_end and self.replay.is_idle:
                break
            for what in ("replay", "commit", "read committed", "look", "send"):
                self.step(what)
        else:
            raise AssertionError("The command does not end.")
        while self.num_live < len(self.input):
            self.step("live")


def _key(number: int) -> bytes | None:
    return [b"a", b"b", None][number]


STEPS = st.sampled_from(["a", "b", "live", "live", "replay", "commit", "read committed", "look", "send"])


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(STEPS, max_size=60))
def test_the_last_enriched_record_of_each_key_is_its_newest(history: list[int], steps: list[str]) -> None:
    world = Simulation(history)
    for what in steps:
        world.step(what)
    world.end()
    for key in (b"a", b"b"):
        newest = [one.offset for one in world.input if one.key == key]
        enriched = [one.offset for one in world.outputs if one.key == key]
        assert enriched[-1:] == newest[-1:]
    keyless = [one.offset for one in world.input[: world.surveyed_end] if one.key is None]
    assert [one.offset for one in world.replays if one.key is None] == keyless
