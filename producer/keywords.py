"""Keyword arguments by name and type, for type checkers. What they mean is said where they are checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from pydantic import SecretStr

IsolationLevel = Literal["read_uncommitted", "read_committed"]


class ClientKeywords(TypedDict, total=False):
    """The fields of `ClientSettings`."""

    model: str
    bootstrap_servers: str
    connect_timeout_s: float | None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None
    sasl_username: str | None
    sasl_password: str | SecretStr | None
    sasl_oauthbearer_token_file: str | Path | None
    sasl_oauthbearer_token_command: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | SecretStr | None
    sasl_oauthbearer_scope: str | None
    sasl_aws_region: str | None
    ssl_ca_location: str | Path | None
    ssl_certificate_location: str | Path | None
    ssl_key_location: str | Path | None
    ssl_key_password: str | SecretStr | None
    ssl_endpoint_identification_algorithm: Literal["https", "none"]
    fetch_max_wait_ms: int
    topic: str | None
    reply_topic: str
    isolation_level: IsolationLevel
    allow_mixed_revisions: bool
    timeout_s: float
    max_in_flight: int
    sequences_per_record: int
    batch_calls: bool
    config: str | Path | None


class GenerationKeywords(TypedDict, total=False):
    """The options of `generate`, as `GENERATION_OPTIONS` lists them. None: the model's own."""

    bad_words_ids: Sequence[Sequence[int]] | None
    begin_suppress_tokens: int | Sequence[int] | None
    decoder_start_token_id: int | None
    do_sample: bool | None
    early_stopping: bool | Literal["never"] | None
    eos_token_id: int | Sequence[int] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    length_penalty: float | None
    max_length: int | None
    max_new_tokens: int | None
    min_length: int | None
    min_new_tokens: int | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    renormalize_logits: bool | None
    repetition_penalty: float | None
    seed: int | None
    source_language: str | None
    suppress_tokens: int | Sequence[int] | None
    target_language: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
