"""Hidden states of every family beside transformers' on the device: sizes of usual checkpoints, random weights."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.hidden_states import Comparison
from penstock.ops.bench.gpu.models import DEBERTA_V3_BASE, INITIALIZER_RANGE
from penstock.ops.bench.gpu.sides import Runtime, Transformers

PACKS = 60  # random ones
PACKS_OF_FIRST = 300

_BASE: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_ROBERTA: dict[str, Any] = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
# The sizes of published checkpoints; where nothing is named they are transformers' defaults.
CONFIGS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "BERT-base": (transformers.BertConfig, {}),
    "MiniLM-L6": (
        transformers.BertConfig,
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "RoBERTa-base": (transformers.RobertaConfig, _ROBERTA),
    "DistilBERT-base": (transformers.DistilBertConfig, {}),
    "ALBERT-base": (transformers.AlbertConfig, _BASE),
    "ELECTRA-base": (transformers.ElectraConfig, {**_BASE, "embedding_size": 768}),
    "MPNet-base": (transformers.MPNetConfig, {"vocab_size": 30_527, "max_position_embeddings": 514}),
    "DeBERTa-v3-base": (transformers.DebertaV2Config, DEBERTA_V3_BASE),
    "ModernBERT-base": (transformers.ModernBertConfig, {}),
}


def run(bench: Bench) -> dict[str, Any]:
    """About 75 s."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    rows: list[dict[str, Any]] = []
    for number, (name, (kind, values)) in enumerate(CONFIGS.items()):
        packs = PACKS if number else PACKS_OF_FIRST
        with bench.guarded("families", name), torch.inference_mode(False):
            config = kind(**{**values, "initializer_range": INITIALIZER_RANGE})
            rows.append({"name": name, "packs": packs, "checks": list(_checks(config, packs, bench.seed))})
    return {"rows": rows}


def _checks(config: Any, packs: int, seed: int) -> Iterator[dict[str, Any]]:
    auto: Any = transformers.AutoModel
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        auto.from_config(config).eval().save_pretrained(folder)
        comparison = _comparison(Path(folder), packs, seed)
    for check in comparison.run(lambda: None):
        yield {**asdict(check), "passed": check.passed}


def _comparison(directory: Path, packs: int, seed: int) -> Comparison:
    runtime = Runtime(directory, "float16", "cuda")
    exact = Transformers(directory, runtime.task, torch.float32, "cuda")
    beside = Transformers(directory, runtime.task, torch.float16, "cuda")
    return Comparison(runtime, exact, beside, packs=packs, seed=seed)
