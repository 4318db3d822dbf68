//! A plain SendMessageRequest of gRPC: its messages as they are stored.
//!
//! What the endpoint refuses, and what it does not store as a normal message at once, is left to Python: `None`.

use super::protobuf::{
    bytes_length, resource_name, varint_length, write_bytes, write_varint, Fields,
};
use std::collections::HashSet;
use std::io::Write;

const SEPARATOR: char = '\u{1}';
const PIECE_END: char = '\u{2}';
/// User properties of a message; one with more is left to Python.
const MOST_PROPERTIES: usize = 32;
/// Bytes of a message id in an answer; a longer one is left to Python.
const MAX_ID_BYTES: usize = 255;
/// The last second of the year 9999.
const MAX_SECONDS: u64 = 253_402_300_799;

/// What the endpoint allows.
pub struct Rules {
    /// Properties that users cannot set.
    pub reserved: HashSet<Box<str>>,
    pub max_messages: usize,
    pub max_body_bytes: usize,
    pub max_properties: usize,
    pub max_properties_bytes: usize,
}

/// A message of a request.
pub struct GrpcMessage<'a> {
    pub id: &'a str,
    pub body: &'a [u8],
    /// Where its properties are in the texts of the request.
    pub properties: (usize, usize),
    pub born_timestamp: i64,
}

/// Read a request. Properties are appended to `texts`; return the topic and append the messages.
pub fn read<'a>(
    request: &'a [u8],
    rules: &Rules,
    peer_ip: &str,
    texts: &mut String,
    messages: &mut Vec<GrpcMessage<'a>>,
) -> Option<&'a str> {
    let mut topic = None;
    let mut fields = Fields::new(request);
    while let Some(key) = fields.key()? {
        if key != 0x0A || messages.len() == rules.max_messages {
            return None;
        }
        let own = read_message(fields.bytes()?, rules, peer_ip, texts, messages)?;
        if *topic.get_or_insert(own) != own {
            return None;
        }
    }
    topic
}

/// The fields of SystemProperties that are stored.
#[derive(Default)]
struct System<'a> {
    tag: &'a str,
    has_tag: bool,
    id: &'a str,
    born_host: &'a str,
    trace: &'a str,
    born_timestamp: Option<i64>,
}

fn read_message<'a>(
    data: &'a [u8],
    rules: &Rules,
    peer_ip: &str,
    texts: &mut String,
    messages: &mut Vec<GrpcMessage<'a>>,
) -> Option<&'a str> {
    let (mut topic, mut system, mut body): (Option<&str>, Option<&[u8]>, Option<&[u8]>) =
        (None, None, None);
    let begin = texts.len();
    let mut users = Users::default();
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        match key {
            0x0A if topic.is_none() => topic = Some(resource_name(fields.bytes()?)?),
            0x12 => users.read(fields.bytes()?, rules, texts)?,
            0x1A if system.is_none() => system = Some(fields.bytes()?),
            0x22 if body.is_none() => body = Some(fields.bytes()?),
            _ => return None,
        }
    }
    let (body, mut count, mut size) = (body?, users.count, users.bytes);
    if body.is_empty() || body.len() > rules.max_body_bytes {
        return None;
    }
    let (system, keys) = read_system(system?)?;
    piece("UNIQ_KEY", system.id, texts);
    if system.has_tag {
        piece("TAGS", system.tag, texts);
        count += 1;
        size += system.tag.len();
    }
    let mut name = "KEYS\u{1}";
    for key in keys.iter() {
        texts.push_str(name);
        texts.push_str(key);
        name = " ";
        count += 1;
        size += key.len();
    }
    if name == " " {
        texts.push(PIECE_END);
    }
    if count > rules.max_properties || size > rules.max_properties_bytes {
        return None;
    }
    if !system.trace.is_empty() {
        piece("TRACE_CONTEXT", system.trace, texts);
    }
    let host = if system.born_host.is_empty() {
        peer_ip
    } else {
        system.born_host
    };
    piece("__BORN_HOST", host, texts);
    let born_timestamp = system.born_timestamp?;
    let mut digits = [0; 24];
    let mut rest = &mut digits[..];
    write!(rest, "{born_timestamp}").ok()?;
    let unused = rest.len();
    let length = digits.len() - unused;
    piece(
        "BORN_TIMESTAMP",
        std::str::from_utf8(&digits[..length]).ok()?,
        texts,
    );
    messages.push(GrpcMessage {
        id: system.id,
        body,
        properties: (begin, texts.len()),
        born_timestamp,
    });
    topic
}

fn piece(name: &str, value: &str, texts: &mut String) {
    texts.push_str(name);
    texts.push(SEPARATOR);
    texts.push_str(value);
    texts.push(PIECE_END);
}

/// The user properties of a message.
#[derive(Default)]
struct Users<'a> {
    names: [&'a str; MOST_PROPERTIES],
    count: usize,
    bytes: usize,
}

impl<'a> Users<'a> {
    fn read(&mut self, data: &'a [u8], rules: &Rules, texts: &mut String) -> Option<()> {
        let mut fields = Fields::new(data);
        if fields.key()? != Some(0x0A) {
            return None;
        }
        let name = fields.text()?;
        if fields.key()? != Some(0x12) {
            return None;
        }
        let value = fields.text()?;
        if fields.key()?.is_some()
            || name.is_empty()
            || value.is_empty()
            || has_control(name)
            || has_control(value)
            || rules.reserved.contains(name)
            || self.count == MOST_PROPERTIES
            || self.names[..self.count].contains(&name)
        {
            return None;
        }
        self.names[self.count] = name;
        self.count += 1;
        self.bytes += name.len() + value.len();
        piece(name, value, texts);
        Some(())
    }
}

/// Keys of a message; one with more is left to Python.
const MOST_KEYS: usize = 16;

#[derive(Default)]
struct Keys<'a> {
    keys: [&'a str; MOST_KEYS],
    count: usize,
}

impl<'a> Keys<'a> {
    fn iter(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.keys[..self.count].iter().copied()
    }
}

fn read_system(data: &[u8]) -> Option<(System<'_>, Keys<'_>)> {
    let mut system = System::default();
    let mut keys = Keys::default();
    let mut seen = 0u32;
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        if key != 0x12 {
            let bit = 1u32.checked_shl(u32::try_from(key >> 3).ok()?)?;
            if seen & bit != 0 {
                return None; // the last one counts, and messages are merged
            }
            seen |= bit;
        }
        match key {
            0x0A => {
                system.tag = fields.text()?;
                system.has_tag = true;
                if !is_word(system.tag) || system.tag.contains('|') {
                    return None;
                }
            }
            0x12 => {
                let text = fields.text()?;
                if !is_word(text) || keys.count == MOST_KEYS {
                    return None;
                }
                keys.keys[keys.count] = text;
                keys.count += 1;
            }
            0x1A => system.id = fields.text()?,
            0x22 => read_digest(fields.bytes()?)?,
            // the body is not compressed; the message is no transaction
            0x28 | 0x30 => {
                if fields.varint()? > 1 {
                    return None;
                }
            }
            0x3A => system.born_timestamp = Some(read_timestamp(fields.bytes()?)?),
            0x42 => system.born_host = fields.text()?,
            // queue id, queue offset, delivery attempt: the server decides
            0x68 | 0x70 | 0x80 => {
                fields.varint()?;
            }
            0x92 => system.trace = fields.text()?,
            _ => return None,
        }
    }
    let id_is_usual = !system.id.is_empty()
        && system.id.len() <= MAX_ID_BYTES
        && system.id.bytes().all(|byte| byte.is_ascii_graphic());
    if !id_is_usual || has_control(system.born_host) || has_control(system.trace) {
        return None;
    }
    Some((system, keys))
}

fn read_digest(data: &[u8]) -> Option<()> {
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        match key {
            0x08 => {
                fields.varint()?;
            }
            0x12 => {
                fields.text()?;
            }
            _ => return None,
        }
    }
    Some(())
}

/// Milliseconds since 1970.
fn read_timestamp(data: &[u8]) -> Option<i64> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::new(data);
    while let Some(key) = fields.key()? {
        match key {
            0x08 => seconds = fields.varint()?,
            0x10 => nanos = fields.varint()?,
            _ => return None,
        }
    }
    if seconds > MAX_SECONDS || nanos > 999_999_999 {
        return None;
    }
    Some((seconds * 1_000 + nanos / 1_000_000) as i64)
}

/// True for a control character of ASCII or of Latin-1 (U+0080 to U+009F).
fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        return text.bytes().any(|byte| byte < b' ' || byte == 0x7F);
    }
    text.chars().any(char::is_control)
}

/// True for a text that is surely not blank, and without control characters.
fn is_word(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_graphic()) && !has_control(text)
}

/// Bytes of the answer to a stored message.
fn answer_length(status: &[u8], id: &str, offset: i64) -> (usize, usize) {
    let number = if offset == 0 {
        0
    } else {
        1 + varint_length(offset as u64)
    };
    let entry = bytes_length(status.len()) + 2 * bytes_length(id.len()) + number;
    (bytes_length(status.len()) + bytes_length(entry), entry)
}

/// Append the answer to a stored message: a SendMessageResponse with its prefix.
///
/// :param status: the encoded Status OK.
pub fn write_answer(status: &[u8], id: &str, offset: i64, out: &mut Vec<u8>) {
    let (length, entry) = answer_length(status, id, offset);
    out.push(0);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    write_bytes(1, status, out);
    out.push(0x12);
    write_varint(entry as u64, out);
    write_bytes(1, status, out);
    write_bytes(2, id.as_bytes(), out);
    write_bytes(3, id.as_bytes(), out); // the transaction id of a message without a transaction
    if offset != 0 {
        out.push(0x20);
        write_varint(offset as u64, out);
    }
}
