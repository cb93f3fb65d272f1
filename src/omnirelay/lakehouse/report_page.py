"""The page of a report: a pure function of what was counted.

The page needs nothing but itself. What comes from the log goes into a block of JSON in which nothing can end the block,
and from there into the page as text only; a policy in the page forbids everything else, whatever a name looks like.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

import msgspec

from omnirelay.lakehouse.report_data import Report

_SCRIPTS: Final = ("marks", "scales", "pointing", "lines", "rows", "graph", "words", "page")
"""In the order in which they need each other."""
_ENDING: Final = re.compile("[<>&\u2028\u2029]")
_PLACE: Final = re.compile(r"\{\{([a-z]+)\}\}")


def render(report: Report) -> str:
    """One HTML file, self-contained."""
    style, script = _asset("page.css"), _script()
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    parts = {
        "policy": escape(policy),
        "title": escape(f"OmniRelay report: {report.warehouse}"),
        "style": style,
        "data": _embedded(report),
        "script": script,
    }
    # All at once: what is put in is never looked at again.
    return _PLACE.sub(lambda found: parts[found[1]], _asset("page.html"))


def _embedded(report: Report) -> str:
    """JSON that stays JSON between two tags."""
    text = msgspec.json.encode(report).decode()
    return _ENDING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@cache
def _asset(name: str) -> str:
    return files("omnirelay.lakehouse").joinpath("report_assets", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
