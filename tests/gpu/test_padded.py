"""The padded engine on a GPU, beside the packed one on the CPU; and timing both on a GPU."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.engine import TaskOptions, load_engine, measure
from penstock.engine.padded.engine import PaddedEngine
from tests.engine.helpers import cpu_engine, pack, random_sequences, save_classifier

pytestmark = pytest.mark.gpu

LENGTHS = (1, 12, 127, 2, 128, 12, 130)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    save_classifier(directory, "bert", num_labels=3, hidden_size=128)  # heads of 32: the kernels take no 12
    return directory


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 6e-2)])
def test_it_gives_the_same_answers(bert: Path, dtype: str, atol: float) -> None:
    engine = load_engine(str(bert), device="cuda", dtype=dtype, engine="padded")
    assert isinstance(engine, PaddedEngine)
    assert (engine.info.device, engine.info.dtype) == (torch.cuda.get_device_name(), dtype)
    options = [TaskOptions("classify") if i % 2 else TaskOptions("embed", normalize=True) for i in range(len(LENGTHS))]
    batch = pack(random_sequences(LENGTHS), options)
    output, expected = engine.run(batch), cpu_engine(bert).run(batch)
    assert output.device_s > 0
    for row, other in zip(output.rows, expected.rows, strict=True):
        np.testing.assert_allclose(row, other, atol=atol)


def test_attention_is_none_that_makes_a_plan_for_each_shape(bert: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    engine = load_engine(str(bert), device="cuda", engine="padded")
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # torch
    batch = pack(random_sequences((3, 70, 41)))
    for row, other in zip(engine.run(batch).rows, cpu_engine(bert).run(batch).rows, strict=True):
        np.testing.assert_allclose(row, other, atol=1e-2)


def test_token_types_beyond_the_table_cost_their_batch_and_not_the_device(bert: Path) -> None:
    engine = load_engine(str(bert), device="cuda", engine="padded")
    sequences = random_sequences((3,))
    with pytest.raises(ValueError, match="token types"):
        engine.run(pack(sequences, types=[np.array([0, 7, 1], np.int32)]))
    assert len(engine.run(pack(sequences)).rows) == 1


@pytest.mark.parametrize("kind", ["packed", "padded"])
def test_measuring_keeps_to_its_time_and_reaches_full_batches(bert: Path, kind: str) -> None:
    engine = load_engine(str(bert), device="cuda", engine=kind)
    started = time.perf_counter()
    measured = measure(engine, max_sequences=1024, max_tokens=16_384)
    assert time.perf_counter() - started < 12
    assert len(measured.timings) >= 20
    assert max(sum(timing.lengths) for timing in measured.timings) > 16_000
    assert len(measured.checks) == 10
    assert all(0 < timing.seconds < 1 for timing in measured.timings)
