"""A client that outlives the node: it enqueues, leases and completes, and repeats a call until it is answered.

python -m tests.crash.http_client '{"url": …, "name": …, "seed": …, "path": …}'

What was acknowledged goes to a file of its own, flushed to disk line by line, before the next call. What was asked
goes there first: a call whose answer was lost may have been carried out or not.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec


class Plan(msgspec.Struct, kw_only=True):
    url: str
    name: str
    seed: int
    path: str


class Record(msgspec.Struct, omit_defaults=True):
    """`asked` or `done`; the same number for the call and its answer."""

    kind: str
    verb: str
    number: int
    request_id: str | None = None
    ids: list[int] = []
    leases: list[tuple[int, int, int]] = []
    """Item, attempt, fence."""
    status: int = 200
    code: str | None = None


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        os.fsync(self._file.fileno())


class Client:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._journal = Journal(Path(plan.path))
        self._http = httpx.AsyncClient(base_url=plan.url, timeout=5)
        self._number = 0
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Until it is told to stop; then it finishes what it holds, against a node that stays up."""
        held: list[dict[str, Any]] = []
        while not self.stop.is_set():
            await self._enqueue()
            held += await self._lease()
            while held and self._random.random() < 0.7:
                await self._finish(held.pop())
        for lease in held:
            await self._finish(lease)
        await self._http.aclose()

    async def _call(self, verb: str, body: dict[str, Any], **about: Any) -> tuple[int, Any]:
        """The answer to a call, whoever gave it: the node that got it first, or one after it."""
        self._number += 1
        number = self._number
        self._journal.write(Record("asked", verb, number, **about))
        while True:
            try:
                response = await self._http.post(f"/v1/resourcelease/{verb}", json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.02)  # Nobody is there; who comes up next has no way to tell us.
                continue
            if response.status_code == 503:
                await asyncio.sleep(0.02)
                continue
            return number, response

    async def _enqueue(self) -> None:
        count = self._random.randint(1, 4)
        self._batch = self._number + 1
        request_id = f"{self._plan.name}-{self._batch}"
        items = [
            {
                "payload": {
                    "resourceType": "t",
                    "resourceId": f"{request_id}-{each}",
                    "requestId": f"{request_id}-{each}",
                }
            }
            for each in range(count)
        ]
        number, response = await self._call("enqueue", {"items": items}, request_id=request_id)
        answer = response.json()
        assert response.status_code == 200, answer
        ids = [each["sequenceId"] for each in answer["results"]]
        self._journal.write(Record("done", "enqueue", number, request_id=request_id, ids=ids))

    async def _lease(self) -> list[dict[str, Any]]:
        name = f"{self._plan.name}-l{self._number + 1}"
        body = {"peerId": self._plan.name, "maxItems": self._random.randint(1, 4), "waitMs": 200, "requestId": name}
        number, response = await self._call("lease", body, request_id=name)
        answer = response.json()
        assert response.status_code == 200, answer
        leases: list[dict[str, Any]] = answer["leases"]
        tokens = [lease["ownershipToken"] for lease in leases]
        seen = [(token["sequenceId"], token["attempt"], token["fence"]) for token in tokens]
        self._journal.write(Record("done", "lease", number, request_id=name, leases=seen))
        return leases

    async def _finish(self, lease: dict[str, Any]) -> None:
        verb = self._random.choice(("complete", "complete", "complete", "fail", "release"))
        token = lease["ownershipToken"]
        body: dict[str, Any] = {"ownershipToken": token}
        if verb == "fail":
            body["mode"] = self._random.choice(("retry", "dead"))
        number, response = await self._call(verb, body, ids=[token["sequenceId"]])
        # A lease may have run out while nobody was there; what came of it then is for the next owner to say.
        code = None if response.status_code == 200 else response.json()["code"]
        assert code in (None, "error.taskqueue.lease_inactive", "error.resourcelease.unknown_token"), response.text
        state = response.json().get("state", "completed") if code is None else None
        record = Record(
            "done", verb, number, ids=[token["sequenceId"]], status=response.status_code, code=code or state
        )
        self._journal.write(record)


async def main(plan: Plan) -> None:
    client = Client(plan)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop.set)
    print("running", flush=True)  # noqa: T201
    await client.run()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
