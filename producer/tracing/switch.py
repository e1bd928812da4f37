"""Decides whether a process makes spans. OpenTelemetry is imported only if it does, or if the application has."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from penstock.producer.tracing.tracing import SendSpans, Tracing

_API = "opentelemetry.trace"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CLIENT = {"service.name": "penstock-client"}

log = structlog.get_logger("penstock.tracing")


def open_tracing(service: Mapping[str, str]) -> "Tracing | None":
    """Receiver of this process's spans; None: it makes none. The caller closes it.

    They go to the application's tracer provider if it has set one. Else they are exported if OpenTelemetry's variables
    name an exporter; `service` then has the attributes of the resource that the variables do not give. A fault of the
    variables or of the installation is logged, and nothing else fails.
    """
    exporters = _exporter_names()
    if not exporters and _API not in sys.modules:
        return None
    try:
        from penstock.producer.tracing.tracing import Tracing, application_provider

        if (provider := application_provider()) is not None:
            return Tracing(provider)
        if not exporters:
            return None
        from penstock.producer.tracing.own_provider import own_provider

        own = own_provider(service, exporters)
        return Tracing(own, own.shutdown)
    except ImportError as error:
        log.warning("tracing_unavailable", reason=f"{error}. Is the extra installed? pip install 'penstock[otel]'")
    except Exception as error:
        log.warning("tracing_unavailable", reason=str(error) or repr(error))
    return None


def open_send_spans(topic: str, client_id: str) -> "SendSpans | None":
    """The spans of a client's records; None: it makes none. The caller closes them."""
    tracing = open_tracing(_CLIENT)
    if tracing is None:
        return None
    from penstock.producer.tracing.tracing import SendSpans

    return SendSpans(tracing, topic, client_id)


def calling_span() -> "SpanContext | None":
    """The span in which this is called, if there is one."""
    trace = sys.modules.get(_API)
    if trace is None:
        return None
    context: SpanContext = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def _exporter_names() -> list[str]:
    """The exporters that OpenTelemetry's variables name, each once; empty: none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    listed = os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")
    names = list(dict.fromkeys(name for one in listed if (name := one.strip())))
    if not names:  # an empty variable is as one that is not set
        return ["otlp"] if any(os.environ.get(name) for name in _ENDPOINTS) else []
    return [] if all(name.lower() == "none" for name in names) else names
