"""A service of your own with a lease queue inside: one procedure of its own beside those of the queue.

    uvicorn examples.embedded_service:application --port 8080
    curl -d '{"table": "sales.orders"}' localhost:8080/v1/tables/compact
    curl -d '{"peerId": "me"}' localhost:8080/v1/tablelease/lease

Everything is kept in memory; name a directory in `ResourceLeaseOptions(data=...)` to keep it on disk.
"""

from __future__ import annotations

import msgspec

from omnirelay.core.payload import NewItem, Payload
from omnirelay.rpc.calls import RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.transport.http import HttpInbound


class CompactRequest(msgspec.Struct, forbid_unknown_fields=True):
    table: str


class CompactAnswer(msgspec.Struct, rename="camel"):
    sequence_id: int


async def compact(call: RequestMeta, request: CompactRequest) -> CompactAnswer:
    """Ask for a table to be compacted, once, however often the same table is named."""
    payload = Payload(resource_type="compact", resource_id=request.table, request_id=f"compact:{request.table}")
    answer = await leases.shard().enqueue(NewItem(payload=payload))
    return CompactAnswer(answer.results[0].sequence_id)


dispatcher = Dispatcher("catalog")
dispatcher.unary("tables::compact", compact, request=CompactRequest, answers=(CompactAnswer,))
leases = ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="tablelease"))
application = HttpInbound(dispatcher, on_startup=leases.start, on_shutdown=leases.stop)
