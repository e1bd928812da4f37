"""The shapes of models that people bring: configurations of transformers, with random weights.

Sizes are those of the published checkpoints, but for the vocabulary, which is one for all: a look-up of a row costs the
same in a table of any length.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import transformers

VOCAB = 30_522
_MAX_TOKENS = 2048  # the longest request of the loads is of 2,000
_FROM_2: dict[str, Any] = {"pad_token_id": 1, "max_position_embeddings": _MAX_TOKENS + 2}  # positions
_TINY: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_DEBERTA_V3: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_QWEN3: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
}
_GEMMA: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 1152,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
}


def _of(kind: Any, **sizes: Any) -> Callable[[], Any]:
    return partial(kind, **{"vocab_size": VOCAB, "max_position_embeddings": _MAX_TOKENS, "pad_token_id": 0} | sizes)


SHAPES: Mapping[str, Callable[[], Any]] = {
    "MiniLM-L6": _of(transformers.BertConfig, hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    "BERT-tiny": _of(transformers.BertConfig, **_TINY),
    "BERT-base": _of(transformers.BertConfig),
    "BERT-large": _of(transformers.BertConfig, **_LARGE),
    "bge-m3": _of(transformers.XLMRobertaConfig, **_LARGE, **_FROM_2, type_vocab_size=1),
    "DeBERTa-v3-base": _of(transformers.DebertaV2Config, **_DEBERTA_V3),
    "MPNet-base": _of(transformers.MPNetConfig, **_FROM_2),
    "ModernBERT-base": _of(transformers.ModernBertConfig),
    "NomicBERT": _of(transformers.NomicBertConfig),
    "GTE-base": _of(transformers.GteConfig),
    "Qwen3-Embedding-0.6B": _of(transformers.Qwen3Config, **_QWEN3),
    "EmbeddingGemma-300M": _of(transformers.Gemma3TextConfig, **_GEMMA),
}
