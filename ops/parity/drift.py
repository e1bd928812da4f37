"""Comparison of what two versions of a model answered to the same records. Used by `penstock drift`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.ops.parity.drift_measures import (
    LabelDrift,
    ScoreDrift,
    VectorDrift,
    label_drift,
    score_drift,
    vector_drift,
)
from penstock.ops.parity.keyed_sample import KeyedSample, SampledRecord, common_reach
from penstock.ops.parity.recorded_answers import NotComparable, Unanswered, kind_of

_LEAST_SHARE = 0.5  # of the keys with an answer, that have a pair
_ROUNDING = 1e-9  # of a cosine
_Pair = tuple[SampledRecord, SampledRecord]


@dataclass(frozen=True, slots=True)
class Version:
    """One side of a comparison."""

    name: str  # the topic or file
    records: int  # that were read
    models: tuple[tuple[str, str, int], ...]  # model, revision and number of its answers, the most first
    keys: int  # of these, in the sample
    answers: int  # of the keys
    tombstones: int
    unanswered: int  # without an answer, and no tombstones
    example: str | None  # one of them, and why it has none
    missing: int  # keys that the other side alone has


@dataclass(frozen=True, slots=True)
class Drift:
    """The findings of a comparison."""

    versions: tuple[Version, Version]
    keys: int  # in the sample, of either side
    answered: int  # of these, keys with an answer on either side
    pairs: int  # keys with an answer of both to the same input: those that are compared
    other_inputs: int  # keys with answers of both, but not to the same input
    other_example: tuple[str, str] | None  # the places of the records of one of them
    kind: str  # labels, vectors or scores
    measured: LabelDrift | VectorDrift | ScoreDrift
    worst: tuple[str, str] | None  # the places of the pair that is farthest apart


@dataclass(frozen=True, slots=True)
class DriftBounds:
    """How far apart two versions may be."""

    max_label_changes: float | None = None  # a share
    min_cosine: float | None = None

    @property
    def are_given(self) -> bool:
        return self.max_label_changes is not None or self.min_cosine is not None

    def missed(self, drift: Drift) -> list[str]:
        """A sentence for each bound that is missed. Raises NotComparable if the answers have no such figure."""
        sentences = []
        if self.max_label_changes is not None:
            share = _label_changes(drift)
            if share > self.max_label_changes:
                sentences.append(
                    f"{_percent(share)} of the labels differ; at most {_percent(self.max_label_changes)} may."
                )
        if self.min_cosine is not None:
            least = _least_cosine(drift)
            if least < self.min_cosine - _ROUNDING:
                sentences.append(f"The least cosine is {least:.6f}; at least {self.min_cosine:g} is asked for.")
        if self.are_given and drift.pairs < _LEAST_SHARE * drift.answered:
            found = f"{drift.pairs:,} of {drift.answered:,}"
            sentences.append(f"{found} keys with an answer have a pair: too few to judge.")
        return sentences


def _label_changes(drift: Drift) -> float:
    if not isinstance(drift.measured, LabelDrift):
        raise NotComparable(f"--max-label-changes is a bound of labels, and the answers are {drift.kind}.")
    return drift.measured.share


def _least_cosine(drift: Drift) -> float:
    if not isinstance(drift.measured, VectorDrift):
        raise NotComparable(f"--min-cosine is a bound of vectors, and the answers are {drift.kind}.")
    if drift.measured.cosine is None:
        dimensions = "{:,} and {:,}".format(*drift.measured.dimensions)
        raise NotComparable(f"Vectors of {dimensions} dimensions have no cosine, so --min-cosine cannot be judged.")
    return drift.measured.cosine.min


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def compare(first: KeyedSample, second: KeyedSample) -> Drift:
    """Compare two samples of one size. Raises NotComparable, with the records that are at fault."""
    reach = common_reach(first, second)
    sides = first.within(reach), second.within(reach)
    _refuse_faults(sides)
    shared = sorted(sides[0].keys() & sides[1].keys())  # by hash: the same order on every machine
    if not shared:
        raise NotComparable(_nothing_shared((first, second), sides))
    both = [(sides[0][key], sides[1][key]) for key in shared]
    answered = [pair for pair in both if not any(map(_why_none, pair))]
    pairs = [pair for pair in answered if pair[0].is_of_input(pair[1])]
    others = [pair for pair in answered if not pair[0].is_of_input(pair[1])]
    if not pairs:
        raise NotComparable(_no_pair((first, second), sides, others))
    kind, measured, worst = _measure(pairs)
    has_answer = {key for side in sides for key, one in side.items() if not _why_none(one)}
    return Drift(
        (_version(first, sides[0], sides[1]), _version(second, sides[1], sides[0])),
        keys=len(sides[0].keys() | sides[1].keys()),
        answered=len(has_answer),
        pairs=len(pairs),
        other_inputs=len(others),
        other_example=_places(others[0]) if others else None,
        kind=kind,
        measured=measured,
        worst=None if worst is None else _places(pairs[worst]),
    )


def _measure(pairs: Sequence[_Pair]) -> tuple[str, LabelDrift | VectorDrift | ScoreDrift, int | None]:
    """The kind of the answers, their measures, and the pair that is farthest apart.

    Raises NotComparable for answers of two kinds.
    """
    kinds = [_kind_of_all([pair[side] for pair in pairs]) for side in (0, 1)]
    answers: Any = [[pair[side].answer for pair in pairs] for side in (0, 1)]
    match [kind.split()[0] for kind in kinds]:
        case "labels", "labels":
            return "labels", label_drift(*answers), None
        case "vectors", "vectors":
            return "vectors", *vector_drift(*answers)
        case "scores", "scores":
            return "scores", *score_drift(*answers)
        case _:
            places = " and ".join(f"{kind} ({one.place})" for kind, one in zip(kinds, pairs[0], strict=True))
            raise NotComparable(f"The two versions have answers of two kinds: {places}.")


def _kind_of_all(records: Sequence[SampledRecord]) -> str:
    first, kind = records[0], kind_of(records[0].answer)
    for one in records:
        if (other := kind_of(one.answer)) != kind:
            raise NotComparable(f"{one.place} holds {other}, and {first.place} {kind}, of the same version.")
    return kind


def _refuse_faults(sides: Sequence[dict[int, SampledRecord]]) -> None:
    faults = [one for side in sides for one in side.values() if isinstance(one.answer, NotComparable)]
    if faults:
        first = min(faults, key=lambda one: one.place)
        others = f" Other records at fault in the samples: {len(faults) - 1:,}." if len(faults) > 1 else ""
        raise NotComparable(f"{first.place} {first.answer}.{others}")


def _nothing_shared(samples: Sequence[KeyedSample], sides: Sequence[dict[int, SampledRecord]]) -> str:
    for sample in samples:
        if not sample.num_records:
            return f"{sample.name} holds no record."
    examples = " and ".join(next(iter(side.values())).place for side in sides if side)
    return (
        f"{samples[0].name} and {samples[1].name} have no key in common. Compare the keys of {examples}. Records of "
        "topics are paired by their keys or, without keys, by the header penstock-source; rows of files by their place "
        "or by --key-column."
    )


def _no_pair(samples: Sequence[KeyedSample], sides: Sequence[dict[int, SampledRecord]], others: Sequence[_Pair]) -> str:
    if others:
        places = " and ".join(_places(others[0]))
        return (
            f"No key has answers to the same input: {places} have one key, and differ in what is beside the answer or, "
            "without anything there, in the position of their input."
        )
    examples = "; ".join(filter(None, map(_example, sides))) or "All have a tombstone on one side"
    return f"No key has an answer both in {samples[0].name} and in {samples[1].name}. {examples}."


def _why_none(record: SampledRecord) -> Unanswered | None:
    return record.answer if isinstance(record.answer, Unanswered) else None


def _example(side: dict[int, SampledRecord]) -> str | None:
    """The first record without an answer that is no tombstone, and the reason."""
    reasons = [(one.place, why.reason) for one in side.values() if (why := _why_none(one)) and not why.is_tombstone]
    return " ".join(min(reasons)) if reasons else None


def _places(pair: _Pair) -> tuple[str, str]:
    return pair[0].place, pair[1].place


def _version(sample: KeyedSample, own: dict[int, SampledRecord], other: dict[int, SampledRecord]) -> Version:
    answers = [one for one in own.values() if not _why_none(one)]
    tombstones = sum(why.is_tombstone for one in own.values() if (why := _why_none(one)))
    models = Counter((one.model, one.revision) for one in answers if one.model or one.revision)
    return Version(
        sample.name,
        sample.num_records,
        tuple((*name, count) for name, count in models.most_common()),
        keys=len(own),
        answers=len(answers),
        tombstones=tombstones,
        unanswered=len(own) - len(answers) - tombstones,
        example=_example(own),
        missing=len(other.keys() - own.keys()),
    )
