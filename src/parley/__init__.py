"""Parley: train models together without sharing data.

>>> with parley.connect("coordinator.example:7700", "certificates/analyst") as federation:
...     run = federation.start(Path("spec.yaml"))
...     print(run.result())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.client import Federation, RequestRefused, Run, connect
    from parley.estimator import FederatedClassifier, FederatedRegressor
    from parley.local import LocalFederation

__all__ = [
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "LocalFederation",
    "RequestRefused",
    "Run",
    "connect",
]

_HOMES = dict.fromkeys(("Federation", "RequestRefused", "Run", "connect"), "parley.client")
_HOMES["LocalFederation"] = "parley.local"
_HOMES |= dict.fromkeys(("FederatedClassifier", "FederatedRegressor"), "parley.estimator")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import parley` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'parley' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
