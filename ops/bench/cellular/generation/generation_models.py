"""The model that generation is measured with: Marian's shape, random weights; and what a step of it must cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.generation_options import GenerationOptions

_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an encoder-decoder transformer."""

    layers: int  # of each stack
    hidden: int
    inner: int
    heads: int
    vocabulary: int
    longest: int  # of sources and of outputs


MARIAN = Shape(6, 512, 2048, 8, 58_101, 100)
TINY = Shape(2, 32, 64, 2, 120, 12)


def random_model(shape: Shape, seed: int) -> tuple[Seq2SeqCheckpoint, Any]:
    """Our checkpoint and transformers' model, float32 on the CPU. No token ends a sequence."""
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary,
        d_model=shape.hidden,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        decoder_ffn_dim=shape.inner,
        max_position_embeddings=512,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model: Any = transformers.MarianMTModel(config)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_seq2seq(directory), model


def options_of(new_tokens: int, num_beams: int) -> GenerationOptions:
    """Options of a request that ends after that number of tokens."""
    return GenerationOptions(decoder_start_token_id=1, max_new_tokens=new_tokens, num_beams=num_beams)


def step_floor(shape: Shape, past: Sequence[int], sources: Sequence[int], beams: int) -> tuple[float, float]:
    """Bytes and FLOPs of a step in half precision: every weight once, every key and value once, and every product.

    past: positions of each sequence, whose beams share none; sources: tokens of each sequence's source.
    """
    hidden, rows = shape.hidden, beams * len(past)
    weights = shape.layers * (6 * hidden * hidden + 2 * hidden * shape.inner)
    weights += shape.vocabulary * hidden  # without the products of cross keys and values, which the encoder has done
    keys = beams * sum(past) + sum(sources)
    num_bytes = _HALF_BYTES * (weights + 2 * shape.layers * hidden * keys)
    return num_bytes, 2.0 * rows * weights + 4.0 * shape.layers * hidden * beams * (sum(past) + sum(sources))
