"""How a job reaches a cluster: nameservers, credentials and TLS, as options of source and sink that it hands on.

So every job takes the same options in the same way, and a secret that is named by file or variable is read where a
connection is opened, as :mod:`~.access` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.remoting.security import Security
from cometmq.spark.access import ACCESS_OPTION_NAMES, parse_access
from cometmq.spark.options import canonical_options

_FOLDED: Final = {name.lower(): name for name in ACCESS_OPTION_NAMES}


def access_options(given: Mapping[str, str] | None) -> dict[str, str]:
    """Credentials and TLS by the options' own names; nothing where the environment is to say all.

    :raises OptionError: an option is none of these, or some contradict each other; no message shows a secret.
    """
    values = canonical_options("what reaches servers", given or {}, _FOLDED)
    parse_access(values)
    return values


def reach(namesrv: str, access: Mapping[str, str] | None) -> dict[str, str]:
    """Options of source and sink that reach a cluster.

    :raises OptionError: as :func:`access_options`.
    """
    return {"namesrvAddr": namesrv, **access_options(access)}


def security_of(access: Mapping[str, str]) -> Security:
    """What connections of this process are to use now, by options with their own names.

    :raises CometMQError: files or variables that they name are not here.
    """
    return parse_access(access).security()
