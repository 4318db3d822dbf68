"""The options of the MCP server, and its limits."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.errors import CometMQError, reason_of
from cometmq.message.ports import MCP_PORT

TOKEN_VARIABLE: Final = "COMETMQ_MCP_TOKEN"
"""Environment variable with the bearer token that HTTP clients must send."""

MAX_RESULT_CHARS: Final = 40_000
"""Maximum length of an answer; Claude Code refuses answers of more than 25,000 tokens."""
MAX_ROWS: Final = 100
"""Maximum number of rows in a list."""
DEFAULT_ROWS: Final = 50
MAX_BODY_CHARS: Final = 2_000
"""Maximum length of the part of a body that is shown."""
MAX_TEXT_CHARS: Final = 200
"""Maximum length of a tag, key, property or client id that is shown."""
MAX_PROPERTIES: Final = 32
MAX_ERROR_CHARS: Final = 2_000
MASKED_CHARS: Final = 16_384
"""Length of the beginning of a body that is searched for secrets before it is cut."""
MAX_SEND_CHARS: Final = 1_000_000
"""Maximum length of a body that a tool sends."""
MAX_ARGUMENT_CHARS: Final = 512
"""Maximum length of any other text argument."""
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a request."""
MAX_OPENING_BYTES: Final = 64 * 1024
"""Maximum size of the HTTP request that opens a session, which the session keeps."""
MAX_ALL_REQUESTS_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of all requests at a time; their contents use several times as much memory."""
MAX_STDIO_REQUESTS: Final = 64
"""Maximum number of requests of a client over stdio that are not answered; further ones wait in the pipe."""
MAX_CALLS: Final = 32
"""Maximum number of calls that run at the same time; others wait within their time limit."""
MAX_PLANS: Final = 100
"""Maximum number of plans that wait for their second call; a further one removes the oldest."""
PLAN_SECONDS: Final = 300.0
"""Seconds after which a plan's token expires."""
MAX_RESENT: Final = 1_000
"""Maximum number of dead letters that one call sends again."""
AUDIT_BYTES: Final = 16 * 1024 * 1024
AUDIT_FILES: Final = 5
MIN_TOKEN_CHARS: Final = 16
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class McpOptionsError(CometMQError):
    """The server's options contradict each other, or are not safe."""


@dataclass(frozen=True)
class McpOptions:
    """The permissions of agents, and the parts of messages that they see."""

    namesrv: str
    data: Path
    """Directory for the audit log and the ledgers of resent dead letters."""
    allow_writes: bool = False
    show_bodies: bool = True
    masks: tuple[re.Pattern[str], ...] = ()
    """Further patterns of secrets in bodies and properties."""
    dotted_names: bool = False
    """List tools with Studio's names, which many clients refuse. Calls accept both spellings."""
    call_seconds: float = 30.0
    """Time limit for a call."""

    @property
    def audit_file(self) -> Path:
        """The path of the audit log."""
        return self.data / "audit.log"


@dataclass(frozen=True)
class HttpOptions:
    """The address for streamable HTTP, and the clients that may connect.

    A token is always needed: other users of this machine reach its loopback address as well.

    :raises McpOptionsError: there is no token, or it is too short.
    """

    token: str
    host: str = "127.0.0.1"
    port: int = MCP_PORT
    names: tuple[str, ...] = ()
    """Further names by which clients and proxies call this server."""
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not self.token:
            raise McpOptionsError(
                f"others could use this server, which listens on {self.host}, without a token",
                next_step=f"set ${TOKEN_VARIABLE} or --token-file, or listen on 127.0.0.1, where a token is made",
            )
        if len(self.token) < MIN_TOKEN_CHARS:
            raise McpOptionsError(
                f"the token has fewer than {MIN_TOKEN_CHARS} characters",
                next_step="create one with: openssl rand -hex 32",
            )
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise McpOptionsError(
                "the token has characters that HTTP headers cannot carry: blanks, or characters other than ASCII",
                next_step="create one with: openssl rand -hex 32",
            )
        if (self.certificate is None) != (self.key is None):
            raise McpOptionsError("--certificate and --key must be used together")


def new_token() -> str:
    """Return a bearer token that nobody can guess."""
    return secrets.token_hex(32)


def read_token(file: Path) -> str:
    """Read the bearer token from a file.

    :raises McpOptionsError: the file cannot be read, or is empty.
    """
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise McpOptionsError(f"the token in {file} cannot be read: {why}") from None
    if not token:
        raise McpOptionsError(f"{file} contains no token")
    return token
