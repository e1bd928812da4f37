"""config.json of a model's first code: what transformers computes from it is served, or it is refused by the name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from penstock.engine import load_engine
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.admission import admit
from tests.engine.families.test_families import edit_config
from tests.engine.helpers import VOCAB, pack, random_sequences, reference_hidden, save_encoder, write_json

pytestmark = pytest.mark.slow

_AUTO_CONFIG: Any = transformers.AutoConfig  # transformers leaves it untyped
NOMIC = {  # every setting of the first code, as nomic-embed-text-v1.5 has them
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "auto_map": {"AutoConfig": "own.NomicBertConfig", "AutoModel": "own.NomicBertModel"},
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "expert_choice_router": False,
    "ffn_div": 1,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "moe_every_n_layers": 0,
    "moe_impl": "own",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": 0,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "num_experts": 0,
    "num_shared_experts": 0,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30528,
}
SMALL_NOMIC = NOMIC | {"n_embd": 48, "n_head": 4, "n_inner": 96, "n_layer": 2, "vocab_size": VOCAB}
GTE = {  # of snowflake-arctic-embed-m-v2.0's, likewise
    "auto_map": {"AutoConfig": "own.GteConfig", "AutoModel": "own.GteModel"},
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "matryoshka_dimensions": [24],
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_parameters": "gone",
    "rope_scaling": None,
    "rope_theta": 160000,
    "unpad_inputs": "true",
    "use_memory_efficient_attention": "true",
}


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize(("family", "stated"), [("gte", GTE), ("nomic_bert", SMALL_NOMIC)])
def test_beside_transformers_names(tmp_path: Path, family: str, stated: dict[str, Any], engine: str) -> None:
    model, sequence = save_encoder(tmp_path, family), random_sequences((40,))[0]
    edit_config(tmp_path, **stated)
    (row,) = load_engine(str(tmp_path), dtype="float32", device="cpu", engine=engine).run(pack([sequence])).rows
    np.testing.assert_allclose(row, reference_hidden(model, sequence).mean(axis=0), atol=1e-5)


def test_alone_it_is_what_transformers_takes_by_default(tmp_path: Path) -> None:
    """transformers does not read the first code's names."""
    write_json(tmp_path / "config.json", NOMIC)
    reference, config = _AUTO_CONFIG.from_pretrained(tmp_path), admit(tmp_path).config
    assert config.pop("rope_theta") == reference.rope_parameters["rope_theta"]
    own = config.keys() - NOMIC.keys()
    assert {"hidden_size", "num_attention_heads", "max_position_embeddings"} < own
    assert {name: config[name] for name in own} == {name: getattr(reference, name) for name in own}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_embd": 96}, "n_embd 96, .* hidden_size 768.* state it as hidden_size"),
        ({"n_layer": 24}, "num_hidden_layers 12"),
        ({"rotary_emb_base": 10_000}, "rope_theta 1000.0"),
        ({"rotary_emb_base": 1000, "rope_parameters": {"rope_theta": 50.0}}, "rope_theta 50.0"),
        ({"activation_function": "geglu"}, "hidden_act 'silu'"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_eps 1e-12"),
        *(
            ({key: value}, f"{key} {value}")
            for key, value in {
                "causal": True,
                "parallel_block": True,
                "prenorm": True,
                "qkv_proj_bias": True,
                "mlp_fc1_bias": True,
                "mlp_fc2_bias": True,
                "moe_every_n_layers": 2,
                "num_experts": 8,
                "num_shared_experts": 1,
                "rotary_emb_fraction": 0.5,
                "rotary_emb_interleaved": True,
                "rotary_emb_scale_base": 512,
                "rotary_scaling_factor": 2.0,
                "scale_attn_by_inverse_layer_idx": True,
                "scale_attn_weights": False,
                "use_rms_norm": True,
            }.items()
        ),
        ({"moe_future": 2}, r"does not know \(moe_future\)"),
    ],
    ids=str,
)
def test_what_transformers_computes_otherwise_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write_json(tmp_path / "config.json", NOMIC | change)
    with pytest.raises(UnsupportedCheckpoint, match=words):
        admit(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_norm_type": "rms_norm"},
        {"position_embedding_type": "absolute"},
        {"logn_attention_scale": True},
        {"logn_attention_clip1": True},
    ],
    ids=str,
)
def test_gtes_likewise(tmp_path: Path, change: dict[str, Any]) -> None:
    write_json(tmp_path / "config.json", {"model_type": "gte", "architectures": ["GteModel"]} | change)
    with pytest.raises(UnsupportedCheckpoint, match=next(iter(change))):
        admit(tmp_path)


def test_the_name_that_gte_was_published_under_has_a_way_out(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", GTE | {"model_type": "new", "architectures": ["NewModel"]})
    with pytest.raises(UnsupportedCheckpoint, match=r"'new'.* never run\. It has the model as 'gte'"):
        admit(tmp_path)


def test_jina_v3s_first_form_is_refused(tmp_path: Path) -> None:
    """It names itself xlm-roberta, and has rotary positions and adapters."""
    save_encoder(tmp_path, "xlm-roberta")
    edit_config(
        tmp_path,
        auto_map={"AutoModel": "own.XLMRobertaLoRA"},
        lora_adaptations=["retrieval.query", "retrieval.passage"],
        rotary_emb_base=20_000.0,
    )
    with pytest.raises(UnsupportedCheckpoint, match="lora_adaptations, rotary_emb_base"):
        admit(tmp_path)
