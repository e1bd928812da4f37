"""A random BERT of two layers, small enough that a CPU computes it beside three brokers."""

from pathlib import Path
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # far enough from zero that a mix-up of rows shows
}


def save_tiny_model(directory: Path, seed: int) -> None:
    """Write its checkpoint. The seed decides its weights."""
    import torch  # slow to import, as the next, and most runs need neither
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    model = BertModel(BertConfig(**_SIZES))
    model.save_pretrained(directory)
