"""Middleware that counts calls and their time."""

from __future__ import annotations

import asyncio
import time

from omnirelay.errors import OmniRelayError
from omnirelay.rpc.calls import Call, Reply
from omnirelay.rpc.dispatcher import Middleware, Proceed
from omnirelay.rpc.statuses import status_name
from omnirelay.telemetry.meters import CallMeter


def metered(meter: CallMeter) -> Middleware:
    async def metered(call: Call, proceed: Proceed) -> Reply:
        started = time.perf_counter()
        status = "Internal"
        try:
            reply = await proceed(call)
            status = "Ok"
            return reply
        except OmniRelayError as error:
            status = status_name(error.status)
            raise
        except asyncio.CancelledError:
            status = _cancelled(call)
            raise
        finally:
            meter.take(call.meta.procedure, call.meta.transport, status, time.perf_counter() - started)

    return metered


def _cancelled(call: Call) -> str:
    """What the caller hears of it: nobody else is there to hear of a call that was cancelled for another reason."""
    if not call.cut_off:
        return "Cancelled"
    return "Ok" if call.has_late_answer else "DeadlineExceeded"
