"""Small rerankers whose chat template is that of Qwen3-Reranker, saved by sentence-transformers."""

from pathlib import Path
from typing import Any

import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore

from tests.engine.helpers import config_of, edit_json, randomise
from tests.producer.tokenizer_makers import MAKERS

# The instruction is before the query, and text of its own after the document.
TEMPLATE = """<|im_start|>system
Say "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("find") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
<think>

</think>

{% endif %}"""
MAX_TOKENS = 260
PROMPTS = {"cards": "find what is said of the card", "none": ""}


def save_tokenizer(directory: Path, template: str) -> None:
    MAKERS["qwen3"](directory)
    (directory / "config.json").unlink(missing_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    edit_json(directory / "tokenizer_config.json", model_max_length=MAX_TOKENS)


def save_decoder(directory: Path, **config: Any) -> None:
    model = transformers.Qwen3ForCausalLM(
        config_of("qwen3", **{"vocab_size": 300, "pad_token_id": None, "max_position_embeddings": 400} | config)
    )
    randomise(model)
    model.save_pretrained(directory)


def save_reranker(
    directory: Path, template: str = TEMPLATE, *, false_token: int | None = 9, activation: Any = None, **config: Any
) -> Any:
    """Of a decoder's logits; returns the CrossEncoder that loads it."""
    plain, saved = directory / "plain", directory / "saved"
    save_tokenizer(plain, template)
    save_decoder(plain, **config)
    options: Any = {"chat_template": {"add_generation_prompt": True}}
    transformer = Transformer(str(plain), transformer_task="text-generation", processing_kwargs=options)
    model = CrossEncoder(
        modules=[transformer, LogitScore(7, false_token)],
        prompts=PROMPTS,
        default_prompt_name="cards",
        device="cpu",
        activation_fn=activation,
    )
    model.save_pretrained(str(saved))
    return CrossEncoder(str(saved), device="cpu", local_files_only=True)
