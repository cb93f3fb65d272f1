"""The metrics of a process in the text form of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from omnirelay.core import views
from omnirelay.engine.shard import Shard
from omnirelay.errors import OmniRelayError
from omnirelay.replication.following import Follower
from omnirelay.replication.replication import Replication
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent
from omnirelay.telemetry import catalogue
from omnirelay.telemetry.catalogue import Metric
from omnirelay.telemetry.meters import CallMeter, Histogram


class Metrics:
    """What `/metrics` shows."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        components: Sequence[ResourceLeaseComponent],
        calls: CallMeter,
        replication: Replication | None = None,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(dispatcher, components, calls, replication))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def page(self) -> tuple[int, str, bytes]:
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)


class _Collector(Collector):
    def __init__(
        self,
        dispatcher: Dispatcher,
        components: Sequence[ResourceLeaseComponent],
        calls: CallMeter,
        replication: Replication | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._components = components
        self._calls = calls
        self._replication = replication

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        families = {metric: _family(metric) for metric in catalogue.ALL}
        for component in self._components:
            _collect_shard(families, component)
        self._collect_calls(families)
        if self._replication is not None:
            for follower in self._replication.followers:
                _collect_sink(families, follower)
        yield from families.values()

    def _collect_calls(self, families: dict[Metric, Family]) -> None:
        _add(families, catalogue.CALLS_ACTIVE, (), self._dispatcher.active)
        for labels, count in self._calls.calls.items():
            _add(families, catalogue.CALLS, labels, count)
        for labels_of, histogram in self._calls.durations.items():
            _add_histogram(families, catalogue.CALL_DURATION, labels_of, histogram)


def _collect_shard(families: dict[Metric, Family], component: ResourceLeaseComponent) -> None:
    shard_label = (component.namespace,)
    try:
        shard = component.shard()
    except OmniRelayError:
        _add(families, catalogue.UP, shard_label, 0)
        return
    for metric, value in _gauges(shard).items():
        _add(families, metric, shard_label, value)
    meter = component.meter
    for event_type, count in meter.events.items():
        _add(families, catalogue.EVENTS, (component.namespace, event_type), count)
    for to in ("closed", "open"):
        _add(families, catalogue.BACKPRESSURE_TRANSITIONS, (component.namespace, to), meter.transitions[to])
    _add(families, catalogue.EXPIRIES, shard_label, meter.events["Expired"])
    _add(families, catalogue.DEAD_LETTERED, shard_label, meter.events["DeadLettered"])
    _add(families, catalogue.CHECKPOINT_FAILURES, shard_label, shard.log.statistics().checkpoint_failures)
    for metric, histogram in (
        (catalogue.WAIT, meter.wait),
        (catalogue.LEASE_TIME, meter.lease_time),
        (catalogue.ATTEMPTS, meter.attempts),
        (catalogue.FRAME_BYTES, meter.frame_bytes),
        (catalogue.FRAME_EVENTS, meter.frame_events),
        (catalogue.COMMIT, meter.commit),
    ):
        _add_histogram(families, metric, shard_label, histogram)


def _collect_sink(families: dict[Metric, Family], follower: Follower) -> None:
    labels = (follower.shard_name, follower.name)
    for event_type, count in follower.events.items():
        _add(families, catalogue.REPLICATION_EVENTS, (*labels, event_type), count)
    _add(families, catalogue.REPLICATION_FAILURES, labels, follower.failures)
    status = follower.status()
    _add(families, catalogue.REPLICATION_BEHIND, labels, status.lag_events)
    # Not known yet is no sample: a zero would say that it has everything.
    if status.lag_bytes is not None:
        _add(families, catalogue.REPLICATION_BEHIND_BYTES, labels, status.lag_bytes)
    if status.lag_ms is not None:
        _add(families, catalogue.REPLICATION_BEHIND_SECONDS, labels, status.lag_ms / 1000)
    _add(families, catalogue.REPLICATION_STATE, (*labels, status.state), 1)
    _add(families, catalogue.REPLICATION_PARKED, labels, status.parked)
    if status.required:
        _add(families, catalogue.REPLICATION_CLOSES_INTAKE, labels, int(status.closes_intake is not None))
        _add(families, catalogue.REPLICATION_DROPPED, labels, int(status.requirement_dropped))
    _add_histogram(families, catalogue.REPLICATION_LAG, labels, follower.lag)


def _gauges(shard: Shard) -> dict[Metric, float]:
    state = shard.state
    stats = views.stats(state, shard.now_ms())
    return {
        catalogue.PENDING: stats.pending_count,
        catalogue.READY: stats.ready_count,
        catalogue.DELAYED: stats.delayed_count,
        catalogue.ACTIVE: stats.active_lease_count,
        catalogue.DEAD: stats.dead_letter_count,
        catalogue.OLDEST_READY: stats.oldest_ready_age_ms / 1000,
        catalogue.LIVE_BYTES: stats.live_bytes,
        catalogue.BACKPRESSURE: int(stats.backpressure.active),
        catalogue.PAUSES: len(stats.pauses),
        catalogue.LAST_SEQUENCE: shard.last_sequence,
        catalogue.UP: int(shard.failure is None),
        catalogue.WAL_BYTES: shard.log.statistics().wal_bytes,
    }


def _family(metric: Metric) -> Family:
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.exported, metric.help, labels=metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(metric.exported, metric.help, labels=metric.labels)
    return HistogramMetricFamily(metric.exported, metric.help, labels=metric.labels)


def _add(families: dict[Metric, Family], metric: Metric, labels: Sequence[str], value: float) -> None:
    family = families[metric]
    assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
    family.add_metric(labels, value)


def _add_histogram(families: dict[Metric, Family], metric: Metric, labels: Sequence[str], histogram: Histogram) -> None:
    family = families[metric]
    assert isinstance(family, HistogramMetricFamily)
    family.add_metric(labels, histogram.buckets(), histogram.sum)
