"""Directories of models: each is answered as by sentence-transformers or transformers, or refused with a reason."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util.misc import import_module_class

from penstock.engine import TaskOptions, generates, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.families import FAMILIES
from penstock.engine.model.architectures import _KNOWN, _of_transformers
from penstock.engine.model.module_list import KINDS
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.messages import Text
from tests.engine.helpers import (
    SIZE,
    VOCAB,
    edit_json,
    edited_tensors,
    pack,
    randomise,
    save_classifier,
    save_encoder,
    save_sentence_transformer,
    save_tagger,
    save_tokenizer,
    write_json,
)

pytestmark = pytest.mark.slow

TEXTS = ["a river in spring", "where is the river", "snow", "the snow is in spring where a river is the river"]
PAIRS = [("where is the river", "a river in spring"), ("snow", "where is the snow")]
WORDS = sorted({word for text in TEXTS for word in text.split()})
_SMALL = SIZE | {"max_position_embeddings": 64, "pad_token_id": 0}
_QWEN3: Any = transformers.Qwen3Config  # whose classes take more than their signatures say
_NOMIC: Any = transformers.NomicBertConfig


def load(directory: Path, engine: str = "auto") -> Any:
    return load_engine(str(directory), dtype="float32", device="cpu", engine=engine)


def answers(directory: Path, texts: Sequence[Text], task: str = "embed", engine: str = "auto") -> Any:
    """Rows of texts, prepared as a worker prepares them."""
    encoded = Tokenizer.from_directory(directory).encode(texts, truncate=False)
    types = [np.zeros_like(one.ids) if one.token_type_ids is None else one.token_type_ids for one in encoded]
    return np.stack(load(directory, engine).run(pack([one.ids for one in encoded], TaskOptions(task), types)).rows)


def refuse(directory: Path, reason: str) -> None:
    """Both paths refuse a directory with one reason."""
    for engine in ("packed", "padded"):
        with pytest.raises(CheckpointError, match=reason):
            load(directory, engine)


def entries_of(directory: Path) -> Any:
    return json.loads((directory / "modules.json").read_text(encoding="utf-8"))


def write_modules(directory: Path, entries: Any) -> None:
    (directory / "modules.json").write_text(json.dumps(entries), encoding="utf-8")


def save_dense(directory: Path, **config: Any) -> None:
    sizes = {"in_features": 48, "out_features": 48, "bias": True}
    write_json(directory / "config.json", sizes | {"activation_function": "torch.nn.modules.linear.Identity"} | config)
    save_file({"linear.weight": torch.randn(48, 48), "linear.bias": torch.randn(48)}, directory / "model.safetensors")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer, Pooling and Normalize, as sentence-transformers saves them."""
    directory = tmp_path_factory.mktemp("saved")
    save_sentence_transformer(directory, WORDS, normalize=True)
    return directory / "model"


@pytest.fixture
def sentences(saved: Path, tmp_path: Path) -> Path:
    """A copy of `saved`, free to be spoiled."""
    return shutil.copytree(saved, tmp_path / "model")


def save(directory: Path, model: Any) -> Path:
    model.eval()
    randomise(model)
    model.save_pretrained(directory)
    save_tokenizer(directory, WORDS)
    return directory


_STATES = {"method": "forward", "method_output_name": "last_hidden_state"}  # of a sentence-transformers Transformer


class TestModules:
    def test_every_name_of_a_class_is_one_that_sentence_transformers_finds(self) -> None:

        for name, kind in KINDS.items():
            assert import_module_class(name).__name__ == kind, name

    @pytest.mark.parametrize("engine", ["packed", "padded"])
    def test_old_names_give_the_vectors_of_sentence_transformers(self, sentences: Path, engine: str) -> None:

        expected = SentenceTransformer(str(sentences), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(answers(sentences, TEXTS, engine=engine), expected, atol=1e-5)
        entries = entries_of(sentences)
        for entry in entries:
            entry["type"] = f"sentence_transformers.models.{entry['type'].rpartition('.')[2]}"
        write_modules(sentences, entries)
        np.testing.assert_allclose(answers(sentences, TEXTS, engine=engine), expected, atol=1e-5)

    @pytest.mark.parametrize(
        ("position", "name", "reason"),
        [
            (1, "my_pkg.attention.Pooling", "never run"),
            (1, "Pooling", "never run"),
            (1, "sentence_transformers.Pooling", "not implemented"),
            (1, "sentence_transformers.sparse_encoder.models.SparseAutoEncoder", "of sparse models only"),
            (1, "sentence_transformers.sparse_encoder.modules.SparseStaticEmbedding", "of sparse models only"),
            (1, "sentence_transformers.models.WeightedLayerPooling", "not implemented"),
            (
                2,
                "sentence_transformers.multi_vector_encoder.modules.HierarchicalTokenPooling",
                "vectors that are pooled",
            ),
            *[
                (0, f"sentence_transformers.models.{kind}", "not implemented")
                for kind in ("WordEmbeddings", "StaticEmbedding", "CLIPModel", "Asym", "Router", "BoW", "LSTM", "CNN")
            ],
        ],
    )
    def test_other_classes(self, sentences: Path, position: int, name: str, reason: str) -> None:
        entries = entries_of(sentences)
        entries[position]["type"] = name
        write_modules(sentences, entries)
        refuse(sentences, f"{name.replace('.', '[.]')}'.*{reason}")

    @pytest.mark.parametrize("kind", ["PyLateDense", "MultiVectorMask", "SpladePooling"])
    def test_modules_of_other_models(self, sentences: Path, kind: str) -> None:
        entries = entries_of(sentences)
        names = {found: name for name, found in KINDS.items()} | {"PyLateDense": "pylate.models.Dense.Dense"}
        entries[2]["type"] = names[kind]
        write_modules(sentences, entries)
        refuse(sentences, f"the modules are Transformer, Pooling, {kind}")
        entries[0]["type"] = names["MLMTransformer"]
        write_modules(sentences, entries)
        refuse(sentences, "a MLMTransformer is run in a SparseEncoder only")

    @pytest.mark.parametrize(
        ("order", "reason"),
        [
            ((0, 2), "no Pooling module.*cannot run it either"),
            ((0,), "no Pooling module"),
            ((0, 2, 1), "Transformer, Normalize, Pooling"),
            ((0, 1, 1), "one name"),
            ((1, 2), "must begin with a Transformer"),
            ((), "must begin with a Transformer"),
        ],
    )
    def test_other_orders(self, sentences: Path, order: tuple[int, ...], reason: str) -> None:
        entries = entries_of(sentences)
        write_modules(sentences, [entries[i] for i in order])
        refuse(sentences, reason)

    def test_a_dense_before_pooling(self, sentences: Path) -> None:
        """sentence-transformers runs it on each token."""

        transformer, pooling, _ = entries_of(sentences)
        save_dense(sentences / "9_Dense", module_input_name="token_embeddings")
        dense = {"idx": 9, "name": "9", "path": "9_Dense", "type": "sentence_transformers.models.Dense"}
        write_modules(sentences, [transformer, dense, pooling])
        assert SentenceTransformer(str(sentences), device="cpu").encode(TEXTS).shape == (4, 48)
        refuse(sentences, "Transformer, Dense, Pooling")

    @pytest.mark.parametrize("kind", ["Dense", "Normalize"])
    @pytest.mark.parametrize("key", ["module_input_name", "module_output_name"])
    def test_modules_that_read_or_write_something_else(self, sentences: Path, kind: str, key: str) -> None:
        transformer, pooling, _ = entries_of(sentences)
        save_dense(sentences / "2_Normalize", **{key: "token_embeddings"})
        last = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"sentence_transformers.models.{kind}"}
        write_modules(sentences, [transformer, pooling, last])
        refuse(sentences, f"{kind} with {key} 'token_embeddings'")

    def test_a_dense_of_another_width(self, sentences: Path) -> None:
        save_dense(sentences / "2_Normalize", in_features=32)
        save_file({"linear.weight": torch.randn(48, 32), "linear.bias": torch.randn(48)},
                  sentences / "2_Normalize" / "model.safetensors")  # fmt: skip
        entries = entries_of(sentences)
        entries[2]["type"] = "sentence_transformers.models.Dense"
        write_modules(sentences, entries)
        refuse(sentences, "takes 32 values, but is given 48")

    @pytest.mark.parametrize(
        "changes",
        [
            {"transformer_task": "fill-mask"},
            {"transformer_task": "sequence-classification"},
            {"module_output_name": "sentence_embedding"},
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            {"modality_config": {"text": _STATES, "message": {**_STATES, "format": "flat"}}},
            {"query_expansion": {"strategy": "fixed"}},
            {"processing_kwargs": {"text": {"padding": "max_length"}}},
            {"model_args": {"num_hidden_layers": 1}},
        ],
    )
    @pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
    def test_options_of_the_transformer(self, sentences: Path, changes: dict[str, Any], name: str) -> None:
        (sentences / "sentence_bert_config.json").unlink()
        write_json(sentences / name, {"max_seq_length": 64, "do_lower_case": False} | changes)
        refuse(sentences, next(iter(changes)))

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("MultiVectorEncoder", "after the Transformer are Pooling, Normalize. In late interaction"),
            ("ColBERT", "after the Transformer are Pooling, Normalize. In late interaction"),
            ("Own", "a Own.*is not implemented"),
        ],
    )
    def test_other_models_of_sentence_transformers(self, sentences: Path, kind: str, reason: str) -> None:
        edit_json(sentences / "config_sentence_transformers.json", model_type=kind)
        refuse(sentences, reason)

    def test_a_projection_that_sentence_transformers_would_make_up(self, tmp_path: Path) -> None:
        save(tmp_path, transformers.BertModel(transformers.BertConfig(**_SMALL)))
        write_json(tmp_path / "artifact.metadata", {"query_maxlen": 32})
        refuse(tmp_path, "artifact.metadata is of ColBERT, whose projection is missing")
        (tmp_path / "artifact.metadata").unlink()
        write_json(tmp_path / "config_sentence_transformers.json", {"model_type": "ColBERT"})
        refuse(tmp_path, "config_sentence_transformers.json is of ColBERT")

    def test_a_sparse_model_of_pooled_vectors(self, sentences: Path) -> None:
        SparseEncoder(str(sentences), device="cpu").save(str(sentences / "model"))
        refuse(sentences / "model", "SparseAutoEncoder.*of sparse models only")
        edit_json(sentences / "config_sentence_transformers.json", model_type="SparseEncoder")
        refuse(sentences, "Transformer, Pooling, Normalize. Of sparse models only")

    @pytest.mark.parametrize(
        ("file", "changes", "reason"),
        [
            ("config_sentence_transformers.json", {"max_active_dims": 8}, "max_active_dims is not implemented"),
            (
                "config_sentence_transformers.json",
                {"model_type": "SentenceTransformer"},
                "fill-mask' is not implemented",
            ),
            ("sentence_bert_config.json", {"transformer_task": None}, "transformer_task 'fill-mask' only"),
            ("config.json", {"architectures": ["BertModel"]}, "is run as a ...ForMaskedLM, not as a BertModel"),
        ],
    )
    def test_what_a_splade_model_may_not_have(
        self, tmp_path: Path, file: str, changes: dict[str, Any], reason: str
    ) -> None:
        save(tmp_path / "plain", transformers.BertForMaskedLM(transformers.BertConfig(**_SMALL)))
        SparseEncoder(str(tmp_path / "plain"), device="cpu").save(str(tmp_path / "model"))
        edit_json(tmp_path / "model" / file, **changes)
        refuse(tmp_path / "model", reason)

    def test_the_encoder_of_a_masked_language_model(self, tmp_path: Path) -> None:
        """Named so by modules.json, as in all-mpnet-base-v2."""

        plain = save(tmp_path / "plain", transformers.BertForMaskedLM(transformers.BertConfig(**_SMALL)))
        reference = SentenceTransformer(str(plain), device="cpu")
        reference.save(str(tmp_path / "model"))
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "model" / name).write_bytes((plain / name).read_bytes())
        for engine in ("packed", "padded"):
            rows = answers(tmp_path / "model", TEXTS, engine=engine)
            np.testing.assert_allclose(rows, reference.encode(TEXTS), atol=1e-5)

    def test_an_embedding_model_of_a_causal_decoder(self, tmp_path: Path) -> None:
        """As Qwen3-Embedding is saved: ...ForCausalLM, last token, Normalize."""

        plain = save(tmp_path / "plain", transformers.Qwen3Model(_QWEN3(**_SMALL, num_key_value_heads=2, head_dim=12)))
        transformer = SentenceTransformer(str(plain), device="cpu")[0]
        reference = SentenceTransformer(modules=[transformer, Pooling(48, "lasttoken"), Normalize()], device="cpu")
        reference.save(str(tmp_path / "model"))
        edit_json(tmp_path / "model" / "config.json", architectures=["Qwen3ForCausalLM"])
        np.testing.assert_allclose(answers(tmp_path / "model", TEXTS), reference.encode(TEXTS), atol=1e-5)

    @pytest.mark.parametrize("engine", ["packed", "padded"])
    def test_a_cross_encoder_that_version_6_saves(self, tmp_path: Path, engine: str) -> None:
        save(tmp_path / "plain", transformers.BertForSequenceClassification(
            transformers.BertConfig(**{**_SMALL, "num_labels": 1})))  # fmt: skip
        reference = CrossEncoder(str(tmp_path / "plain"), device="cpu")
        reference.save_pretrained(str(tmp_path / "model"))
        assert (tmp_path / "model" / "modules.json").exists()
        rows = answers(tmp_path / "model", PAIRS, "rerank", engine)
        np.testing.assert_allclose(rows[:, 0], reference.predict(PAIRS), atol=1e-5)
        entries = entries_of(tmp_path / "model")
        kind = "sentence_transformers.cross_encoder.modules.LogitScore"
        write_modules(tmp_path / "model", [*entries, {"idx": 1, "name": "1", "path": "1", "type": kind}])
        refuse(tmp_path / "model", "LogitScore needs a Transformer with transformer_task 'text-generation'")


class TestClasses:
    def test_those_of_the_packed_families_are_those_of_transformers(self) -> None:
        assert FAMILIES.keys() <= _KNOWN.keys()  # for the others, a worker imports transformers
        for model_type, known in _KNOWN.items():
            theirs = _of_transformers(model_type)
            assert theirs is not None
            assert known.has_decoder == theirs.has_decoder
            if not known.has_decoder:
                assert known.encoders == theirs.encoders
                assert known.classifiers == theirs.classifiers
                assert known.token_classifiers == theirs.token_classifiers
                assert all(hasattr(transformers, name) for name in known.pretrained)
            else:
                assert known.encoders >= theirs.encoders  # BART's is read with its decoder
                assert all(hasattr(transformers, name) for name in known.served)

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda: transformers.BertForPreTraining(transformers.BertConfig(**_SMALL)), "predicts masked tokens"),
            (lambda: transformers.BertForQuestionAnswering(transformers.BertConfig(**_SMALL)), "QuestionAnswering' is"),
            (
                lambda: transformers.GPT2LMHeadModel(
                    transformers.GPT2Config.from_dict({"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 2})
                ),
                "predicts the next token",
            ),
            (
                lambda: transformers.UMT5ForConditionalGeneration(
                    transformers.UMT5Config(
                        vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, num_decoder_layers=1
                    )
                ),
                "'umt5' does not generate here.*UMT5EncoderModel",
            ),
            (
                lambda: transformers.PLBartForSequenceClassification(
                    transformers.PLBartConfig.from_dict({
                        "vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
                        "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2,
                        "decoder_attention_heads": 2, "num_labels": 3,
                    })
                ),
                r"classifier on an encoder-decoder \(PLBartForSequenceClassification\)",
            ),
        ],
    )  # fmt: skip
    def test_other_classes(self, tmp_path: Path, make: Callable[[], Any], reason: str) -> None:
        make().save_pretrained(tmp_path)
        assert not generates(str(tmp_path))
        refuse(tmp_path, reason)

    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            (["BertModel", "BertForSequenceClassification"], "names BertModel, BertForSequenceClassification"),
            ([], "names no class"),
            (None, "names no class"),
            ("BertModel", "must be a list of names"),
            ([3], "must be a list of names"),
            (["HF_ColBERT"], "'linear.weight' is missing|makes no vector of a text"),
            (["RobertaModel"], "'RobertaModel' is not implemented"),
            (
                ["MyBertModel"],
                "'MyBertModel' is not implemented. Supported.*BertForSequenceClassification, .*BertModel",
            ),
        ],
    )
    def test_other_lists(self, tmp_path: Path, names: Any, reason: str) -> None:
        save_encoder(tmp_path, "bert")
        edit_json(tmp_path / "config.json", architectures=names)
        refuse(tmp_path, reason)

    def test_a_list_is_not_needed_with_modules(self, sentences: Path) -> None:
        expected = answers(sentences, TEXTS)
        edit_json(sentences / "config.json", architectures=None)
        np.testing.assert_array_equal(answers(sentences, TEXTS), expected)

    def test_an_encoder_as_transformers_5_saves_it(self, tmp_path: Path) -> None:

        t5: Any = transformers.T5Config
        config = t5(vocab_size=VOCAB, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, n_positions=64,
                    pad_token_id=0)  # fmt: skip
        save(tmp_path, transformers.T5EncoderModel(config))
        assert json.loads((tmp_path / "config.json").read_text())["is_encoder_decoder"] is False
        expected = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(answers(tmp_path, TEXTS), expected, atol=1e-5)


AUTO_MAP = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}


class TestOwnCode:
    def test_what_transformers_implements_is_served(self, tmp_path: Path) -> None:

        save(tmp_path, transformers.NomicBertModel(_NOMIC(**_SMALL)))
        expected = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
        edit_json(tmp_path / "config.json", auto_map=AUTO_MAP)
        (tmp_path / "own.py").write_text("raise SystemExit('it was run')", encoding="utf-8")
        np.testing.assert_allclose(answers(tmp_path, TEXTS), expected, atol=1e-5)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"n_embd": 48, "use_flash_attn": True},
                r"settings that transformers does not know \(n_embd, use_flash_attn\)",
            ),
            ({"architectures": ["JinaBertModel"]}, "JinaBertModel"),
            ({"model_type": "new"}, "does not implement model_type 'new'.*never run"),
        ],
    )
    def test_what_it_does_not(self, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
        save_encoder(tmp_path, "bert")
        edit_json(tmp_path / "config.json", auto_map=AUTO_MAP, **changes)
        refuse(tmp_path, reason)


class TestWeights:
    @pytest.mark.parametrize(
        "changes",
        [
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            {"quantization_config": {"quant_method": "fp8"}},
            {"compression_config": {"format": "pack-quantized"}},
        ],
    )
    def test_quantised_ones(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        save_encoder(tmp_path, "bert")
        edit_json(tmp_path / "config.json", **changes)
        refuse(tmp_path, "quantised weights.*Serve the checkpoint that was quantised")

    def test_those_of_another_configuration(self, tmp_path: Path) -> None:
        """transformers reads the file of its own version instead."""
        save_encoder(tmp_path, "bert")
        stated = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
        write_json(tmp_path / "config.4.0.0.json", stated | {"hidden_act": "relu"})
        edit_json(tmp_path / "config.json", configuration_files=["config.4.0.0.json", "config.json"])
        refuse(tmp_path, "configuration_files")

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
    def test_quantised_ones_that_nothing_states(self, tmp_path: Path, dtype: torch.dtype) -> None:
        save_encoder(tmp_path, "bert")
        name = "encoder.layer.1.output.dense.weight"
        with edited_tensors(tmp_path) as tensors:
            tensors[name] = (tensors[name] * 10).to(dtype)
        refuse(tmp_path, f"'{name}' is {str(dtype).removeprefix('torch.')}")

    @pytest.mark.parametrize("has_base", [True, False])
    def test_adapters(self, tmp_path: Path, has_base: bool) -> None:
        if has_base:
            save_encoder(tmp_path, "bert")
        write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "some/where", "peft_type": "LORA"})
        save_file({"base_model.model.a.lora_A.weight": torch.randn(2, 2)}, tmp_path / "adapter_model.safetensors")
        refuse(tmp_path, "an adapter.*merge_and_unload")
        if not has_base:
            with pytest.raises(UnsupportedCheckpoint, match="is an adapter"):
                generates(str(tmp_path))

    @pytest.mark.parametrize("missing", ["classifier.weight", "bert.encoder.layer.1.output.dense.bias"])
    def test_missing_ones_are_not_made_up(self, tmp_path: Path, missing: str) -> None:
        save_classifier(tmp_path, "bert", num_labels=3)
        with edited_tensors(tmp_path) as tensors:
            del tensors[missing]
        refuse(tmp_path, missing)

    def test_those_of_another_shape(self, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert")
        with edited_tensors(tmp_path) as tensors:
            tensors["encoder.layer.1.output.dense.weight"] = torch.randn(48, 90)
        refuse(tmp_path, r"'encoder\.layer\.1\.output\.dense\.weight' has shape \(48, 90\)")

    @pytest.mark.parametrize(
        "name", ["encoder.layer.2.output.dense.weight", "encoder.layer.0.attention.self.query.lora_A.weight"]
    )
    @pytest.mark.parametrize("engine", ["packed", "padded"])
    def test_those_of_layers_that_would_not_be_run(self, tmp_path: Path, name: str, engine: str) -> None:
        save_encoder(tmp_path, "bert")
        with edited_tensors(tmp_path) as tensors:
            tensors[name] = torch.randn(48, 96)
        with pytest.raises(UnsupportedCheckpoint, match=f"{name}.*would not be used"):
            load(tmp_path, engine)

    @pytest.mark.parametrize(("family", "name"), [("qwen3", "norm.bias"), ("modernbert", "final_norm.bias")])
    def test_a_bias_outside_of_layers_that_the_family_does_not_have(
        self, tmp_path: Path, family: str, name: str
    ) -> None:
        save_encoder(tmp_path, family)
        with edited_tensors(tmp_path) as tensors:
            tensors[name] = torch.randn(48)
        with pytest.raises(UnsupportedCheckpoint, match=f"{name}.*would not be used"):
            load(tmp_path, "packed")

    @pytest.mark.parametrize(
        "changes",
        [
            {"id2label": {"0": "a", "1": "b"}},
            {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}},
            {"id2label": {"1": "a", "2": "b", "3": "c"}},
            {"id2label": ["a", "b", "c"]},
            {"id2label": None},
            {"id2label": {"0": "a", "1": "\ud800", "2": "c"}},
        ],
    )
    def test_labels_of_another_head(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        save_classifier(tmp_path, "bert", num_labels=3)
        edit_json(tmp_path / "config.json", **changes)
        for engine in ("packed", "padded"):
            with pytest.raises(
                CheckpointError, match=r"id2label|surrogate|'classifier\..*' has shape|transformers cannot load it"
            ):
                load(tmp_path, engine)

    @pytest.mark.parametrize("engine", ["packed", "padded"])
    def test_old_names_of_norms(self, tmp_path: Path, engine: str) -> None:
        save_encoder(tmp_path, "bert", pad_token_id=0)
        save_tokenizer(tmp_path, WORDS)
        expected = answers(tmp_path, TEXTS, engine=engine)
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in load_file(tmp_path / "model.safetensors").items()
        }
        save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
        np.testing.assert_array_equal(answers(tmp_path, TEXTS, engine=engine), expected)
        norm = "embeddings.LayerNorm"
        save_file(old | {f"{norm}.weight": old[f"{norm}.gamma"] + 1}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"LayerNorm\.gamma and their present names are both there"):
            load(tmp_path, engine)

    @pytest.mark.parametrize("task", ["classify", "token_classify"])
    def test_a_classifier_of_another_width(self, tmp_path: Path, task: str) -> None:
        (save_classifier if task == "classify" else save_tagger)(tmp_path, "bert", num_labels=3)
        with edited_tensors(tmp_path) as tensors:
            tensors["classifier.weight"] = torch.randn(3, 32)
        with pytest.raises(CheckpointError, match="takes 32 values, and what is before it gives 48"):
            load(tmp_path, "packed")


class TestFiles:
    def test_a_stale_index_beside_a_whole_file(self, tmp_path: Path) -> None:
        """transformers reads the whole file."""
        save_encoder(tmp_path, "bert", pad_token_id=0)
        save_tokenizer(tmp_path, WORDS)
        expected = answers(tmp_path, TEXTS)
        write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "model-00001-of-2.safetensors"}})
        for engine in ("packed", "padded"):
            np.testing.assert_allclose(answers(tmp_path, TEXTS, engine=engine), expected, atol=1e-5)

    @pytest.mark.parametrize(
        "name", ["../other.safetensors", "/etc/other.safetensors", "a/../../other.safetensors", ".."]
    )
    def test_an_index_that_names_a_file_outside(self, tmp_path: Path, name: str) -> None:
        save_encoder(tmp_path / "model", "bert")
        (tmp_path / "model" / "model.safetensors").rename(tmp_path / "other.safetensors")
        write_json(tmp_path / "model" / "model.safetensors.index.json", {"weight_map": {"a": name}})
        refuse(tmp_path / "model", "is outside the model's directory")

    @pytest.mark.parametrize("name", ["config.json", "modules.json", "model.safetensors", "tokenizer_config.json", "a"])
    def test_a_fifo_does_not_hang(self, tmp_path: Path, name: str) -> None:
        save_encoder(tmp_path, "bert")
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        refuse(tmp_path, f"{name} is not a regular file")

    def test_a_fifo_in_the_directory_of_a_module_does_not_hang(self, sentences: Path) -> None:
        (sentences / "1_Pooling" / "config.json").unlink()
        os.mkfifo(sentences / "1_Pooling" / "config.json")
        refuse(sentences, "config.json is not a regular file")
