"""The two sides of a comparison: a checkpoint run by transformers, and by this runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from torch import Tensor

from penstock.engine import PackedBatch, TaskOptions, from_torch, load_engine
from penstock.engine.errors import CheckpointError
from penstock.engine.families.heads import checkpoint_heads
from penstock.engine.model.checkpoint import Checkpoint, read_checkpoint
from penstock.engine.model.layout import Group
from penstock.engine.model.modules import embedding_tail
from penstock.engine.types import Int32Array, ModelInfo

_AUTO_CLASSES: dict[str, Any] = {  # by the task of the checkpoint's head; transformers leaves them untyped
    "embed": transformers.AutoModel,
    "classify": transformers.AutoModelForSequenceClassification,
    "token_classify": transformers.AutoModelForTokenClassification,
}


@dataclass(frozen=True, slots=True)
class Input:
    """One random input."""

    ids: Int32Array
    types: Int32Array | None  # token types, same length; either all sequences of a pack have them or none


Pack = list[Input]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of one side for a pack. float32, on the device."""

    hidden: Tensor  # [T, H], sequences end to end
    results: Tensor  # results as a caller receives them: vectors [N, D], scores [N, C], or token scores [T, C]


class Side(Protocol):
    """One way to run a checkpoint."""

    def run(self, pack: Pack) -> Outputs: ...


class Transformers:
    """The checkpoint in transformers: eager attention, padded batches, scores from the head's logits."""

    def __init__(self, directory: Path, task: str, dtype: torch.dtype, device: str) -> None:
        """Reads safetensors only and runs no code of the checkpoint. Raises CheckpointError."""
        self._checkpoint = read_checkpoint(directory)
        if task != "embed" and task not in checkpoint_heads(self._checkpoint):
            raise CheckpointError(f"{directory} has no head to {task} with.")
        self._task = task
        self._device = device
        self.model = _load(self._checkpoint, task, dtype).to(device)
        self._hidden: Tensor | None = None
        self.model.base_model.register_forward_hook(self._keep)

    @torch.inference_mode()
    def run(self, pack: Pack) -> Outputs:
        """See `Side`."""
        lengths = [len(sequence.ids) for sequence in pack]
        valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        inputs = {
            "input_ids": self._padded([sequence.ids for sequence in pack], valid),
            "attention_mask": valid.long().to(self._device),
        }
        types = [sequence.types for sequence in pack if sequence.types is not None]
        if types:
            inputs["token_type_ids"] = self._padded(types, valid)
        output = self.model(**inputs)
        if self._hidden is None:
            raise RuntimeError("the base model was not called. This is a bug.")
        valid = valid.to(self._device)
        hidden = self._hidden[valid].float()
        if self._task == "embed":
            return Outputs(hidden, self._vectors(hidden, lengths))
        logits = output.logits.float()
        return Outputs(hidden, self._scores(logits[valid] if self._task == "token_classify" else logits))

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def _padded(self, rows: Sequence[Int32Array], valid: Tensor) -> Tensor:
        padded = torch.full(valid.shape, self.model.config.pad_token_id or 0)
        padded[valid] = torch.from_numpy(np.concatenate(rows)).long()
        return padded.to(self._device)

    def _vectors(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """The checkpoint's pooling and the modules after it, in float32 on the CPU."""
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        groups = [Group(start, 1, length) for start, length in zip(starts, lengths, strict=True)]
        return embedding_tail(self._checkpoint)(hidden.cpu(), groups)

    def _scores(self, logits: Tensor) -> Tensor:
        match checkpoint_heads(self._checkpoint)[self._task].scores:
            case "softmax":
                return torch.softmax(logits, dim=-1)
            case "sigmoid":
                return torch.sigmoid(logits)
            case "raw":
                return logits
            case other:
                raise RuntimeError(f"unknown kind of scores {other!r}. This is a bug.")


class Runtime:
    """The checkpoint on this runtime: results from a worker's engine, hidden states from `from_torch`.

    A worker's engine does not return hidden states; `from_torch` runs the same weights on the same kernels.
    """

    def __init__(self, directory: Path, dtype: str, device: str) -> None:
        """Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice."""
        self._engine = load_engine(str(directory), dtype=dtype, device=device, threads=torch.get_num_threads())
        self.task = next((task for task in ("classify", "token_classify") if task in self.info.tasks), "embed")
        model = _load(read_checkpoint(directory), self.task, torch.float32)
        self._encoder = from_torch(model, dtype=self.info.dtype, device=self.device)
        self.config = model.config
        self.takes_types = (
            "token_type_ids" in signature(model.forward).parameters and getattr(self.config, "type_vocab_size", 0) > 1
        )

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cpu" if self.info.device == "cpu" else "cuda"

    def run(self, pack: Pack) -> Outputs:
        """See `Side`."""
        lengths = [len(sequence.ids) for sequence in pack]
        types = [sequence.types for sequence in pack if sequence.types is not None]
        batch = PackedBatch(
            token_ids=np.concatenate([sequence.ids for sequence in pack]),
            cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
            max_seqlen=max(lengths),
            token_type_ids=np.concatenate(types) if types else None,
            options=(TaskOptions(self.task),) * len(pack),
        )
        token_types = None if batch.token_type_ids is None else torch.from_numpy(batch.token_type_ids)
        hidden = self._encoder.packed(
            torch.from_numpy(batch.token_ids), torch.from_numpy(batch.cu_seqlens), token_types
        )
        rows = [np.atleast_2d(row) for row in self._engine.run(batch).rows]
        return Outputs(hidden, torch.from_numpy(np.concatenate(rows)))


def require_original(runtime: Runtime, reference: Transformers, name: str) -> None:
    """Raises CheckpointError where the checkpoint called `name` cannot be what the runtime's was made from."""
    for key in ("vocab_size", "hidden_size", "num_labels"):
        own, other = getattr(runtime.config, key), getattr(reference.model.config, key)
        if own != other:
            raise CheckpointError(f"{name} is another model: its {key} is {other}, and that of MODEL is {own}.")


def _load(checkpoint: Checkpoint, task: str, dtype: torch.dtype) -> Any:
    root = checkpoint.root
    model = _AUTO_CLASSES[task].from_pretrained(
        root,
        dtype=dtype,
        attn_implementation="eager",
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    )
    return model.eval()
