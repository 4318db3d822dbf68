"""The configuration keys for TLS, accounts and the audit log, which brokers and nameservers share."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.options import option
from cometmq.options.forms import PATH
from cometmq.remoting.tls.options import TlsOptions


@dataclass(frozen=True)
class SecurityOptions(TlsOptions):
    """A server's options for TLS, accounts and the audit log."""

    config_store_path: str = option(
        "",
        "Configuration file. Changes made at run time (request codes 25 and 318) are written to it, and plain_acl.yml "
        "is read from the same directory.",
        form=PATH,
    )
    acl_enable: bool = option(
        False, "Require every request to be signed by an account in plain_acl.yml that has the necessary permissions."
    )
    acl_path: str = option(
        "",
        "Directory of plain_acl.yml, acl/ and tools.yml. Empty: $ROCKETMQ_HOME/conf, or the configuration file's "
        "directory.",
        form=PATH,
    )
    authentication_enabled: bool = option(
        False, "ACL 2.0: require every request to be signed by a user. Cannot be combined with aclEnable."
    )
    authorization_enabled: bool = option(
        False, "ACL 2.0: also check the policies of users. If it is false, every user may do everything."
    )
    authentication_whitelist: str = option(
        "", "ACL 2.0: request codes that do not require a user, separated by commas."
    )
    authorization_whitelist: str = option(
        "", "ACL 2.0: request codes for which policies are not checked, separated by commas."
    )
    init_authentication_user: str = option(
        "", 'ACL 2.0: super user to create at startup: {"username":"…","password":"…"}.', secret=True
    )
    inner_client_authentication_credentials: str = option(
        "",
        'Account with which this server signs its requests to other servers: {"accessKey":"…","secretKey":"…"}. With '
        "ACL 2.0, it is created as a super user.",
        secret=True,
    )
    migrate_auth_from_v1_enabled: bool = option(
        False, "ACL 2.0: at startup, create the users and policies from plain_acl.yml that do not exist yet."
    )
    auth_config_path: str = option(
        "",
        "ACL 2.0: file with users and policies. Empty: config/auth.json in the store, or auth.json next to "
        "kvConfigPath.",
        form=PATH,
    )
    auth_key_path: str = option(
        "",
        "ACL 2.0: file with the key that encrypts users' passwords. Empty: $COMETMQ_AUTH_KEY. If there is no key, "
        "passwords are stored unencrypted.",
        form=PATH,
    )
    require_fresh_signatures: bool = option(
        False,
        "Accept only signed requests that contain a timestamp and a sequence number, so that they cannot be replayed. "
        "Only CometMQ's clients and servers send such requests.",
    )

    # --- audit log ------------------------------------------------------------------------------
    audit_log_enable: bool = option(
        False, "Write administrative requests, logins, denials and account changes to the audit log."
    )
    audit_log_path: str = option(
        "",
        "Audit log file. Empty: audit/audit.log in the store, or for a nameserver, audit.log next to kvConfigPath.",
        form=PATH,
    )
    audit_log_file_size: int = option(
        100 * 1024 * 1024, "Size at which a new audit log file is started, in bytes.", minimum=65_536, maximum=2**40
    )
    audit_log_file_count: int = option(
        10, "Maximum number of audit log files, including the current file.", minimum=2, maximum=1_000
    )
    audit_log_sampling: int = option(
        0, "Also write every Nth send and pull to the audit log. 0: none.", maximum=2**31 - 1
    )
