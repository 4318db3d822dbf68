//! Popped messages as gRPC clients receive them: stored records become protobuf's `ReceiveMessageResponse`.
//!
//! Fields are in the order of their numbers and properties in the order in which they are stored, as Python writes them.

use super::constants::{BORNHOST_V6, COMPRESSED, STOREHOST_V6};
use super::layout::{int, parts_of};
use super::properties::PRIORITY;
use super::stored::Stored;
use md5::{Digest, Md5};
use std::collections::HashSet;

const GZIP_MAGIC: &[u8] = b"\x1f\x8b";
/// A message with more properties is left to Python, which finds a name that comes twice in constant time.
const MOST_PROPERTIES: usize = 64;
/// Numbers of more digits are left to Python.
const MOST_DIGITS: usize = 18;
const FIRST_MS: i64 = -62_135_596_800_000;
const LAST_MS: i64 = 253_402_300_799_999;
const NANOS_OF_A_MILLISECOND: u64 = 1_000_000;

/// The response to a pop.
pub struct Pop<'a> {
    /// The topic that the client knows, an encoded `Resource`.
    pub resource: &'a [u8],
    /// For each queue, the start of a receipt handle up to the queue id.
    pub heads: &'a [(i32, String)],
    /// For some queues and offsets, the number of failed deliveries.
    pub failures: &'a [(i32, i64, i64)],
    /// A message with more delivery attempts is not encoded.
    pub max_attempts: i64,
}

/// A message as its client receives it.
pub struct Received<'a> {
    /// Empty if the message has too many attempts.
    pub response: Vec<u8>,
    pub handle: String,
    pub attempt: i64,
    pub tag: Option<&'a str>,
    pub message_id: String,
}

/// The properties of a message in the order of their first occurrence; the last value counts.
struct Properties<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Properties<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut found: Vec<(&str, &str)> = Vec::with_capacity(12);
        for piece in text.split('\u{2}') {
            let (name, value) = piece.split_once('\u{1}').unwrap_or((piece, ""));
            if name.is_empty() || value.is_empty() {
                continue;
            }
            let is_full = found.len() == MOST_PROPERTIES;
            match found.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = value,
                None if is_full => return None,
                None => found.push((name, value)),
            }
        }
        Some(Properties(found))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// `MessageType` of a message with these properties.
    fn kind(&self) -> u8 {
        const DELAYS: [&str; 5] = [
            "DELAY",
            "TIMER_DELAY_SEC",
            "TIMER_DELAY_MS",
            "TIMER_DELIVER_MS",
            "TIMER_OUT_MS",
        ];
        if self.get("TRAN_MSG") == Some("true") {
            4
        } else if DELAYS.iter().any(|name| self.has(name)) {
            3
        } else if self.has("__SHARDINGKEY") {
            2
        } else if self.has(PRIORITY) {
            6
        } else {
            1
        }
    }
}

fn varint(number: u64, out: &mut Vec<u8>) {
    let mut rest = number;
    while rest >= 0x80 {
        out.push(rest as u8 & 0x7F | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Append a text, bytes or a message; `head` is the number and type of the field.
fn field(head: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(head);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn optional(head: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() {
        field(head, value, out);
    }
}

/// Append a `Timestamp`, which has less than 128 bytes.
fn timestamp(head: u8, ms: i64, out: &mut Vec<u8>) {
    let ms = ms.clamp(FIRST_MS, LAST_MS);
    let (seconds, rest) = (ms.div_euclid(1_000), ms.rem_euclid(1_000) as u64);
    out.extend_from_slice(&[head, 0]);
    let begin = out.len();
    if seconds != 0 {
        out.push(0x08);
        varint(seconds as u64, out);
    }
    if rest != 0 {
        out.push(0x10);
        varint(rest * NANOS_OF_A_MILLISECOND, out);
    }
    out[begin - 1] = (out.len() - begin) as u8;
}

fn hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// An IPv4 host as `ip:port`.
fn address(host: &[u8]) -> Option<String> {
    let port = int(host, 4)?;
    Some(format!(
        "{}.{}.{}.{}:{port}",
        host[0], host[1], host[2], host[3]
    ))
}

/// `None` for a number that Python must read; otherwise the number, if there is one.
fn number(text: Option<&str>) -> Option<Option<i64>> {
    match text {
        None => Some(None),
        Some(text)
            if text.len() <= MOST_DIGITS
                && !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            Some(text.parse().ok())
        }
        Some(_) => None,
    }
}

/// The messages in the response to a pop; `None` if Python must encode one of them.
pub fn received<'a>(
    data: &'a [u8],
    pop: &Pop<'_>,
    reserved: &HashSet<String>,
) -> Option<Vec<Received<'a>>> {
    let mut found = Vec::with_capacity(32);
    let (mut system, mut entry) = (Vec::with_capacity(512), Vec::with_capacity(256));
    let mut at = 0;
    while at < data.len() {
        let size = usize::try_from(int(data, at)?).ok()?;
        let record = data.get(at..at.checked_add(size)?)?;
        let parts = parts_of(record)?;
        let message = Stored::of(record, &parts)?;
        if message.sys_flag & (BORNHOST_V6 | STOREHOST_V6) != 0 || message.log_offset < 0 {
            return None;
        }
        let store_host = record.get(parts.store_host_end - 8..parts.store_host_end)?;
        found.push(one(
            &message,
            store_host,
            pop,
            reserved,
            &mut system,
            &mut entry,
        )?);
        at += size;
    }
    Some(found)
}

fn one<'a>(
    message: &Stored<'a>,
    store_host: &[u8],
    pop: &Pop<'_>,
    reserved: &HashSet<String>,
    system: &mut Vec<u8>,
    entry: &mut Vec<u8>,
) -> Option<Received<'a>> {
    let properties = Properties::read(message.properties)?;
    if properties.has("POP_CK") || properties.has("__LITE_TOPIC") {
        return None; // the handle of a message from a retry topic, or a message of a lite topic
    }
    let is_compressed = message.sys_flag & COMPRESSED != 0;
    if is_compressed && !message.body.starts_with(GZIP_MAGIC) {
        return None;
    }
    let (queue_id, offset) = (message.queue_id, message.queue_offset);
    let head = &pop.heads.iter().find(|(known, _)| *known == queue_id)?.1;
    let handle = format!("{head} {offset} {}", message.log_offset);
    let failed = pop
        .failures
        .iter()
        .find(|(queue, at, _)| (*queue, *at) == (queue_id, offset))
        .map_or(i64::from(message.reconsume_times), |(.., times)| *times);
    let attempt = failed.checked_add(1)?;
    let message_id = match properties.get("UNIQ_KEY") {
        Some(id) => id.to_owned(),
        None => {
            let mut id = String::with_capacity(32);
            hex(store_host, &mut id);
            hex(&message.log_offset.to_be_bytes(), &mut id);
            id
        }
    };
    let tag = properties.get("TAGS");
    let mut response = Vec::new();
    if attempt <= pop.max_attempts {
        system.clear();
        let host = match properties.get("__BORN_HOST") {
            Some(host) => host.to_owned(),
            None => address(message.born_host)?,
        };
        let named = Named {
            handle: &handle,
            id: &message_id,
            born_host: &host,
            store_host: &address(store_host)?,
            attempt,
            is_gzip: is_compressed,
        };
        write_system(message, &properties, &named, system)?;
        let mut whole = Vec::with_capacity(system.len() + message.body.len() + 256);
        field(b"\x0a", pop.resource, &mut whole);
        for (name, value) in &properties.0 {
            if !reserved.contains(*name) {
                entry.clear();
                field(b"\x0a", name.as_bytes(), entry);
                field(b"\x12", value.as_bytes(), entry);
                field(b"\x12", entry, &mut whole);
            }
        }
        field(b"\x1a", system, &mut whole);
        optional(b"\x22", message.body, &mut whole);
        response.reserve_exact(whole.len() + 8);
        field(b"\x12", &whole, &mut response);
    }
    Some(Received {
        response,
        handle,
        attempt,
        tag,
        message_id,
    })
}

/// What is computed for a message before its system properties.
struct Named<'a> {
    handle: &'a str,
    id: &'a str,
    born_host: &'a str,
    store_host: &'a str,
    attempt: i64,
    is_gzip: bool,
}

fn write_system(
    message: &Stored<'_>,
    properties: &Properties<'_>,
    named: &Named<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    if let Some(tag) = properties.get("TAGS") {
        field(b"\x0a", tag.as_bytes(), out);
    }
    let keys = properties.get("KEYS").unwrap_or("").trim_end_matches(' ');
    if !keys.is_empty() {
        for key in keys.split(' ') {
            field(b"\x12", key.as_bytes(), out);
        }
    }
    field(b"\x1a", named.id.as_bytes(), out);
    let mut digest = String::with_capacity(32);
    hex(&Md5::digest(message.body), &mut digest);
    out.extend_from_slice(b"\x22\x24\x08\x02\x12\x20"); // 32 digits of MD5
    out.extend_from_slice(digest.as_bytes());
    let encoding = if named.is_gzip { 2 } else { 1 };
    out.extend_from_slice(&[0x28, encoding, 0x30, properties.kind()]);
    timestamp(0x3A, message.born_timestamp, out);
    field(b"\x42", named.born_host.as_bytes(), out);
    timestamp(0x4A, message.store_timestamp, out);
    field(b"\x52", named.store_host.as_bytes(), out);
    let due = properties
        .get("TIMER_DELIVER_MS")
        .or_else(|| properties.get("TIMER_OUT_MS"));
    if let Some(due) = number(due)? {
        timestamp(0x5A, due, out);
    }
    field(b"\x62", named.handle.as_bytes(), out);
    if message.queue_id != 0 {
        out.push(0x68);
        varint(i64::from(message.queue_id) as u64, out);
    }
    out.push(0x70);
    varint(message.queue_offset as u64, out);
    out.extend_from_slice(b"\x80\x01");
    varint(named.attempt.min(i64::from(i32::MAX)) as u64, out);
    if let Some(group) = properties.get("__SHARDINGKEY") {
        field(b"\x8a\x01", group.as_bytes(), out);
    }
    if let Some(trace) = properties.get("TRACE_CONTEXT") {
        field(b"\x92\x01", trace.as_bytes(), out);
    }
    if let Some(topic) = properties.get("DLQ_ORIGIN_TOPIC") {
        let mut origin = Vec::new();
        optional(b"\x0a", topic.as_bytes(), &mut origin);
        let id = properties.get("DLQ_ORIGIN_MESSAGE_ID").unwrap_or("");
        optional(b"\x12", id.as_bytes(), &mut origin);
        field(b"\xa2\x01", &origin, out);
    }
    if let Some(priority) = number(properties.get(PRIORITY))? {
        if priority <= i64::from(i32::MAX) {
            out.extend_from_slice(b"\xb0\x01");
            varint(priority as u64, out);
        }
    }
    Some(())
}
