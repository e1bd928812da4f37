"""From a model's name to an engine on the device that is there."""

from pathlib import Path

from penstock.engine.checkpoint import read_checkpoint, resolve_model, revision_of
from penstock.engine.cpu import CpuEngine
from penstock.engine.cpu_ops import CPU_DTYPES, cpu_precision, prepare_for_cpu
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.heads import checkpoint_heads, linear_head
from penstock.engine.modules import embedding_tail
from penstock.engine.types import ModelInfo


def load_engine(
    model: str,
    *,
    name: str | None = None,
    head: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int = 1,
) -> CpuEngine:
    """Load a model directory or Hugging Face id. Blocks for the reading; call it before the event loop matters.

    name: what requests call the model; the directory's name or the id when None.
    head: path of a linear head (safetensors) to classify with, on top of an embedding model.
    dtype: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it natively, else float32.
    threads: processor threads for one batch; every thread that calls `run` is set to it.
    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice.
    """
    if device not in ("auto", "cpu"):
        raise UnsupportedDevice(f"device {device!r} is not available; use auto or cpu.")
    precision = cpu_precision(dtype)
    directory = resolve_model(model)
    checkpoint = read_checkpoint(directory)
    tail = embedding_tail(checkpoint)
    weights = family_of(checkpoint).encoder(checkpoint)
    dim = tail.dense[-1].weight.shape[0] if tail.dense else weights.hidden_size
    heads = {"classify": linear_head(Path(head), dim)} if head is not None else checkpoint_heads(checkpoint)
    info = ModelInfo(
        name=name or (directory.resolve().name if Path(model).is_dir() else model),
        revision=revision_of(directory, (Path(head),) if head is not None else ()),
        dtype=precision,
        device="cpu",
        vocab_size=weights.vocab_size,
        max_tokens=min(filter(None, (checkpoint.max_tokens, weights.max_tokens))),
        tasks=frozenset({"embed", *heads}),
        dim=dim,
        labels=next((head.labels for head in heads.values()), ()),
    )
    arithmetic = CPU_DTYPES[precision]
    encoder = prepare_for_cpu(weights, arithmetic)
    return CpuEngine(info, checkpoint.directory, encoder, arithmetic, tail, heads, threads)
