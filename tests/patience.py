"""How long a test waits before it calls a thing hung.

Far longer than anything takes, also on a machine that is busy with other things for seconds at a time: the wait ends
with the condition, so that only a test that fails takes this long. It is less than what pytest allows a test, so that
the failure names what was waited for.
"""

from __future__ import annotations

PATIENCE_S = 120.0
PATIENCE_MS = 120_000
