"""A process that makes spans: it runs the Python that its stdin brings, and writes each span that ends to a file.

    python acting.py threaded unix spans.json

A line of stdin is a text in JSON, such as "answer = client.fire_wait('k')". The line of stdout is the answer in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import timerd as td
from support.real.faces import face_of
from timerd_client import tracing


class ToFile(SpanExporter):
    """Writes a line for each span."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.write("".join(f"{span.to_json(indent=None)}\n" for span in spans))
        return SpanExportResult.SUCCESS


def main(face_name: str, transport: str, path: str) -> None:
    tracing.instrument()
    provider = TracerProvider()  # later than instrument(), as in an application that imports its parts first
    provider.add_span_processor(SimpleSpanProcessor(ToFile(Path(path))))
    trace.set_tracer_provider(provider)
    with face_of(face_name) as face:
        names = {"td": td, "client": face.make(transport=transport), "answer": None}
        for line in sys.stdin:
            exec(json.loads(line), names)
            print(json.dumps(names["answer"]), flush=True)
        names["client"].close()


if __name__ == "__main__":
    main(*sys.argv[1:])
