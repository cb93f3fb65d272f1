"""What gold has to hold but for anomalies, by plain loops over events and what `plain` makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from omnirelay.core import events as ev
from omnirelay.core.events import Event
from tests.spark.plain import Plain
from tests.spark.plain_intervals import backpressure_rows
from tests.spark.workload import Recorded, instant

Row = dict[str, Any]
WINDOW_MS = 300_000
DAY_MS = 86_400_000
COUNTED: Mapping[str, type[Event]] = {
    "enqueued": ev.Enqueue,
    "granted": ev.LeaseGranted,
    "heartbeats": ev.Heartbeat,
    "completed": ev.Completed,
    "failed": ev.Failed,
    "expired": ev.Expired,
    "released": ev.Released,
    "cancelled": ev.Cancelled,
    "dead": ev.DeadLettered,
}


def lineage_rows(log: Recorded) -> list[Row]:
    same = ("shard", "lease_id", "principal", "resource_type", "resource_id", "item", "fence", "ended_at", "outcome")
    return [
        {name: lease[name] for name in (*same, "table_version")}
        | {"peer": lease["owner"], "started_at": lease["granted_at"]}
        for lease in Plain(log.shard, log.events).lease_rows()
    ]


def daily_rows(log: Recorded) -> list[Row]:
    leases = list(Plain(log.shard, log.events).leases.values())
    rows = []
    for begin, events in _apart(log.events, DAY_MS).items():
        granted = _in(leases, "granted_at", begin, DAY_MS)
        waits = [each["wait_ms"] for each in granted]
        works = [each["work_ms"] for each in _in(leases, "ended_at", begin, DAY_MS)]
        row: Row = {"shard": log.shard, "date": datetime.fromtimestamp(begin / 1000, UTC).date()}
        row |= {"events": len(events), "owners": len({each["owner"] for each in granted})}
        row |= {name: sum(isinstance(each, kind) for each in events) for name, kind in COUNTED.items()}
        row |= {f"wait_p{share}_ms": percentile(_rounded(waits, 7), share) for share in (50, 95)}
        row |= {f"work_p{share}_ms": percentile(_rounded(works, 7), share) for share in (50, 95)}
        row |= _by_what_they_share(granted, _in(leases, "ended_at", begin, DAY_MS))
        rows.append(row)
    return rows


def _by_what_they_share(granted: Sequence[Row], ended: Sequence[Row]) -> Row:
    """What the next run adds to."""
    owners = sorted({each["owner"] for each in (*granted, *ended) if each["owner"] is not None})
    ran_out = Counter(
        f"{each['resource_type']}/{each['resource_id']}"
        for each in ended
        if each["outcome"] == "expired" and each["resource_id"] is not None
    )

    def window(lease: Row) -> datetime:
        return datetime.fromtimestamp(lease["ended_at"] // WINDOW_MS * WINDOW_MS / 1000, UTC)

    def bad(chosen: Iterable[Row]) -> int:
        return sum(each["outcome"] in ("failed", "expired") for each in chosen)

    by_peer = [
        {
            "peer": owner,
            "granted": sum(each["owner"] == owner for each in granted),
            "ended": sum(each["owner"] == owner for each in ended),
            "bad": bad(each for each in ended if each["owner"] == owner),
        }
        for owner in owners
    ]
    by_window = [
        {
            "at": at,
            "ended": sum(window(each) == at for each in ended),
            "bad": bad(each for each in ended if window(each) == at),
        }
        for at in sorted(set(map(window, ended)))
    ]
    return {
        "by_peer": by_peer,
        "by_resource": [{"resource": name, "expired": count} for name, count in sorted(ran_out.items())],
        "by_window": by_window,
        "wait_times": _tally(each["wait_ms"] for each in granted),
        "work_times": _tally(each["work_ms"] for each in ended),
    }


def _tally(values: Iterable[int | None]) -> list[Row]:
    counted = Counter(_rounded(values, 7))
    return [{"ms": ms, "leases": counted[ms]} for ms in sorted(counted)]


def health_rows(log: Recorded) -> list[Row]:
    """The leases of each resource, looked at in the order of their grants."""
    rows = []
    leases = sorted(Plain(log.shard, log.events).leases.values(), key=lambda each: each["fence"])
    of_resource: dict[tuple[str, str], list[Row]] = {}
    for each in leases:
        if each["resource_type"] is not None:
            of_resource.setdefault((each["resource_type"], each["resource_id"]), []).append(each)
    for (kind, name), mine in of_resource.items():
        ended = [each for each in mine if each["outcome"] is not None]
        completed = [each for each in mine if each["outcome"] == "completed"]
        others = [each for each in ended if each["outcome"] != "expired"]
        good, other = (max((each["fence"] for each in some), default=0) for some in (completed, others))
        failures = [
            each["fence"] for each in ended if each["outcome"] in ("failed", "expired") and each["fence"] > good
        ]
        expiries = [each["fence"] for each in ended if each["outcome"] == "expired" and each["fence"] > other]
        works = _rounded((each["work_ms"] for each in completed), 5)
        names = sorted({each["owner"] for each in mine if each["owner"] is not None})
        row: Row = {"shard": log.shard, "resource_type": kind, "resource_id": name}
        row |= {"leases": len(mine), "live": len(mine) - len(ended)}
        row |= {
            outcome: sum(each["outcome"] == outcome for each in mine)
            for outcome in ("completed", "failed", "expired", "released", "cancelled")
        }
        row |= {"owners": len(names), "owner_names": names}
        row |= {"failures_in_a_row": len(failures), "expiries_in_a_row": len(expiries)}
        row |= {"bad_fences": failures, "expired_fences": expiries, "good_fence": good, "other_fence": other}
        row |= {"last_outcome": ended[-1]["outcome"] if ended else None}
        row |= {"last_fence": ended[-1]["fence"] if ended else None}
        last_ended = max((each["ended_at"] for each in ended), default=None)
        row |= {"last_ended_at": None if last_ended is None else instant(last_ended)}
        row |= {"work_p95_ms": percentile(works, 95)}
        counted = Counter(works)
        row |= {"work_times": [{"ms": ms, "leases": counted[ms]} for ms in sorted(counted)]}
        bad = "expiring" if len(expiries) >= 3 else "failing" if len(failures) >= 3 else "healthy"
        row |= {"health": bad if ended else "new"}
        rows.append(row)
    return rows


def _rounded(values: Iterable[int | None], digits: int) -> list[int]:
    """Each in the middle of the step it lies in, where it has more binary digits than are kept."""
    rounded = []
    for value in values:
        if value is not None:
            step = 1 << max(value.bit_length() - digits, 0) if value > 0 else 1
            rounded.append(value // step * step + step // 2)
    return rounded


def slo_rows(log: Recorded) -> list[Row]:
    events = log.events
    leases = list(Plain(log.shard, events).leases.values())
    closed = _closed(log)
    lags = {
        event.sequence_number: frame.time_ms - event.timestamp
        for frame in log.frames
        for event in events
        if frame.first <= event.sequence_number <= frame.last
    }
    rows = []
    for begin, happened in _apart(events, WINDOW_MS).items():
        granted = _in(leases, "granted_at", begin, WINDOW_MS)
        ended = _in(leases, "ended_at", begin, WINDOW_MS)
        waits, ages = [each["wait_ms"] for each in granted], [each["work_ms"] for each in ended]
        expired = sum(each["outcome"] == "expired" for each in ended)
        row: Row = {"shard": log.shard, "window_start": instant(begin), "events": len(happened)}
        row |= {"enqueued": sum(isinstance(each, ev.Enqueue) for each in happened)}
        row |= {"granted": len(granted), "ended": len(ended)}
        row |= {f"wait_p{share}_ms": percentile(waits, share) for share in (50, 95, 99)}
        row |= {f"lease_age_p{share}_ms": percentile(ages, share) for share in (50, 95)}
        row |= {"lease_age_max_ms": max(ages, default=None), "expiry_rate": expired / len(ended) if ended else None}
        row["backpressure_share"] = sum(at in closed for at in range(begin, begin + WINDOW_MS)) / WINDOW_MS
        row["commit_lag_max_ms"] = max(lags[each.sequence_number] for each in happened)
        rows.append(row)
    return rows


def percentile(values: Sequence[int], share: int) -> float | None:
    """With what lies between two values in proportion."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _apart(events: Iterable[Event], width_ms: int) -> dict[int, list[Event]]:
    windows: dict[int, list[Event]] = {}
    for event in events:
        windows.setdefault(event.timestamp // width_ms * width_ms, []).append(event)
    return windows


def _in(leases: Iterable[Row], name: str, begin: int, width_ms: int) -> list[Row]:
    return [each for each in leases if each[name] is not None and begin <= each[name] < begin + width_ms]


def _closed(log: Recorded) -> set[int]:
    """The milliseconds in which any cause kept intake closed; an open end is that of the log."""
    end = log.events[-1].timestamp
    closed: set[int] = set()
    for row in backpressure_rows(log.shard, log.events):
        until = end if row["until_at"] is None else _ms(row["until_at"])
        closed.update(range(_ms(row["from_at"]), until))
    return closed


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
