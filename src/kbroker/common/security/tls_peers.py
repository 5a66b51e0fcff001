"""Reasons of failed TLS handshakes that show the security of the peer."""

import ssl

#: OpenSSL's reasons for bytes that are not TLS: of Kafka's protocol, and of HTTP.
_OTHER_BYTES = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def sent_other_bytes(error: BaseException) -> bool:
    """Return whether a handshake failed because the peer sent bytes that are not TLS."""
    return isinstance(error, ssl.SSLError) and error.reason in _OTHER_BYTES
