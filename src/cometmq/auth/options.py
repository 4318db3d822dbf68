"""The configuration keys for TLS, accounts and the audit log, which brokers and nameservers share."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.options import option
from cometmq.options.forms import PATH
from cometmq.remoting.tls.options import TlsOptions


@dataclass(frozen=True)
class SecurityOptions(TlsOptions):
    """The configuration of TLS, accounts and the audit log of a server."""

    config_store_path: str = option(
        "",
        "The configuration file: changes made at run time (codes 25 and 318) are written to it, and plain_acl.yml is "
        "looked for beside it.",
        form=PATH,
    )
    acl_enable: bool = option(
        False, "Ask every request for the signature of an account in plain_acl.yml, and for its permissions."
    )
    acl_path: str = option(
        "",
        "Directory of plain_acl.yml, acl/ and tools.yml. Empty: $ROCKETMQ_HOME/conf, else that of the configuration "
        "file.",
        form=PATH,
    )
    authentication_enabled: bool = option(
        False, "ACL 2.0: ask every request for the signature of a user; excludes aclEnable."
    )
    authorization_enabled: bool = option(
        False, "ACL 2.0: ask the policies of users, too. Without it every user may do everything."
    )
    authentication_whitelist: str = option("", "ACL 2.0: request codes that need no user, joined by commas.")
    authorization_whitelist: str = option(
        "", "ACL 2.0: request codes for which policies are not asked, joined by commas."
    )
    init_authentication_user: str = option(
        "", 'ACL 2.0: super user made at the start: {"username":"…","password":"…"}.', secret=True
    )
    inner_client_authentication_credentials: str = option(
        "",
        'Account with which this server signs its requests to other servers: {"accessKey":"…","secretKey":"…"}; with '
        "ACL 2.0 it is made as a super user.",
        secret=True,
    )
    migrate_auth_from_v1_enabled: bool = option(
        False, "ACL 2.0: make users and policies of plain_acl.yml at the start, where they do not exist."
    )
    auth_config_path: str = option(
        "",
        "ACL 2.0: file of users and policies. Empty: auth.json in config/ of the store, or beside kvConfigPath.",
        form=PATH,
    )
    auth_key_path: str = option(
        "",
        "ACL 2.0: file with the key that encrypts passwords in the file of users. Empty: $COMETMQ_AUTH_KEY, else they "
        "are not encrypted.",
        form=PATH,
    )
    require_fresh_signatures: bool = option(
        False,
        "Take only signed requests that carry their time and number, so that nobody can send one again: clients and "
        "servers of CometMQ do, others do not.",
    )

    # --- audit log ------------------------------------------------------------------------------
    audit_log_enable: bool = option(
        False, "Write administration, logins, denials and changes of accounts to the audit log."
    )
    audit_log_path: str = option(
        "",
        "File of the audit log. Empty: audit/audit.log in the store, of a nameserver audit.log beside kvConfigPath.",
        form=PATH,
    )
    audit_log_file_size: int = option(
        100 * 1024 * 1024, "Bytes after which the audit log goes on in a new file.", minimum=65_536, maximum=2**40
    )
    audit_log_file_count: int = option(
        10, "Files of the audit log, the one being written included.", minimum=2, maximum=1_000
    )
    audit_log_sampling: int = option(
        0, "Write one of so many sends and pulls to the audit log, too; 0: none.", maximum=2**31 - 1
    )
