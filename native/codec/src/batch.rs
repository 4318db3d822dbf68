//! The body of SEND_BATCH_MESSAGE: its messages, and the records and queue units that a broker makes of them.
//!
//! For each message the fields of `batch_head`, the body, and length and text of the properties. Magic and CRC are not
//! looked at.

use super::constants::{batch_head, PROPERTIES_LENGTH_BYTES};
use super::properties::Properties;
use super::record::Record;
use super::units;

/// A message without body and properties.
const OVERHEAD_BYTES: usize = batch_head::BYTES + PROPERTIES_LENGTH_BYTES;

/// One message of a batch.
pub struct Piece<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: Properties<'a>,
    /// Bytes of the properties as they are stored.
    pub properties_length: usize,
}

impl<'a> Piece<'a> {
    /// The message at the beginning of `data` and what follows it; `None` when its lengths do not add up, or its
    /// properties are not plain. The text of `tail` is stored behind its properties.
    fn read(data: &'a [u8], tail: &[u8]) -> Option<(Self, &'a [u8])> {
        let head = data.get(..batch_head::BYTES)?;
        let int = |at: usize| {
            let bytes = head[at..at + 4].try_into().ok()?;
            Some(i32::from_be_bytes(bytes))
        };
        let size = usize::try_from(int(batch_head::SIZE)?).ok()?;
        if size < OVERHEAD_BYTES {
            return None;
        }
        let (piece, behind) = data.split_at_checked(size)?;
        let (_, rest) = piece.split_at(batch_head::BYTES);
        let body_length = usize::try_from(int(batch_head::BODY_LENGTH)?).ok()?;
        let (body, rest) = rest.split_at_checked(body_length)?;
        let (length, properties) = rest.split_at_checked(PROPERTIES_LENGTH_BYTES)?;
        let length = i16::from_be_bytes(length.try_into().ok()?);
        if usize::try_from(length).ok()? != properties.len() {
            return None;
        }
        let properties = Properties::read(std::str::from_utf8(properties).ok()?)?;
        if properties.is_half || properties.is_lite() {
            return None;
        }
        let piece = Piece {
            flag: int(batch_head::FLAG)?,
            body,
            properties_length: properties.stored_length(tail),
            properties,
        };
        Some((piece, behind))
    }
}

/// The messages of a batch; `None` when it has none, or one that is not plain or too large.
///
/// :param first_tail: stored behind the properties of the first message, instead of `tail`.
pub fn pieces<'a>(
    body: &'a [u8],
    tail: &[u8],
    first_tail: &[u8],
    most: &Most,
) -> Option<Vec<Piece<'a>>> {
    let mut found = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let tail = if found.is_empty() { first_tail } else { tail };
        let (piece, behind) = Piece::read(rest, tail)?;
        if found.len() == most.messages
            || piece.properties_length > most.properties_bytes
            || piece.body.len() + piece.properties_length > most.stored_bytes
        {
            return None;
        }
        found.push(piece);
        rest = behind;
    }
    (!found.is_empty()).then_some(found)
}

/// All that the records of a batch have in common.
pub struct Common<'a> {
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    /// The length and the bytes of the topic.
    pub topic: &'a [u8],
    /// Added to the properties of each message.
    pub tail: &'a [u8],
    /// Added to those of the first one instead.
    pub first_tail: &'a [u8],
    /// The hash of `topic#`; `None` where there is no index.
    pub index_seed: Option<i32>,
}

/// Where the records go.
pub struct Place {
    /// The log offset of the first record.
    pub next: i64,
    /// The log offset that no record may pass.
    pub limit: i64,
    /// The queue offset of the first record.
    pub queue_offset: i64,
}

/// The most of a batch and of each of its messages.
pub struct Most {
    pub messages: usize,
    pub properties_bytes: usize,
    /// Body and properties together.
    pub stored_bytes: usize,
}

/// The records of a batch, and what follows from them.
#[derive(Default)]
pub struct Encoded {
    pub records: Vec<u8>,
    pub units: Vec<u8>,
    /// The log offset of each record.
    pub offsets: Vec<i64>,
    pub last_size: usize,
    /// Bytes of bodies and properties.
    pub content_bytes: usize,
    pub index_hashes: Vec<i32>,
    pub index_offsets: Vec<i64>,
}

/// Make the records of a batch; `None` when it has none, or one that is not plain, too large, or without room.
pub fn encode(body: &[u8], common: &Common<'_>, place: &Place, most: &Most) -> Option<Encoded> {
    for tail in [common.tail, common.first_tail] {
        if tail.last().is_none_or(|byte| *byte == 0) {
            return None;
        }
    }
    let pieces = pieces(body, common.tail, common.first_tail, most)?;
    let mut made = Encoded {
        records: Vec::with_capacity(body.len() + body.len() / 4),
        ..Encoded::default()
    };
    let (mut next, mut queue_offset) = (place.next, place.queue_offset);
    for piece in pieces {
        let tail = if made.offsets.is_empty() {
            common.first_tail
        } else {
            common.tail
        };
        let (properties, properties_length) = (&piece.properties, piece.properties_length);
        let record = Record {
            body: piece.body,
            queue_id: common.queue_id,
            flag: piece.flag,
            sys_flag: common.sys_flag,
            born_timestamp: common.born_timestamp,
            born_host: common.born_host,
            store_timestamp: common.store_timestamp,
            store_host: common.store_host,
            reconsume_times: common.reconsume_times,
            prepared_transaction_offset: 0,
            topic: common.topic,
        };
        let size = record.size(properties_length);
        let end = next.checked_add(i64::try_from(size).ok()?)?;
        if end > place.limit {
            return None;
        }
        let (size_field, length_field) = (
            i32::try_from(size).ok()?,
            i16::try_from(properties_length).ok()?,
        );
        record.write(
            size_field,
            queue_offset,
            next,
            length_field,
            &mut made.records,
        );
        properties.store(tail, &mut made.records);
        units::write(next, size_field, properties.tags_code, &mut made.units);
        if let Some(seed) = common.index_seed {
            properties.index_hashes(seed, &mut made.index_hashes);
            made.index_offsets.resize(made.index_hashes.len(), next);
        }
        made.offsets.push(next);
        made.last_size = size;
        made.content_bytes += piece.body.len() + properties_length;
        next = end;
        queue_offset = queue_offset.checked_add(1)?;
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let size = (OVERHEAD_BYTES + body.len() + properties.len()) as i32;
        [
            &size.to_be_bytes()[..],
            &[0; 12],
            &(body.len() as i32).to_be_bytes(),
            body,
            &(properties.len() as i16).to_be_bytes(),
            properties,
        ]
        .concat()
    }

    fn made(body: &[u8], limit: i64, messages: usize) -> Option<Encoded> {
        let common = Common {
            queue_id: 1,
            sys_flag: 0,
            born_timestamp: 2,
            born_host: &[1; 8],
            store_timestamp: 3,
            store_host: &[2; 8],
            reconsume_times: 0,
            topic: b"\x01T",
            tail: b"C\x01c",
            first_tail: b"C\x01c\x02S\x011",
            index_seed: Some(7),
        };
        let place = Place {
            next: 100,
            limit,
            queue_offset: 5,
        };
        let most = Most {
            messages,
            properties_bytes: 100,
            stored_bytes: 1000,
        };
        encode(body, &common, &place, &most)
    }

    #[test]
    fn records_follow_each_other_and_the_first_has_a_tail_of_its_own() {
        let body = [piece(b"ab", b"KEYS\x01k"), piece(b"", b"")].concat();
        let found = made(&body, 10_000, 2).unwrap();
        assert_eq!(
            found.offsets,
            [
                100,
                100 + found.records.len() as i64 - found.last_size as i64
            ]
        );
        assert_eq!(found.units.len(), 40);
        assert_eq!(
            found.content_bytes,
            2 + "KEYS\x01k\x02C\x01c\x02S\x011".len() + 3
        );
        assert_eq!(
            (found.index_hashes.len(), found.index_offsets),
            (1, vec![100])
        );
    }

    #[test]
    fn damage_and_what_does_not_fit_make_nothing() {
        let good = piece(b"ab", b"a\x01b");
        assert!(made(&good, 10_000, 1).is_some());
        assert!(made(&good, 100 + good.len() as i64, 1).is_none());
        assert!(made(&[good.clone(), good.clone()].concat(), 10_000, 1).is_none());
        assert!(made(b"", 10_000, 1).is_none());
        assert!(made(&piece(b"ab", b"DELAY\x013"), 10_000, 1).is_none());
        assert!(made(&piece(b"ab", b"\xff"), 10_000, 1).is_none());
        assert!(made(&piece(&[1; 1001], b""), 10_000, 1).is_none());
        for end in 1..good.len() {
            assert!(made(&good[..end], 10_000, 1).is_none());
        }
        for at in [0, 1, 16, 17, batch_head::BYTES + 2, batch_head::BYTES + 3] {
            for value in [0xff, 0x80, 0x7f, 1] {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(made(&bad, 10_000, 1).is_none(), "{at} {value}");
            }
        }
    }
}
