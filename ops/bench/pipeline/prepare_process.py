"""Preparations of a run that need torch: the GPU's description, and a model of random weights.

`python -m penstock.ops.bench.pipeline.prepare_process <spec as JSON>` prints {"model", "machine", "gpus"}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SHAPES = {
    "bert-base": BertConfig(),
    "bert-tiny": BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
}
GPU_MODEL = "bert-base"  # by default; on a CPU the demo's model is
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_model(shape: str, folder: Path) -> None:
    """A checkpoint with random weights, and a tokenizer whose words are w0, w1, …"""
    torch.manual_seed(0)
    config = SHAPES[shape]
    BertModel(config).save_pretrained(folder)
    words = [*_SPECIAL, *[f"w{index}" for index in range(config.vocab_size - len(_SPECIAL))]]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIAL, strict=True))
    wrap: Any = PreTrainedTokenizerFast
    wrap(tokenizer_object=tokenizer, model_max_length=config.max_position_embeddings, **names).save_pretrained(folder)


def main() -> None:
    """`spec`: model (a checkpoint, a name of SHAPES, or null for the default), and the folder of a made checkpoint."""
    spec = json.loads(sys.argv[1])
    machine, count = {}, torch.cuda.device_count()
    if count:
        from penstock.ops.bench.gpu.gpu_machine import describe_gpu

        machine = describe_gpu()
    model = spec["model"] or (GPU_MODEL if count else None)
    if model in SHAPES:
        folder = Path(spec["folder"]) / model
        make_model(model, folder)
        model = str(folder)
    print(json.dumps({"model": model, "machine": machine, "gpus": count}))


if __name__ == "__main__":
    main()
