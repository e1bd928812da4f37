"""Benchmark of tracing: processor time of a request without OpenTelemetry, with it off, and with traces."""
