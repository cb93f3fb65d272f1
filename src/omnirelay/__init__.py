"""OmniRelay: a lease mesh for lakehouse services.

Names are imported when they are first used. `import omnirelay` alone loads neither a store nor
an event loop, so a process that needs one small part pays for that part only.

To export a name, add it in three places: `_EXPORTS`, the block for type checkers, `__all__`.
A test keeps the three equal.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from omnirelay._version import __version__

if TYPE_CHECKING:
    from omnirelay.client.client import Client, ItemSpec
    from omnirelay.client.sync import SyncClient
    from omnirelay.core.answers import BackpressureSignal, Gate, GrantedLease, ItemView, Stats, WhyAnswer
    from omnirelay.core.commands import CompleteItem, ExtendLease, FailItem, Progress, ReleaseItem
    from omnirelay.core.options import Limit, QueueOptions
    from omnirelay.core.pauses import Pause
    from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
    from omnirelay.engine.settings import EngineSettings
    from omnirelay.engine.shard import Shard
    from omnirelay.errors import OmniRelayError
    from omnirelay.log.memory import MemoryLog
    from omnirelay.log.sqlite import SqliteLog
    from omnirelay.rpc.dispatcher import Dispatcher
    from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
    from omnirelay.transport.http import HttpInbound
    from omnirelay.worker.handlers import GiveUp, Handlers, Release, Retry
    from omnirelay.worker.job import Job
    from omnirelay.worker.worker import Worker

__all__ = [
    "BackpressureSignal",
    "Caller",
    "Client",
    "CompleteItem",
    "Dispatcher",
    "EngineSettings",
    "ExtendLease",
    "FailItem",
    "Gate",
    "GiveUp",
    "GrantedLease",
    "Handlers",
    "HttpInbound",
    "ItemSpec",
    "ItemView",
    "Job",
    "Limit",
    "MemoryLog",
    "NewItem",
    "OmniRelayError",
    "OwnershipToken",
    "Pause",
    "Payload",
    "Progress",
    "QueueOptions",
    "Release",
    "ReleaseItem",
    "ResourceLeaseComponent",
    "ResourceLeaseOptions",
    "Retry",
    "Shard",
    "SqliteLog",
    "Stats",
    "SyncClient",
    "WhyAnswer",
    "Worker",
    "__version__",
]

_EXPORTS = {
    "BackpressureSignal": "omnirelay.core.answers",
    "Caller": "omnirelay.core.payload",
    "Client": "omnirelay.client.client",
    "CompleteItem": "omnirelay.core.commands",
    "Dispatcher": "omnirelay.rpc.dispatcher",
    "EngineSettings": "omnirelay.engine.settings",
    "ExtendLease": "omnirelay.core.commands",
    "FailItem": "omnirelay.core.commands",
    "Gate": "omnirelay.core.answers",
    "GiveUp": "omnirelay.worker.handlers",
    "GrantedLease": "omnirelay.core.answers",
    "Handlers": "omnirelay.worker.handlers",
    "HttpInbound": "omnirelay.transport.http",
    "ItemSpec": "omnirelay.client.client",
    "ItemView": "omnirelay.core.answers",
    "Job": "omnirelay.worker.job",
    "Limit": "omnirelay.core.options",
    "MemoryLog": "omnirelay.log.memory",
    "NewItem": "omnirelay.core.payload",
    "OmniRelayError": "omnirelay.errors",
    "OwnershipToken": "omnirelay.core.payload",
    "Pause": "omnirelay.core.pauses",
    "Payload": "omnirelay.core.payload",
    "Progress": "omnirelay.core.commands",
    "QueueOptions": "omnirelay.core.options",
    "Release": "omnirelay.worker.handlers",
    "ReleaseItem": "omnirelay.core.commands",
    "ResourceLeaseComponent": "omnirelay.service.component",
    "ResourceLeaseOptions": "omnirelay.service.component",
    "Retry": "omnirelay.worker.handlers",
    "Shard": "omnirelay.engine.shard",
    "SqliteLog": "omnirelay.log.sqlite",
    "Stats": "omnirelay.core.answers",
    "SyncClient": "omnirelay.client.sync",
    "WhyAnswer": "omnirelay.core.answers",
    "Worker": "omnirelay.worker.worker",
}


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value  # The next access does not come here.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
