"""The figures of all systems beside each other, with ratios against ours, and which aims they reach."""

from __future__ import annotations

import msgspec

Figures = dict[str, float]


class Row(msgspec.Struct):
    """The medians of one system; what was not measured is missing."""

    name: str
    figures: dict[str, Figures] = {}

    def get(self, run: str, figure: str) -> float | None:
        return self.figures.get(run, {}).get(figure)


def _ratio(ours: float | None, peer: float | None) -> str:
    return "" if ours is None or not peer else f"{ours / peer:.2f}"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _pair(row: Row, run: str, first: str, second: str, form: str = ",.0f") -> str:
    one, two = row.get(run, first), row.get(run, second)
    return "" if one is None or two is None else f"{one:{form}}/{two:{form}}"


def _print(head: list[str], lines: list[list[str]]) -> None:
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    for line in [head, *lines]:
        first, *rest = (text.rjust(width) for text, width in zip(line, widths, strict=True))
        print(" ".join([line[0].ljust(len(first)), *rest]).rstrip())


def print_tables(rows: list[Row], ours: Row, restart: bool) -> None:
    print("\nOne call at a time: cycles/s; latencies in us; x: ours / peer (rates: more is better, times: less)\n")
    head = ["", "1 client", "x", "32 clients", "x", "CPU us server/client", "enqueue p50/p99", "x", "hand-off p50/p99"]
    _print(
        [*head, "x p50", "x p99"],
        [
            [
                row.name,
                _rate(row.get("1 client", "rate")),
                _ratio(ours.get("1 client", "rate"), row.get("1 client", "rate")),
                _rate(row.get("32 clients", "rate")),
                _ratio(ours.get("32 clients", "rate"), row.get("32 clients", "rate")),
                _pair(row, "32 clients", "server_us", "client_us"),
                _pair(row, "1 client", "p50_us", "p99_us"),
                _ratio(ours.get("1 client", "p50_us"), row.get("1 client", "p50_us")),
                _pair(row, "hand-off", "p50_us", "p99_us") or "polling",
                _ratio(ours.get("hand-off", "p50_us"), row.get("hand-off", "p50_us")),
                _ratio(ours.get("hand-off", "p99_us"), row.get("hand-off", "p99_us")),
            ]
            for row in rows
        ],
    )
    print("\nIn batches, 4 connections: items/s through the whole cycle; x: ours / peer\n")
    head = ["", "of 200", "x", "CPU us server/client", "of 1,000", "x", "CPU us server/client"]
    if restart:
        head += ["kill -9 to first lease, s", "x"]
    lines = []
    for row in rows:
        line = [row.name]
        for run in ("batch 200", "batch 1000"):
            line += [
                _rate(row.get(run, "rate")),
                _ratio(ours.get(run, "rate"), row.get(run, "rate")),
                _pair(row, run, "server_us", "client_us", ".1f"),
            ]
        if restart:
            seconds = row.get("restart", "seconds")
            line += ["" if seconds is None else f"{seconds:.2f}", _ratio(ours.get("restart", "seconds"), seconds)]
        if any(line[1:]):
            lines.append(line)
    _print(head, lines)


AIMS = (
    ("batches of 200 against PostgreSQL", "batch 200", "rate", "postgres", 1.3, 2.0),
    ("batches of 1,000 against PostgreSQL", "batch 1000", "rate", "postgres", 1.3, 2.0),
    ("32 clients against the Redis list", "32 clients", "rate", "list", 0.8, 1.2),
    ("1 client against PostgreSQL", "1 client", "rate", "postgres", 0.8, 1.2),
    ("hand-off p50 against Redis streams", "hand-off", "p50_us", "streams", 1.3, 1.0),
    ("hand-off p99 against Redis streams", "hand-off", "p99_us", "streams", 1.3, 1.0),
)
"""What, run, figure, peer, first landing, goal. Of times a ratio has to be at most that, of rates at least."""


def print_aims(rows: dict[str, Row]) -> None:
    names = {"plain": "ours", "compiled": "compiled"}
    measured = {key: rows[key] for key in names if key in rows}
    print("\nAims: ratio against the peer, the first landing and the goal\n")
    lines = []
    for what, run, figure, peer, landing, goal in AIMS:
        theirs = rows[peer].get(run, figure) if peer in rows else None
        line = [what, f"{landing:.1f}", f"{goal:.1f}"]
        for row in measured.values():
            ours = row.get(run, figure)
            if not theirs or ours is None:
                line.append("not measured")
                continue
            ratio = ours / theirs
            reached = [limit for limit in (landing, goal) if (ratio <= limit if figure != "rate" else ratio >= limit)]
            line.append(f"{ratio:.2f} {('missed', 'landed', 'goal')[len(reached)]}")
        lines.append(line)
    _print(["", "landing", "goal", *(names[key] for key in measured)], lines)
