//! The columns of many stored records, in one pass over their bytes, wherever these are in memory.

use super::constants::{record, BORNHOST_V6, COMPRESSED, STOREHOST_V6};
use super::layout::{parts_at, Bytes};
use super::property_columns::{Maps, Pieces, Texts, Values};
use std::ops::Range;

/// The largest time in ms that becomes µs, as in Python; producers may send any.
const MAX_MS: i64 = i64::MAX / 1000 - 1;
/// The hex digits of each byte.
const DIGITS: [[u8; 2]; 256] = digits();
/// An offset id: the digits of the store host and of the log offset.
const ID_BYTES: usize = 32;

/// What is found, and in which records.
pub struct Wanted {
    /// Maps of the properties.
    pub maps: bool,
    /// Texts of the properties.
    pub texts: bool,
    /// Properties that are columns of their own.
    pub names: Vec<String>,
    /// Records that need no second look: not compressed, and with the topic of the first.
    pub plain: bool,
}

/// The columns of the records that were taken. The caller takes the bodies; `body_ends` has the end of each behind the
/// first, with 0 before.
pub struct Columns {
    wanted: Wanted,
    /// Queue offset, log offset, born and store time in µs, log offset of the half message; and the born and store host,
    /// whose bytes are as they are stored.
    pub longs: [Vec<i64>; 7],
    /// Size, CRC of the body, queue, flag, sysFlag and reconsume times.
    pub ints: [Vec<i32>; 6],
    pub ids: Vec<u8>,
    pub body_ends: Vec<i32>,
    pub maps: Maps,
    pub texts: Texts,
    /// Of each name.
    pub values: Vec<Values>,
    first_topic: Vec<u8>,
    same_topic: bool,
    /// Bytes of all records.
    size: usize,
    /// Topic and properties of the record that is looked at, and the pieces of its properties.
    behind_body: Vec<u8>,
    pieces: Pieces,
}

impl Columns {
    pub fn new(wanted: Wanted) -> Self {
        Columns {
            longs: Default::default(),
            ints: Default::default(),
            ids: Vec::new(),
            body_ends: vec![0],
            maps: Maps::with_capacity(0, 0),
            texts: Texts::with_capacity(0, 0),
            values: wanted
                .names
                .iter()
                .map(|_| Values::with_capacity(0))
                .collect(),
            first_topic: Vec::new(),
            same_topic: true,
            size: 0,
            behind_body: Vec::new(),
            pieces: Pieces::default(),
            wanted,
        }
    }

    /// Begin with the next records; the memory is kept.
    pub fn clear(&mut self) {
        self.longs.iter_mut().for_each(Vec::clear);
        self.ints.iter_mut().for_each(Vec::clear);
        self.ids.clear();
        self.body_ends.truncate(1);
        self.maps.clear();
        self.texts.clear();
        self.values.iter_mut().for_each(Values::clear);
        self.same_topic = true;
        self.size = 0;
    }

    /// The topic, if all records have the same.
    pub fn topic(&self) -> Option<&[u8]> {
        (self.same_topic && self.count() > 0).then_some(&self.first_topic)
    }

    fn count(&self) -> usize {
        self.body_ends.len() - 1
    }

    /// Bytes of the bodies.
    pub fn body_bytes(&self) -> usize {
        self.body_ends.last().map_or(0, |end| *end as usize)
    }

    /// Take the record at a place and return its end; `None`, and nothing is changed, when Python must decode it: its
    /// parts do not add up, it has a host with IPv6, its properties are not UTF-8 or very many, it is not plain as
    /// wanted, or the columns would have 2 GiB.
    ///
    /// `body` gets the place of the body, and returns `None` when it has no room for it.
    pub fn take(
        &mut self,
        data: &(impl Bytes + ?Sized),
        at: usize,
        body: &mut impl FnMut(Range<usize>) -> Option<()>,
    ) -> Option<usize> {
        let parts = parts_at(data, at)?;
        let head = data.array(at)?;
        let size = self.size + (parts.properties.end - at);
        i32::try_from(size).ok()?;
        self.behind_body.clear();
        data.append_to(
            &mut self.behind_body,
            parts.topic.start..parts.properties.end,
        )?;
        let (topic, behind) = self.behind_body.split_at_checked(parts.topic.len())?;
        let text = behind.get(behind.len() - parts.properties.len()..)?;
        let same_topic = self.count() == 0 || self.first_topic == topic;
        let sys_flag = int(&head, record::SYS_FLAG);
        let is_plain = sys_flag & COMPRESSED == 0 && same_topic;
        if sys_flag & (BORNHOST_V6 | STOREHOST_V6) != 0 || (self.wanted.plain && !is_plain) {
            return None;
        }
        if self.wanted.maps || !self.wanted.names.is_empty() {
            self.pieces.split(text)?;
        } else if self.wanted.texts {
            std::str::from_utf8(text).ok()?;
        }
        let body_end = self.body_bytes() + parts.body.len();
        body(parts.body)?;
        if self.count() == 0 {
            self.first_topic.clear();
            self.first_topic.extend_from_slice(topic);
        }
        self.same_topic &= same_topic;
        self.size = size;
        self.body_ends.push(body_end as i32);
        if self.wanted.maps {
            self.maps.push(text, &self.pieces)?;
        }
        if self.wanted.texts {
            self.texts.push(text)?;
        }
        for (values, name) in self.values.iter_mut().zip(&self.wanted.names) {
            values.push(name, text, &self.pieces)?;
        }
        self.push_head(&head);
        Some(parts.properties.end)
    }

    /// Append the fields before the body.
    fn push_head(&mut self, head: &[u8; record::BYTES]) {
        let physical_offset = bytes(head, record::PHYSICAL_OFFSET);
        let store_host = bytes(head, record::STORE_HOST);
        let longs = [
            long(head, record::QUEUE_OFFSET),
            i64::from_be_bytes(physical_offset),
            microseconds(long(head, record::BORN_TIMESTAMP)),
            microseconds(long(head, record::STORE_TIMESTAMP)),
            long(head, record::PREPARED_TRANSACTION_OFFSET),
            i64::from_ne_bytes(bytes(head, record::BORN_HOST)),
            i64::from_ne_bytes(store_host),
        ];
        let ints = [
            int(head, record::SIZE),
            int(head, record::BODY_CRC),
            int(head, record::QUEUE_ID),
            int(head, record::FLAG),
            int(head, record::SYS_FLAG),
            int(head, record::RECONSUME_TIMES),
        ];
        for (column, value) in self.longs.iter_mut().zip(longs) {
            column.push(value);
        }
        for (column, value) in self.ints.iter_mut().zip(ints) {
            column.push(value);
        }
        let mut id = [0; ID_BYTES];
        let stored = store_host.iter().chain(&physical_offset);
        for (digits, byte) in id.chunks_exact_mut(2).zip(stored) {
            digits.copy_from_slice(&DIGITS[usize::from(*byte)]);
        }
        self.ids.extend_from_slice(&id);
    }
}

const fn digits() -> [[u8; 2]; 256] {
    let of_half = b"0123456789ABCDEF";
    let mut found = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        found[byte] = [of_half[byte >> 4], of_half[byte & 15]];
        byte += 1;
    }
    found
}

fn bytes<const N: usize>(head: &[u8; record::BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|number| head[at + number])
}

fn int(head: &[u8; record::BYTES], at: usize) -> i32 {
    i32::from_be_bytes(bytes(head, at))
}

fn long(head: &[u8; record::BYTES], at: usize) -> i64 {
    i64::from_be_bytes(bytes(head, at))
}

fn microseconds(ms: i64) -> i64 {
    ms.clamp(-MAX_MS, MAX_MS) * 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::{MESSAGE_MAGIC, MIN_RECORD_BYTES};

    fn all(plain: bool) -> Columns {
        Columns::new(Wanted {
            maps: true,
            texts: true,
            names: vec!["KEYS".to_string()],
            plain,
        })
    }

    fn stored(sys_flag: i32, body: &[u8], topic: &[u8], properties: &[u8]) -> Vec<u8> {
        let size = MIN_RECORD_BYTES + body.len() + topic.len() + properties.len();
        let mut found = vec![0; record::BYTES];
        let mut put =
            |at: usize, value: i32| found[at..at + 4].copy_from_slice(&value.to_be_bytes());
        put(record::SIZE, size as i32);
        put(record::MAGIC, MESSAGE_MAGIC);
        put(record::SYS_FLAG, sys_flag);
        put(record::BODY_LENGTH, body.len() as i32);
        put(record::STORE_HOST, 0x7f00_0001);
        found[record::BORN_TIMESTAMP..record::BORN_HOST].copy_from_slice(&i64::MIN.to_be_bytes());
        found.extend_from_slice(body);
        found.push(topic.len() as u8);
        found.extend_from_slice(topic);
        found.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        found.extend_from_slice(properties);
        found
    }

    /// Take all records; `None` when one is left to Python.
    fn read(found: &mut Columns, data: &[u8]) -> Option<Vec<u8>> {
        let mut bodies = Vec::new();
        let mut at = 0;
        while at < data.len() {
            at = found.take(data, at, &mut |place| data.append_to(&mut bodies, place))?;
        }
        Some(bodies)
    }

    #[test]
    fn records_become_columns() {
        let one = stored(0, b"body", b"T", b"KEYS\x01k\x02");
        let data = [one.clone(), stored(3, b"", b"T", b"")].concat();
        let mut found = all(false);
        for _ in 0..2 {
            assert_eq!(read(&mut found, &data), Some(b"body".to_vec()));
            assert_eq!(found.body_ends, [0, 4, 4]);
            assert_eq!(found.topic(), Some(&b"T"[..]));
            assert_eq!(found.ints[4], [0, 3]);
            assert_eq!(found.longs[2], [-MAX_MS * 1000; 2]);
            assert_eq!(&found.ids[..ID_BYTES], b"7F000001000000000000000000000000");
            assert_eq!(found.maps.offsets, [0, 1, 1]);
            assert_eq!(found.texts.bytes, b"KEYS\x01k\x02");
            assert_eq!(
                (&found.values[0].texts.bytes[..], &found.values[0].has[..]),
                (&b"k"[..], &[1][..])
            );
            found.clear();
            assert_eq!((found.topic(), found.body_bytes()), (None, 0));
        }
    }

    #[test]
    fn a_record_that_is_not_taken_leaves_no_trace() {
        let one = stored(0, b"b", b"T", b"KEYS\x01k");
        let mut found = all(true);
        read(&mut found, &one).unwrap();
        let refused = [
            stored(0, b"", b"U", b""),
            stored(COMPRESSED, b"", b"T", b""),
            stored(0, b"", b"T", b"KEYS\x01\xff"),
            one[1..].to_vec(),
        ];
        for data in refused {
            assert_eq!(read(&mut found, &data), None);
        }
        assert_eq!(found.take(&one[..], 0, &mut |_| None), None);
        read(&mut found, &one).unwrap();
        assert_eq!(found.body_ends, [0, 1, 2]);
        assert_eq!(found.maps.offsets, [0, 1, 2]);
        assert!(found.longs.iter().all(|column| column.len() == 2));
        assert!(found.ints.iter().all(|column| column.len() == 2));
        assert_eq!((found.texts.offsets.len(), found.ids.len()), (3, 64));
        found.clear();
        assert!(read(&mut found, &stored(0, b"", b"U", b"")).is_some());
    }

    #[test]
    fn different_topics_are_none() {
        let one = stored(0, b"", b"T", b"");
        let mut found = all(false);
        read(
            &mut found,
            &[one.clone(), stored(0, b"", b"U", b""), one].concat(),
        )
        .unwrap();
        assert_eq!(found.topic(), None);
    }

    #[test]
    fn damaged_and_rare_records_are_left_to_python() {
        let good = stored(0, b"body", b"T", b"a\x01b");
        let is_taken = |data: &[u8]| read(&mut all(false), data).is_some();
        assert!(is_taken(&good));
        for at in [1, good.len(), usize::MAX] {
            assert_eq!(all(false).take(&good[..], at, &mut |_| Some(())), None);
        }
        for end in 1..good.len() {
            assert!(!is_taken(&good[..end]));
        }
        for at in [
            record::SIZE,
            record::MAGIC,
            record::BODY_LENGTH,
            record::BYTES + 4,
            record::BYTES + 6,
        ] {
            let mut damaged = good.clone();
            damaged[at] ^= 0x80;
            assert!(!is_taken(&damaged));
        }
        assert!(!is_taken(&stored(BORNHOST_V6, &[0; 40], b"T", b"")));
        assert!(!is_taken(&stored(0, b"", b"T", b"a\x01\xff")));
    }
}
