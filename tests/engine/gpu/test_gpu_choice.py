"""Which attention kernel a batch gets, by model and device. No GPU needed."""

import pytest
import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.gpu.choice import AttentionKernel, LongAttention, choose_kernel, longest_seen_whole
from penstock.engine.model.weights import (
    Attention,
    DisentangledAttention,
    DistanceAttention,
    Heads,
    PlainAttention,
    RotaryAttention,
)
from tests.engine.gpu.random_encoders import Parts, random_encoder

A100, HOPPER, ADA = 163 << 10, 227 << 10, 99 << 10  # shared memory that a block can ask for, bytes

PLAIN = PlainAttention()
BIASED = DistanceAttention(torch.zeros(4, 257))
ROTARY = RotaryAttention(torch.zeros(130, 32), torch.zeros(130, 32), None)
DEBERTA = DisentangledAttention(torch.zeros(64, 256), torch.zeros(64, 256), 16, 130)


@pytest.mark.parametrize(
    ("attention", "head_dim", "max_seqlen", "rows", "shared_bytes", "kernel"),
    [
        (PLAIN, 64, 64, 16_384, HOPPER, AttentionKernel.SHORT),
        (PLAIN, 64, 128, 2048, HOPPER, AttentionKernel.SHORT),
        (PLAIN, 64, 128, 2049, HOPPER, AttentionKernel.PACKED_64),
        (PLAIN, 64, 512, 16_384, HOPPER, AttentionKernel.PACKED_128),
        (PLAIN, 64, 512, 16_384, ADA, AttentionKernel.PACKED_128),
        (PLAIN, 128, 512, 16_384, HOPPER, AttentionKernel.PACKED_128),
        (PLAIN, 128, 512, 16_384, A100, AttentionKernel.PACKED_128),
        (PLAIN, 128, 512, 16_384, ADA, AttentionKernel.FLASH),
        (PLAIN, 128, 512, 600, ADA, AttentionKernel.FLASH),
        (PLAIN, 128, 64, 600, ADA, AttentionKernel.SHORT),
        (PLAIN, 96, 512, 600, HOPPER, AttentionKernel.FLASH),
        (BIASED, 64, 128, 600, HOPPER, AttentionKernel.SHORT),
        (BIASED, 64, 129, 600, HOPPER, AttentionKernel.PACKED_64),
        (BIASED, 64, 512, 16_384, ADA, AttentionKernel.PACKED_128),
        (DEBERTA, 64, 512, 600, HOPPER, AttentionKernel.DISENTANGLED),
        (ROTARY, 64, 20, 600, HOPPER, AttentionKernel.PACKED_64),
        (ROTARY, 64, 8192, 16_384, HOPPER, AttentionKernel.PACKED_128),
        (ROTARY, 128, 512, 600, ADA, AttentionKernel.FLASH),
        (ROTARY, 256, 512, 600, HOPPER, AttentionKernel.FLASH),
        (ROTARY, 64, 70_000, 600, HOPPER, AttentionKernel.FLASH),
    ],
)
def test_the_choice(
    attention: Attention, head_dim: int, max_seqlen: int, rows: int, shared_bytes: int, kernel: AttentionKernel
) -> None:
    assert choose_kernel(attention, head_dim, max_seqlen, rows, shared_bytes=shared_bytes) is kernel


LONG = {  # by size of heads, and what any layer is or has
    (64, ""): LongAttention.of(AttentionKernel.LONG_192, 64, is_causal=False, has_windows=False),
    (64, "window"): LongAttention.of(AttentionKernel.LONG_128, 64, is_causal=False, has_windows=True),
    (64, "causal"): LongAttention.of(AttentionKernel.LONG_CAUSAL, 64, is_causal=True, has_windows=False),
    (128, ""): LongAttention.of(AttentionKernel.LONG_128, 128, is_causal=False, has_windows=False),
    (128, "window"): LongAttention.of(AttentionKernel.LONG_128, 128, is_causal=False, has_windows=True),
    (128, "causal"): LongAttention.of(AttentionKernel.LONG_CAUSAL, 128, is_causal=True, has_windows=False),
}


@pytest.mark.parametrize("max_seqlen", [1, 64, 65, 128, 129, 256, 257, 512, 513, 65_535, 65_536])
@pytest.mark.parametrize("rows", [1, 64, 256, 257, 1024, 1025, 2048, 2049, 2816, 2817, 70_000])
@pytest.mark.parametrize(
    ("head_dim", "kind", "tokens", "least_rows"),
    [
        (64, "", 256, 1),
        (64, "window", 256, 2817),
        (64, "causal", 512, 1),
        (128, "", 64, 1),
        (128, "window", 64, 2817),
        (128, "causal", 64, 1),
    ],
)
def test_long_sequences_have_the_long_kernel_where_it_runs(
    head_dim: int, kind: str, tokens: int, least_rows: int, rows: int, max_seqlen: int
) -> None:
    """At the thresholds that were measured, unless the kernel for short sequences is chosen. Else nothing changes."""
    attention, long = ROTARY if kind else PLAIN, LONG[head_dim, kind]
    kernel = choose_kernel(attention, head_dim, max_seqlen, rows, shared_bytes=HOPPER, long=long)
    without = choose_kernel(attention, head_dim, max_seqlen, rows, shared_bytes=HOPPER)
    is_few = long.kernel is AttentionKernel.LONG_192 and rows <= 1024
    least = 128 if is_few and rows > 256 else tokens
    is_long = least < max_seqlen <= 65_535 and rows >= least_rows and without is not AttentionKernel.SHORT
    assert kernel is ((AttentionKernel.LONG_128 if is_few else long.kernel) if is_long else without)


@pytest.mark.parametrize("max_seqlen", [1, 64, 128, 129, 512, 65_535, 65_536])
@pytest.mark.parametrize("rows", [1, 2048, 70_000])
def test_long_disentangled_attention(rows: int, max_seqlen: int) -> None:
    """At the threshold that was measured."""
    long = LongAttention.of_disentangled()
    kernel = choose_kernel(DEBERTA, 64, max_seqlen, rows, shared_bytes=HOPPER, long=long)
    is_long = 128 < max_seqlen <= 65_535
    assert kernel is (AttentionKernel.LONG_DISENTANGLED if is_long else AttentionKernel.DISENTANGLED)


@pytest.mark.parametrize("form", LONG, ids=str)
def test_batches_of_a_bucket_have_the_kernel_of_its_longest(form: tuple[int, str]) -> None:
    """Buckets round the longest sequence up to a power of two: a row's bits depend on its bucket alone."""
    for rows in (1024, 2560, 16_384):
        for most in (64, 128, 256, 512, 1024):
            kernels = {
                choose_kernel(ROTARY, form[0], longest, rows, shared_bytes=HOPPER, long=LONG[form])
                for longest in (most // 2 + 1, most)
            }
            assert len(kernels) == 1


@pytest.mark.parametrize(
    ("parts", "longest"),
    [
        (Parts(Heads(4, 4, 32)), 65_536),
        (Parts(Heads(4, 4, 32), windows=(None, 64, 70)), 65),
        (Parts(Heads(4, 2, 32)), 0),
        (Parts(Heads(4, 4, 32), is_causal=True), 0),
    ],
)
def test_short_sequences_that_every_layer_sees_whole_have_the_short_kernel(parts: Parts, longest: int) -> None:
    assert longest_seen_whole(random_encoder(parts)) == longest
    for tokens in (32, 64, 128):
        kernel = choose_kernel(ROTARY, 32, tokens, 600, shared_bytes=HOPPER, seen_whole=longest)
        assert kernel is (AttentionKernel.SHORT if tokens <= longest else AttentionKernel.PACKED_64)


def test_a_length_without_a_kernel_is_refused_by_it() -> None:
    with pytest.raises(UnsupportedDevice, match="70,000 tokens on this GPU"):
        choose_kernel(BIASED, 64, 70_000, 1, shared_bytes=HOPPER)


@pytest.mark.parametrize(
    ("attention", "head_dim", "shared_bytes"),
    [
        (DEBERTA, 128, HOPPER),
        (PLAIN, 12, HOPPER),
        (PLAIN, 264, HOPPER),
        (ROTARY, 24, HOPPER),
        (ROTARY, 272, HOPPER),
        (BIASED, 12, HOPPER),
        (BIASED, 128, ADA),  # although there is a kernel for short sequences
    ],
)
def test_heads_without_a_kernel_are_refused_whatever_the_batch(
    attention: Attention, head_dim: int, shared_bytes: int
) -> None:
    with pytest.raises(UnsupportedDevice, match=f"heads of {head_dim} on"):
        choose_kernel(attention, head_dim, 1, 1, shared_bytes=shared_bytes)
