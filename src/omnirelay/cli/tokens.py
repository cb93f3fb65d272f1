"""Reading the proof of a lease as people and pipes hand it over."""

from __future__ import annotations

import json
import sys
from typing import Any

from omnirelay.cli.exits import nothing, usage

FORM = "SEQ:ATTEMPT:LEASEID[:FENCE], the JSON of a lease or its ownershipToken, or - for stdin"


def read_tokens(text: str) -> list[dict[str, Any]]:
    """The tokens in an argument: one, or as many as the leases on stdin. Raises Stop when there is none."""
    if text == "-":
        text = sys.stdin.read()
    tokens = [token for value in _values(text.strip()) for token in _tokens(value)]
    if not tokens:
        raise nothing("there is no lease in the input")
    return tokens


def _values(text: str) -> list[Any]:
    """JSON documents one after the other, however they are laid out, or lines with short tokens."""
    if not text.startswith(("{", "[")):
        return [_short(line.strip()) for line in text.splitlines() if line.strip()]
    decoder = json.JSONDecoder()
    values = []
    position = 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise usage(f"the token is not JSON: {error}") from None
        values.append(value)
        while position < len(text) and text[position].isspace():
            position += 1
    return values


def _tokens(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [token for each in value for token in _tokens(each)]
    if not isinstance(value, dict):
        raise usage(f"this is no token: {str(value)[:64]!r}; it is {FORM}")
    named = {name.lower(): each for name, each in value.items()}
    if "leases" in named:
        return _tokens(named["leases"])
    if "item" in named:
        return _tokens(named["item"])
    if isinstance(named.get("ownershiptoken"), dict):
        return [named["ownershiptoken"]]
    if "leaseid" in named:
        return [value]
    if not value:
        return []  # What a lease call answers that got nothing.
    raise usage(f"this JSON has no ownershipToken in it; a token is {FORM}")


def _short(text: str) -> dict[str, Any]:
    parts = text.split(":")
    if len(parts) not in (3, 4) or not all(part.isascii() and part.isdigit() for part in parts[:2] + parts[3:]):
        raise usage(f"this is no token: {text[:64]!r}; it is {FORM}")
    token: dict[str, Any] = {"sequenceId": int(parts[0]), "attempt": int(parts[1]), "leaseId": parts[2]}
    if len(parts) == 4:
        token["fence"] = int(parts[3])
    return token
