"""What a node says at its start about settings that it cannot live up to."""

from __future__ import annotations

import msgspec
import pytest

from omnirelay.node.node import Node
from tests.integration.nodes import settings_for


@pytest.mark.parametrize(("grpc_port", "warned"), [(None, []), (18_001, [18_001])])
async def test_a_node_that_is_given_a_grpc_port_says_that_nothing_listens_there(
    caplog: pytest.LogCaptureFixture, grpc_port: int | None, warned: list[int]
) -> None:
    settings = settings_for(None)
    node = Node(msgspec.structs.replace(settings, node=msgspec.structs.replace(settings.node, grpc_port=grpc_port)))
    await node.start()
    await node.stop()
    said = [record for record in caplog.records if record.message == "grpc_not_served"]
    assert [(record.levelname, record.grpc_port) for record in said] == [("WARNING", each) for each in warned]  # type: ignore[attr-defined]
