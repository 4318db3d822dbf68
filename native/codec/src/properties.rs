//! The properties of a message: `name \x01 value \x02 …`, read in one pass for storing them.

use super::hash::{index_hash, java_hash};

const NAME_END: char = '\u{1}';
const PIECE_END: char = '\u{2}';
/// Properties that ask to park a message before its delivery.
const DETOURS: [&str; 5] = [
    "DELAY",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TRAN_MSG",
];
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
    /// False when the producer does not wait for the flush.
    pub waits: bool,
}

impl<'a> Properties<'a> {
    /// Read them; `None` when they ask for a detour, or are not in the order in which they are stored.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.strip_suffix(PIECE_END).unwrap_or(text);
        let (mut keys, mut unique, mut tag, mut wait) = ("", "", "", "");
        let mut is_sharded = false;
        let mut wait_at: Option<(usize, usize)> = None;
        let mut at = 0;
        while at < text.len() {
            let piece = text[at..].split(PIECE_END).next()?;
            let (name, value) = piece.split_once(NAME_END).unwrap_or((piece, ""));
            match name {
                "KEYS" if !value.is_empty() => keys = value,
                "UNIQ_KEY" if !value.is_empty() => unique = value,
                "TAGS" if !value.is_empty() => tag = value,
                "WAIT" => {
                    if wait_at.is_some() {
                        return None;
                    }
                    wait = value;
                    wait_at = Some((at, at + piece.len()));
                }
                "__SHARDINGKEY" => is_sharded = true,
                "CLUSTER" | "" => return None,
                _ if !value.is_empty() && DETOURS.contains(&name) => return None,
                _ => (),
            }
            at += piece.len() + 1;
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
        let tags_code = if tag.is_empty() {
            0
        } else {
            i64::from(java_hash(0, tag))
        };
        Some(Properties {
            stored,
            tags_code,
            is_sharded,
            unique,
            keys,
            waits: wait != "false",
        })
    }

    /// Bytes of the text to store, with `tail` behind it.
    pub fn stored_length(&self, tail: &[u8]) -> usize {
        let (before, after) = self.stored;
        [before.len(), after.len()]
            .iter()
            .filter(|length| **length > 0)
            .map(|length| length + 1)
            .sum::<usize>()
            + tail.len()
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
        for key in std::iter::once(self.unique).chain(self.keys.split(' ')) {
            if !key.is_empty() {
                out.push(index_hash(java_hash(seed, key)));
            }
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
            ("noValue", "noValue\u{2}T"),
        ] {
            assert_eq!(stored(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_python() {
        for text in [
            "DELAY\u{1}3",
            "TRAN_MSG\u{1}true",
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
}
