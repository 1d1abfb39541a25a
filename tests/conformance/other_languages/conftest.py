"""The server under test, as for the clients."""

from tests.conformance.clients.conftest import observer, scratch, target, target_name

__all__ = ["observer", "scratch", "target", "target_name"]
