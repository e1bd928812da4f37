"""Rerankers that fill a chat template, as sentence-transformers' CrossEncoder saves and runs them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from penstock.engine import TaskOptions, load_engine
from penstock.engine.calibration import measure
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.types import Float32Array
from penstock.producer.errors import UnsupportedTask
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from penstock.producer.wire.messages import Options, Request
from tests.engine.helpers import edit_json, pack, save_classifier
from tests.engine.rerankers import MAX_TOKENS, PROMPTS, TEMPLATE, save_reranker, save_tokenizer
from tests.producer.tokenizer_makers import MAKERS

pytestmark = pytest.mark.slow

PAIRS = [
    ("where is my card", "the card is in the post"),
    ("the card", "a " * 300),
    ("where is it " * 40, "no"),
    ("", ""),
    (" Étude\n", "a\n\n"),
    ("<|im_end|>", "yes <|im_end|> no"),
]


def scores(
    directory: Path,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    options: Options = Options(),  # noqa: B008 -- frozen
    engine: str = "packed",
) -> Float32Array:
    """Scores of pairs, prepared and cut as a worker does it, in one batch."""
    loaded = load_engine(str(directory), dtype="float32", device="cpu", engine=engine)
    assert "rerank" in loaded.info.tasks
    tokenizer = Tokenizer.from_directory(directory)
    request = tokenizer.prompts.apply(Request("m", "rerank", text=tuple(pairs), options=options))
    encoded = tokenizer.encode(request.text or (), truncate=True, max_tokens=loaded.info.max_tokens)
    tokenizer.close()
    types = [np.zeros_like(one.ids) if one.token_type_ids is None else one.token_type_ids for one in encoded]
    return np.concatenate(loaded.run(pack([one.ids for one in encoded], TaskOptions("rerank"), types)).rows)


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("asked", [{}, {"prompt_name": "none"}, {"prompt": "find a river"}, {"prompt": ""}])
def test_scores_of_a_decoder_are_those_of_predict(tmp_path: Path, engine: str, asked: dict[str, str]) -> None:
    reference = save_reranker(tmp_path)
    expected = reference.predict(PAIRS, batch_size=1, **asked)
    got = scores(tmp_path / "saved", options=Options(**asked), engine=engine)  # type: ignore[arg-type]  # strings
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert np.ptp(got) > 1e-3


def test_messages_may_be_structured(tmp_path: Path) -> None:
    content = 'map(attribute="content") | first'
    template = TEMPLATE.replace(f"| {content} }}}}", "| first).content[0].text }}").replace(
        f'| {content} | default("find")', '| list + [{"content": [{"text": "find"}]}])[0].content[0].text'
    )
    reference = save_reranker(tmp_path, template.replace("{{ messages", "{{ (messages"))
    assert reference[0].modality_config["message"]["format"] == "structured"
    np.testing.assert_allclose(scores(tmp_path / "saved"), reference.predict(PAIRS, batch_size=1), rtol=0, atol=1e-5)


def test_the_document_is_cut_and_the_templates_end_is_not(tmp_path: Path) -> None:
    save_reranker(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path / "saved")
    [text] = tokenizer.prompts.apply(Request("m", "rerank", text=(("q", "a " * 300),))).text or ()
    [whole], [cut] = (tokenizer.encode([text], truncate=truncate, max_tokens=MAX_TOKENS) for truncate in (False, True))
    end = tokenizer.encode(["<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"], truncate=False)[0].ids
    assert len(cut.ids) == MAX_TOKENS < len(whole.ids)
    np.testing.assert_array_equal(cut.ids, [*whole.ids[: MAX_TOKENS - len(end)], *end])


@pytest.mark.parametrize("false_token", [None, 9])
@pytest.mark.parametrize("tied", [True, False])
def test_the_row_of_the_logits_is_of_one_token_or_of_two(tmp_path: Path, tied: bool, false_token: int | None) -> None:
    reference = save_reranker(
        tmp_path, false_token=false_token, activation=torch.nn.Identity(), tie_word_embeddings=tied
    )
    expected = reference.predict(PAIRS, batch_size=1)
    np.testing.assert_allclose(scores(tmp_path / "saved"), expected, rtol=1e-5, atol=1e-5)


def test_a_classifier_of_one_label_is_given_the_template_too(tmp_path: Path) -> None:
    """As Qwen3-Reranker is published when it is converted to a ...ForSequenceClassification."""
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    save_tokenizer(plain, TEMPLATE)
    save_classifier(plain, "qwen3", vocab_size=300, num_labels=1, pad_token_id=0)
    CrossEncoder(str(plain), device="cpu", prompts=PROMPTS, default_prompt_name="cards").save_pretrained(str(saved))
    reference = CrossEncoder(str(saved), device="cpu", local_files_only=True)
    np.testing.assert_allclose(scores(saved), reference.predict(PAIRS, batch_size=1), rtol=0, atol=1e-5)
    assert load_engine(str(saved), dtype="float32", device="cpu").info.tasks == {"rerank"}


@pytest.mark.parametrize("asked", [{}, {"prompt_name": "none"}, {"prompt": "find a river "}, {"prompt": ""}])
def test_without_a_template_the_prompt_stands_before_the_query(tmp_path: Path, asked: dict[str, str]) -> None:
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    MAKERS["bert"](plain)
    (plain / "config.json").unlink()
    save_classifier(plain, "bert", vocab_size=400, num_labels=1, pad_token_id=0)
    CrossEncoder(str(plain), device="cpu", prompts=PROMPTS, default_prompt_name="cards").save_pretrained(str(saved))
    reference = CrossEncoder(str(saved), device="cpu", local_files_only=True)
    got = scores(saved, PAIRS[:3], Options(**asked))  # type: ignore[arg-type]  # strings
    np.testing.assert_allclose(got, reference.predict(PAIRS[:3], **asked), rtol=0, atol=1e-5)
    with pytest.raises(UnsupportedTask, match=r"Its prompts: cards, none\. Given: 'query'"):
        scores(saved, PAIRS, Options(prompt_name="query"))


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (TEMPLATE.replace("| first }}<|im_end|>", "| first | trim }}<|im_end|>"), "changes its contents"),
        (TEMPLATE.replace("| first }}<|im_end|>", "| first | replace('<think>', '') }}<|im_end|>"), "changes its"),
        (TEMPLATE.replace('"role", "eq", "document"', '"role", "eq", "user"'), "cannot be filled|must hold"),
        (TEMPLATE + "{{ messages[0].content }}", "must hold|ends with the instruction"),
        ("{{ raise_exception('no roles') }}", "cannot be filled"),
        (TEMPLATE.replace("<|im_start|>system", "<|im_start|>{{ strftime_now('%Y') }}"), "strftime_now"),
    ],
)
def test_a_template_that_does_more_than_stand_around_the_texts_is_refused(
    tmp_path: Path, template: str, why: str
) -> None:
    save_reranker(tmp_path, template)
    with pytest.raises(TokenizerError, match=why):
        Tokenizer.from_directory(tmp_path / "saved")


Change = Callable[[Path], None]


def edited(name: str, **changes: Any) -> Change:
    return lambda directory: edit_json(directory / name, **changes)


FORWARD = {"method": "forward", "method_output_name": "logits"}


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (edited("1_LogitScore/config.json", true_token_id=300), CheckpointError, "token 300"),
        (edited("1_LogitScore/config.json", true_token_id=None), CheckpointError, "token -1"),
        (edited("1_LogitScore/config.json", temperature=2), UnsupportedCheckpoint, "temperature"),
        (edited("1_LogitScore/config.json", module_input_name="scores"), UnsupportedCheckpoint, "causal_logits"),
        (edited("config.json", final_logit_softcapping=30.0), UnsupportedCheckpoint, "final_logit_softcapping"),
        (edited("config.json", architectures=["Qwen3ForSequenceClassification"]), UnsupportedCheckpoint, "LogitScore"),
        (edited("sentence_bert_config.json", transformer_task="any-to-any"), UnsupportedCheckpoint, "transformer_task"),
        (edited("sentence_bert_config.json", processing_kwargs={"text": {"logits_to_keep": 2}}), Exception, "kwargs"),
        (
            edited("sentence_bert_config.json", modality_config={"text": FORWARD | {"method": "score"}}),
            Exception,
            "moda",
        ),
    ],
)
def test_what_is_not_known_of_it_is_refused(tmp_path: Path, change: Change, error: type[Exception], why: str) -> None:
    save_reranker(tmp_path)
    change(tmp_path / "saved")
    with pytest.raises(error, match=why):
        load_engine(str(tmp_path / "saved"), dtype="float32", device="cpu")


def test_what_only_reranks_can_be_timed(tmp_path: Path) -> None:
    """As a worker times its engine when it starts."""
    save_reranker(tmp_path)
    engine = load_engine(str(tmp_path / "saved"), dtype="float32", device="cpu")
    assert measure(engine, max_sequences=4, max_tokens=300, budget_s=0.01).timings
