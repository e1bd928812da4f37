"""Post-norm encoders with rotary positions: NomicBERT, GTE and jina-embeddings-v3, in the forms that are published."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from penstock.engine import TaskOptions
from penstock.engine.errors import CheckpointError
from penstock.producer.prompts import read_prompts
from penstock.producer.tokenization import Tokenizer
from tests.engine.families.test_families import assert_scores_equal, edit_config, largest_error
from tests.engine.helpers import (
    MAX_TOKENS,
    config_of,
    cpu_engine,
    edited_tensors,
    pack,
    random_sequences,
    randomise,
    save_classifier,
    save_encoder,
    save_tagger,
    write_json,
)
from tests.parity_checkpoints import VOCABULARY, add_tokenizer

pytestmark = pytest.mark.slow

FAMILIES = ("gte", "jina_embeddings_v3", "nomic_bert")
LENGTHS = (1, 2, 40, MAX_TOKENS)
_AUTO_MODEL: Any = transformers.AutoModel  # transformers leaves these untyped
_AUTO_CLASSIFIER: Any = transformers.AutoModelForSequenceClassification
_MASKED: Any = transformers.AutoModelForMaskedLM


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_published", [True, False])
def test_both_layouts_are_read_with_each_head(tmp_path: Path, family: str, is_published: bool) -> None:
    """transformers writes the published layout unless it is told not to."""
    for save in (save_encoder, save_classifier, save_tagger):
        model = save(tmp_path, family, num_labels=3)
        model.save_pretrained(tmp_path, save_original_format=is_published)
        with edited_tensors(tmp_path) as tensors:
            assert any("self_attn.q_proj" in name for name in tensors) != is_published
        assert largest_error(tmp_path, model.base_model, LENGTHS) <= 1e-5
        if save is save_classifier:
            assert_scores_equal(tmp_path, model)
    sequence = random_sequences((40,))[0]
    (row,) = cpu_engine(tmp_path).run(pack([sequence], TaskOptions("token_classify"))).rows
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(sequence)[None].long()).logits[0]
    np.testing.assert_allclose(row, torch.softmax(logits, dim=1).numpy(), atol=1e-5)


@pytest.mark.parametrize("save", [save_encoder, save_classifier])
def test_gte_below_the_prefix_that_it_was_published_with(tmp_path: Path, save: Any) -> None:
    model = save(tmp_path, "gte")
    with edited_tensors(tmp_path) as tensors:
        for name in [name for name in tensors if not name.startswith("classifier")]:
            tensors["new." + name.removeprefix("gte.")] = tensors.pop(name)
    reference = (_AUTO_MODEL if save is save_encoder else _AUTO_CLASSIFIER).from_pretrained(tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), reference.parameters(), strict=True))
    assert largest_error(tmp_path, reference.base_model, LENGTHS) <= 1e-5
    if save is save_classifier:
        assert_scores_equal(tmp_path, reference)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        *((family, {"head_dim": 20, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}) for family in FAMILIES),
        *((family, {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}) for family in FAMILIES),
        *((family, {"type_vocab_size": 2}) for family in FAMILIES),
        ("gte", {"type_vocab_size": 0}),
        ("nomic_bert", {"rope_parameters": {"rope_theta": 1e3, "rope_type": "linear", "factor": 4.0}}),
    ],
    ids=str,
)
def test_variants(tmp_path: Path, family: str, config: dict[str, Any]) -> None:
    model = save_encoder(tmp_path, family, **config)
    num_types = model.config.type_vocab_size
    assert largest_error(tmp_path, model, LENGTHS, types=num_types == 2) <= 1e-5
    assert cpu_engine(tmp_path).info.num_token_types == (num_types or None)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_config_json_leaves_out_is_as_in_transformers(tmp_path: Path, family: str) -> None:
    """And rotary settings in their older form."""
    save_encoder(tmp_path, family)
    with edited_tensors(tmp_path) as tensors:
        tensors["embeddings.word_embeddings.weight"] *= 0.01  # so that eps counts
        tensors["embeddings.token_type_embeddings.weight"] *= 0.01
    left_out = ("hidden_act", "layer_norm_eps", "max_position_embeddings", "type_vocab_size")
    edit_config(tmp_path, **dict.fromkeys(left_out, "gone"))
    assert cpu_engine(tmp_path).info.max_tokens == _AUTO_MODEL.from_pretrained(tmp_path).config.max_position_embeddings
    for old in ({"rope_theta": 50.0}, {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, {}):
        edit_config(tmp_path, **{"rope_parameters": "gone", "rope_scaling": "gone", "rope_theta": "gone", **old})
        assert largest_error(tmp_path, _AUTO_MODEL.from_pretrained(tmp_path), LENGTHS) <= 1e-5


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("gte", {"rope_scaling": {"type": "ntk", "factor": 8.0}}, "scaled by 'ntk'"),
        ("gte", {"is_causal": True}, "is_causal"),
        ("gte", {"num_attention_heads": 16}, "heads of 3 cannot be rotated"),
        ("gte", {"head_dim": 1 << 20}, r"has shape \(48, 48\)"),
        ("nomic_bert", {"type_vocab_size": 0}, "'type_vocab_size' must be a positive integer"),
        ("nomic_bert", {"hidden_act": "swiglu"}, "swiglu"),
    ],
)
def test_variants_that_are_refused(tmp_path: Path, family: str, change: dict[str, Any], words: str) -> None:
    save_encoder(tmp_path, family)
    edit_config(tmp_path, **change)
    with pytest.raises(CheckpointError, match=words):
        cpu_engine(tmp_path)


@pytest.mark.parametrize(
    "name", ["encoder.layers.1.attn.Wqkv.bias", "encoder.layers.0.mlp.fc2.bias", "encoder.layers.1.mlp.router.weight"]
)
def test_tensors_that_transformers_would_not_use_are_refused(tmp_path: Path, name: str) -> None:
    """Biases, which NomicBERT's first code could have, and the experts of its second version."""
    save_encoder(tmp_path, "nomic_bert")
    with edited_tensors(tmp_path) as tensors:
        tensors[name] = torch.ones(48)
    with pytest.raises(CheckpointError, match=name):
        cpu_engine(tmp_path)


def save_sentence_transformer(directory: Path, family: str, *, max_tokens: int) -> SentenceTransformer:
    """As the published ones are: pooling, norm, prompts, and a limit of its own."""
    save_encoder(directory / "plain", family, vocab_size=len(VOCABULARY), pad_token_id=0)
    add_tokenizer(directory / "plain")
    transformer = SentenceTransformer(str(directory / "plain"), device="cpu")[0]
    modules = [transformer, Pooling(48, "mean"), Normalize()]
    prompts = {"search_query": "where is: ", "search_document": "the weather: "}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(directory))
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    return SentenceTransformer(str(directory), device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_vectors_of_sentence_transformers(tmp_path: Path, family: str) -> None:
    """With prompts, and cut where it cuts: rotary positions go on beyond those that config.json states."""
    reference = save_sentence_transformer(tmp_path, family, max_tokens=2 * MAX_TOKENS)
    engine, tokenizer, prompts = cpu_engine(tmp_path), Tokenizer.from_directory(tmp_path), read_prompts(tmp_path)
    assert engine.info.max_tokens == 2 * MAX_TOKENS
    texts = ["where is my card", "My CARD arrived, it's café", "the weather is " * 60, "where is my card " * 200]
    for name in ("search_query", "search_document", None):
        expected = reference.encode(texts, prompt_name=name)
        prompt = prompts.default if name is None else prompts.by_name[name]
        encoded = tokenizer.encode([prompt + text for text in texts], truncate=True, max_tokens=engine.info.max_tokens)
        rows = engine.run(pack([one.ids for one in encoded])).rows
        np.testing.assert_allclose(np.stack(rows), expected, atol=1e-5)
    tokenizer.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_below_a_head_of_masked_tokens_and_modules(tmp_path: Path, family: str) -> None:
    """Its head is not used, whether it is tied or not, and its weights may be in several files."""
    model = _MASKED.from_config(config_of(family)).eval()
    randomise(model)
    model.save_pretrained(tmp_path, max_shard_size="60kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    write_json(
        tmp_path / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
    )
    write_json(tmp_path / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, "pooling_mode_cls_token": True})
    assert largest_error(tmp_path, model.base_model, LENGTHS) <= 1e-5
