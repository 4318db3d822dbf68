"""How servers with an ACL say no, and what to do about it: code 1, with the text of an ``AclException``."""

from __future__ import annotations

from typing import Final

from cometmq.remoting.codes import ResponseCode

_MARK: Final = "AclException"
_STEPS: Final = (
    ("No accessKey is configured", "this server wants credentials: give an access key and its secret key"),
    ("No acl config for", "the server has no account with this access key: check the key, and its plain_acl.yml"),
    ("Check signature failed", "the secret key is not the one of this access key"),
    ("Need admin permission", "this needs an account with admin: true"),
)
_NOT_ALLOWED: Final = "the account may not do this: its topicPerms and groupPerms at the server say what it may"


def denial_step(code: int, remark: str | None) -> str | None:
    """The next step after an answer, if it is the no of an ACL."""
    if code != ResponseCode.SYSTEM_ERROR or not remark or _MARK not in remark:
        return None
    return next((step for mark, step in _STEPS if mark in remark), _NOT_ALLOWED)
