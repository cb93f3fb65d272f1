"""From items and leases to their records, and back. Apart from `records` so that it can be compiled: a snapshot is
millions of these.
"""

from __future__ import annotations

from omnirelay.core.items import Item, Lease, intern_strings
from omnirelay.core.records import ItemRecord, LeaseRecord


def record_of_lease(lease: Lease) -> LeaseRecord:
    return LeaseRecord(
        lease.token,
        lease.owner,
        lease.principal,
        lease.granted_at,
        lease.deadline,
        lease.duration,
        lease.request_key,
        lease.heartbeat_at,
        lease.verb,
        lease.ended_at,
        lease.answer_state,
        lease.answer_not_before,
        lease.follow_up_ids,
    )


def lease_of(record: LeaseRecord) -> Lease:
    lease = Lease(
        record.token,
        record.owner,
        record.principal,
        record.granted_at,
        record.deadline,
        record.duration,
        record.request_key,
    )
    lease.heartbeat_at = record.heartbeat_at
    lease.verb = record.verb
    lease.ended_at = record.ended_at
    lease.answer_state = record.answer_state
    lease.answer_not_before = record.answer_not_before
    lease.follow_up_ids = record.follow_up_ids
    return lease


def record_of_item(item: Item) -> ItemRecord:
    lease = item.lease
    return ItemRecord(
        item.sequence_id,
        item.payload,
        item.state,
        item.stamp,
        item.attempt,
        item.priority,
        item.weight,
        item.max_attempts,
        item.enqueued_at,
        item.not_before,
        item.size,
        item.request_key,
        item.order,
        None if lease is None else record_of_lease(lease),
        item.trail,
        item.ended_at,
    )


def item_of(record: ItemRecord) -> Item:
    intern_strings(record.payload)
    item = Item(
        record.sequence_id,
        record.payload,
        record.state,
        record.stamp,
        record.attempt,
        record.priority,
        record.weight,
        record.max_attempts,
        record.enqueued_at,
        record.not_before,
        record.size,
        record.request_key,
        record.order,
    )
    if record.lease is not None:
        item.lease = lease_of(record.lease)
    item.trail = record.trail
    item.ended_at = record.ended_at
    return item
