"""The engine on CPU, and the function that loads it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from penstock.engine.checkpoint import read_checkpoint, resolve_model, revision_of
from penstock.engine.encoder import PackedEncoder
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.heads import Head, linear_head, sequence_classifier
from penstock.engine.layout import Layout, sort_by_length
from penstock.engine.modules import embedding_tail
from penstock.engine.pooling import EmbeddingTail, pool
from penstock.engine.types import BatchOutput, Float32Array, ModelInfo, PackedBatch, TaskOptions

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_engine(
    model: str,
    *,
    name: str | None = None,
    head: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int = 1,
) -> "CpuEngine":
    """Load a model directory or Hugging Face id. Blocks for the reading; call it before the event loop matters.

    name: what requests call the model; the directory's name or the id when None.
    head: path of a linear head (safetensors) to classify with, on top of an embedding model.
    dtype: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it natively, else float32.
    threads: processor threads for one batch; every thread that calls `run` is set to it.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice.
    """
    if device not in ("auto", "cpu"):
        raise UnsupportedDevice(f"device {device!r} is not available; use auto or cpu.")
    precision = _choose_dtype(dtype)
    directory = resolve_model(model)
    checkpoint = read_checkpoint(directory)
    tail = embedding_tail(checkpoint)
    weights = family_of(checkpoint).encoder(checkpoint)
    dim = tail.dense[-1].weight.shape[0] if tail.dense else weights.hidden_size
    classifier = linear_head(Path(head), dim) if head is not None else sequence_classifier(checkpoint)
    info = ModelInfo(
        name=name or (directory.resolve().name if Path(model).is_dir() else model),
        revision=revision_of(directory, (Path(head),) if head is not None else ()),
        dtype=precision,
        device="cpu",
        vocab_size=weights.words.shape[0],
        max_tokens=min(filter(None, (checkpoint.max_tokens, weights.positions.shape[0]))),
        tasks=frozenset({"embed"} if classifier is None else {"embed", "classify"}),
        dim=dim,
        labels=classifier.labels if classifier is not None else (),
    )
    return CpuEngine(info, checkpoint.directory, PackedEncoder(weights, _DTYPES[precision]), tail, classifier, threads)


class CpuEngine:
    """Implements `penstock.engine.types.Engine`. Holds no state between batches, so lanes may call `run` at once."""

    def __init__(
        self,
        info: ModelInfo,
        directory: Path,
        encoder: PackedEncoder,
        tail: EmbeddingTail,
        head: Head | None,
        threads: int,
    ) -> None:
        self._info = info
        self.directory = directory  # tokenizer.json lies here
        self._encoder = encoder
        self._tail = tail
        self._head = head
        self._threads = threads

    @property
    def info(self) -> ModelInfo:
        return self._info

    @torch.inference_mode()
    def run(self, batch: PackedBatch) -> BatchOutput:
        """See `Engine.run`. Sets the calling thread's torch thread count."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        started = time.perf_counter()
        layout = sort_by_length(batch.cu_seqlens)
        types = batch.token_type_ids
        hidden = self._encoder(
            torch.from_numpy(batch.token_ids[layout.tokens]),
            layout,
            None if types is None else torch.from_numpy(types[layout.tokens]),
        )
        rows = self._rows(hidden, layout, batch.options)
        return BatchOutput(rows=rows, device_s=time.perf_counter() - started)

    def _rows(self, hidden: Tensor, layout: Layout, options: Sequence[TaskOptions]) -> list[Float32Array]:
        """One array a sequence, in the batch's order. Each distinct option runs the tail once."""
        rows: list[Float32Array | None] = [None] * len(options)
        for wanted in set(options):
            results = self._tail_of(wanted)(hidden, layout).numpy()
            for place, index in enumerate(layout.order.tolist()):
                if options[index] == wanted:
                    rows[index] = results[place]
        if any(row is None for row in rows):
            raise RuntimeError("a sequence was left without a result. This is a bug.")
        return [row for row in rows if row is not None]

    def _tail_of(self, wanted: TaskOptions) -> Callable[[Tensor, Layout], Tensor]:
        match wanted.task, self._head:
            case "embed", _:
                return lambda hidden, layout: self._tail(hidden, layout.groups, wanted.pooling, wanted.normalize)
            case "classify", Head(on_embedding=True) as head:
                return lambda hidden, layout: head(self._tail(hidden, layout.groups, None, None))
            case "classify", Head() as head:
                return lambda hidden, layout: head(pool(hidden, layout.groups, "cls"))
            case _:
                raise ValueError(f"task {wanted.task!r} is not one of {sorted(self._info.tasks)}.")


def _choose_dtype(dtype: str) -> str:
    match dtype:
        case "float32" | "bfloat16":
            return dtype
        case "auto":
            return "bfloat16" if _multiplies_bfloat16() else "float32"
        case _:
            raise UnsupportedDevice(f"dtype {dtype!r} is not available; use auto, float32 or bfloat16.")


def _multiplies_bfloat16() -> bool:
    """Whether the processor has AMX or AVX512-BF16; elsewhere bfloat16 is emulated, and slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
