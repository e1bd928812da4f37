"""Generation on a GPU: its kernels against torch, tokens against transformers, and requests that join and leave."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.generation.generator import Generator
from penstock.engine.generation.limits import GeneratorLimits
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.gpu.generation.cached_attention import CacheLines, attend_lines, attend_lines_by_torch
from penstock.engine.gpu.generation.likely_tokens import likely_tokens, likely_tokens_by_torch
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from tests.engine.generation.helpers import SMALL, drain, expected, model_of, save_seq2seq, sources
from tests.gpu.references import HALVES, randn

pytestmark = pytest.mark.gpu

LENGTHS = (1, 33, 5, 17)
WIDE: dict[str, dict[str, Any]] = {  # heads of 32, which the kernel takes
    "marian": {"d_model": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "bart": {"d_model": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "t5": {"d_model": 64, "d_kv": 32},
}


def int32(values: Any) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.int32)).cuda()


def lines_of(lengths: list[int], page_size: int, rows: int, *, shared: bool) -> tuple[CacheLines, int]:
    """Lines whose pages are in random order, and the slots of all of them."""
    rng, columns = np.random.default_rng(len(lengths)), -(-max(1, *lengths) // page_size) + 1
    pages = 1 + rng.permutation(len(lengths) * columns).reshape(-1, columns)
    lines = int32(rng.integers(0, len(lengths), rows)) if shared else None
    return CacheLines(int32(pages), int32(lengths), lines, page_size), (pages.size + 1) * page_size


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("heads", "head_dim"), [(8, 64), (3, 32), (2, 128)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_fresh", [False, True])
def test_paged_attention(
    is_fresh: bool, has_bias: bool, heads: int, head_dim: int, page_size: int, dtype: torch.dtype
) -> None:
    """Against torch in float32, on the same halves; what lies behind a line's last key is NaN."""
    lengths = [0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65, 100, 257]
    rows, width = len(lengths) if is_fresh else 40, heads * head_dim
    cached, slots = lines_of(lengths, page_size, rows, shared=not is_fresh)
    cache = torch.full((slots, 2 * width), torch.nan, dtype=dtype, device="cuda")
    for line, length in enumerate(lengths):
        places = np.arange(length - is_fresh if length else 0)
        pages = cached.table[line].cpu().numpy()[places // page_size]
        kept = randn(len(places), 2 * width, dtype=dtype, seed=line)
        cache[torch.from_numpy(pages * page_size + places % page_size).cuda()] = kept
    query = randn(rows, 3 * width if is_fresh else width, dtype=dtype, seed=99)
    bias = randn(heads, 2 * 20 + 1, dtype=dtype, seed=7) if has_bias else None
    kernels_cache = cache.clone()
    out = attend_lines(query, kernels_cache, cached, heads, head_dim**-0.5, bias)

    exact_cache = cache.nan_to_num().float()
    wide_bias = None if bias is None else bias.float()
    exact = attend_lines_by_torch(query.float(), exact_cache, cached, heads, head_dim**-0.5, wide_bias)
    tolerance = 2 * torch.finfo(dtype).eps * exact.abs().max()
    assert (out.float() - exact).abs().max() <= tolerance  # a NaN fails too
    assert torch.equal(kernels_cache.nan_to_num()[page_size:].float(), exact_cache[page_size:])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("count", [1, 8, 12, 32])
@pytest.mark.parametrize("vocabulary", [58_101, 2_048, 999, 40])
def test_likely_tokens(vocabulary: int, count: int, dtype: torch.dtype) -> None:
    rows, columns = 37, -(-vocabulary // 64) * 64
    logits = randn(rows, columns, dtype=dtype, seed=vocabulary, scale=4.0)
    logits[:, vocabulary:] = 1000  # no tokens
    rng = np.random.default_rng(count)
    bits = rng.integers(0, 256, (3, columns // 8), dtype=np.uint8) & rng.integers(0, 256, (3, columns // 8)).astype(
        "u1"
    )
    bits[0] = 0
    bits[2] = 255
    bits[2, 0] = 0b1111_1011  # one token is left
    bans = torch.from_numpy(bits).cuda()
    ban_rows, renormalize = int32(rng.integers(0, 3, rows)), int32(rng.integers(0, 2, rows))
    given = logits, vocabulary, bans, ban_rows, renormalize
    values, tokens = likely_tokens(*given, count)
    exact, _ = likely_tokens_by_torch(*given, min(vocabulary, values.shape[1]))
    values, tokens = values[:, : exact.shape[1]], tokens[:, : exact.shape[1]]
    torch.testing.assert_close(values, exact, rtol=1e-4, atol=1e-4)
    found = values > -torch.inf
    logit_of = logits.float().gather(1, tokens.long())
    assert (logit_of[:, :-1] >= logit_of[:, 1:])[found[:, 1:]].all()
    assert all(len(set(row[own].tolist())) == own.sum() for row, own in zip(tokens, found, strict=True))
    assert (tokens[:, 0][ban_rows == 2] == 2).all()


def test_a_row_with_nan_has_no_likely_token_and_a_row_of_bans_has_none() -> None:
    logits = randn(3, 128, dtype=torch.float16)
    logits[1, 77] = torch.nan
    bans = torch.zeros(2, 16, dtype=torch.uint8, device="cuda")
    bans[1] = 255
    values, tokens = likely_tokens(logits, 100, bans, int32([0, 0, 1]), int32([0, 0, 1]), 8)
    assert values[0].isfinite().all()
    assert values[1].isnan().all()
    assert (values[2] == -torch.inf).all()
    assert (tokens[2] == 0).all()


def generator_of(checkpoint: Seq2SeqCheckpoint, dtype: torch.dtype, limits: GeneratorLimits) -> Generator:
    return Generator(checkpoint.weights, limits, device=GpuSeq2Seq(checkpoint.weights, limits, dtype=dtype))


def tokens_of(
    checkpoint: Seq2SeqCheckpoint, dtype: torch.dtype, lengths: tuple[int, ...], quantum: int, **options: Any
) -> list[list[int]]:
    """One request joins at every step, twice over: graphs are captured in the first pass and replayed in both."""
    generator, batch = generator_of(checkpoint, dtype, SMALL), sources(lengths) * 2
    tokens: dict[int, list[int]] = {}
    for id, source in enumerate(batch):
        generator.start(id, source, checkpoint.options(**options))
        for progress in generator.step(quantum):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
    for id, more in drain(generator, quantum).items():
        tokens.setdefault(id, []).extend(more)
    generator.check_integrity()
    assert generator.num_free_pages == SMALL.num_pages
    return [tokens[id] for id in range(len(batch))]


@pytest.mark.parametrize(
    ("family", "quantum", "options"),
    [
        ("marian", 1, {}),
        ("marian", 3, {"num_beams": 4}),
        ("marian", 3, {"num_beams": 4, "length_penalty": 2, "early_stopping": True}),
        ("marian", 1, {"no_repeat_ngram_size": 2}),
        ("bart", 3, {}),
        ("bart", 1, {"num_beams": 4}),
        ("m2m_100", 3, {}),
        ("mbart", 2, {"num_beams": 4}),
        ("pegasus", 3, {"num_beams": 2}),
        ("t5", 3, {}),
        ("t5", 3, {"num_beams": 4}),
        ("t5-gated", 2, {"num_beams": 2, "no_repeat_ngram_size": 2}),
    ],
    ids=str,
)
def test_tokens_in_float32_are_those_of_generate(family: str, quantum: int, options: dict[str, Any]) -> None:
    checkpoint, model = model_of(family)
    given = {"max_new_tokens": 10} | options
    wanted = [expected(model, source, **given) for source in sources(LENGTHS)]
    assert tokens_of(checkpoint, torch.float32, LENGTHS, quantum, **given) == wanted * 2


@pytest.mark.parametrize("family", sorted(WIDE))
@pytest.mark.parametrize("num_beams", [1, 4])
def test_tokens_in_float16_are_likely_in_float32(num_beams: int, family: str) -> None:
    """Each token of greedy search, or else the whole of a beam, is almost as likely as the best in float32."""
    with TemporaryDirectory() as directory:
        model = save_seq2seq(Path(directory), family, **WIDE[family])
        checkpoint = load_seq2seq(directory)
    options: dict[str, Any] = {"max_new_tokens": 10, "num_beams": num_beams, "length_penalty": 0.0}
    options["forced_eos_token_id"] = None  # it need not be likely
    found = tokens_of(checkpoint, torch.float16, LENGTHS, 3, **options)
    for source, tokens in zip(sources(LENGTHS) * 2, found, strict=True):
        start = checkpoint.options().decoder_start_token_id
        scores = log_probabilities(model, source, [start, *tokens])
        chosen = scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        if num_beams == 1:
            assert (scores.max(1).values - chosen).max() <= 0.2
        else:
            best = expected(model, source, **options)
            theirs = log_probabilities(model, source, [start, *best]).gather(1, torch.tensor(best)[:, None]).sum()
            assert chosen.sum() >= theirs - 1.0


def log_probabilities(model: Any, source: np.ndarray, tokens: list[int]) -> Tensor:
    """[tokens - 1, V]: of each next token, by transformers in float32."""
    with torch.no_grad():
        ids = torch.from_numpy(source)[None].long()
        logits: Tensor = model(input_ids=ids, decoder_input_ids=torch.tensor([tokens[:-1]])).logits[0]
    return logits.log_softmax(-1)


def test_graphs_that_were_captured_ahead_give_the_same_tokens() -> None:
    checkpoint, model = model_of("marian")
    limits = replace(SMALL, max_rows=16)
    device = GpuSeq2Seq(checkpoint.weights, limits, dtype=torch.float32)
    options: dict[str, Any] = {"max_new_tokens": 9, "num_beams": 4}
    device.prepare(checkpoint.options(**options), quanta=(2,), max_requests=4)
    generator = Generator(checkpoint.weights, limits, device=device)
    for id, source in enumerate(sources(LENGTHS)):
        generator.start(id, source, checkpoint.options(**options))
    wanted = [expected(model, source, **options) for source in sources(LENGTHS)]
    assert drain(generator, 2) == dict(enumerate(wanted))
