"""A recorded forward is the forward: run on the CPU, with buffers that the memory planner laid out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.cpu.linear import Linear, make_linear
from penstock.engine.cpu.ops import CpuOps, encode_on_cpu
from penstock.engine.families import family_of
from penstock.engine.memory import MemoryPlanner
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.program import Program, record
from penstock.engine.model.weights import Dense, Encoder, Norm
from tests.engine.helpers import GPU_FAMILIES, MAX_TOKENS, pack, random_sequences, save_encoder
from tests.engine.memory.plans import check_no_overlap

FLOAT = torch.float32


class Recorded(NamedTuple):
    encoder: Encoder[Linear]
    program: Program


@pytest.fixture(params=GPU_FAMILIES)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
    return recorded_family(tmp_path, request.param)


def recorded_family(directory: Path, family: str) -> Recorded:
    """A random encoder prepared for the CPU, and the record of its forward."""
    save_encoder(directory, family)
    checkpoint = read_checkpoint(directory)
    widths = dict[int, int]()

    def linear(dense: Dense) -> Linear:
        made = make_linear(dense, FLOAT)
        widths[id(made)] = len(dense.weight)
        return made

    encoder = family_of(checkpoint).encoder(checkpoint).prepared(linear, lambda table: table)
    return Recorded(encoder, record(encoder, width_of=lambda dense: widths[id(dense)], bytes_per_value=FLOAT.itemsize))


def into_buffers(ops: CpuOps) -> Mapping[str, Callable[..., Tensor]]:
    """The CPU's operations with their results copied to where the program says."""

    def project_add_norm_sum(
        out: Tensor, total: Tensor, x: Tensor, residual: Tensor, dense: Linear, norm: Norm
    ) -> Tensor:
        hidden, summed = ops.project_add_norm_sum(x, dense, residual, norm)
        total.copy_(summed)
        return out.copy_(hidden)

    def project_gated(out: Tensor, inner: Tensor, x: Tensor, dense: Linear, activation: str) -> Tensor:
        inner.copy_(ops.project(x, dense))
        return out.copy_(ops.gate(inner.clone(), activation))

    def norm_add_norm_sum(out: Tensor, total: Tensor, x: Tensor, residual: Tensor, inner: Norm, norm: Norm) -> Tensor:
        hidden, summed = ops.norm_add_norm_sum(x, inner, residual, norm)
        total.copy_(summed)
        return out.copy_(hidden)

    return {
        "norm": lambda out, x, norm: out.copy_(ops.norm(x, norm)),
        "norm_add_norm_sum": norm_add_norm_sum,
        "embed": lambda out, embeddings: out.copy_(ops.embed(embeddings)),
        "project": lambda out, x, dense: out.copy_(ops.project(x, dense)),
        "project_gated": project_gated,
        "project_add_norm": lambda out, x, residual, dense, norm: out.copy_(
            ops.project_add_norm(x, dense, residual, norm)
        ),
        "project_add_norm_sum": project_add_norm_sum,
        "attend": lambda out, qkv, attention: out.copy_(ops.attend(qkv, attention)),
    }


def planned_buffers(program: Program, rows: int) -> list[Tensor]:
    """One tensor a buffer, all inside one chunk, poisoned with NaN."""
    plan = MemoryPlanner(program.lifetimes).plan(rows)
    check_no_overlap(program.lifetimes, plan)
    memory = torch.full((plan.chunk_bytes[0] // FLOAT.itemsize,), float("nan"))
    return [
        memory[offset // FLOAT.itemsize :][: rows * width].view(rows, width)
        for (_, offset), width in zip(plan.offsets, program.widths, strict=True)
    ]


@pytest.mark.parametrize("lengths", [(1,), (9, 1, 30, 9), (128, MAX_TOKENS, 2, 127, 129)], ids=str)
def test_a_recorded_forward_in_planned_memory_equals_the_forward(recorded: Recorded, lengths: tuple[int, ...]) -> None:
    encoder, program = recorded
    sequences = random_sequences(lengths)
    batch = pack(sequences, types=[np.arange(len(sequence), dtype=np.int32) // 3 % 2 for sequence in sequences])
    if encoder.embeddings.token_types is None or len(encoder.embeddings.token_types) == 1:
        batch = pack(sequences)
    layout = sort_by_length(batch.cu_seqlens)
    types = batch.token_type_ids
    ops = CpuOps(
        layout,
        torch.from_numpy(batch.token_ids[layout.tokens]),
        None if types is None else torch.from_numpy(types[layout.tokens]),
        encoder.heads,
        FLOAT,
    )
    result = program.run(into_buffers(ops), planned_buffers(program, len(layout.tokens)))
    np.testing.assert_array_equal(result.numpy(), encode_on_cpu(encoder, batch, layout, FLOAT).numpy())


def test_the_result_outlives_the_steps(recorded: Recorded) -> None:
    program = recorded.program
    assert program.lifetimes[program.result].last == len(program.steps)


POST_NORM = ["project", "attend", "project_add_norm", "project", "project_add_norm"]
PRE_NORM = ["project", "attend", "project_add_norm_sum", "project_gated", "project_add_norm_sum"]


@pytest.mark.parametrize(
    ("family", "operations"),
    [
        ("bert", ["embed", *POST_NORM * 2]),
        ("albert", ["embed", "project", *POST_NORM * 2]),  # embeddings narrower than the hidden states
        ("modernbert", ["embed", *PRE_NORM * 4]),
        ("mt5", ["embed", "norm", *PRE_NORM * 2]),  # the first layer's norm, which residuals bypass
    ],
)
def test_the_steps_are_the_forwards(tmp_path: Path, family: str, operations: list[str]) -> None:
    program = recorded_family(tmp_path, family).program
    assert [step.operation for step in program.steps] == operations
