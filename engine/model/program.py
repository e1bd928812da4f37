"""A recorded forward pass: its steps, and the lifetime of each intermediate.

The recorder is an implementation of `Ops` that computes nothing, so any model's forward can be recorded. There is no
table of intermediates as in TurboTransformers (PPoPP '21, section 4.2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from penstock.engine.memory import BufferId, Lifetime, Tape
from penstock.engine.model.forward import forward
from penstock.engine.model.weights import Attention, Embeddings, Encoder, Norm

D = TypeVar("D")
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: `kernels[operation](*outs, *inputs, *arguments)` with buffers for `writes` and `reads`."""

    operation: str  # a method of Ops
    writes: tuple[BufferId, ...]
    reads: tuple[BufferId, ...]
    arguments: tuple[Any, ...]  # other than hidden states: Dense, Norm, Embeddings, Attention


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded forward pass. `lifetimes[i]` and `widths[i]` belong to buffer i."""

    steps: tuple[Step, ...]
    lifetimes: tuple[Lifetime, ...]
    widths: tuple[int, ...]
    result: BufferId

    def with_scratch(self, bytes_per_token: int, width: int) -> "Program":
        """The program with one more buffer, the last, in which any step may keep what the next one reads."""
        scratch = Lifetime("scratch", 0, max(lifetime.last for lifetime in self.lifetimes), bytes_per_token)
        return replace(self, lifetimes=(*self.lifetimes, scratch), widths=(*self.widths, width))

    def run(self, kernels: Mapping[str, Callable[..., X]], buffers: list[X]) -> X:
        """Run every step in order. `buffers[i]` holds buffer i.

        A kernel returns the place of its first result, which may differ from its buffer. A second result is in its own.
        """
        for step in self.steps:
            used = [buffers[buffer] for buffer in (*step.writes, *step.reads)]
            buffers[step.writes[0]] = kernels[step.operation](*used, *step.arguments)
        return buffers[self.result]


def record(encoder: Encoder[D], width_of: Callable[[D], int], bytes_per_value: int) -> Program:
    """Record the forward pass of `encoder`. `width_of` gives the width of a projection's output.

    The result lives one step longer than the forward, for the pooling that follows.
    """
    recorder = _Recorder(width_of, encoder.heads.width, bytes_per_value)
    result = forward(encoder, recorder)
    recorder.tape.use(result)
    return Program(tuple(recorder.steps), recorder.tape.lifetimes(), tuple(recorder.widths), result)


class _Recorder(Generic[D]):
    """Implements `Ops[BufferId, D]`; each operation is one step."""

    def __init__(self, width_of: Callable[[D], int], context_width: int, bytes_per_value: int) -> None:
        self.tape = Tape()
        self.steps: list[Step] = []
        self.widths: list[int] = []
        self._width_of = width_of
        self._context_width = context_width
        self._bytes_per_value = bytes_per_value

    def embed(self, embeddings: Embeddings) -> BufferId:
        return self._step("embed", embeddings.words.shape[1], (), (embeddings,))

    def norm(self, x: BufferId, norm: Norm) -> BufferId:
        return self._step("norm", self.widths[x], (x,), (norm,))

    def project(self, x: BufferId, dense: D) -> BufferId:
        return self._step("project", self._width_of(dense), (x,), (dense,))

    def project_gated(self, x: BufferId, dense: D, activation: str) -> BufferId:
        width = self._width_of(dense)
        result, _ = self._steps("project_gated", (width // 2, width), (x,), (dense, activation))
        return result  # the other buffer is for the product, where that is a step of its own

    def project_add_norm(self, x: BufferId, dense: D, residual: BufferId, norm: Norm) -> BufferId:
        return self._step("project_add_norm", self._width_of(dense), (x, residual), (dense, norm))

    def project_add_norm_sum(self, x: BufferId, dense: D, residual: BufferId, norm: Norm) -> tuple[BufferId, BufferId]:
        width = self._width_of(dense)
        hidden, total = self._steps("project_add_norm_sum", (width, width), (x, residual), (dense, norm))
        return hidden, total

    def norm_add_norm_sum(self, x: BufferId, inner: Norm, residual: BufferId, norm: Norm) -> tuple[BufferId, BufferId]:
        width = self.widths[residual]
        hidden, total = self._steps("norm_add_norm_sum", (width, width), (x, residual), (inner, norm))
        return hidden, total

    def attend(self, qkv: BufferId, attention: Attention) -> BufferId:
        return self._step("attend", self._context_width, (qkv,), (attention,))

    def _step(self, operation: str, width: int, reads: tuple[BufferId, ...], arguments: tuple[Any, ...]) -> BufferId:
        (writes,) = self._steps(operation, (width,), reads, arguments)
        return writes

    def _steps(
        self, operation: str, widths: tuple[int, ...], reads: tuple[BufferId, ...], arguments: tuple[Any, ...]
    ) -> tuple[BufferId, ...]:
        writes = tuple(self.tape.allocate(width * self._bytes_per_value, operation) for width in widths)
        for buffer in reads:
            self.tape.use(buffer)
        self.tape.step()
        self.widths.extend(widths)
        self.steps.append(Step(operation, writes, reads, arguments))
        return writes
