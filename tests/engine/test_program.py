"""A recorded forward is the forward: run on the CPU, with buffers that the memory planner laid out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.checkpoint import read_checkpoint
from penstock.engine.cpu_ops import CpuOps, prepare_for_cpu
from penstock.engine.families import family_of
from penstock.engine.forward import forward
from penstock.engine.layout import sort_by_length
from penstock.engine.linear import Linear
from penstock.engine.memory import Planner
from penstock.engine.memory.check import check_no_overlap
from penstock.engine.program import Program, record
from penstock.engine.weights import Encoder
from tests.engine.helpers import pack, random_sequences, save_encoder


@pytest.fixture
def encoder(tmp_path: Path) -> Encoder[Linear]:
    save_encoder(tmp_path, "bert")
    checkpoint = read_checkpoint(tmp_path)
    return prepare_for_cpu(family_of(checkpoint).encoder(checkpoint), torch.float32)


def into_buffers(ops: CpuOps) -> Mapping[str, Callable[..., Tensor]]:
    """The CPU's operations with their results copied to where the program says."""

    def stored(operation: Callable[..., Tensor], num_inputs: int) -> Callable[..., Tensor]:
        def run(out: Tensor, *inputs_and_arguments: Any) -> Tensor:
            inputs, arguments = inputs_and_arguments[:num_inputs], inputs_and_arguments[num_inputs:]
            if num_inputs == 2:  # project_add_norm takes its matrix between its inputs
                return out.copy_(operation(inputs[0], arguments[0], inputs[1], *arguments[1:]))
            return out.copy_(operation(*inputs, *arguments))

        return run

    return {
        "embed": stored(ops.embed, 0),
        "project": stored(ops.project, 1),
        "project_add_norm": stored(ops.project_add_norm, 2),
        "attend": stored(ops.attend, 1),
    }


def planned_buffers(program: Program, rows: int) -> list[Tensor]:
    """One tensor a buffer, all inside one chunk, poisoned with NaN."""
    plan = Planner(program.lifetimes).plan(rows, 1)
    check_no_overlap(program.lifetimes, plan)
    memory = torch.full((plan.chunk_bytes[0] // 4,), float("nan"))
    return [
        memory[offset // 4 : offset // 4 + rows * width].view(rows, width)
        for (_, offset), width in zip(plan.offsets, program.widths, strict=True)
    ]


def test_a_recorded_forward_in_planned_memory_equals_the_forward(encoder: Encoder[Linear]) -> None:
    program = record(encoder, width_of=lambda dense: width(encoder, dense), bytes_per_value=4)
    batch = pack(random_sequences((9, 1, 30, 9)))
    layout = sort_by_length(batch.cu_seqlens)
    ops = CpuOps(layout, torch.from_numpy(batch.token_ids[layout.tokens]), None, encoder.num_heads, torch.float32)
    expected = forward(encoder, ops)
    result = program.run(into_buffers(ops), planned_buffers(program, len(layout.tokens)))
    np.testing.assert_array_equal(result.numpy(), expected.numpy())


def test_the_steps_are_the_forwards_and_the_result_outlives_them(encoder: Encoder[Linear]) -> None:
    program = record(encoder, width_of=lambda dense: width(encoder, dense), bytes_per_value=4)
    layer = ["project", "attend", "project_add_norm", "project", "project_add_norm"]
    assert [step.operation for step in program.steps] == ["embed", *layer, *layer]
    assert program.lifetimes[program.result].last == len(program.steps)


def width(encoder: Encoder[Linear], dense: Linear) -> int:
    """Columns of a projection of the test's BERT: 48 hidden, 96 inner."""
    for layer in encoder.layers:
        if dense is layer.qkv:
            return 3 * encoder.hidden_size
        if dense is layer.up:
            return 96
    return encoder.hidden_size
