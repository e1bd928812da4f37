"""The table of model families in `ops/docs/models.md`. What the code or kept runs know is taken from them.

A family that is new is a row of `FAMILY_ROWS`; `make figures` then writes the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.engine.families import FAMILIES
from penstock.engine.model.architectures import architectures_of
from penstock.ops.bench.common import markdown
from penstock.ops.bench.common.measures import filled, matches, results
from penstock.ops.bench.common.runs import RESULTS, Run, current_runs, machines
from penstock.ops.bench.common.tables import caption
from penstock.ops.bench.common.verdicts import spread
from penstock.ops.bench.gpu.gpu_tables import GPU, OURS, SDPA

_HEADINGS = (
    *("family", "`model_type`", "checkpoints", "tasks", "runs"),
    *("requests/s of 2-100 · 5-500 · 100-2,000 tokens", "share of the floor"),
    *("least cosine to float32 (transformers' own; between requests)", "notes"),
)
_FIGURES = ("ours, req/s", "share of the floor")  # of a shape's load: a column each
_COSINES = (f"{OURS}, least", f"{SDPA}, least", "between requests")  # of a shape


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """Facts of a family that neither the code nor a run tells."""

    family: str
    model_types: Sequence[str]
    checkpoints: str = ""  # published ones; in brackets downloads a month: see the page for their source
    shapes: Sequence[str] = ()  # of `gpu_tables.SHAPES`, which are measured
    padded_on_gpu: str = ""  # what has no kernels
    notes: str = ""


FAMILY_ROWS = (
    FamilyRow(
        "BERT, MiniLM, bge, e5",
        ["bert"],
        "all-MiniLM-L6-v2 (200-240 M), ms-marco cross-encoders (81 M), colbertv2 and splade-cocondenser (1.3 M each)",
        ["MiniLM-L6", "BERT-base", "BERT-large"],
    ),
    FamilyRow(
        "RoBERTa, XLM-R, CamemBERT",
        ["roberta", "xlm-roberta", "camembert"],
        "bge-m3 (29-35 M), bge-reranker-v2-m3 (8-19 M), multilingual-e5-large (7-12 M)",
        ["bge-m3"],
    ),
    FamilyRow("DistilBERT", ["distilbert"]),
    FamilyRow("ALBERT", ["albert"]),
    FamilyRow(
        "BART",
        ["bart"],
        "bart-large-mnli (2.7 M), distilbart-mnli",
        padded_on_gpu="all, but for those that generate",
        notes="the decoder reads the text again; its state at the last `eos_token_id`, or token, is classified",
    ),
    FamilyRow("ELECTRA", ["electra"]),
    FamilyRow("MPNet", ["mpnet"], "all-mpnet-base-v2 (24 M)", ["MPNet-base"]),
    FamilyRow(
        "DeBERTa v2 and v3",
        ["deberta-v2"],
        shapes=["DeBERTa-v3-base"],
        padded_on_gpu="the xlarge models, which have a convolution",
    ),
    FamilyRow("ModernBERT", ["modernbert"], shapes=["ModernBERT-base"]),
    FamilyRow("NomicBERT", ["nomic_bert"], "nomic-embed-text-v1.5 (15-17 M)", ["NomicBERT"]),
    FamilyRow("GTE", ["gte"], "snowflake-arctic-embed-m-v2.0 (1.2 M)", ["GTE-base"]),
    FamilyRow(
        "jina-embeddings-v3",
        ["jina_embeddings_v3"],
        notes="in transformers' form; with the [adapter](#adapters) of a task beside it",
    ),
    FamilyRow("EuroBERT", ["eurobert"], padded_on_gpu="a classifier that pools `late`"),
    FamilyRow(
        "Qwen2, Qwen3",
        ["qwen2", "qwen3"],
        "Qwen3-Embedding-0.6B (8-10 M)",
        ["Qwen3-Embedding-0.6B"],
    ),
    FamilyRow("Llama, Mistral", ["llama", "mistral"]),
    FamilyRow("Gemma 3's text model", ["gemma3_text"], "EmbeddingGemma (2-3 M)", ["EmbeddingGemma-300M"]),
    FamilyRow(
        "encoders of T5, mT5 and umT5",
        ["t5", "mt5", "umt5"],
        "sentence-t5, gtr",
        notes="`…EncoderModel`, or any class of theirs below `modules.json`",
    ),
)


def model_families(root: Path = RESULTS) -> str:
    """Markdown: a row for each family, and under the table the runs of its figures."""
    shapes = [shape for row in FAMILY_ROWS for shape in row.shapes]
    measured = {shape: runs for shape in shapes if (runs := _runs_of(f"shape-{shape}", root))}
    compared = _runs_of("cosines", root)
    rows = [
        [
            row.family,
            ", ".join(f"`{model_type}`" for model_type in row.model_types),
            row.checkpoints,
            _tasks(row),
            _path(row),
            *[
                "<br>".join(_medians(measured[shape], shape, figure) for shape in row.shapes if shape in measured)
                for figure in _FIGURES
            ],
            "<br>".join(filter(None, [_cosines(compared, shape) for shape in row.shapes])),
            row.notes,
        ]
        for row in FAMILY_ROWS
    ]
    captions: dict[str, list[str]] = {}
    for shape, runs in measured.items():
        captions.setdefault(caption(runs, [f"shape-{shape}"]), []).append(shape)
    sources = [f"{', '.join(shapes)}: {text}" for text, shapes in captions.items()]
    sources += [f"Cosines: {caption(compared, ['cosines'])}"] if compared else []
    return "\n\n".join([markdown.table(_HEADINGS, rows), *sources])


def _tasks(row: FamilyRow) -> str:
    """By the classes that checkpoints of it may have, and the head that is read for sparse vectors."""
    classes = architectures_of(row.model_types[0])
    if classes is None:
        raise RuntimeError(f"{row.model_types[0]} is no model type. This is a bug.")
    has = {
        "embed": bool(classes.encoders),
        "classify": bool(classes.classifiers),
        "rerank": bool(classes.classifiers),
        "token_classify": bool(classes.token_classifiers),
    }
    tasks = ["all"] if all(has.values()) else [f"`{task}`" for task in has if has[task]]
    family = FAMILIES.get(row.model_types[0])
    return ", ".join([*tasks, *(["`embed_sparse`"] if family and family.masked_lm else [])])


def _path(row: FamilyRow) -> str:
    if not FAMILIES.keys() & row.model_types:
        return "padded"
    return f"packed; padded on a GPU: {row.padded_on_gpu}" if row.padded_on_gpu else "packed"


def _runs_of(part: str, root: Path) -> Sequence[Run]:
    """The current runs of the machine that measured a part last; empty where none has."""
    found = [current_runs("gpu", machine, root, [part]) for machine in machines("gpu", root)]
    found = [runs for runs in found if any(results(run.record).get(part) for run in runs)]
    return max(found, key=lambda runs: str(runs[-1].record["started"]), default=[])


def _cosines(runs: Sequence[Run], shape: str) -> str:
    """The shape, and its cosines, with the digits that tell them from 1; empty where none was measured."""
    measures = [GPU.measures(run.record) for run in runs]
    spreads = [spread(measured.get(f"cosines, {shape}, {figure}") for measured in measures) for figure in _COSINES]
    if None in spreads:
        return ""
    ours, theirs, between = [one.median for one in spreads if one]
    return f"{shape}: {ours:.7f} ({theirs:.7f}; {between:.2f})"


def _medians(runs: Sequence[Run], shape: str, figure: str) -> str:
    """The shape, and the median of each load; empty where none was measured."""
    measures = [GPU.measures(run.record) for run in runs]
    names = list(dict.fromkeys(name for measured in measures for name in measured))
    pattern = f"shape, {shape}, * tokens, {figure}"
    loads = [filled(pattern, texts) for texts in matches(pattern, names)]
    spreads = [spread(measured.get(load) for measured in measures) for load in loads]
    return f"{shape}: {' · '.join(markdown.cell(one.median) for one in spreads if one)}" if loads else ""
