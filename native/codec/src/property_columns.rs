//! The properties of many stored records, as columns: the values of one name, or all of them as maps.
//!
//! The texts stand in one buffer, one behind the other. A piece without name or value does not count, the first `\x01`
//! ends the name, and of two pieces with one name the later wins.

/// Pieces of a record from which on Python, which sorts them, finds those with equal names.
const MOST_PIECES: usize = 64;

/// Texts of any length, one behind the other: `offsets` has the end of each, with 0 before the first.
#[derive(Debug, PartialEq)]
pub struct Texts {
    pub offsets: Vec<i32>,
    pub bytes: Vec<u8>,
}

impl Texts {
    fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(count + 1);
        offsets.push(0);
        Texts {
            offsets,
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Append a text; `None` when the offsets have no room for it.
    fn push(&mut self, text: &str) -> Option<()> {
        self.bytes.extend_from_slice(text.as_bytes());
        self.offsets.push(i32::try_from(self.bytes.len()).ok()?);
        Some(())
    }
}

/// The maps of records: `offsets` counts their entries.
#[derive(Debug, PartialEq)]
pub struct Maps {
    pub offsets: Vec<i32>,
    pub names: Texts,
    pub values: Texts,
}

/// Names and values of one record, in the order of their pieces.
fn pieces(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('\u{2}')
        .filter_map(|piece| piece.split_once('\u{1}'))
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
}

/// The texts that `offsets` leads to; each is `None` when it is not UTF-8 or lies outside.
fn texts<'a>(data: &'a [u8], offsets: &'a [i32]) -> impl Iterator<Item = Option<&'a str>> {
    offsets.windows(2).map(|ends| {
        let begin = usize::try_from(ends[0]).ok()?;
        let end = usize::try_from(ends[1]).ok()?;
        std::str::from_utf8(data.get(begin..end)?).ok()
    })
}

/// The value of one property of each record, and a bit for each that has it; `None` when one text is not UTF-8.
pub fn values(data: &[u8], offsets: &[i32], name: &str) -> Option<(Texts, Vec<u8>)> {
    let count = offsets.len().saturating_sub(1);
    let mut found = Texts::with_capacity(count, count * 16);
    let mut has = vec![0u8; count.div_ceil(8)];
    for (row, text) in texts(data, offsets).enumerate() {
        let last = text?
            .split('\u{2}')
            .filter_map(|piece| piece.strip_prefix(name)?.strip_prefix('\u{1}'))
            .filter(|value| !value.is_empty())
            .last();
        if last.is_some() {
            has[row / 8] |= 1 << (row % 8);
        }
        found.push(last.unwrap_or_default())?;
    }
    Some((found, has))
}

/// All properties of each record; `None` when one text is not UTF-8, or has very many pieces.
pub fn maps(data: &[u8], offsets: &[i32]) -> Option<Maps> {
    let count = offsets.len().saturating_sub(1);
    let mut found = Maps {
        offsets: Vec::with_capacity(count + 1),
        names: Texts::with_capacity(4 * count, data.len() / 2),
        values: Texts::with_capacity(4 * count, data.len()),
    };
    found.offsets.push(0);
    let mut entries: Vec<(&str, &str)> = Vec::with_capacity(MOST_PIECES);
    for text in texts(data, offsets) {
        entries.clear();
        for piece in pieces(text?) {
            if entries.len() == MOST_PIECES {
                return None;
            }
            entries.push(piece);
        }
        for (at, (name, value)) in entries.iter().enumerate() {
            if entries[at + 1..].iter().all(|later| later.0 != *name) {
                found.names.push(name)?;
                found.values.push(value)?;
            }
        }
        found
            .offsets
            .push(i32::try_from(found.names.offsets.len() - 1).ok()?);
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
        let (values, has) = values(DATA.as_bytes(), &[0, 0, end, end], "a").unwrap();
        assert_eq!(
            (values.offsets, values.bytes, has),
            (vec![0, 0, 1, 1], b"f".to_vec(), vec![2])
        );
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
