"""Objects that nothing else has a digest of bear their own, as their last field.

    {"version":7, … ,"sha256":"9f2c…"}      of the same object without that field

Readers of JSON pass over it. An object without one is of an earlier version, and is taken as it is.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

_SEAL: Final = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\Z')


def sealed(data: bytes) -> bytes:
    """A JSON object with fields, and its seal."""
    return data[:-1] + b',"sha256":"' + hashlib.sha256(data).hexdigest().encode() + b'"}'


def is_intact(data: bytes) -> bool:
    """Whether the object is what was sealed, or bears no seal."""
    seal = _SEAL.search(data)
    return seal is None or hashlib.sha256(data[: seal.start()] + b"}").hexdigest().encode() == seal[1]
