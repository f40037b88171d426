"""Traces of runs for OpenTelemetry: one trace for each run, and in it a span for each round at everyone who takes part.

Ids are derived, of a trace from the run's id and of a round's span from the session's id and the round's number. So
both sides' spans meet at whoever collects them, and nothing is sent along with messages. A span has names, ids, counts
and times; no text of an error, since that may quote a value. Without a configuration nothing is recorded.
"""

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from parley.services.wire.configuration import ConfigInvalid, FilePath
from parley.services.wire.version import VERSION
from parley.spec.section import Section

if TYPE_CHECKING:
    from opentelemetry.context import Context

Figures = dict[str, str | int]


class TraceConfig(Section):
    """Where traces of runs go: to a collector, or to a file."""

    endpoint: str | None = None
    """A collector's address for OTLP over HTTP, such as https://collector.example.org:4318/v1/traces."""
    file: FilePath | None = None
    """A file that gets one JSON object for each span, on a line of its own."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.endpoint is None) == (self.file is None):
            raise ValueError("traces go to one place: give `endpoint` or `file`")
        return self


class Traces:
    """Records nothing."""

    @contextlib.contextmanager
    def round(self, run_id: str, session_id: str, number: int) -> Iterator[Figures]:  # noqa: ARG002 (as below)
        """Around a round; what is put into the result goes into the span."""
        yield {}

    @contextlib.contextmanager
    def part(self, run_id: str, session_id: str, number: int) -> Iterator[Figures]:  # noqa: ARG002 (as below)
        """Around a party's part of a round."""
        yield {}

    def run(self, run_id: str, began: float, figures: Figures) -> None:
        """A run has ended that began at a time, in seconds since the epoch."""

    def close(self) -> None:
        """Write down what is still in memory."""


class RecordedTraces(Traces):
    """Records spans with OpenTelemetry's SDK."""

    def __init__(self, config: TraceConfig, service: str, name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        self._wanted: ContextVar[tuple[int, int] | None] = ContextVar("wanted", default=None)
        wanted = self._wanted

        class DerivedIds(RandomIdGenerator):
            """Random ids, but where one is wanted."""

            def generate_span_id(self) -> int:
                found = wanted.get()
                return super().generate_span_id() if found is None else found[1]

            def generate_trace_id(self) -> int:
                found = wanted.get()
                return super().generate_trace_id() if found is None else found[0]

        about = {"service.name": f"parley-{service}", "service.instance.id": name, "service.version": VERSION}
        self._provider = TracerProvider(resource=Resource.create(about), id_generator=DerivedIds())
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(config)))
        self._tracer = self._provider.get_tracer("parley")

    @contextlib.contextmanager
    def round(self, run_id: str, session_id: str, number: int) -> Iterator[Figures]:
        """A span under the run's, of which the parties' parts are the children."""
        ids = (_trace(run_id), _span(session_id, str(number)))
        with self._recorded("round", self._below(run_id, _span(run_id)), ids) as found:
            found |= {"parley.run": run_id, "parley.round": number}
            yield found

    @contextlib.contextmanager
    def part(self, run_id: str, session_id: str, number: int) -> Iterator[Figures]:
        """A span under the coordinator's of the same round."""
        above = self._below(run_id, _span(session_id, str(number)))
        with self._recorded("part of a round", above, None) as found:
            found |= {"parley.run": run_id, "parley.round": number}
            yield found

    def run(self, run_id: str, began: float, figures: Figures) -> None:
        """The span above all of a run."""
        token = self._wanted.set((_trace(run_id), _span(run_id)))
        try:
            span = self._tracer.start_span("run", start_time=int(began * 1e9))
        finally:
            self._wanted.reset(token)
        span.set_attributes({"parley.run": run_id, **figures})
        span.end()

    def close(self) -> None:
        """Send what is still in memory."""
        self._provider.shutdown()

    @contextlib.contextmanager
    def _recorded(self, name: str, above: "Context", ids: tuple[int, int] | None) -> Iterator[Figures]:
        from opentelemetry.trace import Status, StatusCode

        token = self._wanted.set(ids)
        try:
            span = self._tracer.start_span(name, context=above)
        finally:
            self._wanted.reset(token)
        found: Figures = {}
        try:
            yield found
        except BaseException as error:
            found["parley.failure"] = type(error).__name__
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.set_attributes(found)
            span.end()

    def _below(self, run_id: str, span: int) -> "Context":
        from opentelemetry import trace

        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        known = trace.SpanContext(_trace(run_id), span, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(known))


def open_traces(config: TraceConfig | None, service: str, name: str) -> Traces:
    """What records traces, as a configuration says.

    Raises:
        ConfigInvalid: if they are asked for, and OpenTelemetry is not installed.
    """
    if config is None:
        return Traces()
    if importlib.util.find_spec("opentelemetry") is None:
        raise ConfigInvalid("traces need OpenTelemetry: pip install 'parley-fl[opentelemetry]'")
    return RecordedTraces(config, service, name)


def _exporter(config: TraceConfig) -> Any:
    if config.file is not None:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        config.file.parent.mkdir(parents=True, exist_ok=True)
        out = config.file.open("a", encoding="utf-8", buffering=1)  # lines of several services stay whole
        return ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=config.endpoint)


def _trace(run_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"trace {run_id}".encode()).digest()[:16])


def _span(*of: str) -> int:
    return int.from_bytes(hashlib.sha256(" ".join(("span", *of)).encode()).digest()[:8])
