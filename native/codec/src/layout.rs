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

/// The int32 at a place, if it is inside.
pub fn int(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(
        data.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn short(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(2)?)?.try_into().ok()?;
    usize::try_from(i16::from_be_bytes(bytes)).ok()
}

/// The position of each record; `None` when the sizes do not lead exactly to the end.
pub fn starts(data: &[u8]) -> Option<Vec<i64>> {
    let mut found = Vec::with_capacity(data.len() / 256 + 1);
    let mut at = 0;
    while at < data.len() {
        let size = usize::try_from(int(data, at)?).ok()?;
        if size < MIN_RECORD_BYTES || size > data.len() - at {
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
    let magic = int(data, record::MAGIC)?;
    if usize::try_from(int(data, record::SIZE)?).ok()? != data.len()
        || (magic != MESSAGE_MAGIC && magic != MESSAGE_MAGIC_V2)
    {
        return None;
    }
    let sys_flag = int(data, record::SYS_FLAG)?;
    let born_end = record::BORN_HOST + host_bytes(sys_flag, BORNHOST_V6);
    let store_host_at = born_end + record::STORE_HOST - record::STORE_TIMESTAMP;
    let store_host_end = store_host_at + host_bytes(sys_flag, STOREHOST_V6);
    let body_at = store_host_end + record::BYTES - record::RECONSUME_TIMES;
    let body_length = usize::try_from(int(data, body_at - BODY_LENGTH_BYTES)?).ok()?;
    let body_end = body_at.checked_add(body_length)?;
    let (topic_at, topic_length) = if magic == MESSAGE_MAGIC {
        let length = usize::from(*data.get(body_end)?);
        (body_end.checked_add(TOPIC_LENGTH_BYTES)?, length)
    } else {
        let length = short(data, body_end)?;
        (body_end.checked_add(TOPIC_LENGTH_V2_BYTES)?, length)
    };
    let topic_end = topic_at.checked_add(topic_length)?;
    let properties_at = topic_end.checked_add(PROPERTIES_LENGTH_BYTES)?;
    let end = properties_at.checked_add(short(data, topic_end)?)?;
    (end == data.len()).then_some(Parts {
        born_host: record::BORN_HOST..born_end,
        store_host_end,
        body: body_at..body_end,
        topic: topic_at..topic_end,
        properties: properties_at..end,
    })
}

/// Begin and length of the body, the topic and the properties of one record; `None` when they do not add up.
fn layout_of(data: &[u8], at: usize) -> Option<[i64; 6]> {
    let size = usize::try_from(int(data, at)?).ok()?;
    let parts = parts_of(data.get(at..at.checked_add(size)?)?)?;
    let place = |part: &Range<usize>| ((at + part.start) as i64, part.len() as i64);
    let (body, topic) = (place(&parts.body), place(&parts.topic));
    let properties = place(&parts.properties);
    Some([body.0, body.1, topic.0, topic.1, properties.0, properties.1])
}

/// Six rows, each with one number of every record; `None` when the parts of one do not add up.
pub fn layout(data: &[u8], starts: &[i64]) -> Option<Vec<i64>> {
    let count = starts.len();
    let mut rows = vec![0; 6 * count];
    for (number, start) in starts.iter().enumerate() {
        let parts = layout_of(data, usize::try_from(*start).ok()?)?;
        for (row, part) in parts.into_iter().enumerate() {
            rows[row * count + number] = part;
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
