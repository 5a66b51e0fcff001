"""Assembly of a broker from its parts; `Broker` starts and stops one in this process."""

from kbroker.broker.broker import Broker, BrokerStartError, StartCancelled

__all__ = ["Broker", "BrokerStartError", "StartCancelled"]
