"""Commands: requests and responses, with a JSON header or RocketMQ's binary header (``RemotingCommand``).

The binary header (``RocketMQSerializable``), big-endian::

    int16 code  int8 language  int16 version  int32 opaque  int32 flag
    int32 remark length, remark
    int32 length of the fields, then for each: int16 length, name, int32 length, value
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.java_values import decode_utf8
from cometmq.limits import MAX_EXT_FIELDS
from cometmq.remoting.codes import CURRENT_VERSION, LanguageCode
from cometmq.remoting.frame import JSON, ROCKETMQ, Frame, FrameDecoder, FrameError, encode_frame
from cometmq.remoting.headers import H, Header, HeaderError, Int32, as_text, from_ext, to_ext

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

_BINARY_HEAD: Final = struct.Struct(">hbhii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_MAX_BINARY_CODE: Final = 0x7FFF

LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
_LANGUAGE_CODES: Final = {name: code for code, name in LANGUAGE_NAMES.items()}


class CommandHeader(msgspec.Struct, rename="camel"):
    """The parts common to all headers, with fields as texts."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | None = None
    version: Int32 = 0
    remark: str | None = None
    ext_fields: dict[str, str] | None = None


class RemotingCommand(msgspec.Struct):
    """A request or response with its fields as texts; ``header`` decodes them into a typed header."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str | None = "PYTHON"
    version: int = CURRENT_VERSION
    remark: str | None = None
    ext_fields: dict[str, str] = {}
    body: bytes = b""
    serialize_type: int = JSON

    @property
    def is_response(self) -> bool:
        """True if the command is a response."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True if the command is a oneway request."""
        return bool(self.flag & FLAG_ONEWAY)

    def header(self, kind: type[H]) -> H:
        """Decode the fields into a typed header.

        :raises HeaderError: a required field is missing or has the wrong type.
        """
        return from_ext(kind, self.ext_fields)

    def encode(self) -> bytes:
        """Encode the frame.

        :raises HeaderError: a text contains a lone surrogate.
        """
        try:
            if self.serialize_type == ROCKETMQ:
                head = encode_binary_header(self)
            else:
                head = encode_json_header(
                    self.code, self.opaque, self.flag, self.remark, self.ext_fields, self.language, self.version
                )
        except UnicodeEncodeError as error:
            raise HeaderError.of_text(error) from error
        return encode_frame(self.serialize_type, head, len(self.body)) + self.body


_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Matches a JSON escape; a surrogate pair counts as one escape."""
_header_decoder = msgspec.json.Decoder(CommandHeader, strict=False)
_json_encode = msgspec.json.Encoder().encode


def request_command(code: int, opaque: int, header: Header | None, body: bytes = b"", *, flag: int = 0) -> bytes:
    """Encode a request frame with a JSON header."""
    ext = {} if header is None else to_ext(header)
    head = encode_json_header(code, opaque, flag, None, ext, "PYTHON", CURRENT_VERSION)
    return encode_frame(JSON, head, len(body)) + body


def encode_json_header(
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: Mapping[str, str] | None,
    language: str | None,
    version: int,
) -> bytes:
    """Encode a compact JSON header with keys in fastjson's order and no nulls."""
    fields: dict[str, Any] = {"code": code}
    if ext_fields is not None:
        fields["extFields"] = ext_fields
    fields["flag"] = flag
    if language is not None:
        fields["language"] = language
    fields["opaque"] = opaque
    if remark is not None:
        fields["remark"] = remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = version
    return _json_encode(fields)


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Encode a header in RocketMQ's binary form.

    :raises ValueError: the code does not fit into an int16.
    """
    if not -_MAX_BINARY_CODE <= command.code <= _MAX_BINARY_CODE:
        raise ValueError(f"code {command.code} does not fit in a binary header; use JSON")
    remark = b"" if command.remark is None else command.remark.encode()
    fields = b"".join([encode_binary_field(name, value) for name, value in command.ext_fields.items()])
    language = _LANGUAGE_CODES.get(command.language or "", int(LanguageCode.OTHER))
    head = _BINARY_HEAD.pack(command.code, language, command.version & 0x7FFF, command.opaque, command.flag)
    return b"".join((head, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))


def encode_binary_field(name: str, value: str) -> bytes:
    """Encode one field of a binary header."""
    name_bytes, value_bytes = name.encode(), value.encode()
    return b"".join((_SHORT.pack(len(name_bytes)), name_bytes, _INT.pack(len(value_bytes)), value_bytes))


def decode_binary_header(header: bytes) -> CommandHeader:
    """Decode a binary header.

    :raises FrameError: the lengths do not add up.
    """
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, at = _take(header, _BINARY_HEAD.size, _INT)
        fields_bytes, end = _take(header, at, _INT)
        if end != len(header):
            raise FrameError(f"the binary header is followed by {len(header) - end} unexpected bytes")
        ext: dict[str, str] = {}
        at = 0
        while at < len(fields_bytes):
            if len(ext) == MAX_EXT_FIELDS:
                raise FrameError(f"the header has more than {MAX_EXT_FIELDS} fields")
            name, at = _take(fields_bytes, at, _SHORT)
            value, at = _take(fields_bytes, at, _INT)
            ext[decode_utf8(name)] = decode_utf8(value)
        remark_text = decode_utf8(remark) if remark else None
    except struct.error as error:
        raise FrameError(f"invalid binary header: {error}") from error
    return CommandHeader(
        code=code,
        opaque=opaque,
        flag=flag,
        language=LANGUAGE_NAMES.get(language),
        version=version,
        remark=remark_text,
        ext_fields=ext,
    )


def _take(data: bytes, at: int, length_type: struct.Struct) -> tuple[bytes, int]:
    length = length_type.unpack_from(data, at)[0]
    begin = at + length_type.size
    end = begin + length
    if length < 0 or end > len(data):
        raise FrameError(f"a field of {length} bytes does not fit in the binary header")
    return data[begin:end], end


def decode_json_header(header: bytes) -> CommandHeader:
    """Decode a JSON header, converting its field values to strings as fastjson does.

    Some clients (ali-ons) write numbers, booleans and null into ``extFields``. Other clients write invalid UTF-8 or
    lone surrogates, which become U+FFFD and ``?``, as in Java.

    :raises FrameError: the header is not a JSON object with a code.
    """
    try:
        return _header_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_loose_header(header)


def _decode_loose_header(header: bytes) -> CommandHeader:
    try:
        fields = _loose_fields(header)
        if not isinstance(fields, dict):
            raise FrameError("a header must be a JSON object")
        ext = fields.pop("extFields", None)
        if isinstance(ext, dict):
            if len(ext) > MAX_EXT_FIELDS:
                raise FrameError(f"the header has more than {MAX_EXT_FIELDS} fields")
            ext = {name: _loose_text(value) for name, value in ext.items() if value is not None}
        elif ext is not None:
            raise FrameError("extFields must be a JSON object")
        language = fields.pop("language", None)
        known = {name: value for name, value in fields.items() if value is not None}
        parsed = msgspec.convert(known, CommandHeader, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"invalid header: {error}") from error
    parsed.ext_fields = ext
    if isinstance(language, int):
        language = LANGUAGE_NAMES.get(language)
    parsed.language = language if isinstance(language, str) else None
    return parsed


def _loose_fields(header: bytes) -> Any:
    try:
        return msgspec.json.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(_ESCAPE.sub(_merged, decode_utf8(header)))


def _merged(escape: re.Match[str]) -> str:
    return "?" if escape["half"] else escape[0]


def _loose_text(value: object) -> str:
    return value if isinstance(value, str) else _json_encode(value).decode()


def decode_header(serialize_type: int, header: bytes) -> CommandHeader:
    """Decode a header in JSON or binary form.

    :raises FrameError: the header is malformed, or has too many fields.
    """
    parsed = decode_binary_header(header) if serialize_type == ROCKETMQ else decode_json_header(header)
    if parsed.ext_fields is not None and len(parsed.ext_fields) > MAX_EXT_FIELDS:
        raise FrameError(f"the header has more than {MAX_EXT_FIELDS} fields")
    return parsed


def decode_command(frame: Frame | bytes) -> RemotingCommand:
    """Decode a command from a frame or from a frame's bytes.

    :raises FrameError: the bytes are not a command.
    """
    if not isinstance(frame, Frame):
        frames = FrameDecoder().feed(bytes(frame))
        if len(frames) != 1:
            raise FrameError(f"expected one frame, not {len(frames)}")
        frame = frames[0]
    parsed = decode_header(frame.serialize_type, frame.header)
    return RemotingCommand(
        code=parsed.code,
        opaque=parsed.opaque,
        flag=parsed.flag,
        language=parsed.language,
        version=parsed.version,
        remark=parsed.remark,
        ext_fields=parsed.ext_fields or {},
        body=frame.body,
        serialize_type=frame.serialize_type,
    )


def fields_of(header: Header | None, ext: Mapping[str, str] | None) -> dict[str, str]:
    """Return the fields of a header as texts: those of the typed header, and the additional fields ``ext``."""
    fields = {} if header is None else to_ext(header)
    if ext:
        fields.update((name, as_text(value)) for name, value in ext.items())
    return fields
