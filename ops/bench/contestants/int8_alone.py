"""Encoders in eight bits, each alone on one thread: ours by its dtype, ONNX Runtime's and OpenVINO's of one ONNX file.

Those of others are optional: onnxruntime, onnx and onnxscript; openvino and nncf beside them.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.engine import load_engine
from penstock.engine.types import Float32Array, Int32Array, PackedBatch, TaskOptions

Ids = Sequence[Int32Array]  # token ids of the texts of a batch
Run = Callable[[], Float32Array]  # one pass over all batches: vectors [n, dim], normalised, in their order

_FOR_ONNX, _FOR_OPENVINO = ("onnxruntime", "onnx", "onnxscript"), ("openvino", "nncf")
_INPUTS = ("input_ids", "attention_mask")


def missing(*, openvino: bool) -> str:
    """The packages that are not installed and that a contestant needs; empty if none."""
    packages = _FOR_ONNX + (_FOR_OPENVINO if openvino else ())
    return ", ".join([name for name in packages if find_spec(name) is None])


def ours(model: Path, dtype: str, batches: Sequence[Ids]) -> Run:
    """Batches without padding."""
    engine, options = load_engine(str(model), dtype=dtype, device="cpu"), TaskOptions("embed")
    packed = [PackedBatch.of(ids, [options] * len(ids)) for ids in batches]
    return lambda: np.concatenate([np.stack(engine.run(batch).rows) for batch in packed])


def export_onnx(model: Path, path: Path) -> None:
    """Write the encoder with mean pooling and normalising as ONNX, of any number of texts and tokens."""
    from transformers import AutoModel

    encoder: Any = AutoModel.from_pretrained(str(model), attn_implementation="eager").eval()
    num_texts, length = (torch.export.Dim(name, min=2, max=512) for name in ("texts", "tokens"))
    ids = torch.randint(1000, 2000, (4, 12))
    torch.onnx.export(
        _Pooled(encoder),
        (ids, torch.ones_like(ids)),
        str(path),
        dynamo=True,
        dynamic_shapes=({0: num_texts, 1: length},) * 2,
        input_names=list(_INPUTS),
        output_names=["vectors"],
        external_data=False,
    )


def onnxruntime_int8(path: Path, batches: Sequence[Ids]) -> Run:
    """Dynamic quantisation with a scale for each output, padded batches."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    smaller = path.with_suffix(".int8.onnx")
    quantize_dynamic(str(path), str(smaller), weight_type=QuantType.QInt8, per_channel=True, reduce_range=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(smaller), options, providers=["CPUExecutionProvider"])
    padded = [_padded(ids) for ids in batches]
    return lambda: np.concatenate([session.run(None, batch)[0] for batch in padded])


def openvino_int8(path: Path, batches: Sequence[Ids], samples: Ids) -> Run:
    """Quantised by NNCF with these samples as for transformers, padded batches."""
    import nncf
    import openvino

    core = openvino.Core()
    data = nncf.Dataset([_padded([ids, ids]) for ids in samples])
    quantised = nncf.quantize(
        core.read_model(path),
        data,
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(samples),
    )
    model = core.compile_model(quantised, "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
    padded = [_padded(ids) for ids in batches]
    return lambda: np.concatenate([model(batch)[0].copy() for batch in padded])


class _Pooled(torch.nn.Module):
    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Vectors [n, dim] of padded ids [n, length]."""
        states = self._encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        own = attention_mask.unsqueeze(-1).float()
        vectors = (states * own).sum(1) / own.sum(1)
        normalised: torch.Tensor = vectors / vectors.norm(dim=1, keepdim=True)
        return normalised


def _padded(ids: Ids) -> dict[str, npt.NDArray[np.int64]]:
    shape = len(ids), max(map(len, ids))
    padded, own = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, some in enumerate(ids):
        padded[row, : len(some)], own[row, : len(some)] = some, 1
    return dict(zip(_INPUTS, (padded, own), strict=True))
