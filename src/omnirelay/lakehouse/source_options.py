"""Options of the data source `omnirelay`, read and checked.

address                where the segments are: a path, file://, s3://, gs://, az://; also what `load(…)` is given
store.NAME             an option of that store: store.endpoint, store.region, …
url                    a node, for what is not in segments yet
shards                 only these, separated by commas (default: all that are found)
types                  only events of these types, separated by commas; those that this version knows. Events that a
                       newer node wrote are chosen with where("event_type = …"), which costs the same
after, upTo            {"shard": sequence}: only events behind, up to these; `after` may be `earliest`, and of a stream
                       `latest`
maxEventsPerTrigger    most events of one batch of a stream
failOnDataLoss         whether events that were dropped before they were read are an error (default: true)
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.errors import InvalidArgument

_PREFIX: Final = "store."
_NAMES: Final = ("address", "url", "shards", "types", "after", "upTo", "maxEventsPerTrigger", "failOnDataLoss")
_KNOWN: Final = frozenset({"path", *(name.lower() for name in _NAMES)})
"""In small letters: that is how Spark compares them. `path` is what `load(…)` is given."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    address: str | None = None
    store: dict[str, str] = {}
    url: str | None = None
    shards: tuple[str, ...] | None = None
    types: frozenset[str] | None = None
    after: dict[str, int] = {}
    from_latest: bool = False
    """A new stream begins with what comes next."""
    up_to: dict[str, int] = {}
    max_events: int | None = None
    fail_on_data_loss: bool = True

    def end_of(self, shard: str, last: int) -> int:
        """Where reading ends in a shard whose last event is this one."""
        return min(last, self.up_to.get(shard, last))


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidArgument naming the option."""
    given = {name.lower(): value for name, value in options.items()}
    store = {name.removeprefix(_PREFIX): given.pop(name) for name in list(given) if name.startswith(_PREFIX)}
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise _wrong(unknown[0], f"is no option of omnirelay; there are {', '.join(_NAMES)} and {_PREFIX}NAME")
    if "" in store:
        raise _wrong(_PREFIX, "must name an option of the store, as store.region does")
    address = given.get("address") or given.get("path")
    if given.get("path") and address != given["path"]:
        raise _wrong("address", f"is {address!r}, and load(…) was given {given['path']!r}; say one of them")
    url = given.get("url")
    if not address and not url:
        raise _wrong("address", "or url is required: where the segments are, or a node")
    if url and not is_node_address(url):
        raise _wrong("url", f"must be an address such as http://127.0.0.1:7070, got {url!r}")
    after = given.get("after", "earliest")
    return SourceOptions(
        address=address,
        store=store,
        url=url.rstrip("/") if url else None,
        shards=_names(given, "shards"),
        types=_types(given),
        after={} if after in ("earliest", "latest") else _sequences("after", after),
        from_latest=after == "latest",
        up_to=_sequences("upTo", given["upto"]) if "upto" in given else {},
        max_events=_count(given),
        fail_on_data_loss=_yes(given, "failondataloss", "failOnDataLoss"),
    )


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    if name not in given:
        return None
    names = tuple(dict.fromkeys(each.strip() for each in given[name].split(",") if each.strip()))
    if not names:
        raise _wrong(name, "must name at least one")
    return names


def _types(given: Mapping[str, str]) -> frozenset[str] | None:
    """Raises for a type that this version does not know: a misspelt one would choose nothing, and nobody be told."""
    names = _names(given, "types")
    if names is None:
        return None
    for name in names:
        if name not in EVENT_NUMBERS:
            close = get_close_matches(name, EVENT_NUMBERS, 1)
            meant = f" (is it {close[0]}?)" if close else ""
            raise _wrong(
                "types",
                f"names {name!r}{meant}, which this version does not know; there are {', '.join(EVENT_NUMBERS)}. What a"
                f" newer node wrote is chosen with where(\"event_type = '{name}'\")",
            )
    return frozenset(names)


def is_node_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # Brackets that do not match, or a port that is none.


def _sequences(name: str, text: str) -> dict[str, int]:
    try:
        found = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        found = {"": -1}
    if any(sequence < 0 for sequence in found.values()):
        words = "earliest, latest, or " if name == "after" else ""
        raise _wrong(name, f'must be {words}JSON such as {{"orders": 12000}}, with sequences from 0, got {text!r}')
    return found


def _count(given: Mapping[str, str]) -> int | None:
    text = given.get("maxeventspertrigger")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise _wrong("maxEventsPerTrigger", f"must be a whole number from 1, got {text!r}")
    return int(text)


def _yes(given: Mapping[str, str], key: str, name: str) -> bool:
    text = given.get(key, "true").lower()
    if text not in ("true", "false"):
        raise _wrong(name, f"must be true or false, got {text!r}")
    return text == "true"


def _wrong(name: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"option {name} {what}", field=name)
