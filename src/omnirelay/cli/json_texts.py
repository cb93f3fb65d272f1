"""JSON on its way to a node: refused here when it is none, or only Python takes it for some."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from omnirelay.cli.exits import usage


def parse(text: str | bytes) -> Any:
    """What the text stands for. Raises ValueError, for numbers that JSON does not have, too."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_number)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _number(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"it has {text}, which is no number there")


def encode(request: Any) -> bytes:
    """A request as it is sent. Raises Stop when an argument has no form in JSON."""
    try:
        return json.dumps(request, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise usage(f"this is not UTF-8 text: {error.object[max(0, error.start - 32) : error.end + 32]!r}") from None
    except (ValueError, RecursionError) as error:
        raise usage(f"this cannot be sent as JSON: {error}") from None
