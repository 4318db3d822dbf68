"""The limits of accounts, the audit log and quotas, each with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

# --- Accounts -----------------------------------------------------------------------------------
MAX_ACL_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of an account file (``plain_acl.yml``): 10,000 accounts, parsed in about a second, in a thread."""
MAX_ACL_FILE_DEPTH: Final = 16
"""Maximum nesting depth of an account file; four levels are needed."""
MAX_ACL_FILE_VALUES: Final = 400_000
"""Maximum number of values, keys and brackets in an account file."""
MAX_ACL_FILES: Final = 1_000
"""Maximum number of account files below one directory."""
MAX_ACL_BODY_BYTES: Final = 262_144
"""Maximum size of a request body that changes a user or policies: a thousand entries."""
MAX_USERS: Final = 10_000
"""Maximum number of ACL 2.0 users; about 1 KB each with a few policies."""
SIGNATURE_SECONDS: Final = 300.0
"""Time for which a signed request with a stamp is accepted, by the server's clock; Kerberos has the same limit."""
SIGNATURE_AHEAD_SECONDS: Final = 60.0
"""Maximum time by which a client's clock may be ahead of the server's."""
SIGNATURE_WINDOW: Final = 1_024
"""Maximum number of later requests from a signer that may arrive first; only while connecting are they out of order."""
MAX_SIGNERS: Final = 50_000
"""Maximum number of signers whose last requests are remembered; about 500 bytes each."""
ACL_LOOK_SECONDS: Final = 1.0
"""Pause between two checks of the account files; a change takes effect when two checks agree, so within 3 s."""
MAX_CACHED_DECISIONS: Final = 4_096
"""Maximum number of remembered permissions of one connection's account; further requests are decided each time."""

# --- Audit log ----------------------------------------------------------------------------------
MAX_AUDIT_QUEUE_BYTES: Final = 8_388_608
"""Maximum size of the pending entries, about 25,000 of them; the last quarter is for administration."""
MAX_AUDIT_TEXT_CHARS: Final = 512
"""Maximum length of a text in an entry (a name, a reason, a body); longer texts are cut."""
MAX_AUDIT_ENTRY_CHARS: Final = 16_384
"""Maximum length of an entry; a longer entry is written without its details."""
MAX_AUDIT_RESOURCES: Final = 20
"""Maximum number of resources in one entry."""
MAX_AUDIT_KINDS: Final = 200
"""Maximum number of different denials and logins in a second with their own entries; further ones are only counted."""

# --- Quotas -------------------------------------------------------------------------------------
MAX_QUOTAS: Final = 10_000
"""Maximum number of quotas on one broker; all subjects of a kind, or in a network, share one."""
MAX_QUOTA_FILE_BYTES: Final = 16_777_216
"""Maximum size of the quota file: the maximum number of quotas with the longest names."""
MAX_METERS: Final = 100_000
"""Maximum number of accounts, addresses and groups with a meter, about 1 KB each; one more replaces the oldest."""
METER_SECONDS: Final = 600.0
"""Idle time after which a subject is forgotten; its buckets were full long before."""
MAX_GROUPS_OF_CONNECTION: Final = 1_000
"""Maximum number of groups that one connection counts for; the same as in one heartbeat (MAX_HEARTBEAT_GROUPS)."""
MAX_METERED_GROUPS: Final = 200_000
"""Maximum number of (connection, group) pairs in which the connection counts for the group, as MAX_GROUP_MEMBERS."""
MAX_DELAYED_REQUESTS: Final = 10_000
"""Maximum number of requests that a quota delays, for at most a second; further ones are denied immediately."""
MAX_DELAYED_BYTES: Final = 67_108_864
"""Maximum size of the frames of all requests that a quota delays."""
MAX_SHOWN_SUBJECTS: Final = 1_000
"""Maximum number of subjects in a list of all subjects that have a meter."""
