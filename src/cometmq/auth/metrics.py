"""Access metrics: requests denied by quotas and permissions, and audit log entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq.auth.audit.recorder import AuditRecorder
from cometmq.auth.guard import AccessGuard
from cometmq.auth.quota.limiter import Limiter
from cometmq.metrics.family import Family, Kind, Sample

_QUOTA: Final = ("subject", "limit")
QUOTA_DENIED: Final = Family(
    "cometmq_quota_denied_total",
    Kind.COUNTER,
    "Requests denied because of a quota for an account, an address or a group (subject).",
    _QUOTA,
)
QUOTA_DELAYED: Final = Family(
    "cometmq_quota_delayed_total", Kind.COUNTER, "Requests delayed because of a quota.", _QUOTA
)
ACCESS_DENIED: Final = Family(
    "cometmq_access_denied_total", Kind.COUNTER, "Requests without the required signature or permission."
)
AUDIT_ENTRIES: Final = Family(
    "cometmq_audit_entries_total", Kind.COUNTER, "Audit log entries that were written or lost.", ("outcome",)
)
AUDIT_WAITING: Final = Family("cometmq_audit_waiting_bytes", Kind.GAUGE, "Size of pending audit log entries.")
FAMILIES: Final = (QUOTA_DENIED, QUOTA_DELAYED, ACCESS_DENIED, AUDIT_ENTRIES, AUDIT_WAITING)


def of_access(guard: AccessGuard | None, limiter: Limiter | None, audit: AuditRecorder | None) -> Iterator[Sample]:
    """Yield the access metrics for the components that the server uses."""
    if guard is not None:
        yield ACCESS_DENIED, (), guard.denials
    if limiter is not None:
        for family, counts in ((QUOTA_DENIED, limiter.denied), (QUOTA_DELAYED, limiter.delayed)):
            for (kind, limit), count in counts.items():
                yield family, (kind.value, limit), count
    if audit is not None:
        log = audit.log
        yield AUDIT_ENTRIES, ("written",), log.written
        yield AUDIT_ENTRIES, ("lost",), log.lost
        yield AUDIT_WAITING, (), log.waiting_bytes
