"""Connections to controllers: TLS and SASL as configured for their listener."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.client.cluster import negotiate
from kbroker.client.connection import Address, Connection, open_plaintext
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_member import controller_listener

_TLS_KEYS = (
    *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"),
    *("ssl.key.password", "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates"),
    "ssl.endpoint.identification.algorithm",
)

Connect = Callable[[Address], Connection]


class ControllerConnections:
    """Factory of connections to controllers. Raises: ConfigError for settings that no connection can use."""

    def __init__(self, config: BrokerConfig) -> None:
        self._name, protocol = controller_listener(config)
        self._security = None
        if protocol == "PLAINTEXT":
            return
        from kbroker.client.security import ClientSecurity

        mechanism = config.text("sasl.mechanism.controller.protocol")
        values = {key: config.listener_value(self._name, key) for key in _TLS_KEYS}
        values["sasl.jaas.config"] = config.listener_value(self._name, f"{mechanism.lower()}.sasl.jaas.config")
        properties = {key: str(value) for key, value in values.items() if value is not None}
        try:
            self._security = ClientSecurity({**properties, "security.protocol": protocol, "sasl.mechanism": mechanism})
        except ValueError as error:
            raise ConfigError("", protocol, f"listener {self._name} of the controllers: {error}") from None

    def connect(self, address: Address, client_id: str, timeout_s: float) -> Connection:
        """Return a connection with negotiated versions, logged in.

        Raises: BrokerConnectionError; KafkaError, if the login is refused.
        """
        security = self._security
        connection = Connection(
            address,
            client_id=client_id,
            connect_timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            open_stream=open_plaintext if security is None else security.open_stream,
        )
        try:
            negotiate(connection, timeout_s)
            if security is not None:
                security.authenticate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def renew(self, connection: Connection) -> None:
        """Renew the login of a connection if it is about to expire (KIP-368). Raises: as `connect`."""
        if self._security is not None and connection.needs_renewal():
            self._security.authenticate(connection)
