"""Traces by OpenTelemetry (extra `otel`). `switch.py` decides, and imports the rest only where spans are made."""
