"""A broker's quotas in ``quotas.json``. The most specific quota applies to a subject.

``quotas.json.bak`` has the same content and is read if the file is damaged. If both are damaged, the broker does not
start, because no subject would be limited.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cometmq.auth.limits import MAX_QUOTA_FILE_BYTES, MAX_QUOTAS
from cometmq.auth.model import AuthError
from cometmq.auth.quota.meter import Quota
from cometmq.auth.quota.model import EVERY, Limits, Subject, SubjectKind
from cometmq.durable import replace_file
from cometmq.errors import reason_of
from cometmq.message.hosts import parsed_ip

_log = logging.getLogger(__name__)


class StoredQuotas(msgspec.Struct):
    """The content of the quota file: limits by subject."""

    quotas: dict[str, Limits] = {}


class QuotaTable:
    """Quotas by subject. Changes are written before they are applied."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        :raises AuthError: both the file and its ``.bak`` are invalid.
        """
        self.path: Final = path
        self._backup: Final = path.with_name(path.name + ".bak")
        self.version = 0
        """A number that grows with every change."""
        self.quotas: dict[Subject, Quota] = {}
        self.kinds: frozenset[SubjectKind] = frozenset()
        """The kinds of subjects that have quotas."""
        self.on_change: list[Callable[[], None]] = []
        """Called after each change."""
        self.lock: Final = asyncio.Lock()
        """Held from :meth:`changed` until :meth:`use`."""
        self._networks: dict[tuple[int, int], dict[int, Quota]] = {}
        self._widths: list[tuple[int, int]] = []
        """The IP version and prefix length of each network, longest prefix first."""
        try:
            read = _read(path)
        except AuthError as error:
            if not self._backup.exists():
                raise
            read = _read(self._backup)
            _log.error("%s; using %s instead", error, self._backup)
        self._use({subject: Quota(subject, limits) for subject, limits in read.items()})

    @property
    def limits(self) -> dict[Subject, Limits]:
        """The limits by subject."""
        return {subject: quota.limits for subject, quota in self.quotas.items()}

    def changed(self, subject: Subject, limits: Limits | None) -> dict[Subject, Limits]:
        """Return all limits, with one subject's limits replaced or removed.

        :raises AuthError: there are too many quotas.
        """
        found = {one: own for one, own in self.limits.items() if one != subject}
        if limits is not None:
            if subject not in self.quotas and len(found) >= MAX_QUOTAS:
                raise AuthError(
                    f"the maximum of {MAX_QUOTAS:,} quotas has been reached",
                    next_step="delete some, or use * or networks as subjects",
                )
            found[subject] = limits
        return found

    def save(self, found: dict[Subject, Limits]) -> None:
        """Write all quotas to the file; must be called in a worker thread.

        :raises AuthError: the file cannot be written; the old one is unchanged.
        """
        data = msgspec.json.encode(StoredQuotas({str(subject): limits for subject, limits in found.items()}))
        text = msgspec.json.format(data, indent=2)
        try:
            for path in (self._backup, self.path):
                replace_file(path, text, private=True)
        except OSError as error:
            raise AuthError(f"{self.path} cannot be written: {reason_of(error)}") from None

    def use(self, found: dict[Subject, Limits]) -> None:
        """Apply quotas, keeping the denial counters."""
        quotas: dict[Subject, Quota] = {}
        for subject, limits in found.items():
            quota = self.quotas.get(subject) or Quota(subject, limits)
            quota.limits = limits
            quotas[subject] = quota
        self._use(quotas)
        for listener in self.on_change:
            listener()

    def match(self, kind: SubjectKind, name: str) -> Quota | None:
        """Return a subject's quota: its own, that of the smallest network containing it, or that of its kind."""
        own = self.quotas.get(Subject(kind, name))
        if own is not None:
            return own
        if kind is SubjectKind.ADDRESS and self._widths:
            found = self._of_network(name)
            if found is not None:
                return found
        return self.quotas.get(Subject(kind, EVERY))

    def _of_network(self, name: str) -> Quota | None:
        address = parsed_ip(name)
        if address is None:
            return None
        number = int(address)
        for width in self._widths:
            version, length = width
            if version == address.version:
                found = self._networks[width].get(number >> (address.max_prefixlen - length))
                if found is not None:
                    return found
        return None

    def _use(self, quotas: dict[Subject, Quota]) -> None:
        self.quotas = quotas
        self.kinds = frozenset(subject.kind for subject in quotas)
        self._networks = {}
        for subject, quota in quotas.items():
            if subject.kind is SubjectKind.ADDRESS and "/" in subject.name:
                network = ipaddress.ip_network(subject.name)
                bits = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
                self._networks.setdefault((network.version, network.prefixlen), {})[bits] = quota
        self._widths = sorted(self._networks, reverse=True)
        self.version += 1


def _read(path: Path) -> dict[Subject, Limits]:
    try:
        if path.stat().st_size > MAX_QUOTA_FILE_BYTES:
            raise AuthError(f"{path} is too large")
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise AuthError(f"{path} cannot be read: {reason_of(error)}") from None
    try:
        stored = msgspec.json.decode(data, type=StoredQuotas)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise AuthError(
            f"{path} is not a valid quota file", next_step="correct the file, or delete it and set the quotas again"
        ) from None
    if len(stored.quotas) > MAX_QUOTAS:
        raise AuthError(f"{path} has more than {MAX_QUOTAS:,} quotas")
    found: dict[Subject, Limits] = {}
    for text, limits in stored.quotas.items():
        limits.check()
        found[Subject.parse(text)] = limits
    return found
