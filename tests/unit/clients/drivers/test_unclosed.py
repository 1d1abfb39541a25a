"""Clients that are dropped without being closed, also while the process is forked."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.clients.drivers import unclosed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_clients_that_its_parent_closes() -> None:
    """(1) A thread closes a dropped client. (2) The process forks. (3) The child has no thread that finishes this."""
    ended = threading.Event()
    with pytest.warns(ResourceWarning, match="dropped without being closed"):
        unclosed.warn_unclosed(object(), "close()", ended.wait)
    try:
        assert unclosed._closing
        child = os.fork()
        if not child:
            os._exit(bool(unclosed._closing))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ended.set()
