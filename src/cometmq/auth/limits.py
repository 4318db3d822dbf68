"""Limits for accounts, the audit log and quotas, each with its reason, and with the unit in its name."""

from __future__ import annotations

from typing import Final

# --- Accounts -----------------------------------------------------------------------------------
MAX_ACL_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of an account file (``plain_acl.yml``): 10,000 accounts, which are parsed in a thread in about a
second."""
MAX_ACL_FILE_DEPTH: Final = 16
"""Maximum nesting depth of an account file; four levels are needed."""
MAX_ACL_FILE_VALUES: Final = 400_000
"""Maximum number of values, keys and brackets in an account file."""
MAX_ACL_FILES: Final = 1_000
"""Maximum number of account files below one directory."""
MAX_ACL_BODY_BYTES: Final = 262_144
"""Maximum size of a request body that changes a user or policies: about a thousand entries."""
MAX_USERS: Final = 10_000
"""Maximum number of ACL 2.0 users, with about 1 KB each if they have a few policies."""
SIGNATURE_SECONDS: Final = 300.0
"""Time on the server's clock for which a signed request with a stamp is accepted; Kerberos has the same limit."""
SIGNATURE_AHEAD_SECONDS: Final = 60.0
"""Maximum time by which a client's clock may be ahead of the server's."""
SIGNATURE_WINDOW: Final = 1_024
"""Maximum number of a signer's later requests that may arrive before an earlier request, as can happen while
connecting."""
MAX_SIGNERS: Final = 50_000
"""Maximum number of signers whose last requests are remembered, with about 500 bytes each."""
ACL_LOOK_SECONDS: Final = 1.0
"""Pause between two checks of the account files; a change takes effect when two checks agree, which is within 3 s."""
MAX_CACHED_DECISIONS: Final = 4_096
"""Maximum number of permissions cached for one connection's account; any further permission is checked each time."""

# --- Audit log ----------------------------------------------------------------------------------
MAX_AUDIT_QUEUE_BYTES: Final = 8_388_608
"""Maximum total size of the pending entries (about 25,000); the last quarter is reserved for administration."""
MAX_AUDIT_TEXT_CHARS: Final = 512
"""Maximum length of a text in an entry (a name, a reason or a body); longer texts are truncated."""
MAX_AUDIT_ENTRY_CHARS: Final = 16_384
"""Maximum length of an entry; if an entry is longer, its details are left out."""
MAX_AUDIT_RESOURCES: Final = 20
"""Maximum number of resources listed in one entry."""
MAX_AUDIT_KINDS: Final = 200
"""Maximum number of different denials and logins per second that get their own entries; further ones are only
counted."""

# --- Quotas -------------------------------------------------------------------------------------
MAX_QUOTAS: Final = 10_000
"""Maximum number of quotas on one broker; all subjects of a kind, or in a network, can share one quota."""
MAX_QUOTA_FILE_BYTES: Final = 16_777_216
"""Maximum size of the quota file: the maximum number of quotas with the longest names."""
MAX_METERS: Final = 100_000
"""Maximum number of accounts, addresses and groups that have a meter, with about 1 KB each; a further one replaces the
oldest."""
METER_SECONDS: Final = 600.0
"""Idle time after which a subject is forgotten; its buckets have been full for a long time."""
MAX_GROUPS_OF_CONNECTION: Final = 1_000
"""Maximum number of groups for which one connection is counted, the same as in one heartbeat (MAX_HEARTBEAT_GROUPS)."""
MAX_METERED_GROUPS: Final = 200_000
"""Maximum number of pairs of a connection and a group for which it is counted, the same as MAX_GROUP_MEMBERS."""
MAX_DELAYED_REQUESTS: Final = 10_000
"""Maximum number of requests that quotas delay, for at most a second; further requests are denied immediately."""
MAX_DELAYED_BYTES: Final = 67_108_864
"""Maximum total size of the frames of all requests that quotas delay."""
MAX_SHOWN_SUBJECTS: Final = 1_000
"""Maximum number of subjects in a list of all subjects that have a meter."""
