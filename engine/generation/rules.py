"""Rules that change the scores of tokens before one is chosen, in the order in which transformers applies them."""

import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation.pages import Int64Array
from penstock.engine.generation_options import GenerationOptions

History = Sequence[int]  # tokens of one row, the start token first


class LogitRules:
    """The rules of equal options. Rows are of any sequences that share them."""

    def __init__(self, options: GenerationOptions) -> None:
        """`options.max_new_tokens` is not read: each row has its own."""
        self.options = options
        ends = {(token,) for token in options.eos_token_ids}
        words = [word for word in options.bad_words_ids if word not in ends]
        self._bad_tokens = torch.tensor([word[0] for word in words if len(word) == 1], dtype=torch.int64)
        self._suppressed = torch.tensor(options.suppress_tokens, dtype=torch.int64)
        self._first_suppressed = torch.tensor(options.begin_suppress_tokens, dtype=torch.int64)
        self._ends = torch.tensor(options.eos_token_ids, dtype=torch.int64)
        self._forced_ends = torch.tensor(options.forced_eos_token_ids, dtype=torch.int64)
        self._bad_words = [word for word in words if len(word) > 1]
        self._reads_history = options.repetition_penalty != 1 or options.no_repeat_ngram_size > 0 or self._bad_words

    def apply(self, scores: Tensor, histories: Sequence[History], max_new_tokens: Int64Array) -> Tensor:
        """scores [R, V] of the next token, to processed scores; may overwrite them.

        histories: of each row. max_new_tokens [R]: after so many a row ends.
        """
        options = self.options
        num_new = np.array([len(history) - 1 for history in histories], np.int64)
        if self._reads_history:
            for row, history in zip(scores, histories, strict=True):
                self._apply_history(row, history)
        _ban(scores, None, self._bad_tokens)
        _ban(scores, num_new < options.min_new_tokens, self._ends)
        if options.forced_bos_token_id is not None:
            _force(scores, num_new == 0, torch.tensor([options.forced_bos_token_id]))
        _force(scores, num_new == max_new_tokens - 1, self._forced_ends)
        _ban(scores, None, self._suppressed)
        first = 0 if options.forced_bos_token_id is None else 1
        _ban(scores, num_new == first, self._first_suppressed)
        if options.do_sample:
            scores = filtered(scores, options)
        return torch.log_softmax(scores, dim=-1) if options.renormalize_logits else scores

    def _apply_history(self, row: Tensor, history: History) -> None:
        """Rules that read a row's own tokens, on its scores [V]."""
        penalty, size = self.options.repetition_penalty, self.options.no_repeat_ngram_size
        if penalty != 1:
            seen = torch.tensor(sorted(set(history)))
            row[seen] = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        banned = [word[-1] for word in self._bad_words if tuple(history[1 - len(word) :]) == word[:-1]]
        if 0 < size <= len(history):
            suffix = list(history[len(history) + 1 - size :])
            windows = range(len(history) + 1 - size)
            banned += [history[i + size - 1] for i in windows if list(history[i : i + size - 1]) == suffix]
        if banned:
            row[banned] = -math.inf


_SHARED: "WeakValueDictionary[GenerationOptions, LogitRules]" = WeakValueDictionary()  # of requests that are running


def rules_of(options: GenerationOptions) -> LogitRules:
    """Rules that equal options share, so that their rows are processed together. Called by the generator's thread."""
    rules = _SHARED.get(options)
    if rules is None:
        rules = _SHARED[options] = LogitRules(options)
    return rules


def filtered(scores: Tensor, options: GenerationOptions) -> Tensor:
    """scores [R, V] after temperature, top-k and top-p (Holtzman et al. 2020); -inf where a token is left out."""
    scores = scores / options.temperature
    if options.top_k > 0:
        least = torch.topk(scores, min(options.top_k, scores.shape[1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if options.top_p < 1:
        ascending, order = torch.sort(scores)
        is_out = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - options.top_p
        is_out[:, -1] = False
        scores = scores.masked_fill(is_out.scatter(1, order, is_out), -math.inf)
    return scores


def _ban(scores: Tensor, rows: np.ndarray[tuple[int], np.dtype[np.bool_]] | None, tokens: Tensor) -> None:
    """Leave out some tokens, in all rows or in the rows where `rows` is true."""
    if not len(tokens) or (rows is not None and not rows.any()):
        return
    if rows is None or rows.all():
        scores[:, tokens] = -math.inf
    else:
        scores[torch.from_numpy(np.flatnonzero(rows))[:, None], tokens] = -math.inf


def _force(scores: Tensor, rows: np.ndarray[tuple[int], np.dtype[np.bool_]], tokens: Tensor) -> None:
    """Leave out all tokens but these where `rows` is true; their score is 0."""
    if not len(tokens) or not rows.any():
        return
    places = torch.from_numpy(np.flatnonzero(rows))
    scores[places] = -math.inf
    scores[places[:, None], tokens] = 0.0
