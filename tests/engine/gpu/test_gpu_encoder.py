"""A batch through the GPU encoder, with torch on the CPU in place of kernels: shapes, spare rows, planned memory."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import InvalidBatch
from penstock.engine.families import family_of
from penstock.engine.gpu import GpuEncoder, ops
from penstock.engine.gpu.inputs import Inputs
from penstock.engine.model.checkpoint import read_checkpoint
from tests.engine.gpu import test_gpu_steps as torch_kernels
from tests.engine.gpu.fake_cuda import FakeCuda
from tests.engine.helpers import pack, random_sequences, reference_hidden, save_encoder

LENGTHS = (5, 40, 1, 100)


def attend(out: Tensor, qkv: Tensor, attention: object, inputs: Inputs, *_: object) -> Tensor:
    """Plain attention of heads of 32, sequence by sequence: those of the spare rows too."""
    for start, end in itertools.pairwise(inputs.cu_seqlens.tolist()):
        query, key, value = qkv[start:end].view(-1, 3, 4, 32).permute(1, 2, 0, 3)
        context = F.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        out[start:end] = context.transpose(0, 1).reshape(end - start, 128)
    return out


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The transformers model, whose checkpoint lies in tmp_path; encoders of it run here, in float32."""
    properties = SimpleNamespace(shared_memory_per_block_optin=227 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    FakeCuda(monkeypatch)
    for launch in torch_kernels.LAUNCHES:
        monkeypatch.setattr(ops, launch.__name__, launch)
    monkeypatch.setattr(ops, "attend", attend)
    return save_encoder(tmp_path, "bert", hidden_size=128)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_batch_with_or_without_token_types_equals_transformers(saved: Any, tmp_path: Path, graphs: bool) -> None:
    checkpoint = read_checkpoint(tmp_path)
    encoder = GpuEncoder(family_of(checkpoint).encoder(checkpoint), torch.float32, device="cpu", graphs=graphs)
    sequences = random_sequences(LENGTHS)
    types = [np.arange(len(sequence), dtype=np.int32) % 2 for sequence in sequences]
    # The typed batch runs first: its token types must not remain for the batch without types.
    for given in (types, None):
        encoder._graphs = None if encoder._graphs is None else type(encoder._graphs)(encoder.device)  # none seen yet
        batch = pack(sequences, types=given)
        inputs = encoder.upload(batch)
        hidden = encoder.forward(inputs)
        assert inputs.at_rest is graphs
        assert len(hidden) == (160 if graphs else 146)
        for index, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens)):
            expected = reference_hidden(saved, sequences[index], None if given is None else given[index])
            np.testing.assert_allclose(hidden[start:end].numpy(), expected, atol=2e-5)
        for workspace in (encoder._graph_workspace, encoder._workspace):
            for chunk in workspace.arena.buffers:
                chunk.fill_(0xFF)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(("num_types", "types"), [(1, [0, 1]), (2, [0, 2]), (2, [-1, 0]), (2, [0])])
def test_token_types_beyond_their_table_are_refused_on_either_device(
    saved: Any, tmp_path: Path, graphs: bool, num_types: int, types: list[int]
) -> None:
    save_encoder(tmp_path, "bert", hidden_size=128, type_vocab_size=num_types)
    good = pack(random_sequences((1, 1)))
    batch = replace(good, token_type_ids=np.array(types, np.int32))
    checkpoint = read_checkpoint(tmp_path)
    encoder = GpuEncoder(family_of(checkpoint).encoder(checkpoint), torch.float32, device="cpu", graphs=graphs)
    for run in (encoder.run, load_engine(str(tmp_path), device="cpu").run):
        with pytest.raises(InvalidBatch, match=rf"token_type_ids must be 2 values in \[0, {num_types}\)"):
            run(batch)
        run(replace(good, token_type_ids=np.zeros(2, np.int32)))


@pytest.mark.parametrize(
    "changes", [{"max_seqlen": 4}, {"max_seqlen": 6}, {"cu_seqlens": np.array([0, 5, 9], np.int32)}]
)
def test_bounds_that_are_not_the_batchs_are_refused_on_either_device(
    saved: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    batch = replace(pack(random_sequences((5, 3))), **changes)
    checkpoint = read_checkpoint(tmp_path)
    encoder = GpuEncoder(family_of(checkpoint).encoder(checkpoint), torch.float32, device="cpu")
    for run in (encoder.run, load_engine(str(tmp_path), device="cpu").run):
        with pytest.raises(InvalidBatch, match=r"max_seqlen is|cu_seqlens must"):
            run(batch)


def test_single_sequences_of_one_length_are_each_their_own(saved: Any, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(tmp_path)
    encoder = GpuEncoder(family_of(checkpoint).encoder(checkpoint), torch.float32, device="cpu")
    for seed in range(20):  # more than the upload ring has buffers
        (sequence,) = random_sequences((40,), seed)
        types = np.arange(40, dtype=np.int32) % 2 if seed % 3 == 2 else None
        batch = pack([sequence], types=None if types is None else [types])
        found = encoder.forward(encoder.upload(batch))[:40]
        np.testing.assert_allclose(found.numpy(), reference_hidden(saved, sequence, types), atol=2e-5)
    good = pack(random_sequences((40,)))
    wrongs: list[dict[str, Any]] = [{"max_seqlen": 39}, {"cu_seqlens": np.array([0, 39], np.int32)}, {"options": []}]
    for wrong in wrongs:
        with pytest.raises(InvalidBatch):
            encoder.upload(replace(good, **wrong))
    two = random_sequences((10, 30))
    for _ in range(2):
        found = encoder.forward(encoder.upload(pack(two)))
        np.testing.assert_allclose(found[:10].numpy(), reference_hidden(saved, two[0]), atol=2e-5)


@pytest.mark.parametrize("num_options", [1, 3])
def test_every_sequence_needs_its_options_on_either_device(saved: Any, tmp_path: Path, num_options: int) -> None:
    batch = replace(pack(random_sequences((5, 3))), options=[TaskOptions("embed")] * num_options)
    checkpoint = read_checkpoint(tmp_path)
    encoder = GpuEncoder(family_of(checkpoint).encoder(checkpoint), torch.float32, device="cpu")
    for run in (encoder.run, load_engine(str(tmp_path), device="cpu").run):
        with pytest.raises(InvalidBatch, match=f"options must be 2, one for each sequence; found {num_options}"):
            run(batch)
