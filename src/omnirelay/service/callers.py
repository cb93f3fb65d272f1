"""Who is calling, as far as a call tells."""

from __future__ import annotations

from omnirelay.core.payload import ANONYMOUS, Caller
from omnirelay.rpc.calls import RequestMeta


def caller_of(meta: RequestMeta, peer_id: str | None = None) -> Caller:
    """Who is calling: the name in the body first, then the headers. Only a verified principal is one."""
    peer_id = peer_id or meta.peer_id or meta.principal
    if peer_id is None and meta.principal is None:
        return ANONYMOUS
    return Caller(principal=meta.principal, peer_id=peer_id)


def holder_of(meta: RequestMeta, peer_id: str | None = None) -> Caller:
    """Who acknowledges on a stream: the peer that opened it, or the one an acknowledgement names. The service that
    connected may carry the streams of many peers, so its own name says nothing here.
    """
    if peer_id is None and meta.caller is None:
        peer_id = meta.headers.get("x-peer-id")
    return Caller(principal=meta.principal, peer_id=peer_id) if peer_id or meta.principal else ANONYMOUS
