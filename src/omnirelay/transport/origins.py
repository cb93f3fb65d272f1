"""Who a browser speaks for. A node without authentication must not be at the service of every page its user opens."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from omnirelay.errors import PermissionDenied

_OWN_NAMES = frozenset({"localhost", socket.gethostname().lower()})


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse what a browser sends for another site, or for a name that somebody else could point at this address."""
    origin = headers.get("origin")
    if origin is None and "sec-fetch-site" not in headers:
        return
    host = headers.get("host", "")
    try:
        named = urlsplit(f"//{host}").hostname or ""
        same = origin is None or urlsplit(origin).netloc == host
    except ValueError:
        named, same = "", False
    if not same or not _is_certain(named):
        raise PermissionDenied(f"requests from pages of {(origin or host)[:128]} are not served here")


def _is_certain(host: str) -> bool:
    """Whether a name in a request means this machine whatever a name server says."""
    if host in _OWN_NAMES:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
