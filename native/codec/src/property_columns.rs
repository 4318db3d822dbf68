//! The properties of many stored records, as columns: the values of one name, or all of them as maps.
//!
//! A piece without name or value does not count, the first `\x01` ends the name, and of two pieces with one name the
//! later wins.

use super::words::below;
use std::ops::Range;

/// Pieces of a record from which on Python, which sorts them, finds those with equal names.
const MOST_PIECES: usize = 64;
const NAME_END: u8 = 1;
const PIECE_END: u8 = 2;
const WORD_BYTES: usize = size_of::<u64>();

/// Texts of any length, one behind the other: `offsets` has the end of each, with 0 before the first.
#[derive(Debug, PartialEq)]
pub struct Texts {
    pub offsets: Vec<i32>,
    pub bytes: Vec<u8>,
}

impl Texts {
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        Texts {
            offsets,
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Begin anew; the memory is kept.
    pub fn clear(&mut self) {
        self.offsets.truncate(1);
        self.bytes.clear();
    }

    /// Append a text; `None` when the offsets have no room for it.
    pub fn push(&mut self, text: &[u8]) -> Option<()> {
        self.bytes.extend_from_slice(text);
        self.offsets.push(i32::try_from(self.bytes.len()).ok()?);
        Some(())
    }
}

/// The pieces of one text that have a name and a value, in their order.
#[derive(Default)]
pub struct Pieces(Vec<(Range<usize>, Range<usize>)>);

impl Pieces {
    /// Find them; `None` when the text is not UTF-8, or has very many.
    pub fn split(&mut self, text: &[u8]) -> Option<()> {
        std::str::from_utf8(text).ok()?;
        self.0.clear();
        let mut begin = 0;
        let mut middle = None;
        for at in separators(text).chain([text.len()]) {
            if text.get(at) == Some(&NAME_END) {
                middle = middle.or(Some(at));
                continue;
            }
            if let Some(end) = middle.filter(|end| begin < *end && end + 1 < at) {
                if self.0.len() == MOST_PIECES {
                    return None;
                }
                self.0.push((begin..end, end + 1..at));
            }
            (begin, middle) = (at + 1, None);
        }
        Some(())
    }

    /// The value of a name in the text that was split.
    fn value<'a>(&self, text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        let named = |piece: &&(Range<usize>, _)| text[piece.0.clone()] == *name;
        let (_, value) = self.0.iter().rev().find(named)?;
        Some(&text[value.clone()])
    }
}

/// The places of all separators, found eight bytes at a time.
fn separators(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    text.chunks(WORD_BYTES)
        .enumerate()
        .flat_map(move |(number, chunk)| {
            let mut bytes = [u8::MAX; WORD_BYTES];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let mut marks = below(u64::from_le_bytes(bytes), PIECE_END + 1);
            std::iter::from_fn(move || {
                let at = WORD_BYTES * number + marks.trailing_zeros() as usize / 8;
                let is_left = marks != 0;
                marks &= marks.wrapping_sub(1);
                is_left.then_some(at)
            })
        })
        .filter(|at| matches!(text[*at], NAME_END | PIECE_END))
}

/// The maps of records: `offsets` counts their entries.
#[derive(Debug, PartialEq)]
pub struct Maps {
    pub offsets: Vec<i32>,
    pub names: Texts,
    pub values: Texts,
}

impl Maps {
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        Maps {
            offsets,
            names: Texts::with_capacity(4 * count, bytes / 2),
            values: Texts::with_capacity(4 * count, bytes),
        }
    }

    /// Begin anew; the memory is kept.
    pub fn clear(&mut self) {
        self.offsets.truncate(1);
        self.names.clear();
        self.values.clear();
    }

    /// Append the map of a text and its pieces; `None` when the offsets have no room for it.
    pub fn push(&mut self, text: &[u8], pieces: &Pieces) -> Option<()> {
        for (at, (name, value)) in pieces.0.iter().enumerate() {
            let name = &text[name.clone()];
            let later = &pieces.0[at + 1..];
            if later.iter().all(|piece| text[piece.0.clone()] != *name) {
                self.names.push(name)?;
                self.values.push(&text[value.clone()])?;
            }
        }
        let entries = self.names.offsets.len() - 1;
        self.offsets.push(i32::try_from(entries).ok()?);
        Some(())
    }
}

/// The value of one property of each record, and a bit for each that has it.
#[derive(Debug, PartialEq)]
pub struct Values {
    pub texts: Texts,
    pub has: Vec<u8>,
}

impl Values {
    pub fn with_capacity(count: usize) -> Self {
        Values {
            texts: Texts::with_capacity(count, count * 16),
            has: Vec::with_capacity(count.div_ceil(8)),
        }
    }

    /// Begin anew; the memory is kept.
    pub fn clear(&mut self) {
        self.texts.clear();
        self.has.clear();
    }

    /// Append the value in a text and its pieces; `None` when the offsets have no room for it.
    pub fn push(&mut self, name: &str, text: &[u8], pieces: &Pieces) -> Option<()> {
        let row = self.texts.offsets.len() - 1;
        if row % 8 == 0 {
            self.has.push(0);
        }
        let value = pieces.value(text, name.as_bytes());
        if value.is_some() {
            self.has[row / 8] |= 1 << (row % 8);
        }
        self.texts.push(value.unwrap_or_default())
    }
}

/// The texts that `offsets` leads to, which stand one behind the other; each is `None` when it lies outside.
fn texts<'a>(data: &'a [u8], offsets: &'a [i32]) -> impl Iterator<Item = Option<&'a [u8]>> {
    offsets.windows(2).map(|ends| {
        let begin = usize::try_from(ends[0]).ok()?;
        let end = usize::try_from(ends[1]).ok()?;
        data.get(begin..end)
    })
}

/// The value of one property of each record; `None` when one text is not UTF-8, or has very many pieces.
pub fn values(data: &[u8], offsets: &[i32], name: &str) -> Option<Values> {
    let mut found = Values::with_capacity(offsets.len());
    let mut pieces = Pieces::default();
    for text in texts(data, offsets) {
        let text = text?;
        pieces.split(text)?;
        found.push(name, text, &pieces)?;
    }
    Some(found)
}

/// All properties of each record; `None` when one text is not UTF-8, or has very many pieces.
pub fn maps(data: &[u8], offsets: &[i32]) -> Option<Maps> {
    let mut found = Maps::with_capacity(offsets.len(), data.len());
    let mut pieces = Pieces::default();
    for text in texts(data, offsets) {
        let text = text?;
        pieces.split(text)?;
        found.push(text, &pieces)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &str = "a\u{1}b\u{2}c\u{1}d\u{1}e\u{2}a\u{1}f\u{2}x\u{2}\u{1}y\u{2}z\u{1}";

    #[test]
    fn the_later_of_two_values_wins_and_the_rest_keeps_its_order() {
        let end = DATA.len() as i32;
        let found = maps(DATA.as_bytes(), &[0, 0, end, end]).unwrap();
        assert_eq!(found.offsets, [0, 0, 2, 2]);
        assert_eq!(found.names.bytes, b"ca");
        assert_eq!(found.values.bytes, b"d\x01ef");
        let found = values(DATA.as_bytes(), &[0, 0, end, end], "a").unwrap();
        assert_eq!(
            (found.texts.offsets, found.texts.bytes, found.has),
            (vec![0, 0, 1, 1], b"f".to_vec(), vec![2])
        );
    }

    #[test]
    fn separators_are_found_wherever_they_stand() {
        let text: Vec<u8> = (0..=u8::MAX)
            .chain([0, 1, 2, 3, 0x80, 0, 1, 1, 2])
            .collect();
        for begin in 0..12 {
            for end in begin..text.len() {
                let part = &text[begin..end];
                let one_by_one = (0..part.len()).filter(|at| matches!(part[*at], 1 | 2));
                assert!(separators(part).eq(one_by_one));
            }
        }
    }

    #[test]
    fn what_is_not_text_or_lies_outside_is_left_to_python() {
        for (data, offsets) in [
            (&b"\xff"[..], [0, 1]),
            (b"a", [0, 2]),
            (b"a", [1, 0]),
            (b"a", [-1, 1]),
        ] {
            assert!(maps(data, &offsets).is_none());
            assert!(values(data, &offsets, "a").is_none());
        }
        let many: String = (0..MOST_PIECES + 1)
            .map(|n| format!("{n}\u{1}v\u{2}"))
            .collect();
        assert!(maps(many.as_bytes(), &[0, many.len() as i32]).is_none());
        assert_eq!(maps(b"", &[]).unwrap().offsets, [0]);
    }
}
