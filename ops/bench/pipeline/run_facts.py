"""Facts of a run before it measures: its model and its machine.

What needs torch is a process of its own: `python -m penstock.ops.bench.pipeline.run_facts <spec as JSON>`.
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

from penstock.ops.bench.common.processes import run_once
from penstock.worker.model_settings import NULL_MODEL

GPU_MODEL = "BERT-base"  # by default; on a CPU the demo's model is
_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

Record = dict[str, Any]


def prepared(model: str | None, folder: Path) -> Record:
    """`model` (a checkpoint, or None for the demo's), `machine` (the GPU's description) and `gpus` (their number).

    `model`: a checkpoint, a name of `common/shapes.py`, which is made in the folder, or None for the device's default.
    """
    if model == NULL_MODEL:
        return {"model": NULL_MODEL, "machine": {}, "gpus": 0}
    return run_once("pipeline.run_facts", {"model": model, "folder": str(folder)}, folder / "prepare.log")


def checkpoint(model: str | None) -> Path | None:
    """The checkpoint: the demo's by default. None for the null engine."""
    if model is None:
        from penstock.ops.demo.demo_model import model_directory

        return model_directory()
    return None if model == NULL_MODEL else Path(model)


def make_model(shape: str, folder: Path) -> None:
    """A checkpoint with random weights, and a tokenizer whose words are w0, w1, …"""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import AutoModel, PreTrainedTokenizerFast

    from penstock.ops.bench.common.shapes import SHAPES

    torch.manual_seed(0)
    config, make = SHAPES[shape](), cast(Any, AutoModel)
    make.from_config(config).save_pretrained(folder)
    special = [word for word in _SPECIAL.values() if word != _SPECIAL["pad_token"]]
    special.insert(config.pad_token_id, _SPECIAL["pad_token"])
    words = [*special, *[f"w{index}" for index in range(config.vocab_size - len(special))]]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    wrap: Any = PreTrainedTokenizerFast
    longest = config.max_position_embeddings
    wrap(tokenizer_object=tokenizer, model_max_length=longest, **_SPECIAL).save_pretrained(folder)


def _prepare(model: str | None, folder: str) -> Record:
    import torch

    machine: Record = {}
    count = torch.cuda.device_count()
    if count:
        from penstock.ops.bench.gpu.device_bench import describe_gpu

        machine = describe_gpu()
        machine["gpu"] = machine["gpu"] if count == 1 else f"{count} x {machine['gpu']}"  # a machine of its own
    from penstock.ops.bench.common.shapes import SHAPES

    chosen = model or (GPU_MODEL if count else None)
    if chosen is not None and chosen in SHAPES:
        made = Path(folder) / chosen
        make_model(chosen, made)
        chosen = str(made)
    return {"model": chosen, "machine": machine, "gpus": count}


if __name__ == "__main__":
    print(json.dumps(_prepare(**json.loads(sys.argv[1]))))
