"""`penstock embed`, `classify`, `generate` and `rerank`: files of texts, or one text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self

import uvloop
from pydantic import Field, model_validator

from penstock.ops.cli.jobs.job_settings import FileJobSettings, JobSettings, OneText, Paths
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_USAGE, fail, narrate_logs
from penstock.producer.errors import PenstockError
from penstock.producer.wire.generation import read_generation
from penstock.producer.wire.labels import DEFAULT_TEMPLATE
from penstock.producer.wire.messages import Options
from penstock.producer.wire.options import check_applicable, check_options


def _fail_as_setting(make: Callable[[], object]) -> None:
    """Raise ValueError, which pydantic shows, where a setting's value makes options that no worker takes."""
    try:
        make()
    except PenstockError as error:
        raise ValueError(error.message.removesuffix(".")) from error  # whoever shows it ends the sentence


class EmbedSettings(JobSettings):
    """Settings of `penstock embed`."""

    pooling: Literal["cls", "mean", "max", "last"] | None = Field(
        None, description="How token vectors become one vector. Default: the checkpoint's."
    )
    prompt_name: str | None = Field(
        None, description="Name of the checkpoint's prompt to prepend to each text. Default: the checkpoint's default."
    )
    prompt: str | None = Field(None, description="The prompt itself, in place of a name.")
    dimensions: int | None = Field(
        None, ge=1, description="Length that vectors are cut to, for models trained so. Default: the checkpoint's."
    )
    vectors: Literal["float32", "binary", "ubinary", "int8", "uint8"] = Field(
        "float32",
        description="binary, ubinary: the signs of the values, eight in an int8 or uint8. int8, uint8: one byte a "
        "value, by the ranges that workers have (--int8-ranges).",
    )
    embedding: Literal["dense", "sparse", "tokens", "all"] = Field(
        "dense",
        description="dense: one vector a text. sparse: weights of token ids (SPLADE). tokens: a vector for each token "
        "(ColBERT). all: these three of one pass of the model (bge-m3).",
    )
    top_k: int | None = Field(None, ge=0, description="Of sparse: largest weights to keep. Default: all.")

    @property
    def task(self) -> str:
        """The task of the requests."""
        return "embed" if self.embedding == "dense" else f"embed_{self.embedding}"

    @property
    def options(self) -> Options:
        """The options of the requests. Raises PenstockError for those that do not fit `embedding`."""
        options = Options(
            pooling=self.pooling,
            truncate=self.truncate,
            top_k=self.top_k,
            prompt_name=self.prompt_name,
            prompt=self.prompt,
            dimensions=self.dimensions,
            dtype=self.vectors,
        )
        check_applicable(options, self.task, is_text=True)
        return options

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.prompt_name is not None and self.prompt is not None:
            raise ValueError("give at most one of --prompt-name and --prompt")
        if self.top_k is not None and self.embedding not in ("sparse", "all"):
            raise ValueError("--top-k needs --embedding sparse or --embedding all")
        _fail_as_setting(lambda: self.options)
        return self


@takes(EmbedSettings)
def embed(settings: EmbedSettings, paths: Paths = None, text: OneText = None) -> int:
    """Compute vectors for a text, or for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock embed --model minilm --text "Where is my card?"

    $ penstock embed --model minilm in.parquet out.parquet --column message

    $ penstock embed --model e5-base in.csv out.csv --prompt "passage: "

    $ penstock embed --local --model DIRECTORY in.parquet out.parquet --column message

    $ penstock embed --model minilm batch.jsonl out.jsonl --format openai

    $ penstock embed --model splade in.parquet out.parquet --embedding sparse

    The output has the input's columns and two more: embedding, error. With --embedding sparse they are indices, values,
    error; with --embedding tokens token_embeddings, error; with --embedding all all of these.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    return run_job(settings.task, settings, settings.options, (settings.column,), paths, text)


class ClassifySettings(JobSettings):
    """Settings of `penstock classify`."""

    labels: str | None = Field(
        None,
        description="Labels to choose from, with commas between them, for a model of natural language inference. "
        "Default: the model's own labels.",
    )
    multi_label: bool = Field(False, description="Score each of --labels by itself. Otherwise one of them holds.")
    template: str | None = Field(
        None, description=f"What is said of a text, with {{}} for one of --labels. Default: {DEFAULT_TEMPLATE!r}"
    )
    top_k: int = Field(1, ge=0, description="Number of labels for each text, best first. 0: all.")

    @property
    def options(self) -> Options:
        """The options of the requests. Raises PenstockError for labels that no worker takes."""
        labels = None if self.labels is None else [label.strip() for label in self.labels.split(",")]
        given = {"labels": labels, "multi_label": self.multi_label, "template": self.template}
        options = check_options({**given, "top_k": self.top_k, "truncate": self.truncate})
        check_applicable(options, "classify", is_text=True)
        return options

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        _fail_as_setting(lambda: self.options)
        return self


@takes(ClassifySettings)
def classify(settings: ClassifySettings, paths: Paths = None, text: OneText = None) -> int:
    """Compute labels for a text, or for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock classify --model intents --text "Where is my card?"

    $ penstock classify --model intents in.csv out.csv --column message

    $ penstock classify --local --model DIRECTORY in.csv out.csv --column message

    $ penstock classify --model deberta-nli in.csv out.csv --labels billing,fraud,other

    The output has the input's columns and three more: label, score, error.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    return run_job("classify", settings, settings.options, (settings.column,), paths, text)


class GenerateSettings(JobSettings):
    """Settings of `penstock generate`. What is not given is the checkpoint's own."""

    source_language: str | None = Field(
        None, description="Language of the texts, as the checkpoint's tokenizer names it. Default: the tokenizer's own."
    )
    target_language: str | None = Field(None, description="Language to translate to. Default: the checkpoint's.")
    max_new_tokens: int | None = Field(None, ge=1, description="Most tokens of an answer. Default: the checkpoint's.")
    num_beams: int | None = Field(None, ge=1, description="Beams of beam search. 1: none. Default: the checkpoint's.")
    length_penalty: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Of beam search: above 0 prefers long answers. Default: the checkpoint's.",
    )
    do_sample: bool = Field(False, description="Choose tokens at random, by their probabilities.")
    temperature: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Of sampling: less is closer to the likeliest token."
    )
    top_k: int | None = Field(None, ge=0, description="Number of likeliest tokens that sampling draws from. 0: all.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Of sampling: among the likeliest tokens of this probability together."
    )
    seed: int | None = Field(
        None, ge=0, description="Of sampling: the same seed gives the same answers. Default: others at each run."
    )

    @property
    def options(self) -> Options:
        """The options of the requests."""
        names = self.model_fields_set - set(JobSettings.model_fields)
        given = {name: getattr(self, name) for name in names}  # 0 and False are values
        return Options(truncate=self.truncate, generation=read_generation(given))


@takes(GenerateSettings)
def generate(settings: GenerateSettings, paths: Paths = None, text: OneText = None) -> int:
    """Generate a text for a text, or for every row of a file, with an encoder-decoder model, such as T5, BART or NLLB.

    A worker must be running for the model, or --local starts one.

    $ penstock generate --model t5-small --text "translate English to German: Good morning." --max-new-tokens 40

    $ penstock generate --model t5-small in.csv out.csv --column message --num-beams 4

    $ penstock generate --model nllb in.csv out.csv --source-language eng_Latn --target-language fra_Latn

    The output has the input's columns and three more: generated, finish, error. finish is stop, or length where
    --max-new-tokens ended an answer.

    A file is a bulk job: workers answer it in the time that online requests leave. A --text is an online request.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    return run_job("generate", settings, settings.options, (settings.column,), paths, text)


class RerankSettings(FileJobSettings):
    """Settings of `penstock rerank`."""

    query_column: str = Field("query", description="Column (CSV, Parquet) or key (JSONL) that holds the query.")
    document_column: str = Field("document", description="Column or key that holds the document.")
    prompt_name: str | None = Field(
        None, description="Name of the checkpoint's prompt: an instruction. Default: the checkpoint's default."
    )
    prompt: str | None = Field(None, description="The prompt itself, in place of a name.")

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if self.prompt_name is not None and self.prompt is not None:
            raise ValueError("give at most one of --prompt-name and --prompt")
        return self


@takes(RerankSettings)
def rerank(settings: RerankSettings, paths: Paths = None) -> int:
    """Compute the score of a query and a document for every row of a file.

    A worker must be running for the model, or --local starts one.

    $ penstock rerank --model cross-encoder pairs.csv scored.csv --document-column passage

    $ penstock rerank --model qwen3-reranker pairs.csv scored.csv --prompt "Find passages that answer the question"

    $ penstock rerank --local --model DIRECTORY pairs.csv scored.csv --document-column passage

    The output has the input's columns and two more: score, error.

    A file is a bulk job: workers answer it in the time that online requests leave.

    A job that is ended continues with the same command.

    Exit code 0: every row is answered. 1: some rows hold an error, or
    the output cannot be written. 2: invalid input.
    """
    columns = (settings.query_column, settings.document_column)
    options = Options(truncate=settings.truncate, prompt_name=settings.prompt_name, prompt=settings.prompt)
    return run_job("rerank", settings, options, columns, paths)


def run_job(
    task: str,
    settings: FileJobSettings,
    options: Options,
    columns: Sequence[str],
    paths: Sequence[Path] | None,
    text: str | None = None,
) -> int:
    """Run one command and return its exit code. `columns`: that of the texts, or the two of pairs."""
    narrate_logs(settings.bootstrap_servers)
    if text is not None and not paths:
        from penstock.ops.cli.jobs.local_fleet import local_broker
        from penstock.ops.cli.jobs.one_text import answer_one

        with local_broker(settings) as reaching:
            return uvloop.run(answer_one(task, reaching, options, text))
    if paths is None or len(paths) < 2 or text is not None:
        fail(f"Give a file to read and a file to write{'' if task == 'rerank' else ', or one --text'}.")
        return EXIT_USAGE
    *sources, target = paths
    from penstock.ops.cli.jobs.file_job_command import run_file_job

    return run_file_job(task, settings, options, columns, sources, target)
