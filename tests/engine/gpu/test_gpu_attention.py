"""The launch of attention for each kind and chosen kernel, up to the kernel itself. No GPU needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.engine.cpu.ops import CpuOps
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.families import family_of
from penstock.engine.gpu import attention as module
from penstock.engine.gpu.attention import AttentionTables, attend, prepare_long
from penstock.engine.gpu.choice import AttentionKernel, LongAttention, choose_kernel, longest_seen_whole
from penstock.engine.gpu.inputs import Inputs, describe, exact_shape, views
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.kernels import long_attention as long
from penstock.engine.kernels import long_disentangled
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.model.layout import sort_by_length
from penstock.engine.model.weights import Encoder, EncoderWeights, Heads
from tests.engine.gpu.random_encoders import COMBINATIONS, Parts, random_encoder, without_turn
from tests.engine.helpers import gpu_sizes, pack, random_sequences, save_encoder

CPU = torch.device("cpu")


def weights_of(directory: Path, family: str, **config: Any) -> EncoderWeights:
    save_encoder(directory, family, **gpu_sizes(family) | config)
    checkpoint = read_checkpoint(directory)
    return family_of(checkpoint).encoder(checkpoint)


def inputs_for(kernel: AttentionKernel) -> Inputs:
    batch = pack(random_sequences((9, 100, 1, 64)))
    shape = exact_shape(batch, kernel)
    values = torch.empty(shape.num_values, dtype=torch.int32)
    describe(batch, shape, values.numpy())
    return views(values, shape)


def calls_of(name: str, encoder: Encoder[GpuDense], inputs: Inputs, patch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments of `name` in each layer, without the output, the input and the plan."""
    calls: list[tuple[Any, ...]] = []
    patch.setattr(module, name, lambda out, qkv, plan, *more, **named: calls.append((*more, *named.values())))
    out, qkv = torch.zeros(inputs.shape.rows, 128), torch.zeros(inputs.shape.rows, 384)
    for layer in encoder.layers:
        attend(out, qkv, layer.attention, inputs, AttentionTables.of(encoder, CPU))
    return calls


@pytest.mark.parametrize(
    ("kernel", "queries"),
    [(AttentionKernel.PACKED_64, 64), (AttentionKernel.PACKED_128, 128), (AttentionKernel.LONG_128, 128)],
)
def test_each_layer_attends_with_its_own_float32_angles_and_window(
    tmp_path: Path, kernel: AttentionKernel, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(tmp_path, "modernbert")
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    inputs = inputs_for(kernel)
    plain: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "packed_attention", lambda out, qkv, plan, *more: plain.append(more))

    def attend_long(out: Tensor, qkv: Tensor, plan: Tensor, heads: Heads, *more: Any, is_causal: bool) -> None:
        assert not is_causal
        plain.append((heads.queries, *more, None))

    monkeypatch.setattr(long, "long_attention", attend_long)
    windowed = calls_of("windowed_attention", encoder, inputs, monkeypatch)
    own: list[Any] = [layer.attention for layer in weights.layers]
    for layer, attention in zip(encoder.layers, own, strict=True):
        assert layer.qkv.rotary is not None
        assert torch.equal(layer.qkv.rotary.cosines, attention.cosines)
        assert torch.equal(layer.qkv.rotary.sines, attention.sines)
    scale, windows = pytest.approx(32**-0.5), [attention.window for attention in own if attention.window is not None]
    assert [call[:4] for call in windowed] == [(weights.heads, scale, queries, window) for window in windows]
    assert plain == [(4, scale, queries, None)] * (len(own) - len(windows))
    assert 0 < len(windows) < len(own)


def prepared_long(
    encoder: Encoder[GpuDense],
    patch: pytest.MonkeyPatch,
    prepare: Callable[..., None] = lambda *form: None,
    capability: tuple[int, int] = (9, 0),
) -> LongAttention | None:
    """As on Hopper, for float16; `prepare` in place of the compiler."""
    patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    patch.setattr(long, "prepare", prepare)
    patch.setattr(long_disentangled, "prepare", prepare)
    attentions = [layer.attention for layer in encoder.layers]
    return prepare_long(attentions, encoder.heads, torch.float16, torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("parts", "kernel", "forms"),  # kernel: and the batches that it has, of more tokens and rows
    [
        (Parts(Heads(4, 4, 64)), (AttentionKernel.LONG_192, 256, 0), {(64, 192, False), (64, 128, False)}),
        (Parts(Heads(4, 2, 64)), (AttentionKernel.LONG_192, 256, 0), {(64, 192, False), (64, 128, False)}),
        (Parts(Heads(4, 4, 128)), (AttentionKernel.LONG_128, 64, 0), {(128, 128, False)}),
        (Parts(Heads(4, 4, 64), windows=(None, 64)), (AttentionKernel.LONG_128, 256, 2816), {(64, 128, False)}),
        (Parts(Heads(4, 2, 128), is_causal=True), (AttentionKernel.LONG_CAUSAL, 64, 0), {(128, 128, True)}),
        (
            Parts(Heads(4, 2, 64), is_causal=True, windows=(9, None)),
            (AttentionKernel.LONG_CAUSAL, 512, 2816),
            {(64, 128, True)},
        ),
        (Parts(Heads(4, 4, 64), windows=(64, 64)), None, set()),
        (Parts(Heads(4, 4, 64), has_biases=True), None, set()),
        (Parts(Heads(4, 4, 32)), None, set()),
    ],
    ids=str,
)
def test_the_long_kernel_is_compiled_where_a_layer_has_no_window(
    parts: Parts,
    kernel: tuple[AttentionKernel, int, int] | None,
    forms: set[tuple[int, int, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[tuple[Any, ...]] = []
    encoder = prepare_for_gpu(random_encoder(parts), torch.float16, CPU)
    assert prepared_long(encoder, monkeypatch, lambda *form: prepared.append(form)) == kernel
    assert prepared == [(*form, torch.float16, 0) for form in forms]
    assert prepare_long([layer.attention for layer in encoder.layers], encoder.heads, torch.float16, CPU) is None


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_devices_than_hopper_compile_no_long_kernel(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[Any, ...]] = []
    encoder = prepare_for_gpu(random_encoder(Parts(Heads(4, 4, 64))), torch.float16, CPU)
    assert prepared_long(encoder, monkeypatch, lambda *form: prepared.append(form), capability) is None
    assert prepared == []


def test_a_long_kernel_that_is_not_compiled_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*form: object) -> None:
        raise UnsupportedDevice("long_attention was not compiled: no compiler\nand more")

    logged: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda event, error: logged.append(f"{event}: {error}"))
    encoder = prepare_for_gpu(random_encoder(Parts(Heads(4, 4, 64))), torch.float16, CPU)
    assert prepared_long(encoder, monkeypatch, refuse) is None
    assert logged == ["long_attention_off: long_attention was not compiled: no compiler"]


@pytest.mark.parametrize(
    ("terms", "heads", "is_long"), [("c2p|p2c", 2, True), ("c2p", 2, False), ("p2c", 2, False), ("c2p|p2c", 4, False)]
)
def test_disentangled_layers_attend_as_on_the_cpu_with_the_chosen_kernel(
    terms: str, heads: int, is_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long kernel has both terms and heads of 64. The launches in torch are as their docstrings say."""
    config = {"hidden_size": 128, "num_attention_heads": heads, "pos_att_type": terms}
    weights, batch = weights_of(tmp_path, "deberta-v2", **config), pack(random_sequences((9, 100, 1, 64)))
    encoder, prepared = prepare_for_gpu(weights, torch.float32, CPU), list[tuple[Any, ...]]()
    chosen = prepared_long(encoder, monkeypatch, lambda *form: prepared.append(form))
    assert prepared == [(torch.float16, 0)] * is_long
    kernel = choose_kernel(
        encoder.layers[0].attention, encoder.heads.dim, 256, 4000, shared_bytes=227 << 10, long=chosen
    )
    assert kernel is (AttentionKernel.LONG_DISENTANGLED if is_long else AttentionKernel.DISENTANGLED)
    inputs, tables = inputs_for(kernel), AttentionTables.of(encoder, CPU, chosen)

    def launch(out: Tensor, qkv: Tensor, embeddings: Sequence[Tensor | None], table: Tensor, scale: float) -> None:
        query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
        kr, qr = (None if x is None else x.view(len(x), heads, -1) for x in embeddings)
        for start, end in pairwise(inputs.cu_seqlens.tolist()):
            q, k, v = (x[start:end] for x in (query, key, value))
            places = torch.arange(end - start)
            rows = table[places[:, None] - places[None] + len(table) // 2].long()
            scores = torch.einsum("ihd,jhd->hij", q, k)
            if kr is not None:
                scores += torch.einsum("ihd,ijhd->hij", q, kr[rows])
            if qr is not None:
                scores += torch.einsum("jhd,ijhd->hij", k, qr[rows])
            out[start:end] = torch.einsum("hij,jhd->ihd", torch.softmax(scale * scores, dim=-1), v).flatten(1)

    def of_all(out: Tensor, qkv: Tensor, starts: Tensor, longest: int, *more: Any) -> None:
        assert (starts is inputs.cu_seqlens, longest, more[0]) == (True, inputs.shape.max_seqlen, heads)
        launch(out, qkv, more[1:3], *more[3:])

    def of_long(out: Tensor, qkv: Tensor, plan: Tensor, num_heads: int, *more: Any) -> None:
        assert (plan is inputs.attention_plan, num_heads) == (True, heads)
        launch(out, qkv, [8 * x for x in more[:2]], torch.arange(len(more[0]), dtype=torch.int32), more[2])

    monkeypatch.setattr(module, "disentangled_attention", of_all)
    monkeypatch.setattr(long_disentangled, "long_disentangled", of_long)
    layout = sort_by_length(batch.cu_seqlens)
    tokens = torch.from_numpy(layout.tokens)
    qkv = torch.randn(len(batch.token_ids), 384, generator=torch.Generator().manual_seed(0))
    cpu = CpuOps(layout, tokens, None, weights.heads, torch.float32)
    for layer, own in zip(weights.layers, encoder.layers, strict=True):
        expected = cpu.attend(qkv[tokens], layer.attention)
        found = attend(torch.zeros(len(qkv), 128), qkv, own.attention, inputs, tables)
        torch.testing.assert_close(found[tokens][: len(qkv)], expected[: len(qkv)], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["mpnet", "umt5"])
@pytest.mark.parametrize("kernel", [AttentionKernel.SHORT, AttentionKernel.PACKED_64])
def test_each_layer_attends_with_its_table_of_biases_over_the_scale(
    tmp_path: Path, kernel: AttentionKernel, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPNet's layers share one. umT5's have their own."""
    weights = weights_of(tmp_path, family)
    encoder = prepare_for_gpu(weights, torch.float16, CPU)
    name = "short_attention" if kernel is AttentionKernel.SHORT else "packed_attention"
    calls = calls_of(name, encoder, inputs_for(kernel), monkeypatch)
    assert len({id(layer.attention) for layer in weights.layers}) == (2 if family == "umt5" else 1)
    for (*_, table), layer in zip(calls, weights.layers, strict=True):
        bias: Any = layer.attention
        middle, last = table.shape[1] // 2, bias.bias.shape[1] // 2
        for distance in (-500, -last, -7, 0, 1, last, 200):
            column = table[:, min(max(distance + middle, 0), 2 * middle)]
            want = bias.bias[:, min(max(distance, -last), last) + last].half().float() * 32**0.5
            torch.testing.assert_close(column, want, atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize(("longest", "rows"), [(100, 174), (256, 4000), (1024, 4000)])
def test_every_layer_of_any_combination_attends_as_on_the_cpu(
    name: str, longest: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the chosen kernels in torch: what they are told to see and share is what the CPU does."""
    weights, batch = random_encoder(COMBINATIONS[name]), pack(random_sequences((9, 100, 1, 64)))
    encoder, heads = prepare_for_gpu(weights, torch.float32, CPU), weights.heads
    kernel = choose_kernel(
        encoder.layers[0].attention,
        heads.dim,
        longest,
        rows,
        shared_bytes=227 << 10,
        seen_whole=longest_seen_whole(encoder),
        long=prepared_long(encoder, monkeypatch),
    )
    inputs = inputs_for(kernel)
    LaunchesInTorch(inputs).replace(monkeypatch)
    layout = sort_by_length(batch.cu_seqlens)
    tokens = torch.from_numpy(layout.tokens)
    cpu = CpuOps(layout, tokens, None, heads, torch.float32)
    qkv = torch.randn(
        len(batch.token_ids), heads.width + 2 * heads.key_width, generator=torch.Generator().manual_seed(0)
    )
    for layer, own in zip(weights.layers, encoder.layers, strict=True):
        expected = cpu.attend(qkv[tokens], without_turn(layer.attention))
        tables = AttentionTables.of(encoder, CPU)
        found = attend(torch.zeros(len(qkv), heads.width), qkv, own.attention, inputs, tables)
        torch.testing.assert_close(found[tokens][: len(qkv)], expected[: len(qkv)], atol=1e-5, rtol=0)


@dataclass(frozen=True)
class LaunchesInTorch:
    """The launches of attention, as their docstrings say, for one batch."""

    inputs: Inputs

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("short_attention", "packed_attention", "windowed_attention"):
            patch.setattr(module, name, getattr(self, name))
        patch.setattr(long, "long_attention", self.long_attention)
        patch.setattr(torch.ops.aten, "_flash_attention_forward", self.flash)

    def short_attention(
        self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int, scale: float, bias: Tensor | None
    ) -> None:
        self.packed_attention(out, qkv, plan, heads, scale, 0, bias)

    def packed_attention(
        self, out: Tensor, qkv: Tensor, plan: Tensor, heads: int, scale: float, _: int, bias: Tensor | None = None
    ) -> None:
        query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
        self._attend(out, query, key, value, scale, bias=bias)

    def long_attention(
        self, out: Tensor, qkv: Tensor, plan: Tensor, heads: Heads, scale: float, queries: int, *, is_causal: bool
    ) -> None:
        self.windowed_attention(out, qkv, plan, heads, scale, queries, None, is_causal=is_causal)

    def windowed_attention(
        self,
        out: Tensor,
        qkv: Tensor,
        plan: Tensor,
        heads: Heads,
        scale: float,
        queries: int,
        window: int | None,
        *,
        is_causal: bool,
    ) -> None:
        parts = [heads.queries, heads.keys, heads.keys]
        query, key, value = torch.split(qkv.view(len(qkv), -1, heads.dim), parts, dim=1)
        self._attend(out, query, key, value, scale, window, 0 if is_causal else window)

    def flash(
        self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, ends: Tensor, *more: Any, **named: Any
    ) -> tuple[Tensor]:
        longest_query, longest_key, dropout, is_causal, _ = more
        assert (longest_query, longest_key, dropout) == (self.inputs.shape.max_seqlen, longest_query, 0.0)
        assert starts is ends is self.inputs.cu_seqlens
        out = torch.zeros(len(query), query.shape[1] * query.shape[2])
        left, right = named["window_size_left"], 0 if is_causal else named["window_size_right"]
        self._attend(out, query, key, value, named["scale"], left, right)
        return (out.view_as(query),)

    def _attend(
        self,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        before: int | None = None,
        after: int | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Queries, keys and values [R, heads, d]. bias: over the scale."""
        for start, end in pairwise(self.inputs.cu_seqlens.tolist()):
            q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
            k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
            places = torch.arange(end - start)
            away = places[None] - places[:, None]
            hidden = away < -(end if before is None else before)
            hidden |= away > (end if after is None else after)
            scores = (q @ k.mT).masked_fill(hidden, -torch.inf)
            if bias is not None:
                scores += bias[:, away + bias.shape[1] // 2]
            context = torch.softmax(scale * scores, dim=-1) @ v
            out[start:end] = context.transpose(0, 1).flatten(1)


def test_a_kernel_that_does_not_fit_the_attention_is_a_bug(tmp_path: Path) -> None:
    encoder = prepare_for_gpu(weights_of(tmp_path, "modernbert"), torch.float16, CPU)
    wrong = inputs_for(AttentionKernel.PACKED_64)
    wrong = replace(wrong, shape=replace(wrong.shape, kernel=AttentionKernel.DISENTANGLED))
    out, qkv = torch.zeros(wrong.shape.rows, 128), torch.zeros(wrong.shape.rows, 384)
    with pytest.raises(RuntimeError, match="This is a bug"):
        attend(out, qkv, encoder.layers[0].attention, wrong, AttentionTables.of(encoder, CPU))
