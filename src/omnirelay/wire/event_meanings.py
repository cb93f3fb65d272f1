"""What each event type and each of its fields means, in words. The schema and its page take them from here."""

from __future__ import annotations

from typing import Final

from omnirelay.errors import Internal

_TYPES: Final = {
    "Enqueue": "An item came in.",
    "LeaseGranted": "A peer owns the item until `expiresAt`. The event's own number is the fence of the lease.",
    "Heartbeat": "The owner is alive, and the lease lasts longer.",
    "Completed": "The work is done. Follow-ups are the Enqueue events right behind it.",
    "Failed": "The owner gave up. When that was the last attempt, DeadLettered follows.",
    "DrainSnapshot": "Pending items left the shard in the answer to a drain.",
    "RestoreSnapshot": "Items that a drain had handed out came in, whole.",
    "Expired": "The lease ran out.",
    "DeadLettered": "The item will not be tried again. Comes behind the Failed or Expired event that was its end.",
    "Redriven": "Dead items are pending again, with fresh attempts.",
    "Released": "The item is pending again, and the attempt does not count.",
    "Cancelled": "The item is ended without having been done.",
    "Paused": "A resource type, a tenant, or with neither the whole shard, grants nothing for now.",
    "Resumed": "A pause is over.",
    "BackpressureChanged": "Something closes intake, or no longer does: how much is pending, or what `cause` names.",
    "LeaderElected": "A writer took the shard over, or goes on with the same epoch after its disk refused writes, or"
    " it stood still, for a while. Live leases last longer by the time nobody could heartbeat.",
    "CancelRequested": "The owner of the item is asked to stop.",
    "DeadLetterEdited": "The payload of a dead item was replaced.",
    "Purged": "Ended items were forgotten: named ones, or all completed and cancelled ones up to an event.",
    "OptionsChanged": "The options of the shard are these from now on.",
    "GenerationStarted": "History up to here is not proven complete; numbers jump ahead of it.",
    "TimeAdvanced": "Time went by: delays ended and memories ran out, up to this instant.",
}

_FIELDS: Final = {
    "eventType": "Name of the type.",
    "sequenceNumber": "Place in the log of the shard. It rises by one, except at a GenerationStarted event.",
    "timestamp": "When it happened, by the clock of the shard.",
    "schemaVersion": "Version of the schema it was written in; 1 when it is left out in the log.",
    "sequenceId": "The item.",
    "sequenceIds": "The items.",
    "payload": "The work itself.",
    "priority": "0 to 9; 0 is next whenever it offers anything.",
    "weight": "How much of a limit it takes up.",
    "notBefore": "Not leased before this instant.",
    "maxAttempts": "Most attempts of this item, when it has a number of its own.",
    "parentSequenceId": "The item whose completion brought this one.",
    "requestKey": "Fingerprint of the request id, by which a repeated enqueue is recognised.",
    "payloadDigest": "Fingerprint of what was enqueued: a repeated request id with something else is refused.",
    "peerId": "Who called, as it named itself.",
    "principal": "Who called, as it was authenticated.",
    "ownership": "The lease.",
    "expiresAt": "The lease ends then, unless it is renewed.",
    "guard": "The starvation guard chose it, although another class came first.",
    "progress": "How far the work is, as the owner put it.",
    "result": "What the owner left as the result.",
    "resultEncoding": "Media type of the result.",
    "followUpIds": "The items that this completion brought.",
    "error": "What went wrong.",
    "mode": "What becomes of the item.",
    "nextAttempt": "Number of the attempt to come, when there is one.",
    "metadata": "What the owner said about the failure.",
    "items": "The items, whole.",
    "undelivered": "No sign of life ever came for this lease, so that the attempt does not count.",
    "reason": "Why, for people.",
    "resourceType": "The resource type it is about.",
    "tenant": "The tenant it is about.",
    "intake": "Nothing is taken in, either.",
    "until": "The pause ends by itself then.",
    "active": "It closes intake.",
    "pending": "Items that were pending.",
    "cause": "What closes intake, when it is not how much is pending.",
    "others": "The causes that keep intake closed whatever this one does.",
    "highWatermark": "Intake closes at so many.",
    "lowWatermark": "Intake opens again at so many.",
    "downFrom": "The last proof before it that a writer lived.",
    "epoch": "Number of the writer; never falls.",
    "owner": "Name of the node that writes.",
    "endedUpTo": "Everything that ended up to this event is forgotten.",
    "options": "All options of the shard.",
    "generation": "Number of the generation.",
    "nextSequenceId": "Items are numbered from here on.",
}

_OF: Final = {
    "LeaseGranted": {
        "requestKey": "The request id of the lease call, by which a repeated one is recognised.",
        "peerId": "The owner, as it named itself.",
    },
    "DeadLettered": {
        "error": "Why it was the last attempt.",
    },
    "Purged": {
        "reason": "Whether somebody asked for it, or a cap on what is remembered was reached.",
    },
    "Redriven": {
        "notBefore": "Not leased before these instants, in the order of `sequenceIds`, when a rate was asked for.",
    },
    "payload": {
        "resourceType": "Kind of the resource.",
        "resourceId": "Which resource.",
        "partitionKey": "Key of its partition; the resource id when it is left out.",
        "payloadEncoding": "Media type of the body.",
        "body": "What the worker gets.",
        "attributes": "Names and texts that the caller added.",
        "requestId": "Id by which the caller repeats an enqueue safely.",
    },
    "ownership": {
        "attempt": "Which attempt of the item it is, from 1.",
        "leaseId": "Id of the lease, a UUID.",
        "fence": "The number that downstream stores compare: that of the LeaseGranted event.",
    },
    "error": {
        "message": "For people.",
        "code": "For programs.",
    },
    "items": {
        "attempt": "The attempt to come.",
        "enqueuedAt": "When it first came in.",
        "lastError": "Why its last attempt failed.",
        "lastOwnershipToken": "Its last lease.",
        "progress": "How far its last owner was.",
        "attemptFloor": "Attempts made before it was last redriven; they do not count.",
        "undelivered": "Leases in a row that ran out without any sign of life.",
    },
}
"""Fields of one event type or one object, which mean something of their own there."""

_ALIASES: Final = {"lastError": "error", "lastOwnershipToken": "ownership"}
"""Objects that have the members of another one."""


def meaning_of(owner: str, field: str | None = None) -> str:
    """What an event type means, or a field of it; `owner` may be the name of an object too. Raises Internal when that
    was never written down.
    """
    if field is None:
        meaning = _TYPES.get(owner)
    else:
        meaning = _OF.get(_ALIASES.get(owner, owner), {}).get(field) or _FIELDS.get(field)
    if meaning is None:
        raise Internal(f"nobody has written down yet what {owner}{'.' if field else ''}{field or ''} means")
    return meaning
