"""Runs a tool: checks arguments, plans and confirms changes, limits time and size, and writes the audit log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cometmq.auth.audit.log import AuditLog
from cometmq.auth.model import AuthError
from cometmq.client.admin import Admin
from cometmq.client.admin.reset import GroupConsumesError
from cometmq.client.errors import AccessDeniedError, OtherTopicError
from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.integrations.mcp import messages, resources, sends, writes
from cometmq.integrations.mcp.catalogue import INSTANCE, ArgumentError, Call, Confirmed, Drastic, Parameters, Tool
from cometmq.integrations.mcp.options import (
    AUDIT_BYTES,
    AUDIT_FILES,
    MAX_CALLS,
    MAX_ERROR_CHARS,
    MAX_RESULT_CHARS,
    McpOptions,
    McpOptionsError,
)
from cometmq.integrations.mcp.plans import Plan, Plans
from cometmq.integrations.mcp.untrusted import Untrusted
from cometmq.visible import json_text, visible

_log = logging.getLogger(__name__)

TOOLS: Final[Sequence[Tool[Any]]] = (
    *messages.TOOLS[:1],
    *resources.TOOLS,
    *messages.TOOLS[1:],
    *writes.TOOLS,
    *sends.TOOLS,
)
"""All tools, in the order in which clients see them."""
_SECRET_ARGUMENTS: Final = frozenset({"body", "properties", "confirm_token"})
_OF_CONFIRMATION: Final = frozenset({"dry_run", "confirm_token", "break_glass", "reason"})
"""Parameters that may differ between the two calls of a change."""
_AUDITED_CHARS: Final = 200
_QUOTING_ERRORS: Final = (GroupConsumesError, OtherTopicError)
"""Errors that contain texts of strangers: client ids, and the topics that messages name."""


class Outcome(dict[str, Any]):
    """The answer of a tool, and whether the call failed."""

    failed = False


class Calls:
    """The tools on one cluster. Connections are opened by the first call, so servers may start later."""

    def __init__(
        self, options: McpOptions, *, clock: Clock = SYSTEM_CLOCK, instance: ClientInstance | None = None
    ) -> None:
        self.options = options
        self.tools = {tool.name: tool for tool in TOOLS if tool.reads or options.allow_writes}
        self._spelled = {name: tool for tool in self.tools.values() for name in (tool.name, tool.portable_name)}
        self._all_names = {name for tool in TOOLS for name in (tool.name, tool.portable_name)}
        self._clock = clock
        self._instance = ClientInstance(options.namesrv, clock=clock) if instance is None else instance
        self._plans = Plans(clock)
        self._is_stopped = False
        self._room = asyncio.Semaphore(MAX_CALLS)
        self.audit = AuditLog(options.audit_file, size=AUDIT_BYTES, count=AUDIT_FILES, server="mcp", clock=clock)

    async def start(self) -> None:
        """Open the audit log.

        :raises McpOptionsError: the audit log cannot be written.
        """
        try:
            self.audit.start()
        except AuthError as error:
            raise McpOptionsError(error.message, next_step="choose another directory with --data") from None
        self._instance.acquire()

    async def stop(self) -> None:
        """Close the connections and the audit log."""
        if not self._is_stopped:
            self._is_stopped = True
            await self._instance.release()
            await self.audit.stop()

    def shown_name(self, tool: Tool[Any]) -> str:
        """Return the name under which clients see a tool."""
        return tool.name if self.options.dotted_names else tool.portable_name

    def tool(self, name: str) -> Tool[Any]:
        """Return a tool by either spelling of its name.

        :raises ArgumentError: there is no such tool, or it is not allowed.
        """
        found = self._spelled.get(name)
        if found is not None:
            return found
        if name in self._all_names:
            raise ArgumentError(
                f"{name} changes the cluster, and this server only reads",
                next_step="start it with cometmq mcp --allow-writes to permit changes",
            )
        raise ArgumentError(f"there is no tool {visible(name[:100])!r}")

    async def run(self, name: str, arguments: Mapping[str, Any], *, client: str = "", by: str = "") -> Outcome:
        """Run a tool. Failures are part of the answer, so that the agent sees their next step.

        :param client: the name that the client program gives itself.
        :param by: who is logged in, for the audit log.
        """
        untrusted = Untrusted(show_bodies=self.options.show_bodies, masks=self.options.masks)
        began = self._clock.monotonic()
        entry: dict[str, Any] = {"event": "call", "tool": name[:100], "client": client[:100], "by": by}
        entry["arguments"] = audited(arguments)
        outcome = Outcome()
        is_change = False
        try:
            tool = self.tool(name)
            entry |= {"tool": tool.name, "level": tool.level}
            is_change = not tool.reads
            outcome = Outcome(await self._answer(tool, arguments, untrusted))
            entry["outcome"] = str(outcome.get("status", "done"))
        except asyncio.CancelledError:
            entry["outcome"] = "cancelled by the client"
            raise
        except (CometMQError, TimeoutError) as error:
            outcome = _failure(self._sentence_of(untrusted, error, is_confirmed=is_change and _is_confirmed(arguments)))
            entry["outcome"] = f"failed: {outcome['error'][:500]}"
        except Exception as error:
            _log.exception("tool %s failed", name)
            outcome = _failure(f"unexpected {type(error).__name__} (this is a bug; the server's log has more)")
            entry["outcome"] = f"failed: {type(error).__name__}"
        finally:
            entry["ms"] = round((self._clock.monotonic() - began) * 1000)
            self.audit.put(entry, must=is_change)
        if untrusted.is_used:
            outcome["notice"] = untrusted.notice
        return fitting(outcome)

    async def _answer(self, tool: Tool[Any], arguments: Mapping[str, Any], untrusted: Untrusted) -> dict[str, Any]:
        parameters = tool.parse(arguments)
        if parameters.instance_id not in ("", INSTANCE) and isinstance(parameters.instance_id, str):
            raise ArgumentError(f"there is no instance {parameters.instance_id!r}", next_step="leave out instanceId")
        async with asyncio.timeout(self.options.call_seconds), self._room:
            admin = Admin(instance=self._instance)
            async with admin:
                admin.unanswered = {} if tool.reads else None
                call = Call(admin, untrusted, self.options, self._clock)
                result = await tool.run(call, parameters)
                if isinstance(result, Plan):
                    return await self._change(tool, parameters, result)
                if admin.unanswered:
                    result["unanswered"] = [untrusted.sentence(error.message) for error in admin.unanswered.values()]
                return result

    def _sentence_of(self, untrusted: Untrusted, error: CometMQError | TimeoutError, *, is_confirmed: bool) -> str:
        if isinstance(error, _QUOTING_ERRORS):
            return untrusted.quoting(str(error))
        sentence = str(error)
        if not sentence:
            sentence = f"no complete answer within {self.options.call_seconds:g} seconds"
            if is_confirmed:
                sentence += "; the change may have been carried out, so look before you repeat it"
        return untrusted.sentence(sentence[:MAX_ERROR_CHARS]) + self._account_of(error)

    def _account_of(self, error: Exception) -> str:
        """Return the part of a sentence about a denial that names this server's account."""
        if not isinstance(error, AccessDeniedError):
            return ""
        credentials = self._instance.remoting.credentials
        who = "no account" if credentials is None else f"account {credentials.access_key}"
        return f"; this server uses {who}"

    async def _change(self, tool: Tool[Any], parameters: Parameters, plan: Plan) -> dict[str, Any]:
        assert isinstance(parameters, Confirmed)
        given = msgspec.to_builtins(parameters)
        about = {name: value for name, value in given.items() if name not in _OF_CONFIRMATION}
        answer: dict[str, Any] = {"status": "PLANNED", "instanceId": INSTANCE}
        if parameters.dry_run or not parameters.confirm_token:
            token = self._plans.remember(tool.name, about, plan)
            return {**answer, "confirm_token": token, "plan": plan.fields}
        if isinstance(parameters, Drastic) and not (parameters.break_glass and parameters.reason):
            raise ArgumentError(
                f"{tool.name} loses data; nothing was changed",
                next_step="ask the user, and plan again with break_glass true and the user's reason",
            )
        self._plans.redeem(parameters.confirm_token, tool.name, about, plan)
        result = await plan.run()
        return {**answer, "status": "EXECUTED", "plan": plan.fields, "result": result}


def _is_confirmed(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("confirm_token")) and not arguments.get("dry_run")


def _failure(sentence: str) -> Outcome:
    outcome = Outcome(error=sentence)
    outcome.failed = True
    return outcome


def audited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for the audit log: texts are cut, and of bodies only the size and a digest are kept."""
    found: dict[str, Any] = {}
    for name, value in list(arguments.items())[:32]:
        key = name[:64]
        text = value if isinstance(value, str) else json_text(value)
        if name == "confirm_token":
            found[key] = "(given)"
        elif name in _SECRET_ARGUMENTS:
            digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
            found[key] = f"{len(text)} characters, sha256 {digest}"
        else:
            found[key] = value if isinstance(value, bool | int) else text[:_AUDITED_CHARS]
    return found


def fitting(outcome: Outcome) -> Outcome:
    """Halve the longest list of an answer until the answer has its maximum length."""
    while len(json_text(outcome)) > MAX_RESULT_CHARS:
        lists = sorted(_lists(outcome), key=lambda one: len(json_text(one)), reverse=True)
        longest = next((one for one in lists if len(one) > 1), None)
        if longest is None:
            short = Outcome(error="the answer is too long to show; ask for less, for example one page or one queue")
            short.failed = True
            return short
        del longest[len(longest) // 2 :]
        outcome["truncated"] = True
        outcome["hint"] = "the answer was cut to its maximum size; ask for fewer rows, or for one topic, group or queue"
    return outcome


def _lists(value: Any) -> list[list[Any]]:
    if isinstance(value, dict):
        return [found for one in value.values() for found in _lists(one)]
    if isinstance(value, list):
        return [value, *(found for one in value for found in _lists(one))]
    return []
