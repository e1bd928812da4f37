"""Texts a second with labels of their own: the engine beside transformers' pipeline, in turn."""

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from penstock.ops.bench.common.setup import ROUNDS, shuffled_texts
from penstock.ops.bench.contestants.labels_alone import LabelsAlone
from penstock.ops.bench.contestants.zero_shot_pipeline import ZeroShotPipeline
from penstock.ops.demo.banking77 import read_messages
from penstock.ops.demo.demo_model import model_directory

NUM_LABELS = 8
_CLASSES = ("entailment", "neutral", "contradiction")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def labels_beside_the_pipeline(
    config: Any,
    num_texts: int,
    folder: Path,
    dtype: str,
    *,
    device: str = "cpu",
    cores: int | None = None,
    batches: Sequence[int] = (1, 8, 32),
) -> dict[str, Any]:
    """Texts of Banking77, each with eight of its intents. The checkpoint is made in the folder.

    `config`: transformers' of an encoder with the vocabulary of the demo's model. `cores`: threads of the pipeline on a
    CPU. `batches`: its sizes, in pairs, of which the fastest counts. The largest difference is of scores, which add up
    to 1 for each text.
    """
    texts, labels = shuffled_texts(num_texts), _labels()
    few = texts[: max(4, num_texts // 4)]
    model = make_checkpoint(config, folder)
    ours, theirs = LabelsAlone(model, dtype, device), ZeroShotPipeline(model, dtype, device, cores)
    tried = theirs.tried(few, labels, batches)
    best = next(iter(tried))
    ours.classify(texts, labels)  # warm-up, on both sides
    theirs.classify(texts, labels, best)
    seconds: dict[str, list[float]] = {"ours": [], "pipeline": []}
    for _ in range(ROUNDS):
        scores, ours_s = ours.classify(texts, labels)
        their_scores, theirs_s = theirs.classify(texts, labels, best)
        seconds["ours"].append(ours_s)
        seconds["pipeline"].append(theirs_s)
    ours.close()
    return {
        "dtype": dtype,
        "texts": len(texts),
        "labels": len(labels),
        "batch": best,
        "seconds": seconds,
        "texts_per_s": {name: len(texts) / statistics.median(values) for name, values in seconds.items()},
        "tried_batches_texts_per_s": tried,
        "largest_difference": float(np.abs(scores - their_scores).max()),
        "score_range": float(np.ptp(their_scores)),
    }


def make_checkpoint(config: Any, directory: Path) -> Path:
    """A classifier of natural language inference with random weights, and the tokenizer of the demo's model."""
    config.id2label = dict(enumerate(_CLASSES))
    config.label2id = {name: index for index, name in config.id2label.items()}
    torch.manual_seed(0)
    make: Any = transformers.AutoModelForSequenceClassification  # transformers leaves it untyped
    make.from_config(config).save_pretrained(directory)
    for name in _TOKENIZER:
        shutil.copy(model_directory() / name, directory)
    return directory


def _labels() -> list[str]:
    """Some of the intents, as words."""
    intents = dict.fromkeys(message.category.replace("_", " ") for message in read_messages())
    return list(intents)[:: len(intents) // NUM_LABELS][:NUM_LABELS]
