"""The audit log that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from cometmq.auth.audit.log import AuditLog
from cometmq.auth.audit.recorder import AuditRecorder
from cometmq.auth.options import SecurityOptions
from cometmq.clock import Clock


def open_audit(config: SecurityOptions, default: Path, server: str, *, clock: Clock) -> AuditRecorder | None:
    """The recorder of a server; ``None`` without ``auditLogEnable``.

    :param default: the file where ``auditLogPath`` names none.
    :param server: the name of the server in entries.
    """
    if not config.audit_log_enable:
        return None
    log = AuditLog(
        Path(config.audit_log_path) if config.audit_log_path else default,
        size=config.audit_log_file_size,
        count=config.audit_log_file_count,
        server=server,
        clock=clock,
    )
    return AuditRecorder(log, config.audit_log_sampling, clock=clock)
