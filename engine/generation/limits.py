"""Bounds of a generator, and the requests that they and the model allow."""

from dataclasses import dataclass

from penstock.engine.errors import InvalidOption, InvalidSource
from penstock.engine.generation.pages import pages_of
from penstock.engine.generation_options import GenerationOptions
from penstock.engine.model.seq2seq import Seq2SeqWeights
from penstock.engine.types import Int32Array


@dataclass(frozen=True, slots=True)
class GeneratorLimits:
    """Bounds of a generator's memory."""

    num_pages: int = 4096
    page_size: int = 16  # positions of a page, in all layers
    max_rows: int = 256  # of one step: a row for each beam of each request
    max_waiting: int = 1024  # requests that have not joined
    max_encode_tokens: int = 16384  # of one batch of the encoder; a longer source runs alone
    max_source_tokens: int = 1024
    max_new_tokens: int = 1024

    def pages_of(self, num_source_tokens: int, options: GenerationOptions) -> int:
        """Pages that a request needs at most: of its source, and of each beam if none shared a page."""
        of_beams = options.num_beams * pages_of(options.max_new_tokens, self.page_size)
        return of_beams + pages_of(num_source_tokens, self.page_size)

    def pages_in(self, num_bytes: int, weights: Seq2SeqWeights, value_bytes: int) -> int:
        """Pages of keys and values in `num_bytes`: at least those of one row of the longest source and result, and no
        more than all rows of them need."""
        decoder = weights.decoder
        page_bytes = len(decoder.layers) * self.page_size * 2 * decoder.width * value_bytes
        longest = pages_of(self.max_source_tokens, self.page_size) + pages_of(self.max_new_tokens, self.page_size)
        return min(max(num_bytes // page_bytes, longest), self.max_rows * longest)

    def require_source(self, input_ids: Int32Array, weights: Seq2SeqWeights) -> None:
        """Raise InvalidSource where the model cannot read the source."""
        longest = min(filter(None, (self.max_source_tokens, weights.max_source_tokens)))
        if not 1 <= len(input_ids) <= longest:
            raise InvalidSource(f"the source has {len(input_ids)} tokens; 1 to {longest} can be read.")
        vocab_size = weights.source_vocab_size
        if input_ids.min() < 0 or input_ids.max() >= vocab_size:
            raise InvalidSource(f"tokens must lie in [0, {vocab_size}). Given: {input_ids.min()} to {input_ids.max()}")

    def require_options(self, options: GenerationOptions, weights: Seq2SeqWeights) -> None:
        """Raise InvalidOption where the model or these limits do not allow the options."""
        options.require_tokens(weights.target_vocab_size)
        longest = self.longest_result(weights)
        if options.max_new_tokens > longest:
            raise InvalidOption(f"max_new_tokens must be at most {longest}. Given: {options.max_new_tokens}")
        if options.num_beams > self.max_rows:
            raise InvalidOption(f"num_beams must be at most {self.max_rows}. Given: {options.num_beams}")

    def longest_result(self, weights: Seq2SeqWeights) -> int:
        """Most new tokens of a request."""
        return min(filter(None, (self.max_new_tokens, weights.max_target_tokens)))

    def require_pages(self, num_pages: int) -> None:
        """Raise InvalidOption where a request needs more pages than there are, and would wait forever."""
        if num_pages > self.num_pages:
            raise InvalidOption(
                f"max_new_tokens and num_beams of this source need {num_pages} pages; there are {self.num_pages}."
            )
