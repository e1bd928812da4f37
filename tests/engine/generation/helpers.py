"""Small random encoder-decoder checkpoints, and what transformers generates with them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.types import Int32Array
from tests.engine.helpers import randomise

VOCAB = 90
_FIRST_WORD = 10  # smaller tokens have a meaning of their own
PADDING = 40  # of M2M100, which gives it no position: a word that sources have
EOS = [2, 11, 12, 13, 14]  # several, so that random weights stop now and then

_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 80,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": EOS,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_PRE_NORM = _BART | {"forced_eos_token_id": None}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 12,  # heads times it is not d_model
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "eos_token_id": EOS,
    "decoder_start_token_id": 0,
}
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bart": (transformers.BartConfig, _BART | {"scale_embedding": True}),
    "marian": (transformers.MarianConfig, _BART | {"scale_embedding": True, "activation_function": "swish"}),
    "marian-untied": (
        transformers.MarianConfig,
        _BART | {"share_encoder_decoder_embeddings": False, "vocab_size": VOCAB + 20, "decoder_vocab_size": VOCAB},
    ),
    "m2m_100": (transformers.M2M100Config, _PRE_NORM | {"pad_token_id": PADDING}),
    "mbart": (transformers.MBartConfig, _PRE_NORM | {"scale_embedding": True, "activation_function": "relu"}),
    "pegasus": (transformers.PegasusConfig, _PRE_NORM | {"scale_embedding": True, "activation_function": "relu"}),
    "t5": (transformers.T5Config, _T5),
    "t5-gated": (transformers.T5Config, _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": (transformers.MT5Config, _T5 | {"feed_forward_proj": "gated-gelu"}),
}
FAMILIES = tuple(CONFIGS)

# Requests of a mix: the lengths of their sources, and their options.
LENGTHS = (1, 9, 24, 4)
KINDS: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 11, "no_repeat_ngram_size": 1},
    {"max_new_tokens": 5, "eos_token_id": 89},
    {"max_new_tokens": 9, "num_beams": 3, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 14, "do_sample": True, "temperature": 1.5, "top_k": 20},
)

_AUTO_MODEL: Any = transformers.AutoModelForSeq2SeqLM  # transformers leaves from_config untyped
SMALL = GeneratorLimits(num_pages=400, page_size=4, max_rows=64, max_source_tokens=64, max_new_tokens=64)


def save_seq2seq(directory: Path, family: str, **changes: Any) -> Any:
    """A random model, saved as safetensors; returns the transformers model."""
    kind, values = CONFIGS[family]
    torch.manual_seed(0)
    model = _AUTO_MODEL.from_config(kind(**(values | changes)))
    randomise(model, seed=7)
    parameters = dict(model.named_parameters())
    of_layer = f"layers.{_BART['decoder_layers'] - 1}.final_layer_norm"  # the last norm of a post-norm decoder
    last_norms = [f"decoder.{norm}." for norm in ("final_layer_norm", "layer_norm", of_layer)]
    last_norm = next(norm for norm in last_norms if any(norm in name for name in parameters))
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "shared" in name or "embed_tokens" in name:
                parameter *= 0.1  # else random weights repeat the token that they read
            if last_norm in name:
                parameter *= 30  # else all tokens are about as likely, and rounding decides between beams
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    model.save_pretrained(directory)
    return _AUTO_MODEL.from_pretrained(directory, dtype=torch.float32).eval()


@cache
def model_of(family: str) -> tuple[Seq2SeqCheckpoint, Any]:
    """A random checkpoint of a family, and transformers' model of it; made once a process."""
    with TemporaryDirectory() as directory:
        model = save_seq2seq(Path(directory), family)
        return load_seq2seq(directory), model


def sources(lengths: Sequence[int], seed: int = 0) -> list[Int32Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(_FIRST_WORD, VOCAB, length, dtype=np.int32) for length in lengths]


def expected(model: Any, source: Int32Array, **options: Any) -> list[int]:
    """Tokens of transformers' `generate` for one source alone, without the start token."""
    ids = torch.from_numpy(source)[None].long()
    with torch.no_grad():
        tokens: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    return tokens[1:]


def drain(generator: Generator, quantum: int = 1) -> dict[int, list[int]]:
    """All tokens of all requests, by id."""
    tokens: dict[int, list[int]] = {}
    while generator.waiting or generator.active:
        for progress in generator.step(quantum):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
    return tokens


def generate(checkpoint: Seq2SeqCheckpoint, batch: Sequence[Int32Array], **options: Any) -> list[list[int]]:
    """Tokens of some sources that run together."""
    generator = Generator(checkpoint.weights, SMALL)
    for id, source in enumerate(batch):
        generator.start(id, source, checkpoint.options(**options))
    tokens = drain(generator)
    assert generator.num_free_pages == SMALL.num_pages
    return [tokens[id] for id in range(len(batch))]


def small_generator(**limits: int) -> Generator:
    """Of a Marian model, with some limits changed."""
    return Generator(model_of("marian")[0].weights, replace(SMALL, **limits))


def options_of(**changes: Any) -> GenerationOptions:
    """The options of `small_generator`'s model, with some changed."""
    return model_of("marian")[0].options(**changes)


@cache
def alone(length: int, kind: int) -> list[int]:
    """Tokens of one request: transformers', and of a sampled one its own in a batch of one."""
    source, options = source_of(length), KINDS[kind]
    if not options.get("do_sample"):
        return expected(model_of("marian")[1], source, **options)
    generator = small_generator()
    generator.start(0, source, options_of(**options), seed=length)
    return drain(generator)[0]


def source_of(length: int) -> Int32Array:
    return sources([length], seed=length)[0]


def start(generator: Generator, id: int, length: int, kind: int) -> None:
    generator.start(id, source_of(length), options_of(**KINDS[kind]), seed=length)
