"""Eight bits on one thread: ours beside ONNX Runtime and OpenVINO, in turn, by processor time."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.precision_loss import neighbours_kept
from penstock.ops.bench.common.setup import Details, Setup, shuffled_texts
from penstock.ops.bench.contestants import int8_alone
from penstock.ops.bench.contestants.int8_alone import Ids, Run
from penstock.ops.bench.cpu.part_engine import cosine
from penstock.producer.tokenization import Tokenizer

_NUM_TEXTS, _BATCH, _NUM_SAMPLES = 512, 32, 300
_ROUNDS = 5
_MOST_TOKENS = 256  # of a text, as the checkpoint says


def run(setup: Setup) -> Details:
    """Part `int8`: of contestants that are not installed, or that this processor lacks, the reason."""
    torch.set_num_threads(1)
    count = setup.count(_NUM_TEXTS)
    ids = sorted(_token_ids(setup.model, count + _NUM_SAMPLES)[:count], key=len)
    samples = _token_ids(setup.model, count + _NUM_SAMPLES)[count:]  # of other texts than those that are measured
    batches = [ids[start : start + _BATCH] for start in range(0, count, _BATCH)]
    runs, left_out = _contestants(setup, batches, samples)
    vectors = {name: one() for name, one in runs.items()}  # the warm-up
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, one in runs.items():
            begun = time.process_time()
            one()
            rates[name].append(count / (time.process_time() - begun))
    exact = vectors["penstock float32"]
    cosines = {name: cosine(found, exact) for name, found in vectors.items()}
    return {
        "texts": count,
        "tokens": sum(map(len, ids)),
        "left_out": left_out,
        "texts_per_cpu_s": rates,
        "cosine_to_float32": {name: {"min": float(c.min()), "mean": float(c.mean())} for name, c in cosines.items()},
        "neighbours_kept": {name: neighbours_kept(found, exact) for name, found in vectors.items()},
    }


def _contestants(setup: Setup, batches: Sequence[Ids], samples: Ids) -> tuple[dict[str, Run], dict[str, str]]:
    path = setup.logs / "model.onnx"
    if not int8_alone.missing(openvino=False):
        int8_alone.export_onnx(setup.model, path)
    makers: dict[str, Callable[[], Run]] = {
        "penstock float32": lambda: int8_alone.ours(setup.model, "float32", batches),
        "penstock bfloat16": lambda: int8_alone.ours(setup.model, "bfloat16", batches),
        "penstock int8": lambda: int8_alone.ours(setup.model, "int8", batches),
        "ONNX Runtime int8": lambda: int8_alone.onnxruntime_int8(path, batches),
        "OpenVINO int8": lambda: int8_alone.openvino_int8(path, batches, samples),
    }
    runs, left_out = dict[str, Run](), dict[str, str]()
    for name, make in makers.items():
        is_ours = name.startswith("penstock")
        if reason := "" if is_ours else int8_alone.missing(openvino="OpenVINO" in name):
            left_out[name] = f"not installed: {reason}"
            continue
        try:
            runs[name] = make()
        except UnsupportedDevice as error:
            left_out[name] = str(error)
    return runs, left_out


def _token_ids(model: Path, count: int) -> list[Any]:
    tokenizer = Tokenizer.from_directory(model)
    encoded = tokenizer.encode(shuffled_texts(count), truncate=True, max_tokens=_MOST_TOKENS)
    tokenizer.close()
    return [one.ids for one in encoded]
