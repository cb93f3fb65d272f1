"""What is shown of values that may be secret: a configuration is printed, pasted into tickets and logged.

Passwords stand in files of their own. But an object store, a kind of another package and the headers of a receiver
may want keys in their tables, and nobody but they know which of these are secret: it is told by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

MASK: Final = "***"

_SECRET = re.compile(
    r"key|secret|token|passw|passphrase|pwd|credential|auth|cookie|signature|bearer|(?:^|[^a-z])(?:sas|sig)(?![a-z])"
)
_NOT_SECRET = re.compile(r"(?:id|name|file|path|location)$")
"""Which key, or where it is, and not what it is."""

_QUERY_VALUE = re.compile(r"([?&#;])([^=&#;]*)=([^&#;]*)")


def without_secret_values(value: Any, name: str = "") -> Any:
    """The same with `***` in the place of what is secret by its name, however deep, and of passwords in addresses."""
    if isinstance(value, Mapping):
        return {each: without_secret_values(inner, str(each)) for each, inner in value.items()}
    if is_secret(name) and value not in ("", None):
        # Whole, also a list. What is in a table has names of its own.
        return value if isinstance(value, bool) else MASK
    if isinstance(value, list | tuple):
        return type(value)(without_secret_values(each) for each in value)
    return _without_password(value) if isinstance(value, str) and "://" in value else value


def is_secret(name: str) -> bool:
    lower = name.lower()
    return _SECRET.search(lower) is not None and _NOT_SECRET.search(lower) is None


def _without_password(address: str) -> str:
    try:
        user, at, _ = urlsplit(address).netloc.rpartition("@")
    except ValueError:
        return MASK  # It is no address, and nobody knows what it is.
    name, colon, _ = user.partition(":")
    if colon and at:
        address = address.replace(f"//{user}@", f"//{name}:{MASK}@", 1)
    return _QUERY_VALUE.sub(_query_value, address)


def _query_value(found: re.Match[str]) -> str:
    before, name, value = found.groups()
    return f"{before}{name}={MASK if is_secret(name) else value}"
