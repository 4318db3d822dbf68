//! Where the parts of stored records stand in a buffer.

use super::constants::{
    record, BODY_LENGTH_BYTES, BORNHOST_V6, IPV4_HOST_BYTES, IPV6_HOST_BYTES, MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, PROPERTIES_LENGTH_BYTES, STOREHOST_V6, TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_V2_BYTES,
};
use std::ops::Range;

/// Where the parts of variable length are in a record.
pub struct Parts {
    pub born_host: Range<usize>,
    /// The end of the store host; the fields behind it have fixed lengths.
    pub store_host_end: usize,
    pub body: Range<usize>,
    pub topic: Range<usize>,
    pub properties: Range<usize>,
}

/// Bytes of which only a few are read: a buffer that others own need not be copied.
pub trait Bytes {
    fn size(&self) -> usize;
    /// The bytes from a place on, if they are inside.
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]>;
    /// Append the bytes of a range, if it is inside.
    fn append_to(&self, out: &mut Vec<u8>, range: Range<usize>) -> Option<()>;
    /// Whether exactly these bytes are in a range.
    fn contains(&self, range: Range<usize>, bytes: &[u8]) -> bool {
        range.len() == bytes.len()
            && range
                .zip(bytes)
                .all(|(at, byte)| self.array(at) == Some([*byte]))
    }
}

impl Bytes for [u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn append_to(&self, out: &mut Vec<u8>, range: Range<usize>) -> Option<()> {
        out.extend_from_slice(self.get(range)?);
        Some(())
    }
}

/// The int32 at a place, if it is inside.
pub fn int(data: &(impl Bytes + ?Sized), at: usize) -> Option<i32> {
    data.array(at).map(i32::from_be_bytes)
}

fn short(data: &(impl Bytes + ?Sized), at: usize) -> Option<usize> {
    usize::try_from(i16::from_be_bytes(data.array(at)?)).ok()
}

/// The position of each record; `None` when the parts of one do not add up to its size, or the sizes do not lead exactly
/// to the end.
pub fn whole_starts(data: &(impl Bytes + ?Sized)) -> Option<Vec<i64>> {
    let mut found = Vec::with_capacity(data.size() / 256 + 1);
    let mut at = 0;
    while at < data.size() {
        found.push(at as i64);
        at = parts_at(data, at)?.properties.end;
    }
    Some(found)
}

/// The position of each record; `None` when the sizes do not lead exactly to the end.
fn starts(data: &(impl Bytes + ?Sized)) -> Option<Vec<i64>> {
    let mut found = Vec::with_capacity(data.size() / 256 + 1);
    let mut at = 0;
    while at < data.size() {
        let size = usize::try_from(int(data, at)?).ok()?;
        if size < MIN_RECORD_BYTES || size > data.size() - at {
            return None;
        }
        found.push(at as i64);
        at += size;
    }
    Some(found)
}

/// The position of each record; `None` when one has another magic, or the sizes do not lead exactly to the end.
pub fn starts_of_records(data: &[u8]) -> Option<Vec<i64>> {
    let found = starts(data)?;
    let is_record = |at: &i64| {
        let magic = usize::try_from(*at)
            .ok()
            .and_then(|at| int(data, at + record::MAGIC));
        magic == Some(MESSAGE_MAGIC) || magic == Some(MESSAGE_MAGIC_V2)
    };
    found.iter().all(is_record).then_some(found)
}

fn host_bytes(sys_flag: i32, bit: i32) -> usize {
    if sys_flag & bit == 0 {
        IPV4_HOST_BYTES
    } else {
        IPV6_HOST_BYTES
    }
}

/// The parts of `data`, which is one record; `None` when its size or its lengths do not add up to it.
pub fn parts_of(data: &[u8]) -> Option<Parts> {
    let parts = parts_at(data, 0)?;
    (parts.properties.end == data.len()).then_some(parts)
}

/// The parts of the record at a place; `None` when its lengths do not add up to its size, or it does not lie inside.
pub fn parts_at(data: &(impl Bytes + ?Sized), at: usize) -> Option<Parts> {
    let size = usize::try_from(int(data, at)?).ok()?;
    let record_end = at.checked_add(size)?;
    let magic = int(data, at + record::MAGIC)?;
    if record_end > data.size() || (magic != MESSAGE_MAGIC && magic != MESSAGE_MAGIC_V2) {
        return None;
    }
    let sys_flag = int(data, at + record::SYS_FLAG)?;
    let born_at = at + record::BORN_HOST;
    let born_end = born_at + host_bytes(sys_flag, BORNHOST_V6);
    let store_host_at = born_end + record::STORE_HOST - record::STORE_TIMESTAMP;
    let store_host_end = store_host_at + host_bytes(sys_flag, STOREHOST_V6);
    let body_at = store_host_end + record::BYTES - record::RECONSUME_TIMES;
    let body_length = usize::try_from(int(data, body_at - BODY_LENGTH_BYTES)?).ok()?;
    let body_end = body_at.checked_add(body_length)?;
    let (topic_at, topic_length) = if magic == MESSAGE_MAGIC {
        let [length] = data.array(body_end)?;
        (
            body_end.checked_add(TOPIC_LENGTH_BYTES)?,
            usize::from(length),
        )
    } else {
        let length = short(data, body_end)?;
        (body_end.checked_add(TOPIC_LENGTH_V2_BYTES)?, length)
    };
    let topic_end = topic_at.checked_add(topic_length)?;
    let properties_at = topic_end.checked_add(PROPERTIES_LENGTH_BYTES)?;
    let end = properties_at.checked_add(short(data, topic_end)?)?;
    // A length that was read behind the record's end leads further behind it.
    (end == record_end).then_some(Parts {
        born_host: born_at..born_end,
        store_host_end,
        body: body_at..body_end,
        topic: topic_at..topic_end,
        properties: properties_at..end,
    })
}

/// Six rows, each with one number of every record: begin and length of the body, the topic and the properties; `None`
/// when the parts of one do not add up.
pub fn layout(data: &(impl Bytes + ?Sized), starts: &[i64]) -> Option<Vec<i64>> {
    let count = starts.len();
    let mut rows = vec![0; 6 * count];
    for (number, start) in starts.iter().enumerate() {
        let parts = parts_at(data, usize::try_from(*start).ok()?)?;
        for (row, part) in [parts.body, parts.topic, parts.properties]
            .iter()
            .enumerate()
        {
            rows[2 * row * count + number] = part.start as i64;
            rows[(2 * row + 1) * count + number] = part.len() as i64;
        }
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_have_starts() {
        let mut one = vec![0; MIN_RECORD_BYTES];
        one[..4].copy_from_slice(&(MIN_RECORD_BYTES as i32).to_be_bytes());
        one[4..8].copy_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        let two = one.repeat(2);
        assert_eq!(starts_of_records(&two), Some(vec![0, 91]));
        assert_eq!(starts_of_records(b""), Some(vec![]));
        for end in 1..two.len() {
            assert_eq!(starts_of_records(&two[..end]).is_some(), end == 91);
        }
        one[7] ^= 1;
        assert_eq!(starts_of_records(&one), None);
    }
}
