"""Addresses of nodes as people and logs get to see them."""

from __future__ import annotations

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """The address with a password hidden: it may have one for what stands before the node."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
    except ValueError:
        return url
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:***@{place}").geturl()
