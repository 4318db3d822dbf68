//! The header of a plain send, in JSON or in RocketMQ's binary form.

use super::fields::{Fields, SEND_MESSAGE, SEND_MESSAGE_V2};
use super::json::Reader;
use super::signature::Pairs;
use std::borrow::Cow;

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
/// Fields of one header at most (`MAX_EXT_FIELDS`); Python refuses more.
const MAX_FIELDS: usize = 64;

/// The header of a plain send.
pub struct SendRequest<'a> {
    pub fields: Fields<'a>,
    pub opaque: i32,
    pub is_oneway: bool,
}

impl<'a> SendRequest<'a> {
    /// Read a header; `None` when it is no plain send, or not in the form that RocketMQ's clients write.
    ///
    /// All of its fields are added to `pairs`, if that is given.
    pub fn read(is_binary: bool, header: &'a [u8], pairs: Option<&mut Pairs<'a>>) -> Option<Self> {
        let (fields, opaque, flag) = if is_binary {
            read_binary(header, pairs)?
        } else {
            read_json(header, pairs)?
        };
        if flag & FLAG_RESPONSE != 0 || !fields.is_whole() {
            return None;
        }
        Some(SendRequest {
            fields,
            opaque,
            is_oneway: flag & FLAG_ONEWAY != 0,
        })
    }
}

fn read_json<'a>(
    header: &'a [u8],
    mut pairs: Option<&mut Pairs<'a>>,
) -> Option<(Fields<'a>, i32, i32)> {
    let (code, begin) = if header.starts_with(b"{\"code\":310,") {
        (SEND_MESSAGE_V2, 12)
    } else if header.starts_with(b"{\"code\":10,") {
        (SEND_MESSAGE, 11)
    } else {
        return None;
    };
    let mut reader = Reader::new(std::str::from_utf8(&header[begin..]).ok()?);
    let mut fields = Fields::default();
    let (mut opaque, mut flag) = (0, 0);
    let mut seen = 0u32;
    loop {
        let name = reader.string()?;
        reader.take(b':')?;
        let bit = match name.as_ref() {
            "extFields" => {
                read_fields(&mut reader, code, &mut fields, pairs.as_deref_mut())?;
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
            return reader.is_at_end().then_some((fields, opaque, flag));
        }
    }
}

fn read_fields<'a>(
    reader: &mut Reader<'a>,
    code: i64,
    fields: &mut Fields<'a>,
    mut pairs: Option<&mut Pairs<'a>>,
) -> Option<()> {
    reader.take(b'{')?;
    loop {
        let name = reader.string()?;
        reader.take(b':')?;
        let value = reader.string()?;
        if let Some(pairs) = pairs.as_deref_mut() {
            pairs.push((name.clone(), value.clone()));
        }
        fields.set(code, &name, value)?;
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
    mut pairs: Option<&mut Pairs<'a>>,
) -> Option<(Fields<'a>, i32, i32)> {
    let mut cursor = Cursor(header);
    let code = i64::from(cursor.short()?);
    if code != SEND_MESSAGE && code != SEND_MESSAGE_V2 {
        return None;
    }
    cursor.take(3)?; // language and version
    let opaque = cursor.int()?;
    let flag = cursor.int()?;
    cursor.long_text()?; // the remark
    let length = usize::try_from(cursor.int()?).ok()?;
    if length != cursor.0.len() {
        return None;
    }
    let mut fields = Fields::default();
    let mut count = 0;
    while !cursor.0.is_empty() {
        count += 1;
        if count > MAX_FIELDS {
            return None;
        }
        let name = cursor.short_text()?;
        let value = cursor.long_text()?;
        if let Some(pairs) = pairs.as_deref_mut() {
            pairs.push((Cow::Borrowed(name), Cow::Borrowed(value)));
        }
        fields.set(code, name, Cow::Borrowed(value))?;
    }
    Some((fields, opaque, flag))
}
