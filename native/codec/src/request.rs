//! The headers of plain sends and batches, and of END_TRANSACTION, in JSON or in RocketMQ's binary form.

use super::fields::{
    EndFields, Fields, END_TRANSACTION, SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2,
};
use super::json::Reader;
use std::borrow::Cow;

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
/// Fields of one header at most (`MAX_EXT_FIELDS`); Python refuses more.
const MAX_FIELDS: usize = 64;
/// The beginning of a JSON header, as clients write it, and its code.
const JSON_BEGINS: [(&[u8], i64); 4] = [
    (b"{\"code\":310,", SEND_MESSAGE_V2),
    (b"{\"code\":320,", SEND_BATCH_MESSAGE),
    (b"{\"code\":10,", SEND_MESSAGE),
    (b"{\"code\":37,", END_TRANSACTION),
];

/// The code of a header; `None` when no request of that code is taken.
pub fn code(is_binary: bool, header: &[u8]) -> Option<i64> {
    if is_binary {
        let code = i64::from(Cursor(header).short()?);
        return JSON_BEGINS
            .iter()
            .find(|(_, taken)| *taken == code)
            .map(|_| code);
    }
    JSON_BEGINS
        .iter()
        .find(|(begin, _)| header.starts_with(begin))
        .map(|(_, code)| *code)
}

/// The header of a plain send, or of a batch.
pub struct SendRequest<'a> {
    pub code: i64,
    pub fields: Fields<'a>,
    pub opaque: i32,
    pub is_oneway: bool,
}

impl<'a> SendRequest<'a> {
    /// Read a header; `None` when it is no plain send, or not in the form that RocketMQ's clients write.
    pub fn read(is_binary: bool, header: &'a [u8]) -> Option<Self> {
        let code = code(is_binary, header)?;
        if code == END_TRANSACTION {
            return None;
        }
        let mut fields = Fields::default();
        let (opaque, flag) = read(is_binary, header, |name, value| {
            fields.set(code, name, value)
        })?;
        if flag & FLAG_RESPONSE != 0 || !fields.is_whole() {
            return None;
        }
        Some(SendRequest {
            code,
            fields,
            opaque,
            is_oneway: flag & FLAG_ONEWAY != 0,
        })
    }
}

/// The header of an END_TRANSACTION.
pub struct EndRequest<'a> {
    pub fields: EndFields<'a>,
    pub opaque: i32,
    pub is_oneway: bool,
}

impl<'a> EndRequest<'a> {
    /// Read a header; `None` when it is another one, or not in the form that RocketMQ's clients write.
    pub fn read(is_binary: bool, header: &'a [u8]) -> Option<Self> {
        if code(is_binary, header)? != END_TRANSACTION {
            return None;
        }
        let mut fields = EndFields::default();
        let (opaque, flag) = read(is_binary, header, |name, value| fields.set(name, value))?;
        if flag & FLAG_RESPONSE != 0 || !fields.is_whole() {
            return None;
        }
        Some(EndRequest {
            fields,
            opaque,
            is_oneway: flag & FLAG_ONEWAY != 0,
        })
    }
}

/// Give each field of a header to `set`; return its opaque and its flag.
fn read<'a>(
    is_binary: bool,
    header: &'a [u8],
    set: impl FnMut(&'a str, Cow<'a, str>) -> Option<()>,
) -> Option<(i32, i32)> {
    if is_binary {
        read_binary(header, set)
    } else {
        read_json(header, set)
    }
}

fn read_json<'a>(
    header: &'a [u8],
    mut set: impl FnMut(&'a str, Cow<'a, str>) -> Option<()>,
) -> Option<(i32, i32)> {
    let (begin, _) = JSON_BEGINS
        .iter()
        .find(|(begin, _)| header.starts_with(begin))?;
    let mut reader = Reader::new(std::str::from_utf8(&header[begin.len()..]).ok()?);
    let (mut opaque, mut flag) = (0, 0);
    let mut seen = 0u32;
    loop {
        let bit = match reader.name()? {
            "extFields" => {
                read_fields(&mut reader, &mut set)?;
                1
            }
            "flag" => {
                flag = i32::try_from(reader.integer()?).ok()?;
                2
            }
            "opaque" => {
                opaque = i32::try_from(reader.integer()?).ok()?;
                4
            }
            "version" => {
                i32::try_from(reader.integer()?).ok()?;
                8
            }
            "language" => {
                reader.string()?;
                16
            }
            "serializeTypeCurrentRPC" => {
                if reader.string()? != "JSON" {
                    return None;
                }
                32
            }
            _ => return None,
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        if !reader.has_more()? {
            return reader.is_at_end().then_some((opaque, flag));
        }
    }
}

fn read_fields<'a>(
    reader: &mut Reader<'a>,
    set: &mut impl FnMut(&'a str, Cow<'a, str>) -> Option<()>,
) -> Option<()> {
    reader.take(b'{')?;
    loop {
        let name = reader.name()?;
        set(name, reader.string()?)?;
        if !reader.has_more()? {
            return Some(());
        }
    }
}

/// A place in a binary header.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        if length > self.0.len() {
            return None;
        }
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long_text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.int()?).ok()?;
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn short_text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.short()?).ok()?;
        std::str::from_utf8(self.take(length)?).ok()
    }
}

fn read_binary<'a>(
    header: &'a [u8],
    mut set: impl FnMut(&'a str, Cow<'a, str>) -> Option<()>,
) -> Option<(i32, i32)> {
    let mut cursor = Cursor(header);
    cursor.take(5)?; // code, language and version
    let opaque = cursor.int()?;
    let flag = cursor.int()?;
    cursor.long_text()?; // the remark
    let length = usize::try_from(cursor.int()?).ok()?;
    if length != cursor.0.len() {
        return None;
    }
    let mut count = 0;
    while !cursor.0.is_empty() {
        count += 1;
        if count > MAX_FIELDS {
            return None;
        }
        let name = cursor.short_text()?;
        let value = cursor.long_text()?;
        set(name, Cow::Borrowed(value))?;
    }
    Some((opaque, flag))
}
