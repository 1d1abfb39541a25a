"""TLS of listeners: certificates, handshakes and the encrypted channel."""
