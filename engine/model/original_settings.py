"""Settings of the code that a model was first published with, where transformers' own class has other names for them.

Published checkpoints keep that code's config.json. transformers reads only its own names there, and takes its defaults
for those that are missing, without a word. So each setting of the first code must say what the class computes. Sources:
`NomicBertConfig` of nomic-ai/nomic-bert-2048, `NewConfig` of Alibaba-NLP/new-impl, and transformers 5.24.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.files import Config, setting


@dataclass(frozen=True, slots=True)
class _Original:
    """Settings of a model's first code, by name, and what transformers makes of a config.json that states them."""

    fixed: Mapping[str, Any]  # what the class always computes; null is False
    neutral: frozenset[str]  # of training, storage or speed
    renamed: Mapping[str, str] = field(default_factory=dict)  # to the class's name
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the class, by its names


_GTE = _Original(
    fixed={
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "position_embedding_type": "rope",
    },
    neutral=frozenset(
        {
            "matryoshka_dimensions",
            "pack_qkv",
            "unpad_inputs",
            "use_memory_efficient_attention",
        }
    ),
)
_NOMIC_BERT = _Original(
    renamed={
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "rotary_emb_base": "rope_theta",
    },
    defaults={
        "hidden_act": "silu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "rope_theta": 1000.0,
    },
    fixed={
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "moe_every_n_layers": False,
        "num_experts": False,
        "num_shared_experts": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": False,
        "rotary_scaling_factor": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "use_rms_norm": False,
    },
    neutral=frozenset(
        {
            "attn_pdrop",
            "dense_seq_output",
            "embd_pdrop",
            "expert_choice_router",  # as the next and moe_*: of experts
            "ffn_div",
            "fused_bias_fc",
            "fused_dropout_add_ln",
            "max_trained_positions",  # with n_positions, of a scaling that must not be stated
            "moe_impl",
            "moe_normalize_expert_weights",
            "moe_resid_pdrop",
            "moe_top_k",
            "n_positions",
            "pad_vocab_size_multiple",
            "parallel_block_tied_norm",  # of parallel_block
            "reorder_and_upcast_attn",
            "resid_pdrop",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "use_cache",
            "use_flash_attn",
            "use_xentropy",
        }
    ),
)
_ORIGINALS = {"gte": _GTE, "nomic_bert": _NOMIC_BERT}
_READ_AS_THEY_ARE = ("rope_scaling", "rope_theta")  # older names of what transformers calls rope_parameters
_WAYS_OUT = {
    "rotary_scaling_factor": "It is for texts longer than max_trained_positions. Remove it, and state that length as "
    "max_seq_length in sentence_bert_config.json."
}
_GATED = {"swiglu": "silu"}  # the first code's names of activations with a gate, which the class always has


def original_settings(model_type: object) -> frozenset[str]:
    """Names of the first code's settings that `in_own_names` looks at; none for most models."""
    original = _ORIGINALS.get(str(model_type))
    if original is None:
        return frozenset()
    return frozenset({*original.renamed, *original.fixed, *original.neutral, *_READ_AS_THEY_ARE})


def in_own_names(root: Path, config: Config) -> Config:
    """config.json with transformers' names for what the first code's say, and its defaults.

    Raises UnsupportedCheckpoint for a setting by which the first code computes something else.
    """
    original = _ORIGINALS.get(str(config.get("model_type")))
    if original is None:
        return config
    for name, own, computed in _differences(original, config):
        way_out = f"If {config[name]!r} is right, state it as {own}." if own else _WAYS_OUT.get(name, "")
        raise UnsupportedCheckpoint(
            f"{root}: config.json states {name} {config[name]!r}, which transformers does not read: it computes with "
            f"{own or name} {computed!r}, which is another model. {way_out}".rstrip()
        )
    stated = {key: value for key, value in config.items() if value is not None}
    full = Config({**original.defaults, **stated})
    full.path = config.path
    return full


def _differences(original: _Original, config: Config) -> Iterator[tuple[str, str, Any]]:
    """Names of settings with other values than the class's, its names ("": it has none), and its values."""
    for name, own in original.renamed.items():
        value, computed = config.get(name), _of_class(config, own, original.defaults[own])
        if value is not None and _GATED.get(str(value), value) != computed:
            yield name, own, computed
    for name, computed in original.fixed.items():
        if name in config and (config[name] or False) != computed:
            yield name, "", computed


def _of_class(config: Config, own: str, default: Any) -> Any:
    """The value of one of the class's settings. rope_theta may be among those of rotary positions, and counts there."""
    rope = setting(config, "rope_scaling", {}) or setting(config, "rope_parameters", {})
    places = (rope, config) if own == "rope_theta" else (config,)
    return next((place[own] for place in places if place.get(own) is not None), default)
