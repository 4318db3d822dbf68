//! The columns of many stored records, in one pass over their bytes.

use super::constants::{record, BORNHOST_V6, STOREHOST_V6};
use super::layout::{parts_at, Bytes};
use super::property_columns::{Maps, Pieces, Texts, Values};
use std::ops::Range;

/// The largest time in ms that becomes µs, as in Python; producers may send any.
const MAX_MS: i64 = i64::MAX / 1000 - 1;
/// The hex digits of each byte.
const DIGITS: [[u8; 2]; 256] = digits();
/// An offset id: the digits of the store host and of the log offset.
const ID_BYTES: usize = 32;

/// What is found of the properties.
pub struct Wanted<'a> {
    pub maps: bool,
    pub texts: bool,
    /// Properties that are columns of their own.
    pub names: &'a [String],
}

/// The columns. The caller takes the bodies; `body_ends` has the end of each behind the first, with 0 before.
pub struct Columns {
    /// Queue offset, log offset, born and store time in µs, log offset of the half message; and the born and store host,
    /// whose bytes are as they are stored.
    pub longs: [Vec<i64>; 7],
    /// Size, CRC of the body, queue, flag, sysFlag and reconsume times.
    pub ints: [Vec<i32>; 6],
    pub ids: Vec<u8>,
    pub body_ends: Vec<i32>,
    /// The topic, if all have the same.
    pub topic: Option<Vec<u8>>,
    pub maps: Maps,
    pub texts: Texts,
    /// Of each name.
    pub values: Vec<Values>,
}

impl Columns {
    fn with_capacity(count: usize, bytes: usize, names: usize) -> Self {
        let mut body_ends = Vec::with_capacity(count + 1);
        body_ends.push(0);
        Columns {
            longs: std::array::from_fn(|_| Vec::with_capacity(count)),
            ints: std::array::from_fn(|_| Vec::with_capacity(count)),
            ids: Vec::with_capacity(ID_BYTES * count),
            body_ends,
            topic: None,
            maps: Maps::with_capacity(count, bytes),
            texts: Texts::with_capacity(count, bytes),
            values: (0..names).map(|_| Values::with_capacity(count)).collect(),
        }
    }

    /// Append the fields before the body; `None` when a host is IPv6.
    fn push_head(&mut self, head: &[u8; record::BYTES]) -> Option<()> {
        let sys_flag = int(head, record::SYS_FLAG);
        if sys_flag & (BORNHOST_V6 | STOREHOST_V6) != 0 {
            return None;
        }
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
            sys_flag,
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
        Some(())
    }

    /// Append what is wanted of the properties.
    fn push_properties(&mut self, wanted: &Wanted, text: &[u8], pieces: &mut Pieces) -> Option<()> {
        if wanted.maps || !wanted.names.is_empty() {
            pieces.split(text)?;
        }
        if wanted.maps {
            self.maps.push(text, pieces)?;
        }
        if wanted.texts {
            std::str::from_utf8(text).ok()?;
            self.texts.push(text)?;
        }
        for (values, name) in self.values.iter_mut().zip(wanted.names) {
            values.push(name, text, pieces)?;
        }
        Some(())
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

/// The columns of the records at `starts`; `None` when Python must decode them: the parts of one do not add up, it has a
/// host with IPv6, or its properties are not UTF-8 or very many.
///
/// `body` gets the place of each body, and returns `None` when it has no room for it.
pub fn columns(
    data: &(impl Bytes + ?Sized),
    starts: &[i64],
    wanted: &Wanted,
    mut body: impl FnMut(Range<usize>) -> Option<()>,
) -> Option<Columns> {
    let names = wanted.names.len();
    let mut found = Columns::with_capacity(starts.len(), 128 * starts.len(), names);
    let mut pieces = Pieces::default();
    let mut first_topic: Option<Vec<u8>> = None;
    let mut same_topic = true;
    let mut behind_body = Vec::new();
    let mut body_bytes = 0;
    for start in starts {
        let at = usize::try_from(*start).ok()?;
        let parts = parts_at(data, at)?;
        found.push_head(&data.array(at)?)?;
        body_bytes += parts.body.len();
        body(parts.body)?;
        found.body_ends.push(i32::try_from(body_bytes).ok()?);
        behind_body.clear();
        data.append_to(&mut behind_body, parts.topic.start..parts.properties.end)?;
        let topic = behind_body.get(..parts.topic.len())?;
        match &first_topic {
            Some(first) => same_topic &= first == topic,
            None => first_topic = Some(topic.to_vec()),
        }
        let text = behind_body.get(behind_body.len() - parts.properties.len()..)?;
        found.push_properties(wanted, text, &mut pieces)?;
    }
    found.topic = first_topic.filter(|_| same_topic);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::{MESSAGE_MAGIC, MIN_RECORD_BYTES};

    const ALL: Wanted = Wanted {
        maps: true,
        texts: true,
        names: &[],
    };

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

    fn read(data: &[u8], starts: &[i64]) -> Option<(Columns, Vec<u8>)> {
        let mut bodies = Vec::new();
        let found = columns(data, starts, &ALL, |place| {
            data.append_to(&mut bodies, place)
        })?;
        Some((found, bodies))
    }

    #[test]
    fn records_become_columns() {
        let one = stored(0, b"body", b"T", b"KEYS\x01k\x02");
        let data = [one.clone(), stored(3, b"", b"T", b"")].concat();
        let (found, bodies) = read(&data, &[0, one.len() as i64]).unwrap();
        assert_eq!((found.body_ends, bodies), (vec![0, 4, 4], b"body".to_vec()));
        assert_eq!(found.topic.as_deref(), Some(&b"T"[..]));
        assert_eq!(found.ints[4], [0, 3]);
        assert_eq!(found.longs[2], [-MAX_MS * 1000; 2]);
        assert_eq!(&found.ids[..ID_BYTES], b"7F000001000000000000000000000000");
        assert_eq!(found.maps.offsets, [0, 1, 1]);
        assert_eq!(found.texts.bytes, b"KEYS\x01k\x02");
        assert!(columns(&data[..], &[0], &ALL, |_| None).is_none());
    }

    #[test]
    fn different_topics_are_none() {
        let one = stored(0, b"", b"T", b"");
        let data = [one.clone(), stored(0, b"", b"U", b"")].concat();
        assert_eq!(read(&data, &[0, one.len() as i64]).unwrap().0.topic, None);
    }

    #[test]
    fn damaged_and_rare_records_are_left_to_python() {
        let good = stored(0, b"body", b"T", b"a\x01b");
        assert!(read(&good, &[0]).is_some());
        for start in [-1, 1, good.len() as i64, i64::MAX] {
            assert!(read(&good, &[start]).is_none());
        }
        for end in 0..good.len() {
            assert!(read(&good[..end], &[0]).is_none());
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
            assert!(read(&damaged, &[0]).is_none());
        }
        for rare in [
            stored(BORNHOST_V6, &[0; 40], b"T", b""),
            stored(0, b"", b"T", b"a\x01\xff"),
        ] {
            assert!(read(&rare, &[0]).is_none());
        }
    }
}
