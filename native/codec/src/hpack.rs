//! HTTP/2 header compression (RFC 7541): the header blocks of one connection.
//!
//! A block changes the table. What blocks have changed becomes final with `commit`, or is undone by `undo_to` and `undo`:
//! so blocks can be read to see whether their calls are plain.

use super::huffman;
use std::collections::VecDeque;

/// The size of a client's header table, which is HTTP/2's default.
const TABLE_BYTES: usize = 4_096;
/// Bytes that an entry counts beside its texts.
const ENTRY_BYTES: usize = 32;
/// Updates of the table's size at the beginning of a block.
const MAX_UPDATES: usize = 2;
/// A header list so many times larger than the limit is an attack.
const BOMB_FACTOR: usize = 16;
const INCOMPLETE: &str = "the header block is incomplete or refers to a missing entry";
/// The static table; the first entry has no number.
const STATIC: [(&str, &str); 62] = [
    ("", ""),
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Entry {
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_BYTES
    }
}

/// A state of the table to which it can return until the next commit.
#[derive(Clone, Copy)]
pub struct Mark {
    /// Entries that were added since the last commit.
    added: usize,
    live: usize,
    bytes: usize,
    limit: usize,
}

/// The table of a connection.
pub struct Table {
    /// The newest first. Those behind `live` are evicted, unless their blocks are undone.
    entries: VecDeque<Entry>,
    live: usize,
    bytes: usize,
    limit: usize,
    /// Entries added since the last commit.
    added: usize,
    committed: Mark,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            entries: VecDeque::new(),
            live: 0,
            bytes: 0,
            limit: TABLE_BYTES,
            added: 0,
            committed: Mark {
                added: 0,
                live: 0,
                bytes: 0,
                limit: TABLE_BYTES,
            },
            name: Vec::new(),
            value: Vec::new(),
        }
    }
}

impl Table {
    /// Read a block, and give each header to `found`: those of a list of at most `max_bytes`. Return the size of the
    /// list. `commit` or `undo` follows, perhaps after other blocks. `found` also gets whether the header is in a table, so that it may come again.
    pub fn read(
        &mut self,
        block: &[u8],
        max_bytes: usize,
        mut found: impl FnMut(&[u8], &[u8], bool),
    ) -> Result<usize, &'static str> {
        let (mut at, mut size, mut updates, mut has_headers) = (0, 0, 0, false);
        while at < block.len() {
            let first = block[at];
            if first & 0xE0 == 0x20 {
                let limit;
                (limit, at) = number(block, at, 0x1F)?;
                updates += 1;
                if limit > TABLE_BYTES || has_headers || updates > MAX_UPDATES {
                    return Err("invalid table size");
                }
                self.limit = limit;
                self.shrink();
                continue;
            }
            let (name, value): (&[u8], &[u8]);
            let is_kept = first >= 0x40;
            if first >= 0x80 {
                let index;
                (index, at) = number(block, at, 0x7F)?;
                if index == 0 {
                    return Err("a header has the number 0");
                }
                (name, value) = self.entry(index)?;
            } else {
                at = self.literal(block, at, if is_kept { 0x3F } else { 0x0F })?;
                if is_kept {
                    self.add();
                }
                (name, value) = (&self.name, &self.value);
            }
            size += name.len() + value.len() + ENTRY_BYTES;
            if size <= max_bytes {
                has_headers = true;
                found(name, value, is_kept);
            } else if size > max_bytes * BOMB_FACTOR {
                return Err("the headers are much too large");
            }
        }
        Ok(size)
    }

    /// The state of the table.
    pub fn mark(&self) -> Mark {
        Mark {
            added: self.added,
            live: self.live,
            bytes: self.bytes,
            limit: self.limit,
        }
    }

    /// Keep what blocks have changed.
    pub fn commit(&mut self) {
        self.entries.truncate(self.live);
        self.added = 0;
        self.committed = self.mark();
    }

    /// Undo what blocks have changed since a mark, after which nothing was committed.
    pub fn undo_to(&mut self, mark: &Mark) {
        self.entries.drain(..self.added - mark.added);
        (self.added, self.live) = (mark.added, mark.live);
        (self.bytes, self.limit) = (mark.bytes, mark.limit);
    }

    /// Undo what blocks have changed since the last commit.
    pub fn undo(&mut self) {
        let mark = self.committed;
        self.undo_to(&mark);
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), &'static str> {
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let at = index - STATIC.len();
        if at >= self.live {
            return Err(INCOMPLETE);
        }
        let entry = &self.entries[at];
        Ok((&entry.name, &entry.value))
    }

    /// Read a literal into `name` and `value`.
    fn literal(&mut self, block: &[u8], at: usize, mask: usize) -> Result<usize, &'static str> {
        let (index, mut at) = number(block, at, mask)?;
        let mut name = std::mem::take(&mut self.name);
        name.clear();
        if index == 0 {
            at = text(block, at, &mut name)?;
        } else {
            name.extend_from_slice(self.entry(index)?.0);
        }
        self.name = name;
        self.value.clear();
        text(block, at, &mut self.value)
    }

    fn add(&mut self) {
        let entry = Entry {
            name: self.name.as_slice().into(),
            value: self.value.as_slice().into(),
        };
        self.bytes += entry.size();
        self.entries.push_front(entry);
        self.live += 1;
        self.added += 1;
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.limit {
            self.live -= 1;
            self.bytes -= self.entries[self.live].size();
        }
    }
}

/// Read a number, and return it and where it ends.
fn number(block: &[u8], at: usize, mask: usize) -> Result<(usize, usize), &'static str> {
    let mut value = *block.get(at).ok_or(INCOMPLETE)? as usize & mask;
    if value < mask {
        return Ok((value, at + 1));
    }
    for (step, shift) in [0, 7, 14, 21].into_iter().enumerate() {
        let byte = *block.get(at + 1 + step).ok_or(INCOMPLETE)? as usize;
        value += (byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok((value, at + 2 + step));
        }
    }
    Err("a number is too large")
}

/// Append a text, and return where it ends.
fn text(block: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, &'static str> {
    let is_coded = *block.get(at).ok_or(INCOMPLETE)? >= 0x80;
    let (length, at) = number(block, at, 0x7F)?;
    let data = block
        .get(at..at + length)
        .ok_or("a string is longer than its header block")?;
    if is_coded {
        huffman::decode(data, out)?;
    } else {
        out.extend_from_slice(data);
    }
    Ok(at + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16_384;

    fn read(table: &mut Table, block: &[u8]) -> Result<Vec<(String, String)>, &'static str> {
        let mut out = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        table.read(block, MAX, |name, value, _| {
            out.push((text(name), text(value)))
        })?;
        Ok(out)
    }

    #[test]
    fn blocks_of_the_rfc_are_read() {
        let mut table = Table::default();
        let first = b"\x82\x86\x84\x41\x0fwww.example.com";
        assert_eq!(read(&mut table, first).unwrap().len(), 4);
        table.commit();
        let second = read(&mut table, b"\x82\x86\x84\xbe\x58\x08no-cache").unwrap();
        assert_eq!(
            second[3],
            (":authority".to_string(), "www.example.com".to_string())
        );
        table.commit();
        assert_eq!(table.bytes, 57 + 53);
    }

    #[test]
    fn an_undone_block_leaves_the_table_as_it_was() {
        let mut table = Table::default();
        read(&mut table, b"\x40\x01a\x01b").unwrap();
        table.commit();
        // the block shrinks the table to nothing, and adds another entry
        read(&mut table, b"\x20\x3f\xe1\x1f\x40\x01c\x01d").unwrap();
        let mark = table.mark();
        assert!(read(&mut table, b"\xbf").is_err());
        // a second block evicts the entry of the first one
        let long = [&b"\x40\x01e\x7f\xa1\x1f"[..], &[b'v'; 4_128]].concat();
        read(&mut table, &long).unwrap();
        table.undo_to(&mark);
        assert_eq!(read(&mut table, b"\xbe").unwrap()[0].0, "c");
        table.undo();
        assert_eq!((table.live, table.limit), (1, TABLE_BYTES));
        assert_eq!(read(&mut table, b"\xbe").unwrap()[0].0, "a");
    }

    #[test]
    fn no_number_and_no_length_is_trusted() {
        for wrong in [
            &b"\x80"[..],
            b"\xbe",
            b"\xff\xff\xff\xff\xff\x0f",
            b"\x40",
            b"\x40\x01",
            b"\x40\x7f\xff\xff\xff\x7fa",
            b"\x3f\xff\x7f",
            b"\x82\x20",
            b"\x20\x20\x20",
        ] {
            assert!(read(&mut Table::default(), wrong).is_err(), "{wrong:?}");
        }
    }
}
