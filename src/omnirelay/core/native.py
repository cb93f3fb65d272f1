"""What tells the compiler how to lay a class out. Uncompiled it does nothing, and needs nothing installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**attributes):
        return lambda cls: cls
