"""Reads YAML account files safely, with limits on size and depth, and with no tags or anchors.

Scalars have YAML 1.1's types, as in Apache's snakeyaml. Errors never quote the file, since it contains secrets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cometmq.auth.limits import MAX_ACL_FILE_BYTES, MAX_ACL_FILE_DEPTH, MAX_ACL_FILE_VALUES
from cometmq.auth.model import AuthError
from cometmq.errors import SERVER, reason_of, require

_STEP: Final = "correct the file; until then, its previous accounts remain active"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; return an empty mapping if the file is empty.

    :raises FileNotFoundError: the file does not exist.
    :raises AuthError: the file cannot be read, or its document is not a mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ACL_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AuthError(f"{path} cannot be read: {reason_of(error)}", next_step=_STEP) from None
    return parse_mapping(data, str(path))


def parse_mapping(data: bytes, source: str) -> dict[str, Any]:
    """Parse a YAML document that contains a mapping; return an empty mapping if the document is empty.

    :param source: the name of the file in errors.
    :raises AuthError: it is too large, or not a mapping.
    """
    if len(data) > MAX_ACL_FILE_BYTES:
        raise AuthError(f"{source} is larger than {MAX_ACL_FILE_BYTES:,} bytes", next_step=_STEP)
    try:
        content = parse_yaml(data)
    except AuthError as error:
        raise AuthError(f"{source}: {error.message}", next_step=_STEP) from None
    if not isinstance(content, dict):
        raise AuthError(f"{source}: the content is not a mapping of keys to values", next_step=_STEP)
    return content


def parse_yaml(data: bytes) -> Any:
    """Parse a YAML document; return an empty mapping if the document is empty.

    :raises AuthError: the document is not YAML, or exceeds a limit.
    """
    require("YAML account files", SERVER, "yaml")
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for values, event in enumerate(yaml.parse(data, Loader=loader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise AuthError(f"line {event.start_mark.line + 1}: anchors and aliases are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_ACL_FILE_DEPTH or values > MAX_ACL_FILE_VALUES:
                raise AuthError(
                    f"the document has more than {MAX_ACL_FILE_DEPTH} levels or {MAX_ACL_FILE_VALUES:,} values"
                )
        content = yaml.load(data, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise AuthError(f"invalid YAML{'' if mark is None else f' in line {mark.line + 1}'}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise AuthError("invalid YAML") from None
    return {} if content is None else content


def dump_yaml(content: dict[str, Any]) -> bytes:
    """Format a document as YAML, keeping the order of the keys."""
    import yaml

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text.encode()
