"""Small random checkpoints of every family, and batches."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

from penstock.engine import PackedBatch, TaskOptions, load_engine
from penstock.engine.cpu.engine import CpuEngine
from penstock.engine.device import multiplies_bfloat16
from penstock.engine.model.architectures import Architectures, architectures_of
from penstock.engine.types import Float32Array, Int32Array

needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this processor has no bfloat16 products")
needs_vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this processor has no AVX-512 VNNI")
BFLOAT16 = pytest.param("bfloat16", marks=needs_bfloat16)
INT8 = pytest.param("int8", marks=needs_vnni)

VOCAB = 120
MAX_TOKENS = 130
PAD = 1  # RoBERTa's; random ids keep clear of it, because transformers' RoBERTa gives it a position of its own

SIZE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": MAX_TOKENS,
}
_ROBERTA = SIZE | {"max_position_embeddings": MAX_TOKENS + PAD + 1, "type_vocab_size": 1, "pad_token_id": PAD}
_DEBERTA_V3 = SIZE | {  # as microsoft/deberta-v3-base has it, with fewer buckets
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_GEMMA3 = SIZE | {  # as google/embeddinggemma-300m has it, with fewer layers
    "num_key_value_heads": 1,
    "head_dim": 20,
    "query_pre_attn_scalar": 30,
    "num_hidden_layers": 3,
    "sliding_window": 50,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 32,  # heads times it is not d_model, and kernels have such heads
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_max_distance": 40,
    "layer_norm_epsilon": 0.5,  # else norms of small random states enlarge the rounding of float32
    "max_position_embeddings": MAX_TOKENS,
}
_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": MAX_TOKENS,
    "decoder_start_token_id": 4,  # published: the end of a text
}
_CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (transformers.BertConfig, SIZE),
    "roberta": (transformers.RobertaConfig, _ROBERTA),
    "xlm-roberta": (transformers.XLMRobertaConfig, _ROBERTA),
    "camembert": (transformers.CamembertConfig, _ROBERTA),
    "distilbert": (
        transformers.DistilBertConfig,
        {
            "vocab_size": VOCAB,
            "dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 96,
            "max_position_embeddings": MAX_TOKENS,
        },
    ),
    "gte": (transformers.GteConfig, SIZE),
    "jina_embeddings_v3": (transformers.JinaEmbeddingsV3Config, SIZE),
    "nomic_bert": (transformers.NomicBertConfig, SIZE),
    "albert": (transformers.AlbertConfig, SIZE | {"embedding_size": 24}),
    "bart": (transformers.BartConfig, _BART),
    "electra": (transformers.ElectraConfig, SIZE | {"embedding_size": 24}),
    "mpnet": (transformers.MPNetConfig, SIZE | {"max_position_embeddings": MAX_TOKENS + PAD + 1}),
    "deberta-v2": (transformers.DebertaV2Config, _DEBERTA_V3),
    "eurobert": (transformers.EuroBertConfig, SIZE | {"pad_token_id": 0}),
    "gemma3_text": (transformers.Gemma3TextConfig, _GEMMA3),
    "llama": (transformers.LlamaConfig, SIZE),
    "mistral": (transformers.MistralConfig, SIZE | {"num_key_value_heads": 1, "sliding_window": 70}),
    "modernbert": (
        transformers.ModernBertConfig,
        SIZE | {"num_hidden_layers": 4, "local_attention": 32, "pad_token_id": 0},
    ),
    "mt5": (transformers.MT5Config, _T5 | {"feed_forward_proj": "gated-gelu"}),
    "qwen2": (transformers.Qwen2Config, SIZE | {"num_key_value_heads": 1}),
    "qwen3": (transformers.Qwen3Config, SIZE | {"num_key_value_heads": 1, "head_dim": 20}),
    "t5": (transformers.T5Config, _T5),
    "umt5": (transformers.UMT5Config, _T5),
}
FAMILIES = tuple(_CONFIGS)
_OTHER_SIZES = {  # of families that do not call it hidden_size, or state the size of a head
    "distilbert": {"dim": 128},
    "gemma3_text": {"hidden_size": 128, "head_dim": 32},
    "mt5": {"d_model": 128, "d_kv": 32},
    "qwen3": {"hidden_size": 128, "head_dim": 32},
    "t5": {"d_model": 128, "d_kv": 32},
    "umt5": {"d_model": 128, "d_kv": 32},
}
GPU_FAMILIES = tuple(family for family in FAMILIES if family != "bart")
_CLASSES = {family: architectures_of(family) or Architectures() for family in FAMILIES}
CLASSIFIERS = tuple(
    family for family in FAMILIES if _CLASSES[family].classifiers and not _CLASSES[family].has_decoder
)  # that answer any ids: BART's refuses those without an end of text
TAGGERS = tuple(family for family in FAMILIES if _CLASSES[family].token_classifiers)

_AUTO_MODEL: Any = transformers.AutoModel  # transformers leaves from_config untyped
_AUTO_ENCODER: Any = transformers.AutoModelForTextEncoding  # without the decoder, where a model type has one
_AUTO_CLASSIFIER: Any = transformers.AutoModelForSequenceClassification
_AUTO_TAGGER: Any = transformers.AutoModelForTokenClassification


def gpu_sizes(family: str) -> dict[str, int]:
    """Heads of 32 elements: those of `_CONFIGS` (12 and others) are for no GPU kernel."""
    return _OTHER_SIZES.get(family, {"hidden_size": 128})


def config_of(family: str, **changes: Any) -> Any:
    """A small configuration of a family, as transformers' class."""
    kind, values = _CONFIGS[family]
    return kind(**(values | changes))


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights far enough from their initial values that a wrong bias, norm or position shows."""
    generator = torch.Generator().manual_seed(seed)
    norm = 0.0 if type(model).__name__.startswith("Gemma") else 1.0  # Gemma adds 1 to it
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(norm + 0.2 * noise if is_norm else 0.15 * noise)


def save_encoder(directory: Path, family: str, **config: Any) -> Any:
    """A random encoder without a head, saved as safetensors; returns the transformers model."""
    auto = _AUTO_ENCODER if family in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES else _AUTO_MODEL
    model = auto.from_config(config_of(family, **config)).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def save_classifier(directory: Path, family: str, **config: Any) -> Any:
    """A random ...ForSequenceClassification, saved as safetensors; returns the transformers model."""
    model = _AUTO_CLASSIFIER.from_config(config_of(family, **config)).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def save_tagger(directory: Path, family: str, **config: Any) -> Any:
    """A random ...ForTokenClassification, saved as safetensors; returns the transformers model."""
    model = _AUTO_TAGGER.from_config(config_of(family, **config)).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def save_sentence_transformer(
    directory: Path, words: Sequence[str], *, normalize: bool = False, include_prompt: bool = True, **config: Any
) -> None:
    """A random BERT with a tokenizer of these words, saved by sentence-transformers in directory / "model".

    `config` goes to the constructor of SentenceTransformer: prompts, default_prompt_name, truncate_dim.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    plain = directory / "plain"
    save_encoder(plain, "bert", pad_token_id=0)
    save_tokenizer(plain, words)
    transformer = SentenceTransformer(str(plain), device="cpu")[0]
    modules = [transformer, Pooling(48, "mean", include_prompt=include_prompt), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu", **config).save(str(directory / "model"))


def save_tokenizer(directory: Path, words: Sequence[str]) -> None:
    """A tokenizer of these words, beside a checkpoint."""
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    make: Any = transformers.PreTrainedTokenizerFast  # transformers leaves it untyped
    make(
        tokenizer_object=tokenizer,
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(directory)


def cpu_engine(directory: Path, dtype: str = "float32", **more: Any) -> CpuEngine:
    """The engine of a checkpoint on the CPU, also where there is a GPU."""
    engine = load_engine(str(directory), dtype=dtype, device="cpu", **more)
    assert isinstance(engine, CpuEngine)
    return engine


def random_sequences(lengths: Sequence[int], seed: int = 0) -> list[Int32Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(PAD + 1, VOCAB, length, dtype=np.int32) for length in lengths]


def pack(
    sequences: Sequence[Int32Array],
    options: TaskOptions | Sequence[TaskOptions] = TaskOptions("embed"),  # noqa: B008 -- frozen
    types: Sequence[Int32Array] | None = None,
) -> PackedBatch:
    """Sequences end to end; one `options` counts for all of them."""
    lengths = [len(sequence) for sequence in sequences]
    return PackedBatch(
        token_ids=np.concatenate(sequences),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        max_seqlen=max(lengths),
        token_type_ids=None if types is None else np.concatenate(types),
        options=[options] * len(sequences) if isinstance(options, TaskOptions) else options,
    )


def reference_hidden(model: Any, sequence: Int32Array, types: Int32Array | None = None) -> Float32Array:
    """transformers' last hidden state [L, H] of one sequence alone."""
    more = {} if types is None else {"token_type_ids": torch.from_numpy(types)[None].long()}
    with torch.no_grad():
        hidden = model(input_ids=torch.from_numpy(sequence)[None].long(), **more).last_hidden_state[0].numpy()
    return np.asarray(hidden, dtype=np.float32)


def edit_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


@contextmanager
def edited_tensors(directory: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of a checkpoint, which are saved again as the caller leaves them."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    yield tensors
    save_file(tensors, file, metadata={"format": "pt"})


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
