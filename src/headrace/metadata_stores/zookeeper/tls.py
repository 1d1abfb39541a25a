"""The TLS context of connections with ZooKeeper."""

from __future__ import annotations

import ssl

from headrace.errors import ConfigError
from headrace.metadata_stores.zookeeper.settings import ZooKeeperTls


def tls_context(tls: ZooKeeperTls) -> ssl.SSLContext:
    """Return the context of TLS connections.

    Raises:
        ConfigError: A file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.check_hostname = tls.verifies_host_name
        if tls.certificate_file is not None:
            context.load_cert_chain(tls.certificate_file, tls.key_file, tls.key_password or "")
    except OSError as error:
        files = [tls.ca_file, tls.certificate_file, tls.key_file]
        named = ", ".join(file for file in files if file is not None)
        raise ConfigError(f"TLS with ZooKeeper cannot use {named}: {error}") from error
    return context
