"""Which checkpoints generate, and what a worker learns of one that does."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from penstock.engine import host_memory
from penstock.engine.errors import CheckpointError, InvalidOption, UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.generation.cpu import CpuSeq2Seq
from penstock.engine.generation.loading import generates
from penstock.engine.gpu.generation import seq2seq
from penstock.engine.loading import generation as loading_module
from penstock.engine.loading.generation import load_generation_model
from penstock.producer.tokenization import Tokenizer
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Options, Request, join_tokens
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, StageTimes
from tests.engine.generation.helpers import VOCAB, drain, expected, model_of, save_seq2seq, sources
from tests.producer.tokenizer_makers import MAKERS
from tests.worker.conftest import FakeRecord


@pytest.mark.parametrize(
    ("model_type", "architecture", "is_generating"),
    [
        ("t5", "T5ForConditionalGeneration", True),
        ("mt5", "MT5ForConditionalGeneration", True),
        ("bart", "BartForConditionalGeneration", True),
        ("marian", "MarianMTModel", True),
        ("m2m_100", "M2M100ForConditionalGeneration", True),
        ("mbart", "MBartForConditionalGeneration", True),
        ("pegasus", "PegasusForConditionalGeneration", True),
        ("mbart", "MBartForSequenceClassification", False),
        ("t5", "T5EncoderModel", False),
        ("bart", "BartForSequenceClassification", False),
        ("bert", "BertModel", False),
        ("whisper", "WhisperForConditionalGeneration", False),
        ("t5", None, False),
    ],
)
def test_the_checkpoint_decides(tmp_path: Path, model_type: str, architecture: str | None, is_generating: bool) -> None:
    config: dict[str, Any] = {"model_type": model_type, "architectures": architecture and [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert generates(str(tmp_path)) is is_generating


def test_an_embedding_model_of_sentence_transformers_is_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    assert not generates(str(tmp_path))


def test_a_directory_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        generates(str(tmp_path))


async def test_truncate_cuts_where_the_tokenizer_does_and_longer_sources_are_read_without_it(tmp_path: Path) -> None:
    MAKERS["t5"](tmp_path)  # of at most 12 tokens, which its relative positions do not need
    save_seq2seq(tmp_path, "t5")
    text = "where is my card " * 4
    reference: Any = transformers.AutoTokenizer  # untyped there
    stated = reference.from_pretrained(tmp_path)
    info = load_generation_model(str(tmp_path), max_rows=8, max_encode_tokens=100).info
    tokenizer = Tokenizer.from_directory(tmp_path)
    for truncate in (False, True):
        expected = stated(text, truncation=truncate)["input_ids"]
        preparer = RequestPreparer(
            replace(info, vocab_size=len(stated)), ReplyBounds(info, 10_000), tokenizer, has_cache=False
        )
        for message in (
            Request("t5", "embed", text=(text,), options=Options(truncate=truncate)),
            Request("t5", "embed", tokens=join_tokens([stated(text)["input_ids"]]), options=Options(truncate=truncate)),
        ):
            [[sequence], []] = await preparer.prepare([pending(message)])
            assert sequence.token_ids.tolist() == expected
    tokenizer.close()
    assert len(expected) == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "tokenizer", "source", "target"),
    [("mbart", "mbart-50", "de_DE", "zh_CN"), ("m2m_100", "nllb", "zul_Latn", "fra_Latn")],
)
async def test_a_text_of_one_language_gives_that_of_another_as_transformers_does(
    tmp_path: Path, family: str, tokenizer: str, source: str, target: str
) -> None:
    MAKERS[tokenizer](tmp_path)
    vocabulary: Any = transformers.AutoTokenizer.from_pretrained(tmp_path, src_lang=source)  # untyped there
    reference = save_seq2seq(tmp_path, family, vocab_size=len(vocabulary))
    texts, given = ("where is my card", "the card"), {"num_beams": 2, "max_new_tokens": 6}
    first = vocabulary.convert_tokens_to_ids(target)
    ids = [np.array(vocabulary(text)["input_ids"]) for text in texts]
    wanted = [expected(reference, one, forced_bos_token_id=first, **given) for one in ids]

    ours, model = Tokenizer.from_directory(tmp_path), load_generation_model(str(tmp_path))
    requests, bounds = GenerationRequests(model.info, model.options, ours.languages), ReplyBounds(model.info, 10_000)
    preparer = RequestPreparer(model.info, bounds, ours, requests, has_cache=True)
    named = {"source_language": source, "target_language": target}
    options = [
        Options(generation=read_generation(given | more)) for more in (named, {**named, "source_language": None})
    ]
    blocks, _ = await preparer.prepare(
        [pending(Request("m", "generate", text=texts, options=one)) for one in options]  # of two languages at a time
    )
    generator = model.generator(1, (1,))
    for place, block in enumerate(blocks):
        assert block.options.generation is not None
        generator.start(place, block.token_ids.astype(np.int32), block.options.generation)
    tokens = drain(generator)
    ours.close()
    assert [tokens[0], tokens[1]] == wanted
    assert all(tokens[place][0] == first for place in range(4))
    assert len({block.keys[0] for block in blocks}) == 4


def pending(message: Request) -> PendingRequest:
    record = PendingRecord(FakeRecord(b""), ("requests", 0), from_bulk_topic=False)
    return PendingRequest(record, ReplyAddress("replies", 0, None, None), message, None, False, StageTimes(0.0, 0.0))


def test_a_model_says_what_it_reads_and_allows(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    model = load_generation_model(str(tmp_path), name="translator", max_rows=8, max_encode_tokens=100)
    info = model.info
    assert (info.name, info.device, info.dtype) == ("translator", "cpu", "float32")
    assert info.tasks == {"generate"}
    assert (info.vocab_size, info.max_tokens) == (VOCAB, 80)  # as many as it has positions
    assert (model.limits.max_rows, model.limits.max_encode_tokens) == (8, 100)
    assert model.options({"num_beams": 8}).num_beams == 8
    for wrong in ({"num_beams": 9}, {"max_new_tokens": 81}, {"suppress_tokens": [VOCAB]}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            model.options(wrong)


def test_a_tensor_without_effect_of_the_first_t5_is_ignored_and_those_of_further_layers_are_refused(
    tmp_path: Path,
) -> None:
    save_seq2seq(tmp_path, "t5")
    tensors = load_file(tmp_path / "model.safetensors")
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # as t5-small has it
    save_file(tensors | {old: torch.zeros(8, 4)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    load_generation_model(str(tmp_path))
    further = {"encoder.block.9.layer.0.SelfAttention.q.weight": torch.zeros(8, 4)}
    save_file(tensors | further, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedCheckpoint, match=r"encoder\.block\.9.*would not be used"):
        load_generation_model(str(tmp_path))


def test_an_option_of_the_checkpoint_that_is_not_implemented_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    path = tmp_path / "generation_config.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps(own | {"max_length": 5000}))
    load_generation_model(str(tmp_path))
    path.write_text(json.dumps(own | {"diversity_penalty": 0.5}))
    with pytest.raises(InvalidOption, match="diversity_penalty is not implemented"):
        load_generation_model(str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"device": "cuda"}, "device 'cuda' is not available: torch sees no CUDA GPU"),
        ({"device": "tpu"}, "device 'tpu' is not available; use auto, cpu or cuda"),
        ({"dtype": "float16"}, "'float16' is not available for a model that generates on 'cpu'; use auto or float32"),
    ],
)
def test_other_devices_and_precisions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    save_seq2seq(tmp_path, "marian")
    with pytest.raises(UnsupportedDevice, match=message):
        load_generation_model(str(tmp_path), **asked)  # type: ignore[arg-type]  # strings, all of them


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A GPU that is a CPU. The list has its free bytes."""
    free = [1 << 40]
    monkeypatch.setattr(loading_module, "choose_device", lambda wanted: "cuda" if wanted != "cpu" else "cpu")
    monkeypatch.setattr(loading_module, "device_name", lambda: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 1 << 40))
    monkeypatch.setattr(seq2seq, "GpuSeq2Seq", partial(seq2seq.GpuSeq2Seq, device="cpu"))
    return free


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("family", "asked", "dtype"),
    [
        ("marian", "auto", "float16"),
        ("bart", "auto", "float16"),
        ("t5", "auto", "bfloat16"),
        ("mt5", "auto", "bfloat16"),
        ("t5", "float16", "float16"),
        ("marian", "float32", "float32"),
    ],
)
def test_a_gpu_runs_halves_that_do_not_overflow(tmp_path: Path, family: str, asked: str, dtype: str) -> None:
    save_seq2seq(tmp_path, family)
    info = load_generation_model(str(tmp_path), dtype=asked).info
    assert (info.device, info.dtype) == ("Some GPU", dtype)
    assert load_generation_model(str(tmp_path), device="cpu").info.device == "cpu"


@pytest.mark.parametrize(
    ("free_bytes", "num_pages"),
    [
        (1 << 40, 8 * (64 + 64)),  # as many as the rows can need
        (8 * 500 * 3 * 16 * 64 * 2, 500),  # layers, positions, key and value of a position, bytes
        (0, 64 + 64),  # one row
    ],
)
def test_pages_on_a_gpu_follow_its_free_memory(tmp_path: Path, gpu: list[int], free_bytes: int, num_pages: int) -> None:
    save_seq2seq(tmp_path, "marian")
    gpu[0] = free_bytes
    limits = load_generation_model(str(tmp_path), max_rows=8).limits
    assert (limits.num_pages, limits.max_rows) == (num_pages, 8)


def test_pages_on_a_cpu_follow_its_free_memory_or_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_seq2seq(tmp_path, "marian")
    page_bytes = 3 * 16 * 64 * 4
    free = 8 * 400 * page_bytes
    (tmp_path / "memory.max").write_text(f"{free + 1000}\n")  # of the control group: less than the machine's
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert load_generation_model(str(tmp_path), device="cpu", max_rows=8).limits.num_pages == 400
    given = load_generation_model(str(tmp_path), device="cpu", max_rows=8, page_bytes=300 * page_bytes)
    assert given.limits.num_pages == 300
    with pytest.raises(UnsupportedDevice, match="do not fit into"):
        load_generation_model(str(tmp_path), device="cpu", page_bytes=1 << 50)


def test_pages_that_are_not_used_take_no_memory() -> None:
    weights = model_of("marian")[0].weights
    before = _resident_bytes()
    device = CpuSeq2Seq(weights, 200_000, 16, 1)
    assert device._key_values.numel() * 4 > 1e9
    assert _resident_bytes() - before < 200e6


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.usefixtures("gpu")
def test_a_generator_on_a_gpu_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    found = []
    for device in ("auto", "cpu"):
        model = load_generation_model(str(tmp_path), dtype="float32", device=device, max_rows=8)
        generator = model.generator(1, (1, 2))
        for id, source in enumerate(sources([3, 9])):
            generator.start(id, source, model.options({"max_new_tokens": 7}))
        found.append(drain(generator, 4))
    assert found[0] == found[1]
