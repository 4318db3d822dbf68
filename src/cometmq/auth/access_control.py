"""A server's access control: its accounts, its audit log, and the guard for its ports."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from cometmq.auth.audit.guard import AuditedGuard
from cometmq.auth.audit.log import AuditLog
from cometmq.auth.audit.recorder import AuditRecorder
from cometmq.auth.guard import AccessGuard
from cometmq.auth.limits import ACL_LOOK_SECONDS
from cometmq.auth.model import AccessModel
from cometmq.auth.options import SecurityOptions
from cometmq.auth.plain_files import TOOLS_FILE, PlainFiles
from cometmq.auth.user_access import (
    Named,
    UserAccess,
    codes_of,
    create_missing,
    credentials_of,
    migrate,
    parse_account,
)
from cometmq.auth.users import UserTable, read_key
from cometmq.clock import Clock
from cometmq.options import ConfigError
from cometmq.periodic import Periodic
from cometmq.remoting.security import PLAIN, Security, read_credentials
from cometmq.remoting.server import RequestGuard
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

HOME_VARIABLE: Final = "ROCKETMQ_HOME"


class AccessControl:
    """The accounts and the guard of one server."""

    def __init__(
        self, config: SecurityOptions, users: Path, cluster: str, audit: AuditRecorder | None = None, *, clock: Clock
    ) -> None:
        """Load the accounts.

        :param users: the file that contains the ACL 2.0 users.
        :param cluster: the name of the cluster, for policies that concern it.
        :param audit: records changes of the account files.
        :raises AuthError: the accounts cannot be read.
        :raises ConfigError: configuration keys contradict each other.
        """
        self.files: PlainFiles | None = None
        self.users: UserTable | None = None
        model: AccessModel
        if config.acl_enable:
            model = self.files = PlainFiles(acl_directory(config))
        else:
            self.users = _open_users(config, users)
            model = _user_access(config, self.users, cluster)
        self.guard: Final = AccessGuard(model, clock=clock, requires_stamps=config.require_fresh_signatures)
        self._audit = audit
        self.model: Final = model
        self._checks = Periodic("checking the account files", ACL_LOOK_SECONDS, self._check_files, clock=clock)

    def start(self) -> None:
        """Start checking the account files for changes periodically."""
        self._checks.start()

    async def stop(self) -> None:
        """Stop checking the files."""
        await self._checks.stop()

    async def _check_files(self) -> None:
        version = self.model.version
        if self.files is not None:
            await self.files.look()
        if self.users is not None:
            await in_thread(self.users.look)
        if self._audit is not None and self.model.version != version:
            self._audit.accounts_changed()


def open_access(
    config: SecurityOptions, users: Path, cluster: str, audit: AuditRecorder | None = None, *, clock: Clock
) -> AccessControl | None:
    """Create the access control specified in a configuration; see :class:`AccessControl`."""
    if config.acl_enable and (config.authentication_enabled or config.authorization_enabled):
        raise ConfigError(
            "aclEnable and authenticationEnabled cannot both be set",
            next_step="choose ACL 1.0 (aclEnable) or ACL 2.0 (authenticationEnabled and authorizationEnabled)",
        )
    if config.authorization_enabled and not config.authentication_enabled:
        raise ConfigError("authorizationEnabled=true requires accounts: set authenticationEnabled=true too")
    if not config.acl_enable and not config.authentication_enabled:
        if config.require_fresh_signatures:
            raise ConfigError("requireFreshSignatures=true requires accounts: set aclEnable or authenticationEnabled")
        return None
    return AccessControl(config, users, cluster, audit, clock=clock)


def open_audit(config: SecurityOptions, default: Path, server: str, *, clock: Clock) -> AuditRecorder | None:
    """Create a server's audit recorder, or return ``None`` if ``auditLogEnable`` is not set.

    :param default: the file to use if ``auditLogPath`` is empty.
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


def guard_of(access: AccessControl | None, audit: AuditRecorder | None) -> RequestGuard | None:
    """Return the guard for a server's ports; ``audit`` records denied requests."""
    guard = None if access is None else access.guard
    return guard if audit is None else AuditedGuard(guard, audit)


def _open_users(config: SecurityOptions, path: Path) -> UserTable:
    table = UserTable(path, read_key(config.auth_key_path))
    create_missing(table, _init_user(config), _inner_client(config))
    if config.migrate_auth_from_v1_enabled:
        made = migrate(table, PlainFiles(acl_directory(config)))
        _log.info("%d accounts from plain_acl.yml were migrated to users", made)
    if not table.users:
        raise ConfigError(
            "authenticationEnabled=true, but no user exists",
            next_step='set initAuthenticationUser={"username":"…","password":"…"}',
        )
    return table


def _user_access(config: SecurityOptions, table: UserTable, cluster: str) -> UserAccess:
    return UserAccess(
        table,
        cluster=cluster,
        authorizes=config.authorization_enabled,
        unsigned=codes_of("authenticationWhitelist", config.authentication_whitelist),
        unchecked=codes_of("authorizationWhitelist", config.authorization_whitelist),
    )


def _init_user(config: SecurityOptions) -> Named | None:
    return parse_account("initAuthenticationUser", config.init_authentication_user, "username", "password")


def _inner_client(config: SecurityOptions) -> Named | None:
    text = config.inner_client_authentication_credentials
    return parse_account("innerClientAuthenticationCredentials", text, "accessKey", "secretKey")


def own_security(config: SecurityOptions) -> Security:
    """Return the account with which a server signs its requests to other servers.

    The account is in ``innerClientAuthenticationCredentials``, or for ACL 1.0 in ``tools.yml`` in the accounts'
    directory.

    :raises SecurityConfigError: the file cannot be used.
    :raises ConfigError: the configuration key cannot be used.
    """
    inner = credentials_of(_inner_client(config))
    if inner is not None:
        return Security(inner)
    if not config.acl_enable:
        return PLAIN
    file = acl_directory(config) / TOOLS_FILE
    return Security(read_credentials(file)) if file.exists() else PLAIN


def acl_directory(config: SecurityOptions) -> Path:
    """Return ``aclPath``; if it is not set, return ``$ROCKETMQ_HOME/conf`` or else the configuration file's directory.

    :raises ConfigError: none of these is set.
    """
    if config.acl_path:
        return Path(config.acl_path)
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home, "conf")
    if config.config_store_path:
        return Path(config.config_store_path).absolute().parent
    raise ConfigError(
        "no directory for plain_acl.yml is configured",
        next_step=f"set aclPath, set ${HOME_VARIABLE}, or specify a configuration file with -c",
    )
