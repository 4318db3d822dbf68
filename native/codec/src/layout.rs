//! Where the parts of stored records stand in a buffer.

/// The magics of records of RocketMQ 4 and 5; the latter have topics of more than 255 bytes.
const MAGIC: i32 = 0xDAA3_20A7_u32 as i32;
const MAGIC_V2: i32 = 0xDAA3_20AB_u32 as i32;
const MIN_RECORD_BYTES: usize = 91;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const SYS_FLAG_AT: usize = 36;
/// From the beginning to the body, with two IPv4 hosts.
const HEAD_BYTES: usize = 88;
/// What an IPv6 host has more.
const MORE_OF_V6: usize = 12;

fn int(data: &[u8], at: usize) -> Option<i32> {
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
        let magic = usize::try_from(*at).ok().and_then(|at| int(data, at + 4));
        magic == Some(MAGIC) || magic == Some(MAGIC_V2)
    };
    found.iter().all(is_record).then_some(found)
}

/// Begin and length of the body, the topic and the properties of one record; `None` when they do not add up.
fn layout_of(data: &[u8], at: usize) -> Option<[i64; 6]> {
    let size = usize::try_from(int(data, at)?).ok()?;
    let record = data.get(at..at.checked_add(size)?)?;
    let magic = int(record, 4)?;
    if magic != MAGIC && magic != MAGIC_V2 {
        return None;
    }
    let flags = int(record, SYS_FLAG_AT)?;
    let hosts = [BORN_HOST_V6, STORE_HOST_V6]
        .iter()
        .filter(|bit| flags & **bit != 0)
        .count();
    let body_at = HEAD_BYTES + hosts * MORE_OF_V6;
    let body_length = usize::try_from(int(record, body_at - 4)?).ok()?;
    let after_body = body_at.checked_add(body_length)?;
    let (topic_at, topic_length) = if magic == MAGIC {
        (
            after_body.checked_add(1)?,
            usize::from(*record.get(after_body)?),
        )
    } else {
        (after_body.checked_add(2)?, short(record, after_body)?)
    };
    let properties_at = topic_at.checked_add(topic_length)?.checked_add(2)?;
    let properties_length = short(record, properties_at - 2)?;
    if properties_at + properties_length != size {
        return None;
    }
    let place = |position: usize| (at + position) as i64;
    Some([
        place(body_at),
        body_length as i64,
        place(topic_at),
        topic_length as i64,
        place(properties_at),
        properties_length as i64,
    ])
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
        one[4..8].copy_from_slice(&MAGIC.to_be_bytes());
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
