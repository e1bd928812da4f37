"""Loading of an engine from a model's name, for the device that is available."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from penstock.engine.cpu.engine import CpuEngine
from penstock.engine.cpu.int8_encoder import encoder_precision, plan_int8, prepare_in, rounded_product
from penstock.engine.cpu.ops import CPU_DTYPES
from penstock.engine.device import GPU_DTYPES, choose_device_for, device_name, encoder_gpu_precision
from penstock.engine.errors import NoKernel, NotPacked, UnsupportedCheckpoint, UnsupportedDevice, wider_than
from penstock.engine.families import family_of
from penstock.engine.families.heads import checkpoint_heads, linear_head, require_head_file
from penstock.engine.families.late_interaction import stated_lengths
from penstock.engine.families.vector_heads import vector_heads
from penstock.engine.int8_ranges import read_int8_ranges
from penstock.engine.model.admission import EMBED, EMBED_SPARSE, EMBED_TOKENS, GENERATE
from penstock.engine.model.checkpoint import Checkpoint, default_name, read_checkpoint, resolve_model, revision_of
from penstock.engine.model.modules import embedding_tail, matryoshka_dimensions, max_tokens_of
from penstock.engine.model.results import EmbeddingTail, Head, on_device
from penstock.engine.model.vectors import TokenVectors, VectorHead
from penstock.engine.model.weights import EncoderWeights
from penstock.engine.types import ModelInfo, PackedBatch, TaskOptions

if TYPE_CHECKING:
    from penstock.engine.gpu.engine import GpuEngine
    from penstock.engine.padded.engine import PaddedEngine

log = structlog.get_logger("penstock.engine")


def load_engine(
    model: str,
    *,
    name: str | None = None,
    head: str | None = None,
    int8_ranges: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    engine: str = "packed",
    threads: int = 1,
) -> "CpuEngine | GpuEngine | PaddedEngine":
    """Load a model directory or Hugging Face id. Blocks for seconds.

    name: the model's name in requests; `default_name` when None.
    head: path of a linear head (safetensors) to classify with, on top of an embedding model.
    int8_ranges: path of the ranges (.npy) by which embeddings can be sent as one byte a value.
    dtype: "float32", "bfloat16", "float16", or "auto": float16 on a GPU, bfloat16 for a family that overflows it;
        bfloat16 on a processor that multiplies it faster than float32, else float32; "int8": packed, on a CPU with
        AVX-512 VNNI or a Hopper GPU: products of rotated rows and weights in eight-bit integers, the rest in float32
        on a CPU and in float16 on a GPU.
    device: "cpu", "cuda" or "auto": a GPU if there is one that supports the encoder.
    engine: "packed", this runtime; "padded", transformers; "auto", packed if it supports the architecture on the
        device, else padded.
    threads: CPU threads of one batch; `run` sets the calling thread's torch thread count to it.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice.
    """
    if head is not None:
        require_head_file(Path(head))
    directory = resolve_model(model)
    checkpoint = read_checkpoint(directory)
    if checkpoint.task == GENERATE:
        raise UnsupportedCheckpoint(
            f"{directory}: this checkpoint generates, and is no encoder. Serve it without a head and not padded; its "
            "encoder alone is served if it is saved as an ...EncoderModel."
        )
    own_name = name or default_name(model)
    revision = revision_of(directory, (Path(head),) if head is not None else ())
    load = _LOADERS.get(engine)
    if load is None:
        raise ValueError(f"engine {engine!r} is not one of {', '.join(sorted(_LOADERS))}.")
    if int8_ranges is not None and not checkpoint.embeds:
        raise UnsupportedCheckpoint(f"{directory}: ranges of int8 vectors are for models that embed.")
    options = {"head": head, "int8_ranges": int8_ranges, "dtype": dtype, "device": device, "threads": threads}
    loaded = load(checkpoint, own_name, revision, **options)
    _require_finite_results(loaded)
    return loaded


def _require_finite_results(engine: "CpuEngine | GpuEngine | PaddedEngine") -> None:
    """Raise UnsupportedCheckpoint where even one token has no finite result, with weights that are finite.

    A worker takes such a result of one token for a sign that its engine is at fault.
    """
    info = engine.info
    for task in sorted(info.tasks):
        if engine.run(PackedBatch.probe(TaskOptions(task))).not_finite:
            raise UnsupportedCheckpoint(
                f"{engine.directory}: the result of one token ({task}) holds NaN or infinity, though the weights do "
                f"not. If numbers overflow in {info.dtype}: {wider_than(info.dtype)}"
            )


def _load_packed(
    checkpoint: Checkpoint,
    name: str,
    revision: str,
    *,
    head: str | None,
    int8_ranges: str | None,
    dtype: str,
    device: str,
    threads: int,
) -> "CpuEngine | GpuEngine":
    family = family_of(checkpoint)
    weights = family.encoder(checkpoint)
    on_gpu = choose_device_for(weights, device) == "cuda"
    if on_gpu:
        _require_kernels(weights)
    if on_gpu:
        precision = encoder_gpu_precision(dtype, overflows_float16=family.overflows_float16)
    else:
        precision = encoder_precision(dtype)
    arithmetic = (GPU_DTYPES if on_gpu else CPU_DTYPES)[precision]
    checkpoint.weights.require_range(arithmetic)
    tail = embedding_tail(checkpoint)
    width = tail.width(weights.hidden_size)
    dim = min(width, tail.dimensions or width) if checkpoint.embeds else 0
    heads: dict[str, Head | VectorHead] = {**vector_heads(checkpoint, weights, arithmetic)}
    if head is not None:
        _require_embeddings(checkpoint)
        heads["classify"] = linear_head(Path(head), dim)
    else:
        heads |= checkpoint_heads(checkpoint, weights.hidden_size)
    checkpoint.weights.require_layers_used()
    info = ModelInfo(
        name=name,
        revision=revision,
        dtype=precision,
        device=device_name() if on_gpu else "cpu",
        vocab_size=weights.vocab_size,
        max_tokens=max_tokens_of(checkpoint, weights.max_tokens, stated_lengths(checkpoint)),
        tasks=frozenset({*heads, *({EMBED} if checkpoint.embeds else ())}),
        dim=dim,
        labels=next((head.labels for head in heads.values() if isinstance(head, Head)), ()),
        dimensions=matryoshka_dimensions(checkpoint, width),
        int8_ranges=None if int8_ranges is None else read_int8_ranges(Path(int8_ranges), dim),
        num_token_types=None if weights.embeddings.token_types is None else len(weights.embeddings.token_types),
        token_dim=next((head.dim for head in heads.values() if isinstance(head, TokenVectors)), 0),
    )
    if on_gpu:
        return _on_gpu(info, checkpoint.directory, weights, tail, heads)
    encoder, wider = prepare_in(precision, weights)
    return CpuEngine(replace(info, wider_layers=wider), checkpoint.directory, encoder, arithmetic, tail, heads, threads)


def _require_embeddings(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedCheckpoint for a model without the vectors that a head of its own file needs."""
    if not checkpoint.embeds:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a model of {checkpoint.task} makes no vector of a text, so it takes no head."
        )


def _load_padded(checkpoint: Checkpoint, name: str, revision: str, **options: Any) -> "PaddedEngine":
    from penstock.engine.padded.loading import load_padded  # transformers is slow to import

    if checkpoint.task in (EMBED_SPARSE, EMBED_TOKENS):
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a model of {checkpoint.task} makes no vector of a text, and is not run padded."
        )
    return load_padded(checkpoint, name, revision, **options)


def _load_either(
    checkpoint: Checkpoint, name: str, revision: str, **options: Any
) -> "CpuEngine | GpuEngine | PaddedEngine":
    try:
        return _load_packed(checkpoint, name, revision, **options)
    except (NoKernel, NotPacked) as error:
        log.info("runs_padded", model_type=str(checkpoint.config.get("model_type")), reason=str(error))
    return _load_padded(checkpoint, name, revision, **options)


_LOADERS: Mapping[str, Callable[..., "CpuEngine | GpuEngine | PaddedEngine"]] = {
    "auto": _load_either,
    "packed": _load_packed,
    "padded": _load_padded,
}


def _require_kernels(weights: EncoderWeights) -> None:
    """Raise NoKernel, before a precision is refused that transformers may have, padded."""
    from penstock.engine.gpu.support import require_supported

    with _as_no_kernel():
        require_supported(weights)


@contextmanager
def _as_no_kernel() -> Iterator[None]:
    try:
        yield
    except UnsupportedDevice as error:
        raise NoKernel(str(error)) from error


def _on_gpu(
    info: ModelInfo,
    directory: Path,
    weights: EncoderWeights,
    tail: EmbeddingTail,
    heads: Mapping[str, Head | VectorHead],
) -> "GpuEngine":
    if any(isinstance(head, Head) and head.reads == "late" for head in heads.values()):
        raise NoKernel(f"{directory}: a classifier of all tokens has no kernel; use device='cpu'.")
    from penstock.engine.gpu.encoder import GpuEncoder
    from penstock.engine.gpu.engine import GpuEngine

    with _as_no_kernel():
        plan = plan_int8(weights, rounded_product) if info.dtype == "int8" else None
        encoder = GpuEncoder(weights, GPU_DTYPES[info.dtype], int8_plan=plan)
    info = replace(info, wider_layers=encoder.wider_layers)
    engine = GpuEngine(info, directory, encoder, *on_device(tail, heads, encoder.device))
    engine.warm_up()
    return engine
