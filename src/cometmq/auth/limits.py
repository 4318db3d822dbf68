"""The limits of accounts, the audit log and quotas, each with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

# --- Accounts -----------------------------------------------------------------------------------
MAX_ACL_FILE_BYTES: Final = 4 * 1024 * 1024
"""One file of accounts (``plain_acl.yml``): ten thousand of them; parsed in about a second, in a thread."""
MAX_ACL_FILE_DEPTH: Final = 16
"""Nesting of a file of accounts; four levels are needed."""
MAX_ACL_FILE_VALUES: Final = 400_000
"""Values, keys and brackets of a file of accounts."""
MAX_ACL_FILES: Final = 1_000
"""Files of accounts below one directory."""
MAX_ACL_BODY_BYTES: Final = 262_144
"""Body of a request that changes a user or policies: a thousand entries."""
MAX_USERS: Final = 10_000
"""Users of ACL 2.0; about 1 KB each with a few policies."""
SIGNATURE_SECONDS: Final = 300.0
"""A signed request with a stamp is accepted for this time, by the clock of the server: Kerberos has the same bound."""
SIGNATURE_AHEAD_SECONDS: Final = 60.0
"""The clock of a client may be so far ahead of the server's."""
SIGNATURE_WINDOW: Final = 1_024
"""A request may come so many requests of its signer late; they come in order, except while it connects."""
MAX_SIGNERS: Final = 50_000
"""Signers whose last requests are remembered; about 500 bytes each."""
ACL_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the files of accounts; a change counts when two looks agree, so within 3 s."""
MAX_CACHED_DECISIONS: Final = 4_096
"""Remembered permissions of one connection's account; beyond it, each request is decided anew."""

# --- Audit log ----------------------------------------------------------------------------------
MAX_AUDIT_QUEUE_BYTES: Final = 8_388_608
"""Entries that wait to be written: some 25,000; the last quarter is for administration."""
MAX_AUDIT_TEXT_CHARS: Final = 512
"""One text of an entry: a name, a reason, a body; longer ones are cut."""
MAX_AUDIT_ENTRY_CHARS: Final = 16_384
"""One entry; a longer one is written without its details."""
MAX_AUDIT_RESOURCES: Final = 20
"""Resources in one entry."""
MAX_AUDIT_KINDS: Final = 200
"""Different denials and logins in one second that get an entry of their own; further ones are only counted."""

# --- Quotas -------------------------------------------------------------------------------------
MAX_QUOTAS: Final = 10_000
"""Quotas of one broker; all of a kind, or of a network, share one."""
MAX_QUOTA_FILE_BYTES: Final = 16_777_216
"""The file of quotas: the most quotas with the longest names."""
MAX_METERS: Final = 100_000
"""Accounts, addresses and groups that are counted at a time, about 1 KB each; beyond it the oldest is forgotten."""
METER_SECONDS: Final = 600.0
"""A subject that was idle for this time is forgotten; its buckets were full long before."""
MAX_GROUPS_OF_CONNECTION: Final = 1_000
"""Groups that one connection counts for; as many as one heartbeat has (MAX_HEARTBEAT_GROUPS)."""
MAX_METERED_GROUPS: Final = 200_000
"""Pairs of a connection and a group that it counts for, as MAX_GROUP_MEMBERS."""
MAX_DELAYED_REQUESTS: Final = 10_000
"""Requests that wait for room in a quota, for a second at most; further ones are denied at once."""
MAX_DELAYED_BYTES: Final = 67_108_864
"""The same in bytes of their frames."""
MAX_SHOWN_SUBJECTS: Final = 1_000
"""Subjects in one list of those that are counted."""
