"""Tokens equal those of transformers' `generate` in float32, whatever runs in the same batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from penstock.engine.errors import InvalidOption
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.loading import load_seq2seq
from tests.engine.generation.helpers import (
    EOS,
    FAMILIES,
    PADDING,
    SMALL,
    VOCAB,
    drain,
    expected,
    generate,
    model_of,
    save_seq2seq,
    sources,
)
from tests.engine.helpers import edit_json, write_json

pytestmark = pytest.mark.slow

_AUTO_MODEL: Any = transformers.AutoModelForSeq2SeqLM  # transformers leaves from_pretrained untyped
LENGTHS = (1, 33, 2, 5, 17, 60, 4)


def assert_parity(family: str, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, **options: Any) -> list[list[int]]:
    """Returns the tokens."""
    checkpoint, model = model_of(family)
    batch = sources(lengths, seed)
    tokens = generate(checkpoint, batch, **options)
    assert tokens == [expected(model, source, **options) for source in batch]
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family: str) -> None:
    assert_parity(family, max_new_tokens=30)
    tokens = assert_parity(family, max_new_tokens=40, no_repeat_ngram_size=1)
    assert len({len(row) for row in tokens}) > 2  # they stop at different times


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_four_beams(family: str, length_penalty: float) -> None:
    options: dict[str, Any] = {"num_beams": 4, "length_penalty": length_penalty, "max_new_tokens": 12}
    assert_parity(family, (1, 33, 5), no_repeat_ngram_size=2 if length_penalty else 0, **options)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.6, 2.0])
@pytest.mark.parametrize("num_beams", [2, 4])
def test_when_beams_stop(length_penalty: float, num_beams: int) -> None:
    """Of likely end tokens, with a penalty that prefers long sequences, each way to stop has a result of its own."""
    options: dict[str, Any] = {"eos_token_id": list(range(11, 23)), "no_repeat_ngram_size": 2, "max_new_tokens": 24}
    options |= {"length_penalty": length_penalty, "num_beams": num_beams}
    early, lazy, never = (
        assert_parity("marian-untied", (3, 21, 8, 30), early_stopping=stopping, **options)
        for stopping in (True, False, "never")
    )
    if length_penalty > 1:
        assert early != lazy != never


@pytest.mark.parametrize("num_beams", [1, 3])
def test_padding_has_no_position_in_a_source_nor_in_a_result(num_beams: int) -> None:
    batch = (9, 33, 60)
    assert any(PADDING in source[:-1] for source in sources(batch))
    tokens = assert_parity("m2m_100", batch, num_beams=num_beams, forced_bos_token_id=PADDING, max_new_tokens=6)
    assert all(row[0] == PADDING for row in tokens)


@pytest.mark.parametrize(
    ("family", "left_out"),
    [
        ("m2m_100", ("scale_embedding", "activation_function", "pad_token_id")),
        ("pegasus", ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")),
        ("mbart", ("final_logits_bias", "scale_embedding", "activation_function")),
    ],
)
def test_settings_and_tensors_that_are_left_out(family: str, left_out: tuple[str, ...], tmp_path: Path) -> None:
    save_seq2seq(tmp_path, family)
    config, file = json.loads((tmp_path / "config.json").read_text(encoding="utf-8")), tmp_path / "model.safetensors"
    write_json(tmp_path / "config.json", {key: value for key, value in config.items() if key not in left_out})
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in left_out}
    save_file(kept, file, metadata={"format": "pt"})
    model, batch = _AUTO_MODEL.from_pretrained(tmp_path, dtype=torch.float32).eval(), sources((5, 17))
    tokens = generate(load_seq2seq(str(tmp_path)), batch, num_beams=3, max_new_tokens=12)
    assert tokens == [expected(model, source, num_beams=3, max_new_tokens=12) for source in batch]


@pytest.mark.parametrize("family", ["bart", "m2m_100", "mbart", "pegasus"])
def test_stacks_and_heads_with_tables_of_their_own(family: str, tmp_path: Path) -> None:
    model, batch = save_seq2seq(tmp_path, family, tie_word_embeddings=False), sources((5, 17))
    assert not torch.equal(model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight)
    tokens = generate(load_seq2seq(str(tmp_path)), batch, max_new_tokens=12)
    assert tokens == [expected(model, source, max_new_tokens=12) for source in batch]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"min_new_tokens": 6},
        {"min_length": 6},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"bad_words_ids": [[40], [2], [41, 42], [20, 21, 22]]},
        {"suppress_tokens": list(range(20, 60))},
        {"begin_suppress_tokens": list(range(50, 90))},
        {"forced_bos_token_id": 33},
        {"forced_bos_token_id": 33, "begin_suppress_tokens": list(range(50, 90))},
        {"forced_eos_token_id": 13},
        {"forced_eos_token_id": [20, 13]},  # equally good: of two sequences that differ in it, torch decides
        {"renormalize_logits": True, "suppress_tokens": list(range(20, 60))},
        {"eos_token_id": 17},
        {"decoder_start_token_id": 60},
        {"max_length": 9},
    ],
    ids=str,
)
def test_options(options: dict[str, Any], num_beams: int) -> None:
    given: dict[str, Any] = {"max_new_tokens": 12} if "max_length" not in options else {}
    assert_parity("bart", (1, 19, 6), num_beams=num_beams, **given, **options)


@pytest.mark.parametrize("num_beams", [3, 4, 6])
@pytest.mark.parametrize("length_penalty", [0.5, 2.0])
def test_beams_that_have_no_token_left_leave_those_that_have_ended(num_beams: int, length_penalty: float) -> None:
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": "never"}
    options |= {"no_repeat_ngram_size": 1, "eos_token_id": 13, "forced_eos_token_id": 13, "max_new_tokens": 12}
    options["suppress_tokens"] = [token for token in range(VOCAB) if token not in (13, 54)]
    tokens = assert_parity("marian", (5, 9), **options)
    assert all(row in ([54, 13], [13]) for row in tokens)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_the_models_own_options() -> None:
    """Without any argument, as generation_config.json has them."""
    tokens = assert_parity("bart")
    assert max(map(len, tokens)) == 20


def test_options_of_a_config_without_a_generation_config(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "t5")
    (tmp_path / "generation_config.json").unlink()
    assert load_seq2seq(str(tmp_path)).options().eos_token_ids == tuple(EOS)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 3.0}, {"suppress_tokens": list(range(20, 60))}, {"max_new_tokens": 9}], ids=str
)
def test_any_option_of_a_config_without_a_generation_config_counts(options: dict[str, Any], tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "bart")
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", **options)
    model = _AUTO_MODEL.from_pretrained(tmp_path, dtype=torch.float32).eval()
    batch = sources((5, 17))
    assert generate(load_seq2seq(str(tmp_path)), batch) == [expected(model, source) for source in batch]


def test_an_option_of_a_config_without_a_generation_config_may_not_be_implemented(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "bart")
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", encoder_no_repeat_ngram_size=2)
    with pytest.raises(InvalidOption, match="encoder_no_repeat_ngram_size is not implemented"):
        load_seq2seq(str(tmp_path)).options()


def test_an_old_config_of_t5_whose_head_is_untied(tmp_path: Path) -> None:
    """It says by tie_word_embeddings alone that the last hidden state is not scaled, which beams show."""
    model = save_seq2seq(tmp_path, "t5-gated")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del config["scale_decoder_outputs"]
    write_json(tmp_path / "config.json", config | {"tie_word_embeddings": False})
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 12}
    batch = sources((3, 20))
    tokens = generate(load_seq2seq(str(tmp_path)), batch, **options)
    assert tokens == [expected(model, source, **options) for source in batch]


@pytest.mark.parametrize("family", ["m2m_100", "mbart", "pegasus"])
def test_requests_join_and_leave_at_any_step(family: str) -> None:
    checkpoint, model = model_of(family)
    mixed: list[dict[str, Any]] = [
        {"max_new_tokens": 9},
        {"max_new_tokens": 6, "num_beams": 4, "forced_bos_token_id": 33},
        {"max_new_tokens": 3, "forced_bos_token_id": PADDING},
        {"max_new_tokens": 12, "num_beams": 2, "no_repeat_ngram_size": 2, "length_penalty": 0.6},
        {"max_new_tokens": 7, "early_stopping": True, "num_beams": 3},
    ]
    generator, batch = Generator(checkpoint.weights, SMALL), sources((9, 30, 2, 60, 17))
    tokens: dict[int, list[int]] = {}
    for id, (source, options) in enumerate(zip(batch, mixed, strict=True)):
        generator.start(id, source, checkpoint.options(**options))
        for progress in generator.step(1 + id % 2):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
    for id, more in drain(generator).items():
        tokens.setdefault(id, []).extend(more)
    for id, (source, options) in enumerate(zip(batch, mixed, strict=True)):
        assert tokens[id] == expected(model, source, **options), options


def test_requests_with_different_options_share_a_batch() -> None:
    checkpoint, model = model_of("t5")
    mixed: list[dict[str, Any]] = [
        {"max_new_tokens": 9},
        {"max_new_tokens": 5, "num_beams": 2},
        {"max_new_tokens": 12, "num_beams": 4, "length_penalty": 2.0},
        {"max_new_tokens": 7, "num_beams": 4, "length_penalty": 2.0},
        {"max_new_tokens": 8, "no_repeat_ngram_size": 2},
    ]
    generator = Generator(checkpoint.weights, SMALL)
    batch = sources((9, 30, 2, 30, 9))
    for id, (source, options) in enumerate(zip(batch, mixed, strict=True)):
        generator.start(id, source, checkpoint.options(**options))
    tokens = drain(generator, quantum=3)
    for id, (source, options) in enumerate(zip(batch, mixed, strict=True)):
        assert tokens[id] == expected(model, source, **options), options
