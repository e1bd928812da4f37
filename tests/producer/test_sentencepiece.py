"""Directories whose tokenizer is a SentencePiece model alone, as older checkpoints of T5 and XLM-R have."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from penstock.producer.tokenization import Tokenizer

pytestmark = pytest.mark.slow

TEXTS = ["a river in spring", "Where is the river?", "", "snow  snow"]


@pytest.mark.parametrize(
    ("name", "config"),
    [("spiece.model", transformers.T5Config), ("sentencepiece.bpe.model", transformers.XLMRobertaConfig)],
)
def test_tokens_are_those_of_transformers(tmp_path: Path, name: str, config: Any) -> None:
    (tmp_path / "texts").write_text("\n".join(TEXTS * 5), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts"), model_prefix=str(tmp_path / "trained"), vocab_size=60, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    model = tmp_path / "model"
    config().save_pretrained(model)
    (tmp_path / "trained.model").rename(model / name)
    expected = transformers.AutoTokenizer.from_pretrained(str(model))
    tokenizer = Tokenizer.from_directory(model)
    for text, encoded in zip(TEXTS, tokenizer.encode(TEXTS, truncate=False), strict=True):
        assert encoded.ids.tolist() == expected(text)["input_ids"]
