"""What the headers of a call may say, and what no header can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnirelay.transport.http_headers import read_headers, request_meta


@given(st.sampled_from(["rpc-ttl-ms", "context-ttl-ms"]), st.floats(0, 1e9), st.sampled_from(["{}", " {}", "{:e}"]))
def test_a_time_to_live_may_have_a_fraction(name: str, ttl_ms: float, written: str) -> None:
    """Clients that compute it send one."""
    meta = request_meta({name: written.format(ttl_ms)}, "ns::verb", "node", 100.0)
    assert meta.deadline is not None
    assert abs(meta.deadline - 100.0 - ttl_ms / 1000) <= 1e-6 * (1 + ttl_ms)


CLAIMS = ("authorization", "rpc.principal", "rpc-principal", "x-client-principal", "x-mtls-subject", "x-forwarded-user")


@given(
    st.dictionaries(st.sampled_from([*CLAIMS, *(f"rpc-header-{name}" for name in CLAIMS)]), st.text("ab:=", min_size=1))
)
def test_no_header_makes_a_principal(claims: dict[str, str]) -> None:
    """A principal is who the caller was found to be; what it says about itself is a peer id at most."""
    raw = [(name.encode(), value.encode()) for name, value in claims.items()]
    meta = request_meta(read_headers(raw), "ns::verb", "node", 0.0)
    assert (meta.principal, meta.peer_id) == (None, None)
