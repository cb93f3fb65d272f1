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
    from omnirelay.errors import OmniRelayError

__all__ = [
    "OmniRelayError",
    "__version__",
]

_EXPORTS = {
    "OmniRelayError": "omnirelay.errors",
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
