"""Limits for accounts, the audit log and quotas, with the unit in each name."""

from __future__ import annotations

from typing import Final

# --- Accounts -----------------------------------------------------------------------------------
MAX_ACL_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of an account file (``plain_acl.yml``), enough for 10,000 accounts, which take about a second to parse.
"""
MAX_ACL_FILE_DEPTH: Final = 16
"""Maximum nesting depth of an account file; four levels are sufficient."""
MAX_ACL_FILE_VALUES: Final = 400_000
"""Maximum number of values, keys and brackets in an account file."""
MAX_ACL_FILES: Final = 1_000
"""Maximum number of account files in a directory tree."""
MAX_COPIED_ACL_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of all account files together that the members of a set copy, enough for 40,000 accounts."""
MAX_ACL_PATH_CHARS: Final = 1_024
"""Maximum length of the path of a copied account file below its directory."""
MAX_ACL_BODY_BYTES: Final = 262_144
"""Maximum size of a request body that changes a user or policies, enough for about a thousand entries."""
MAX_USERS: Final = 10_000
"""Maximum number of ACL 2.0 users; a user with a few policies needs about 1 KB."""
MAX_USERS_FILE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of ``auth.json``, enough for the maximum number of users with 30 policy entries each (220 bytes each),
which take about four seconds to read. A change that would make the file larger is refused.
"""
SIGNATURE_SECONDS: Final = 300.0
"""Time for which a stamped signature is valid by the server's clock; Kerberos has the same limit."""
SIGNATURE_AHEAD_SECONDS: Final = 60.0
"""Maximum time by which a client's clock may be ahead of the server's clock."""
SIGNATURE_WINDOW: Final = 1_024
"""Maximum number of a signer's later requests that may arrive before an earlier one."""
MAX_SIGNERS: Final = 50_000
"""Maximum number of signers whose latest requests are remembered, at about 500 bytes each."""
ACL_LOOK_SECONDS: Final = 1.0
"""Pause between two checks of the account files; a change takes effect after two checks, within 3 s."""
MAX_CACHED_DECISIONS: Final = 4_096
"""Maximum number of permissions cached for a connection's account; further permissions are checked each time."""

# --- Audit log ----------------------------------------------------------------------------------
MAX_AUDIT_QUEUE_BYTES: Final = 8_388_608
"""Maximum total size of pending audit entries (about 25,000); the last quarter is reserved for administration."""
MAX_AUDIT_TEXT_CHARS: Final = 512
"""Maximum length of a name, a reason or a body in an audit entry; longer texts are truncated."""
MAX_AUDIT_ENTRY_CHARS: Final = 16_384
"""Maximum length of an audit entry; longer entries omit their details."""
MAX_AUDIT_RESOURCES: Final = 20
"""Maximum number of resources listed in an audit entry."""
MAX_AUDIT_KINDS: Final = 200
"""Maximum number of different denials and logins per second with their own audit entries; others are only counted."""

# --- Quotas -------------------------------------------------------------------------------------
MAX_QUOTAS: Final = 10_000
"""Maximum number of quotas on a broker; one quota can apply to all subjects of a kind or in a network."""
MAX_QUOTA_FILE_BYTES: Final = 16_777_216
"""Maximum size of the quota file, enough for the maximum number of quotas with names of maximum length."""
MAX_METERS: Final = 100_000
"""Maximum number of accounts, addresses and groups with a meter; a further one replaces the oldest."""
METER_SECONDS: Final = 600.0
"""Idle time after which a subject is forgotten; its buckets are full by then."""
MAX_GROUPS_OF_CONNECTION: Final = 1_000
"""Maximum number of groups for which one connection is counted, as in one heartbeat (MAX_HEARTBEAT_GROUPS)."""
MAX_METERED_GROUPS: Final = 200_000
"""Maximum number of (connection, group) pairs that are counted, the same as MAX_GROUP_MEMBERS."""
MAX_DELAYED_REQUESTS: Final = 10_000
"""Maximum number of requests that quotas delay by up to a second; further requests are denied immediately."""
MAX_DELAYED_BYTES: Final = 67_108_864
"""Maximum total frame size of the requests that quotas delay."""
MAX_SHOWN_SUBJECTS: Final = 1_000
"""Maximum number of subjects listed in a response."""
