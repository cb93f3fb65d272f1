"""Writes what is made of the definition of the events: `make schemas`, or

    python -m scripts.make_schemas

A test compares the files with what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from omnirelay.core.events import SCHEMA_VERSION
from omnirelay.segments.schema import own_columns
from omnirelay.wire.event_messages import EXTRA, FILE_NAME, MessageField, message_of, messages, proto_text
from omnirelay.wire.event_schema import FLATTENED, EventField, EventType, column_of, event_types

ROOT: Final = Path(__file__).parents[1]
PROTO: Final = ROOT / "src" / "omnirelay" / "wire" / FILE_NAME
PAGE: Final = ROOT / "docs" / "replication" / "events.md"

EVERYWHERE: Final = ("eventType", "sequenceNumber", "timestamp", "schemaVersion")
OBJECTS: Final = ("payload", "ownership", "error", "items")
_ANCHORS: Final = {"lastError": "error", "lastOwnershipToken": "ownership"}

INTRODUCTION: Final = """\
# Events

*Made from the code by `make schemas`; do not edit it here.*

Everything that happens to a shard is one of these events. There is one definition of them, and three forms are made of
it, without loss:

- **JSON**, in files, tables, webhooks and buses. Instants are ISO-8601 text, bytes are base64, and a field that has its
  default is left out. What callers sent (`progress`, `attributes`) stays as they wrote it.
- **protobuf**: the messages of [`{file}`](../../src/omnirelay/wire/{file}), which is in the wheel.
  `ReplicatedEvent.protobuf()` writes one, `omnirelay.wire.event_protobuf.from_protobuf` gives the JSON again. It needs
  `pip install 'omnirelay[protobuf]'`. The fields with the numbers 1 to 8 are as old as the names of the events.
- **Arrow**, in the columns of Parquet segments. Every event is a row; lists and maps are JSON text.

`metadata` is added when a sink carries an event away. JSON lines of `omnirelay log export` are what the log holds,
without it:

| key | meaning |
| --- | --- |
| `shard.id` | the shard |
| `region` | the region of the node |
| `queue.pending`, `queue.active` | items that were pending and leases that lived after the commit it was part of |
| `rpc.principal` | who called, as it was authenticated; left out when nobody was |
| `rpc.principal_thumbprint` | thumbprint of the certificate, when the event has a `principalThumbprint` |

What is not there yet: this version authenticates nobody, so its nodes write no `principal` and no
`principalThumbprint`, and the last two keys are missing. Who called is `peerId`, as it named itself. An event that has
one of the two, because a later version wrote it or whoever embeds the shard named a principal, is carried on with it
and gets the key, and the governance sink puts it into its line.

Parquet and Arrow of `omnirelay log export` have the depth in `queue_pending` and `queue_active`, and no `region`: a log
does not say in which region its node runs, which is the sink's to add.

## Versions

The schema has version **{version}**; every event that a sink carries away says in which one it was written, as
`schemaVersion`. In the log, and so in JSON lines of `omnirelay log export`, version 1 is left out. What a later
version may do:

- Add a field, or a type of event. Readers keep what they do not know and pass it on: in JSON as it stands, in protobuf
  in `{extra}` (JSON text by name, in every message), in Arrow in the column `extra`. A reader of protobuf also keeps
  fields by numbers it does not know, in `protobuf.unknown`.
- Change what a field means. That raises the version, and whoever reads the log gets older events as if they were
  written today; sinks pass them on as they were written.
- Never: give a name, or the number of a type or of a protobuf field, to something else.

A node that meets a newer schema, or a type it does not know, in its own log does not lead the shard; sinks and readers
of documents go on.

## What every event has

"""


def page() -> str:
    """The page about the events."""
    first = event_types()[0]
    common = [field for field in first.fields if field.name in EVERYWHERE]
    parts = [
        INTRODUCTION.format(file=FILE_NAME, version=SCHEMA_VERSION, extra=EXTRA),
        _table([_row(first, field) for field in common]),
        "\n## Types\n",
        *(_type(each) for each in event_types()),
        "\n## Objects\n",
        *(_object(name) for name in OBJECTS),
    ]
    return "".join(parts)


def _type(event_type: EventType) -> str:
    own = [field for field in event_type.fields if field.name not in EVERYWHERE]
    since = f" Since version {event_type.since}." if event_type.since > 1 else ""
    text = f"\n### {event_type.number} {event_type.name}\n\n{event_type.meaning}{since}\n"
    return text + ("\n" + _table([_row(event_type, field) for field in own]) if own else "")


def _row(event_type: EventType, field: EventField) -> list[str]:
    column = column_of(event_type.name, field.name)
    return [
        f"`{field.name}`",
        _kind(field),
        str(field.since),
        _protobuf("Event", field.name, None if field.name == "eventType" else column),
        _arrow(column) if field.name not in FLATTENED else f"`{field.name}_…`",
        _meaning(field),
    ]


def _object(name: str) -> str:
    owner, field = next(
        (each, field) for each in event_types() for field in each.fields if field.name == name and field.fields
    )
    message = message_of(name)
    rows = [
        [
            f"`{member.name}`",
            _kind(member),
            str(member.since),
            _protobuf(message, member.name),
            _arrow(column_of(owner.name, name, member.name)) if name in FLATTENED else "",
            _meaning(member),
        ]
        for member in field.fields
    ]
    title = "One of `items`" if name == "items" else f"`{name}`"
    return f"\n### {title}\n\nMessage `{message}`.\n\n{_table(rows)}"


def _kind(field: EventField) -> str:
    if field.kind in ("object", "list of objects"):
        return f"{field.kind}: {_ANCHORS.get(field.name, field.name)}"
    return field.kind


def _meaning(field: EventField) -> str:
    choices = f" One of {', '.join(f'`{each}`' for each in field.choices)}." if len(field.choices) > 1 else ""
    return field.meaning + choices + (" Always there." if field.required else "")


def _protobuf(message: str, json: str, column: str | None = None) -> str:
    """The field, or the two of which one says more, with their numbers."""
    fields: list[MessageField] = [field for field in messages()[message] if field.json == json]
    exact = [field for field in fields if field.name == column]
    return ", ".join(f"`{field.name}` {field.number}" for field in exact or fields)


def _arrow(column: str) -> str:
    names = {flat.column: arrow.name for flat, arrow in own_columns()}
    return f"`{names.get(column, 'sequence' if column == 'sequence_number' else column)}`"


def _table(rows: list[list[str]]) -> str:
    head = ["JSON", "kind", "since", "protobuf", "Arrow", "meaning"]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def main() -> None:
    PROTO.write_text(proto_text())
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
