"""This process as a service, in OpenTelemetry's attributes. Logs have them as labels, traces as their resource."""

import functools
import os
import socket
from collections.abc import Mapping
from importlib.metadata import version

_NAME = "penstock-worker"


@functools.cache
def service_attributes() -> Mapping[str, str]:
    """The name, which `OTEL_SERVICE_NAME` changes, the version, and an instance id that no other process has."""
    return {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or _NAME,
        "service.version": version("penstock"),
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
