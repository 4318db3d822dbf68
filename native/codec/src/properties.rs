//! The properties of a message: `name \x01 value \x02 …`, read in one pass for storing them.

use super::hash::{index_hash, java_hash};
use super::json::integer;
use super::words::{equal, position};
use std::io::Write;

/// Stands between two properties.
pub const SEPARATOR: char = '\u{2}';
const NAME_END: char = '\u{1}';
const PIECE_END: char = SEPARATOR;
/// The life time of a message in milliseconds.
const TTL: &str = "COMETMQ_TTL_MS";
const EXPIRES: &str = "COMETMQ_EXPIRES_MS";
/// Properties that ask to park a message before its delivery, and those of its life time: left to Python.
const DETOURS: [&str; 6] = [
    TTL,
    EXPIRES,
    "DELAY",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
];
/// Properties that a half message must not have, beside those.
const NOT_OF_A_HALF: [&str; 4] = [
    "REAL_TOPIC",
    "REAL_QID",
    "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET",
];
/// The priority of a message, by which Python chooses its queue.
pub const PRIORITY: &str = "_SYS_MSG_PRIORITY_";
/// A message with more keys is left to Python, which counts them.
const MOST_KEYS: usize = 16;

/// What the broker reads of the properties of a plain message.
pub struct Properties<'a> {
    /// The text without WAIT, in front of it and behind it.
    stored: (&'a str, &'a str),
    pub tags_code: i64,
    /// True for a FIFO message.
    pub is_sharded: bool,
    unique: &'a str,
    keys: &'a str,
    /// The value of WAIT.
    wait: &'a str,
    /// False when the producer does not wait for the flush.
    pub waits: bool,
    /// TRAN_MSG asks for a half message.
    pub is_half: bool,
    /// The lite topic; empty if there is none.
    pub lite_topic: &'a str,
    /// The property of the lite topic comes twice.
    has_lite_topics: bool,
}

/// The property that names the lite topic of a message.
const LITE_TOPIC: &str = "__LITE_TOPIC";
/// Names of the properties of a message's place in its lite topic begin so.
const PLACE: &str = "INNER_MULTI_";
const LITE_QUEUE: &str = "INNER_MULTI_DISPATCH\u{1}%LMQ%$";
const LITE_OFFSET: &str = "INNER_MULTI_QUEUE_OFFSET\u{1}";
/// The most bytes of a lite topic's name, and of its offset.
const MOST_NAME: usize = 64;
const MOST_OFFSET: usize = 20;

impl<'a> Properties<'a> {
    /// Read them; `None` when they ask for a detour but that of a half message, have a priority, or are not in the order
    /// in which they are stored.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.strip_suffix(PIECE_END).unwrap_or(text);
        let (mut keys, mut unique, mut tag, mut wait) = ("", "", "", "");
        let mut is_sharded = false;
        let mut wait_at: Option<(usize, usize)> = None;
        let (mut is_half, mut is_odd_half) = (false, false);
        let mut lite_topic: Option<&str> = None;
        let mut has_lite_topics = false;
        let mut at = 0;
        while at < text.len() {
            let (name, value) = piece(&text[at..]);
            let piece_end = at + name.len() + value.map_or(0, |value| 1 + value.len());
            let value = value.unwrap_or("");
            match name {
                "KEYS" if !value.is_empty() => keys = value,
                "UNIQ_KEY" if !value.is_empty() => unique = value,
                "TAGS" if !value.is_empty() => tag = value,
                "WAIT" => {
                    if wait_at.is_some() {
                        return None;
                    }
                    wait = value;
                    wait_at = Some((at, piece_end));
                }
                "__SHARDINGKEY" => is_sharded = true,
                LITE_TOPIC => {
                    has_lite_topics |= lite_topic.is_some();
                    lite_topic = Some(value);
                }
                "CLUSTER" | "" => return None,
                PRIORITY if !value.is_empty() => return None,
                "TRAN_MSG" if !value.is_empty() => {
                    if is_half || !value.eq_ignore_ascii_case("true") {
                        return None;
                    }
                    is_half = true;
                }
                _ if DETOURS.contains(&name) => {
                    if !value.is_empty() {
                        return None;
                    }
                    is_odd_half = true;
                }
                _ if NOT_OF_A_HALF.contains(&name) => is_odd_half = true,
                _ => (),
            }
            at = piece_end + 1;
            if at == text.len() {
                return None; // an empty piece at the end
            }
        }
        let stored = match wait_at {
            None => (text, ""),
            Some((0, end)) => (text.get(end + 1..).unwrap_or(""), ""),
            Some((begin, end)) => (&text[..begin - 1], text.get(end + 1..).unwrap_or("")),
        };
        if keys.split(' ').count() >= MOST_KEYS {
            return None;
        }
        if is_half && (is_odd_half || !matches!(wait, "" | "true" | "false")) {
            return None;
        }
        Some(Properties {
            stored,
            tags_code: tags_code(tag),
            is_sharded,
            unique,
            keys,
            wait,
            waits: wait != "false",
            is_half,
            lite_topic: lite_topic.unwrap_or(""),
            has_lite_topics,
        })
    }

    /// True when the message may belong to a lite topic.
    pub fn is_lite(&self) -> bool {
        self.has_lite_topics || !self.lite_topic.is_empty()
    }

    /// True when Python gives the message its place in a lite topic of that parent topic: its name is unusual, its
    /// properties name a place or the end of its life, or they may become too long.
    pub fn is_odd_lite(&self, text: &str) -> bool {
        let name = self.lite_topic.as_bytes();
        self.has_lite_topics
            || !(1..=MOST_NAME).contains(&name.len())
            || !name
                .iter()
                .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'$' | b','))
            || text.contains(PLACE)
            || text.contains(EXPIRES)
    }

    /// What is stored behind the properties of a message of a lite topic, instead of `tail`.
    pub fn lite_tail(&self, tail: &[u8], parent: &str, offset: i64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.lite_tail_most(tail, parent));
        out.extend_from_slice(tail);
        let _ = write!(
            out,
            "\u{2}{LITE_QUEUE}{parent}${}\u{2}{LITE_OFFSET}{offset}",
            self.lite_topic
        ); // a Vec takes every byte
        out
    }

    /// The most bytes of `lite_tail`.
    pub fn lite_tail_most(&self, tail: &[u8], parent: &str) -> usize {
        tail.len()
            + LITE_QUEUE.len()
            + parent.len()
            + self.lite_topic.len()
            + LITE_OFFSET.len()
            + MOST_OFFSET
            + 3
    }

    /// What is stored behind the properties of a half message, which is for that queue, instead of `tail`.
    pub fn half_tail(&self, tail: &[u8], topic: &str, queue_id: i32) -> Vec<u8> {
        let mut out = Vec::with_capacity(tail.len() + topic.len() + 48);
        out.extend_from_slice(tail);
        let _ = write!(
            out,
            "\u{2}REAL_TOPIC\u{1}{topic}\u{2}REAL_QID\u{1}{queue_id}"
        ); // a Vec takes every byte
        if !self.wait.is_empty() {
            let _ = write!(out, "\u{2}WAIT\u{1}{}", self.wait);
        }
        out
    }

    /// Bytes of the text to store, with `tail` behind it.
    pub fn stored_length(&self, tail: &[u8]) -> usize {
        self.own_length() + tail.len()
    }

    /// Bytes of the text to store, without what is behind it.
    pub fn own_length(&self) -> usize {
        let (before, after) = self.stored;
        [before.len(), after.len()]
            .iter()
            .filter(|length| **length > 0)
            .map(|length| length + 1)
            .sum()
    }

    /// Append the text to store: the pieces and `tail`, separated by `\x02`.
    pub fn store(&self, tail: &[u8], out: &mut Vec<u8>) {
        let (before, after) = self.stored;
        for part in [before, after] {
            if !part.is_empty() {
                out.extend_from_slice(part.as_bytes());
                out.push(PIECE_END as u8);
            }
        }
        out.extend_from_slice(tail);
    }

    /// Append the index hashes of the unique key and of each key, with `seed` the hash of `topic#`.
    pub fn index_hashes(&self, seed: i32, out: &mut Vec<i32>) {
        index_hashes(self.unique, self.keys, seed, out);
    }
}

/// The name of the property at the beginning of a text, and its value if it has one.
fn piece(text: &str) -> (&str, Option<&str>) {
    let ends = |word| equal(word, NAME_END as u8) | equal(word, PIECE_END as u8);
    let name_end = position(text.as_bytes(), ends).unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let value = rest.strip_prefix(NAME_END).map(|value| {
        let end = position(value.as_bytes(), |word| equal(word, PIECE_END as u8));
        &value[..end.unwrap_or(value.len())]
    });
    (name, value)
}

/// What the end of a transaction reads of the properties of its half message.
pub struct HalfProperties<'a> {
    pub producer_group: &'a str,
    /// The topic and queue that the message was sent to.
    pub topic: &'a str,
    pub queue_id: i32,
    pub tags_code: i64,
    unique: &'a str,
    keys: &'a str,
}

impl<'a> HalfProperties<'a> {
    /// Read them; `None` when one comes twice or is missing, and for the properties of a copy.
    pub fn read(text: &'a str) -> Option<Self> {
        const NAMES: [&str; 6] = [
            "PGROUP",
            "REAL_TOPIC",
            "REAL_QID",
            "UNIQ_KEY",
            "KEYS",
            "TAGS",
        ];
        if text.contains("TRAN_PREPARED_QUEUE_OFFSET") || text.ends_with('\0') {
            return None;
        }
        if text.contains(TTL) {
            return None; // its life begins with the commit
        }
        let mut values = [""; 6];
        for piece in text.split(PIECE_END) {
            let (name, value) = piece.split_once(NAME_END).unwrap_or((piece, ""));
            if let Some(at) = NAMES.iter().position(|known| *known == name) {
                if !values[at].is_empty() || value.is_empty() {
                    return None;
                }
                values[at] = value;
            }
        }
        let [producer_group, topic, queue_id, unique, keys, tag] = values;
        if producer_group.is_empty() || keys.split(' ').count() >= MOST_KEYS {
            return None;
        }
        Some(HalfProperties {
            producer_group,
            topic,
            queue_id: i32::try_from(integer(queue_id)?).ok()?,
            tags_code: tags_code(tag),
            unique,
            keys,
        })
    }

    /// As [`Properties::index_hashes`].
    pub fn index_hashes(&self, seed: i32, out: &mut Vec<i32>) {
        index_hashes(self.unique, self.keys, seed, out);
    }
}

/// What queues and the index need of the properties of a stored message.
#[derive(Default)]
pub struct StoredProperties<'a> {
    pub tags_code: i64,
    unique: &'a str,
    keys: &'a str,
}

impl<'a> StoredProperties<'a> {
    /// Read them: the last value that is not empty of each; those of any text.
    pub fn read(text: &'a str) -> Self {
        let mut found = StoredProperties::default();
        let mut tag = "";
        for (name, value) in text
            .split(PIECE_END)
            .filter_map(|piece| piece.split_once(NAME_END))
        {
            match name {
                "UNIQ_KEY" if !value.is_empty() => found.unique = value,
                "TAGS" if !value.is_empty() => tag = value,
                "KEYS" if value.bytes().any(|byte| byte != b' ') => found.keys = value,
                _ => (),
            }
        }
        found.tags_code = tags_code(tag);
        found
    }

    /// As [`Properties::index_hashes`].
    pub fn index_hashes(&self, seed: i32, out: &mut Vec<i32>) {
        index_hashes(self.unique, self.keys, seed, out);
    }
}

/// The tags code of a tag; 0 for none.
pub fn tags_code(tag: &str) -> i64 {
    i64::from(java_hash(0, tag))
}

fn index_hashes(unique: &str, keys: &str, seed: i32, out: &mut Vec<i32>) {
    for key in std::iter::once(unique).chain(keys.split(' ')) {
        if !key.is_empty() {
            out.push(index_hash(java_hash(seed, key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str) -> Option<String> {
        let read = Properties::read(text)?;
        let mut out = Vec::new();
        read.store(b"T", &mut out);
        assert_eq!(out.len(), read.stored_length(b"T"));
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn wait_is_left_out_and_the_tail_is_added() {
        for (text, expected) in [
            ("", "T"),
            ("a\u{1}b", "a\u{1}b\u{2}T"),
            ("a\u{1}b\u{2}", "a\u{1}b\u{2}T"),
            ("WAIT\u{1}true", "T"),
            ("WAIT\u{1}true\u{2}a\u{1}b\u{2}", "a\u{1}b\u{2}T"),
            ("a\u{1}b\u{2}WAIT\u{1}true\u{2}", "a\u{1}b\u{2}T"),
            (
                "a\u{1}b\u{2}WAIT\u{1}true\u{2}c\u{1}d",
                "a\u{1}b\u{2}c\u{1}d\u{2}T",
            ),
            ("DELAY\u{1}", "DELAY\u{1}\u{2}T"),
            ("_SYS_MSG_PRIORITY_\u{1}", "_SYS_MSG_PRIORITY_\u{1}\u{2}T"),
            ("noValue", "noValue\u{2}T"),
        ] {
            assert_eq!(stored(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_python() {
        for text in [
            "DELAY\u{1}3",
            "a\u{1}b\u{2}_SYS_MSG_PRIORITY_\u{1}3",
            "TRAN_MSG\u{1}true\u{2}_SYS_MSG_PRIORITY_\u{1}3",
            "COMETMQ_TTL_MS\u{1}5",
            "COMETMQ_EXPIRES_MS\u{1}5",
            "TRAN_MSG\u{1}false",
            "TRAN_MSG\u{1}true\u{2}TRAN_MSG\u{1}true",
            "TRAN_MSG\u{1}true\u{2}DELAY\u{1}",
            "TRAN_MSG\u{1}true\u{2}REAL_TOPIC\u{1}T",
            "TRAN_MSG\u{1}true\u{2}WAIT\u{1}perhaps",
            "CLUSTER\u{1}c",
            "\u{2}a\u{1}b",
            "a\u{1}b\u{2}\u{2}",
            "\u{1}x",
            "WAIT\u{1}true\u{2}WAIT\u{1}false",
            "KEYS\u{1}1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
        ] {
            assert_eq!(stored(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_half_message_names_its_queue_behind_all() {
        let read = Properties::read("WAIT\u{1}true\u{2}TRAN_MSG\u{1}True").unwrap();
        assert!(read.is_half);
        let tail = read.half_tail(b"CLUSTER\x01c", "T", 3);
        let mut out = Vec::new();
        read.store(&tail, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "TRAN_MSG\u{1}True\u{2}CLUSTER\u{1}c\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}3\u{2}WAIT\u{1}true"
        );
        assert!(!Properties::read("TRAN_MSG\u{1}").unwrap().is_half);
    }

    #[test]
    fn a_message_of_a_lite_topic_names_its_place_behind_all() {
        let text = "__LITE_TOPIC\u{1}a-1\u{2}WAIT\u{1}true\u{2}b\u{1}c\u{2}";
        let read = Properties::read(text).unwrap();
        assert!(!read.is_odd_lite(text));
        let tail = read.lite_tail(b"CLUSTER\x01c", "P", 77);
        assert_eq!(
            String::from_utf8(tail.clone()).unwrap(),
            "CLUSTER\u{1}c\u{2}INNER_MULTI_DISPATCH\u{1}%LMQ%$P$a-1\u{2}INNER_MULTI_QUEUE_OFFSET\u{1}77"
        );
        assert_eq!(read.lite_tail_most(b"CLUSTER\x01c", "P"), tail.len() + 18);
        for odd in [
            "__LITE_TOPIC\u{1}a b",
            "__LITE_TOPIC\u{1}a$b",
            "__LITE_TOPIC\u{1}\u{fc}",
            "__LITE_TOPIC\u{1}a\u{2}__LITE_TOPIC\u{1}",
            "__LITE_TOPIC\u{1}a\u{2}INNER_MULTI_DISPATCH\u{1}b",
            "__LITE_TOPIC\u{1}a\u{2}c\u{1}COMETMQ_EXPIRES_MS",
        ] {
            assert!(Properties::read(odd).unwrap().is_odd_lite(odd), "{odd:?}");
        }
    }

    #[test]
    fn the_end_of_a_transaction_reads_whole_half_messages() {
        let text = "PGROUP\u{1}g\u{2}KEYS\u{1}a b\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}3";
        let read = HalfProperties::read(text).unwrap();
        assert_eq!(
            (read.producer_group, read.topic, read.queue_id),
            ("g", "T", 3)
        );
        for odd in [
            "",
            "PGROUP\u{1}g\u{2}REAL_TOPIC\u{1}T",
            "PGROUP\u{1}g\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}03",
            "REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}3",
            &format!("{text}\u{2}KEYS\u{1}c"),
            &format!("{text}\u{2}TAGS\u{1}"),
            &format!("{text}\u{2}TRAN_PREPARED_QUEUE_OFFSET\u{1}7"),
            &format!("{text}\u{2}a\u{1}\0"),
            &format!("{text}\u{2}COMETMQ_TTL_MS\u{1}5"),
        ] {
            assert!(HalfProperties::read(odd).is_none(), "{odd:?}");
        }
    }
}
