"""What each option of a shard is for, for those who read or edit a configuration file."""

from __future__ import annotations

from typing import Final

OPTION_DESCRIPTIONS: Final = {
    "lease_duration": "How long a lease lasts unless the caller asks for another time.",
    "max_lease_duration": "Longest lease that a caller may ask for.",
    "heartbeat_interval": "How often workers are told to heartbeat; never less than three times per lease.",
    "max_delivery_attempts": "An item that failed this many times is dead.",
    "max_undelivered": "An item is dead when more leases in a row than this ran out without any sign of life.",
    "requeue_delay": 'First retry delay; doubles per attempt up to retry_delay_max. "0s" retries at once.',
    "retry_delay_max": "Longest retry delay.",
    "capacity": "Most live items: ready, delayed and leased. Enqueue stops here.",
    "capacity_bytes": "Most bytes of live items. Enqueue stops here.",
    "reserve": 'Room above capacity for follow-ups, redrives and restores. "auto": a tenth of it, at least 1,000.',
    "reserve_bytes": 'Room above capacity_bytes. "auto": a tenth of it, at least 64MiB.',
    "body_limit": "Largest body of an item.",
    "dead_letter_max": "Most dead items; beyond it the oldest are purged.",
    "dead_letter_bytes_max": "Most bytes of dead items; beyond it the oldest are purged.",
    "result_max": "Most completed and cancelled items that can still be asked for.",
    "result_bytes_max": "Most bytes of completed and cancelled items that can still be asked for.",
    "result_retention": "How long a completed or cancelled item can still be asked for.",
    "ended_lease_max": "Most ended leases whose acknowledgement can be repeated.",
    "ended_lease_retention": "How long a repeated acknowledgement gets the first answer again.",
    "request_id_max": "Most request ids that are remembered.",
    "request_id_retention": "A request id is remembered at least this long after its item ended.",
    "request_id_retention_max": "A request id is remembered at most this long after its item ended.",
    "ordering": "none, exclusive (one lease per key at a time) or fifo (that, in the order of arrival).",
    "key": "What a key is: the resource (type and id), or the partition key.",
    "fifo_head": "Whether a delayed or retrying item holds its key, or lets those behind it pass.",
    "tenant_attribute": "The attribute of a payload that names its tenant.",
    "tenant_weights": "Shares of tenants within a resource type; one that is not named weighs 1.",
    "limits": "Most weight leased at a time per resource type, tenant or key; the first that fits holds.",
    "starvation_every": "One grant in so many goes to a class that has waited for too long. 0: none does.",
    "starvation_after": "How long a class waits before starvation_every counts for it.",
    "high_watermark": 'Pending items at which backpressure begins. "auto": 80 % of capacity.',
    "low_watermark": 'Pending items at which backpressure ends. "auto": half of the high watermark.',
    "backpressure_cooldown": "Least time between two changes of backpressure.",
}
