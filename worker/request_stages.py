"""The stages that validate and prepare requests, as the served model needs them."""

from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.worker.batching.stage import ServedModel
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.sequences import SequenceRequests
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.resolved_settings import ResolvedSettings


def request_stages(
    settings: ResolvedSettings, served: ServedModel, tokenizer: Tokenizer | None, *, has_cache: bool
) -> tuple[RequestValidator, RequestPreparer]:
    """Called once, when the worker is made."""
    info, read_options, read_fields = served.info, served.read_options, served.read_fields
    bounds = ReplyBounds(info, settings.max_reply_bytes)
    generation = None if read_options is None else GenerationRequests(info, read_options)
    cells = None if read_fields is None else SequenceRequests(info, read_fields, settings.max_reply_bytes)
    validator = RequestValidator(
        info,
        bounds,
        Prompts() if tokenizer is None else tokenizer.prompts,
        reply_topics=settings.reply_topics,
        slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
        max_sequences=settings.max_sequences,
        generation=generation,
    )
    return validator, RequestPreparer(info, bounds, tokenizer, generation, cells, has_cache=has_cache)
