"""Who a browser speaks for. A node without authentication must not be at the service of every page its user opens.

A page may send requests to any address, and says with `Origin` where it comes from, but not with every request: a GET
of what it takes for its own site has none. Whoever owns the name of that site can point it at this machine after the
page was loaded. The name in `Host` stays what it was, and gives such a page away.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from omnirelay.errors import PermissionDenied

_OWN_NAMES = frozenset({"localhost", socket.gethostname().lower()})
_REMEMBERED_MAX = 64


class Origins:
    """Which requests are served: not those of other sites, nor those for a name that somebody else could point here."""

    def __init__(self, allowed_hosts: Iterable[str] | None = None) -> None:
        """`allowed_hosts`: the names under which this server is asked, besides addresses and this machine's own; what
        comes under another is refused. None: any name will do, except where a browser says that it is one.
        """
        self._names = _OWN_NAMES if allowed_hosts is None else _OWN_NAMES | {_plain(name) for name in allowed_hosts}
        self._any_name = allowed_hosts is None
        self._known: set[str] = set()
        """Values of `Host` that have passed: most clients send the same one again and again."""

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises PermissionDenied."""
        host = headers.get("host", "")
        # A browser never leaves it out; an old probe may.
        if host and not self._any_name and host not in self._known:
            self._check_host(host)
        origin = headers.get("origin")
        if origin is None and "sec-fetch-site" not in headers:
            return
        try:
            same = origin is None or urlsplit(origin).netloc == host
        except ValueError:
            same = False
        if not same or not self._is_certain(_named(host)):
            raise PermissionDenied(f"requests from pages of {(origin or host)[:128]} are not served here")

    def _check_host(self, host: str) -> None:
        named = _named(host)
        if not self._is_certain(named):
            raise PermissionDenied(
                f"this node does not go by the name {named[:128]!r}; if it should, add it to allowed_hosts in [node]",
                host=named[:128],
            )
        if len(self._known) < _REMEMBERED_MAX:
            self._known.add(host)

    def _is_certain(self, named: str) -> bool:
        """Whether a name in a request means this machine whatever a name server says."""
        if named in self._names:
            return True
        try:
            ipaddress.ip_address(named)
        except ValueError:
            return False
        return True


SAME_ORIGIN = Origins()
"""Serves under any name, but no page of another site."""


def _named(host: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return _plain(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return ""


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
