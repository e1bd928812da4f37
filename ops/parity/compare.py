"""Comparison of answers here with those of a reference. Used by `penstock parity`."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.engine.precision_loss import NEIGHBOURS, neighbours_kept
from penstock.ops.parity.calls import Answer, Call, answer_of, cosine, distance
from penstock.ops.parity.references import Reference
from penstock.producer.errors import PenstockError, TooLong
from penstock.producer.wire.messages import EMBEDDING_TASKS, Options, Row, Text

# Largest distances that pass: in float32, in 16 bits, where twice what transformers loses passes too, and in int8.
# Two vectors whose cosine is 0.9999 differ by 0.0141 of their length, and by 0.0447 if it is 0.999.
_BOUNDS_OF_VECTORS = (1e-3, 1.41e-2, 4.47e-2)
_BOUNDS = {"embed": _BOUNDS_OF_VECTORS, "embed_tokens": _BOUNDS_OF_VECTORS, "generate": (0.0, 0.1, 0.1)}
_BOUNDS_OF_SCORES = (1e-4, 5e-3, 2e-2)
_TOGETHER = 32  # texts of one request

Ask = Callable[[str, Sequence[Text], Options], Awaitable[Sequence[Row]]]  # one request: a row a text, or PenstockError


@dataclass(frozen=True, slots=True)
class Loss:
    """How far answers are from the reference's."""

    distance: float  # the largest; of generated tokens the mean
    worst: int  # text of the largest distance
    cosine_min: float | None  # of vectors, also of tokens
    cosine_mean: float | None  # of the texts' smallest
    kept: float | None  # of vectors of texts: the part of the ten nearest that is the same; None: too few texts
    labels_changed: int | None  # of classes: texts whose first label is another


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. Texts are named by their index, from 0."""

    what: str
    num_texts: int  # that were compared
    distance: float = 0.0  # the largest; of generated tokens the mean
    bound: float = 0.0
    worst: int | None = None  # text of the largest distance
    cosine_min: float | None = None  # of vectors, also of tokens
    cosine_mean: float | None = None  # of the texts' smallest
    theirs: Loss | None = None  # of transformers in 16 bits, where that is the arithmetic here or it is int8
    kept: float | None = None  # of vectors of texts: the part of the ten nearest that is the same; None: too few texts
    labels_changed: int | None = None  # of classes: texts whose first label is another
    fault: str = ""  # why it fails, where it is not the distance
    refused: dict[int, str] = field(default_factory=dict)  # texts that one side does not answer, with its reason

    @property
    def passed(self) -> bool:
        """False for a distance that is no number, and where nothing was compared."""
        return not self.fault and self.num_texts > 0 and self.distance <= self.bound


class Comparison:
    """Compares one task. `run` yields the lines of the report."""

    def __init__(
        self, ask: Ask, dtype: str, reference: Reference, beside: Reference | None, texts: Sequence[str]
    ) -> None:
        """`dtype`: the arithmetic here. `beside`: the reference in it, of int8 in 16 bits; None in float32."""
        self._ask = ask
        self._dtype = dtype
        self._reference = reference
        self._beside = beside
        self._texts = texts

    async def run(self, call: Call, done: Callable[[], None]) -> AsyncIterator[Check]:
        """Each text alone, and all together. `done` is called after each text."""
        texts: Sequence[Text] = self._texts
        if call.of_pairs:
            texts = [(first, second) for first, second in itertools.pairwise(self._texts) if first and second]
        refused: dict[int, str] = {}
        ours: dict[int, Answer] = {}
        want: dict[int, Answer] = {}
        near: dict[int, Answer] = {}
        for index, text in enumerate(texts):
            try:
                want[index] = self._reference.answer(call, text)
                if self._beside is not None:
                    near[index] = self._beside.answer(call, text)
            except Exception as error:  # the libraries raise dozens of unrelated types
                refused[index] = f"{self._reference.name}: {type(error).__name__}: {error}"[:300]
            answer = await self._answer(call, [text])
            if isinstance(answer, PenstockError):
                refused[index] = f"penstock: {answer.code}: {answer.message}"
            else:
                [ours[index]] = answer
            done()
        compared = [index for index in ours if index in want]
        yield replace(self._check(call, call.what, compared, ours, want, near), refused=refused)
        together: dict[int, Answer] = {}
        fault = ""
        for start in range(0, len(compared), _TOGETHER):
            indices = compared[start : start + _TOGETHER]
            answers = await self._answer(call, [texts[index] for index in indices])
            if isinstance(answers, PenstockError):
                fault = f"{answers.code}: {answers.message}"
            else:
                together |= dict(zip(indices, answers, strict=True))
        yield replace(self._check(call, f"{call.what}, together", list(together), together, want, near), fault=fault)

    async def limits(self, call: Call) -> Check:
        """Whether the same texts are too long here as are cut by the reference."""
        limit, wrong, num_texts = self._reference.limit, list[int](), 0
        no_prompt = "" if call.task in EMBEDDING_TASKS else None
        for index, text in enumerate(self._texts if limit is not None else ()):
            answer = await self._answer(call, [text], truncate=False, prompt=no_prompt)
            if isinstance(answer, PenstockError) and not isinstance(answer, TooLong):
                continue
            num_texts += 1
            if isinstance(answer, TooLong) != (num_tokens(self._reference, text) > (limit or 0)):
                wrong.append(index)
        fault = (
            f"{len(wrong)} texts are too long on one side alone; the reference cuts at {limit} tokens" if wrong else ""
        )
        return Check("too long", num_texts, worst=wrong[0] if wrong else None, fault=fault)

    async def _answer(
        self, call: Call, texts: Sequence[Text], *, truncate: bool = True, prompt: str | None = None
    ) -> list[Answer] | PenstockError:
        truncate = truncate and self._reference.limit is not None
        options = Options(
            truncate=truncate,
            top_k=None if call.task == "embed_tokens" else 0,  # all labels, and all weights
            labels=call.labels,
            multi_label=call.multi_label,
            prompt_name=call.prompt_name,
            prompt=prompt,
        )
        try:
            return [answer_of(row) for row in await self._ask(call.task, texts, options)]
        except PenstockError as error:
            return error

    def _check(
        self,
        call: Call,
        what: str,
        indices: Sequence[int],
        ours: dict[int, Answer],
        want: dict[int, Answer],
        near: dict[int, Answer],
    ) -> Check:
        if not indices:
            return Check(what, 0, fault="no text has an answer of both sides")
        loss, theirs = _loss(call, indices, ours, want), _loss(call, indices, near, want) if near else None
        return Check(
            what,
            len(indices),
            loss.distance,
            self._bound(call, theirs),
            loss.worst,
            loss.cosine_min,
            loss.cosine_mean,
            theirs,
            loss.kept,
            loss.labels_changed,
        )

    def _bound(self, call: Call, theirs: Loss | None) -> float:
        exact, half, eighth = _BOUNDS.get(call.task, _BOUNDS_OF_SCORES)
        match self._dtype:
            case "float32":
                return exact
            case "int8":
                return eighth
            case _:
                return max(half, 2 * (0.0 if theirs is None else theirs.distance))


def _loss(call: Call, indices: Sequence[int], got: dict[int, Answer], want: dict[int, Answer]) -> Loss:
    distances = {index: distance(call.task, got[index], want[index]) for index in indices}
    is_of_vectors = call.task in ("embed", "embed_tokens")
    cosines = [cosine(got[index], want[index]) for index in indices] if is_of_vectors else None
    return Loss(
        _total(call, list(distances.values())),
        max(distances, key=lambda index: distances[index]),
        None if cosines is None else min(cosines),
        None if cosines is None else float(np.mean(cosines)),
        _kept(got, want, indices) if call.task == "embed" else None,
        _num_changed(got, want, indices) if call.task == "classify" else None,
    )


def _kept(ours: dict[int, Answer], want: dict[int, Answer], indices: Sequence[int]) -> float | None:
    """The part of each text's nearest texts that is the same on both sides."""
    sides = [[np.asarray(answers[index], np.float64) for index in indices] for answers in (ours, want)]
    if len(indices) <= NEIGHBOURS or len({vector.shape for side in sides for vector in side}) > 1:
        return None
    return neighbours_kept(*map(np.stack, sides))


def _num_changed(ours: dict[int, Answer], want: dict[int, Answer], indices: Sequence[int]) -> int:
    return sum(_first_label(ours[index]) != _first_label(want[index]) for index in indices)


def _first_label(answer: Answer) -> str:
    if not isinstance(answer, Mapping):
        raise RuntimeError("an answer of classify has no labels. This is a bug.")
    return max(answer, key=lambda label: answer[label])


def num_tokens(reference: Reference, text: str) -> int:
    """Tokens of a text, special ones included, by the reference's tokenizer."""
    return len(reference.tokenizer(text, truncation=False, verbose=False)["input_ids"])


def _total(call: Call, distances: Sequence[float]) -> float:
    return float(np.mean(distances) if call.task == "generate" else np.max(distances))
