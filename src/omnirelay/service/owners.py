"""Who may acknowledge a lease when nobody proves who they are.

A token is enough; a caller that names itself must be the owner. But many callers send the name of their service as
`Rpc-Caller` with every call, lease under the `peerId` of one of their workers, and have no field for that name in an
acknowledgement. So what a service leased under another name is remembered, and it may acknowledge that too.
"""

from __future__ import annotations

from collections.abc import Sequence

from omnirelay.core.answers import GrantedLease
from omnirelay.core.payload import ANONYMOUS, Caller
from omnirelay.core.state import State
from omnirelay.rpc.calls import RequestMeta
from omnirelay.wire.requests import Acknowledgement

REMEMBERED_MAX = 100_000


class Owners:
    """What this process knows of who asked for which lease. Of leases from before its start it knows nothing, and lets
    a service's own name pass for them.
    """

    def __init__(self) -> None:
        self._asked_by: dict[str, str] = {}
        """By lease id: the service that leased it under another name, the latest last."""
        self._first_fence: int | None = None

    def note(self, granted: Sequence[GrantedLease], meta: RequestMeta) -> None:
        """These were granted to this call."""
        if granted and self._first_fence is None:
            self._first_fence = granted[0].fence
        caller = meta.caller
        if caller is None:
            return
        for lease in granted:
            if lease.owner != caller:
                self._asked_by[lease.token.lease_id] = caller
        while len(self._asked_by) > REMEMBERED_MAX:
            del self._asked_by[next(iter(self._asked_by))]

    def anyone(self, meta: RequestMeta) -> Caller | None:
        """Who acknowledges without naming itself in the acknowledgement, when that is the same for every lease."""
        if meta.caller is not None:
            return None
        peer_id = meta.headers.get("x-peer-id")
        return Caller(principal=meta.principal, peer_id=peer_id) if peer_id or meta.principal else ANONYMOUS

    def holder(self, meta: RequestMeta, ack: Acknowledgement, state: State) -> Caller:
        """Who acknowledges, as far as it names itself."""
        peer_id = ack.peer_id or meta.caller or meta.headers.get("x-peer-id")
        if peer_id is not None and ack.peer_id is None and peer_id == meta.caller and self._may(peer_id, ack, state):
            peer_id = None
        return Caller(principal=meta.principal, peer_id=peer_id) if peer_id or meta.principal else ANONYMOUS

    def _may(self, caller: str, ack: Acknowledgement, state: State) -> bool:
        token = ack.ownership_token
        if token is None:
            return True
        if self._asked_by.get(token.lease_id.lower()) == caller:
            return True
        item = state.items.get(token.sequence_id)
        fence = None if item is None or item.lease is None else item.lease.token.fence
        return fence is not None and (self._first_fence is None or fence < self._first_fence)
