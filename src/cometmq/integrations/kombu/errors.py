"""Errors in the classes of Kombu, and with the names that settings have in Celery."""

from __future__ import annotations

from typing import Final, NoReturn

from kombu.exceptions import OperationalError

from cometmq.client.errors import RemotingError, RouteNotFoundError, SendFailedError
from cometmq.client.retries import is_not_now
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.envelope import Payload

_NAMES: Final = (
    ("set trust_cert_path", "set ca_certs in broker_use_ssl"),
    ("check_host=False", "check_hostname=False"),
    ("set cert_path", "set certfile in broker_use_ssl"),
    ("max_message_bytes in the producer", "max_message_bytes in broker_transport_options"),
    ("set an access key and its secret key", "write them into broker_url, as in cometmq://ACCESS_KEY:SECRET_KEY@HOST"),
)


_TRANSIENT: Final = 1
"""AMQP's ``delivery_mode`` of messages that need not survive."""


class RefusedError(OperationalError):
    """A request was refused, and would be refused again; ``__cause__`` is CometMQ's error."""


class NotNowError(RefusedError):
    """A broker is stopping, has no room, or has too much to do; the request may be repeated."""


CONNECTION_ERRORS: Final = (RemotingError, RouteNotFoundError, SendFailedError, NotNowError)
"""Errors after which Kombu connects again and repeats a request; Kombu raises ``OperationalError`` when it gives up."""


def worded(error: CometMQError) -> CometMQError:
    """Return the error, in whose next step settings have their names in Celery."""
    for ours, celerys in _NAMES:
        if error.next_step is not None:
            error.next_step = error.next_step.replace(ours, celerys)
    return error


def raise_to_kombu(error: CometMQError) -> NoReturn:
    """Raise an error to Kombu, which handles some of CometMQ's, and whose users know its own.

    :raises CometMQError: one of ``CONNECTION_ERRORS``.
    :raises NotNowError: a broker that answers cannot do it now.
    :raises RefusedError: any other error.
    """
    if isinstance(worded(error), CONNECTION_ERRORS):
        raise error
    raise (NotNowError if is_not_now(error) else RefusedError)(str(error)) from error


def raise_for_readers(error: Exception, payload: Payload) -> NoReturn:
    """Raise the error of a message that was not sent to the readers of an exchange.

    Kombu repeats a worker's heartbeat without end, and the worker then does nothing else: it could not even stop.
    Celery keeps events that were not sent, and sends them later.

    :raises RefusedError: the message is an event or another one that need not be kept (``delivery_mode`` 1).
    """
    if payload["properties"].get("delivery_mode") == _TRANSIENT:
        raise RefusedError(str(error)) from error
    raise error
