"""Detects replayed requests by their stamps and rejects them.

Each signer (:class:`~cometmq.remoting.signing.Stamps`) numbers its requests in their order. For each signer the server
stores the highest number, and which of the numbers before it arrived, as in IPsec's anti-replay window (RFC 4303,
3.4.3). So memory grows with signers, not with requests. Forgotten stamps are refused by their time: a stamp is valid
only for ``SIGNATURE_SECONDS``. A stamp from an unknown signer must also be newer than the start of this server, and
newer than the last stamp of every signer that was forgotten early. Clients sign and send refused requests again.

One gap remains. If a client's clock is ahead by some time, requests that it sent less than that time before a server
restart could be replayed once after the restart. ``SIGNATURE_AHEAD_SECONDS`` limits this time.
"""

from __future__ import annotations

from typing import Final

from cometmq.auth.limits import MAX_SIGNERS, SIGNATURE_AHEAD_SECONDS, SIGNATURE_SECONDS, SIGNATURE_WINDOW
from cometmq.auth.model import DeniedError
from cometmq.clock import Clock
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import RpcRejectedError
from cometmq.remoting.signing import STAMP, Stamp

_WINDOW_BITS: Final = (1 << SIGNATURE_WINDOW) - 1
_FORGOTTEN_SHARE: Final = 10
"""If memory must be freed, the oldest signers are forgotten: the number of all signers divided by this value.
"""
_AGAIN: Final = "sign the request again and resend it"


class _Seen:
    """The numbers of the requests received from one signer."""

    __slots__ = ("bits", "highest", "newest_ms")

    def __init__(self) -> None:
        self.highest = -1
        self.bits = 0
        """Bit n is set if number ``highest - n`` was received."""
        self.newest_ms = 0


class Freshness:
    """Accepts each stamp only once.

    :param required: if true, requests that have no stamp are refused.
    """

    def __init__(self, *, required: bool, clock: Clock) -> None:
        self.required: Final = required
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._forgotten_until_ms = clock.now_ms() - 1
        """Time up to which stamps from unknown signers may be replays."""

    def accepts(self, access_key: str, text: str | None) -> bool:
        """Accept a stamp; return False if its request may be a replay, and the stamp was not accepted."""
        try:
            self.check(access_key, text)
        except (DeniedError, RpcRejectedError):
            return False
        return True

    def check(self, access_key: str, text: str | None) -> None:
        """Check the stamp of a request that the account has signed.

        :raises DeniedError: a required stamp is missing, or the stamp is a replay or has the wrong time.
        :raises RpcRejectedError: the server no longer knows whether the stamp is a replay (SYSTEM_BUSY).
        """
        if text is None:
            if self.required:
                raise DeniedError(
                    f"The request has no {STAMP}, so it could be a replay.",
                    next_step="use CometMQ's clients and servers: requireFreshSignatures=true rejects all others",
                )
            return
        stamp = Stamp.parse(text)
        if stamp is None:
            raise DeniedError(f"The {STAMP} of the request is malformed.", next_step="use a CometMQ client")
        self._check_time(stamp)
        seen = self._seen.get((access_key, stamp.signer))
        if seen is None:
            seen = self._begin(access_key, stamp)
        ahead = stamp.number - seen.highest
        if ahead > 0:
            seen.bits = (seen.bits << ahead | 1) & _WINDOW_BITS if ahead < SIGNATURE_WINDOW else 1
            seen.highest = stamp.number
        elif ahead <= -SIGNATURE_WINDOW:
            raise RpcRejectedError(ResponseCode.SYSTEM_BUSY, f"later requests arrived before this one ({_AGAIN})")
        else:
            bit = 1 << -ahead
            if seen.bits & bit:
                raise DeniedError("The request is a replay.", next_step=_AGAIN)
            seen.bits |= bit
        seen.newest_ms = max(seen.newest_ms, stamp.at_ms)

    def _check_time(self, stamp: Stamp) -> None:
        behind_s = (self._clock.now_ms() - stamp.at_ms) / 1000
        if -SIGNATURE_AHEAD_SECONDS <= behind_s <= SIGNATURE_SECONDS:
            return
        how = "old" if behind_s > 0 else "ahead"
        most = SIGNATURE_SECONDS if behind_s > 0 else SIGNATURE_AHEAD_SECONDS
        raise DeniedError(
            f"By the clock of this server the signature is {abs(behind_s):,.0f} s {how}; the maximum is {most:g} s.",
            next_step="synchronize the clocks of client and server with NTP",
        )

    def _begin(self, access_key: str, stamp: Stamp) -> _Seen:
        if stamp.at_ms <= self._forgotten_until_ms:
            raise RpcRejectedError(
                ResponseCode.SYSTEM_BUSY, f"the request was signed before this server knew its client ({_AGAIN})"
            )
        if len(self._seen) >= MAX_SIGNERS:
            self._forget()
        seen = self._seen[access_key, stamp.signer] = _Seen()
        return seen

    def _forget(self) -> None:
        """Forget the signers whose stamps are all too old, or the oldest tenth of the signers if there are none."""
        oldest_ms = self._clock.now_ms() - SIGNATURE_SECONDS * 1000
        by_age = sorted(self._seen.items(), key=lambda entry: entry[1].newest_ms)
        fewest = MAX_SIGNERS // _FORGOTTEN_SHARE
        for count, (key, seen) in enumerate(by_age):
            if seen.newest_ms >= oldest_ms:
                if count >= fewest:
                    break
                self._forgotten_until_ms = max(self._forgotten_until_ms, seen.newest_ms)
            del self._seen[key]
