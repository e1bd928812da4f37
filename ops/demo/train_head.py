"""Train the demo's head: multinomial logistic regression on frozen embeddings of the Banking77 training messages.

    python -m penstock.ops.demo.train_head train.csv

Stratified cross-validation on the training messages chooses the strength of the L2 penalty; the test messages are not
read. The fit is seeded and in float64: a second run on the same machine writes the same tensors.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from penstock.engine import load_engine
from penstock.engine.types import Engine, Float32Array, PackedBatch, TaskOptions
from penstock.ops.demo.banking77 import HEAD, read_messages
from penstock.ops.demo.demo_model import SERVED_NAME, WEIGHTS_SHA256, model_directory

SEED = 0
NUM_FOLDS = 5
_BATCH_SEQUENCES = 64
# Inverse strength of the penalty, as scikit-learn's LogisticRegression(C=…) counts it.
C_CANDIDATES = (1.0, 3.0, 10.0, 30.0, 100.0)


def fit(vectors: Tensor, targets: Tensor, num_labels: int, c: float) -> tuple[Tensor, Tensor]:
    """Minimise the summed cross-entropy + |weight|² / (2c) over `vectors` f64[n, dim] and `targets` i64[n].

    Returns weight f64[num_labels, dim] and bias f64[num_labels]. The bias is not penalised.
    """
    weight = vectors.new_zeros(num_labels, vectors.shape[1], requires_grad=True)
    bias = vectors.new_zeros(num_labels, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=500, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(vectors @ weight.T + bias, targets) + weight.square().sum() / (2 * c * len(targets))
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return weight.detach(), bias.detach()


def stratified_folds(targets: Tensor, num_folds: int, seed: int) -> Tensor:
    """The fold of each message, i64[n]. Each label is spread evenly over the folds, in random order."""
    generator = torch.Generator().manual_seed(seed)
    folds = torch.empty_like(targets)
    for label in range(int(targets.max()) + 1):
        members = (targets == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        folds[shuffled] = torch.arange(len(members)) % num_folds
    return folds


def cross_validated_accuracy(vectors: Tensor, targets: Tensor, num_labels: int, c: float) -> float:
    """Accuracy on held-out messages, over all folds."""
    folds = stratified_folds(targets, NUM_FOLDS, SEED)
    correct = 0
    for fold in range(NUM_FOLDS):
        held_out = folds == fold
        weight, bias = fit(vectors[~held_out], targets[~held_out], num_labels, c)
        correct += int(((vectors[held_out] @ weight.T + bias).argmax(1) == targets[held_out]).sum())
    return correct / len(targets)


def run_directly(engine: Engine, directory: Path, task: str, texts: Sequence[str]) -> Float32Array:
    """Run texts without Kafka, in batches. `directory` holds the tokenizer.json.

    Returns [n, dim] for "embed", [n, labels] for "classify".
    """
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(engine.info.max_tokens)
    rows: list[Float32Array] = []
    for start in range(0, len(texts), _BATCH_SEQUENCES):
        encoded = tokenizer.encode_batch(list(texts[start : start + _BATCH_SEQUENCES]))
        ids = [np.array(encoding.ids, np.int32) for encoding in encoded]
        rows += engine.run(PackedBatch.of(ids, [TaskOptions(task)] * len(ids))).rows
    return np.stack(rows)


def embed_all(texts: list[str]) -> Tensor:
    """Embeddings f64[n, 384] of the demo's model, computed by penstock's engine in float32."""
    engine = load_engine(str(model_directory()), dtype="float32", device="cpu", threads=torch.get_num_threads())
    return torch.from_numpy(run_directly(engine, model_directory(), "embed", texts)).double()


def save_head(path: Path, weight: Tensor, bias: Tensor, labels: list[str], c: float) -> None:
    """Write the head as the engine reads it: `weight` f32[n, dim], `bias` f32[n], labels and origin in the metadata."""
    tensors: dict[str, npt.NDArray[np.float32]] = {
        "weight": weight.to(torch.float32).numpy(),
        "bias": bias.to(torch.float32).numpy(),
    }
    metadata = {
        "labels": json.dumps(labels),
        "base_model": SERVED_NAME,
        "base_weights_sha256": WEIGHTS_SHA256,
        "trained_on": "Banking77 train (PolyAI, CC BY 4.0)",
        "c": str(c),
    }
    save_file(tensors, path, metadata=metadata)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the head of the demo on the Banking77 training messages.")
    parser.add_argument("train_csv", type=Path, help="Banking77 train.csv, columns text and category")
    parser.add_argument("--out", type=Path, default=HEAD, help="head to write (default: the shipped one)")
    arguments = parser.parse_args()

    messages = read_messages(arguments.train_csv)
    labels = sorted({message.category for message in messages})
    targets = torch.tensor([labels.index(message.category) for message in messages])
    print(f"Embedding {len(messages):,} messages of {len(labels)} intents ...")
    vectors = embed_all([message.text for message in messages])

    accuracies: dict[float, float] = {}
    for c in C_CANDIDATES:
        accuracies[c] = cross_validated_accuracy(vectors, targets, len(labels), c)
        print(f"C={c:<5g} accuracy over {NUM_FOLDS} held-out folds: {accuracies[c]:.4f}")
    best = max(accuracies, key=lambda c: accuracies[c])
    weight, bias = fit(vectors, targets, len(labels), best)
    save_head(arguments.out, weight, bias, labels, best)
    print(f"C={best:g} chosen; wrote {arguments.out} ({arguments.out.stat().st_size:,} bytes).")


if __name__ == "__main__":
    main()
