//! Units of a ConsumeQueue.

use super::constants::{queue_unit, record, MIN_RECORD_BYTES, TRANSACTION_PREPARED};
use super::layout::{int, parts_at, Bytes};

/// The size in a unit that leads to no record.
const BLANK_SIZE: i32 = i32::MAX;
/// The bit of PREPARED and ROLLBACK: such records have no unit.
pub const NO_QUEUE_OFFSET: i32 = TRANSACTION_PREPARED;
/// A record is torn if its last byte and so many bytes after it are zero.
const ZEROS_BYTES: usize = 8;

/// Append the unit of a record.
pub fn write(log_offset: i64, size: i32, tags_code: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&log_offset.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&tags_code.to_be_bytes());
}

/// The queue that units belong to.
pub struct Queue<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    /// The queue offset of the first unit.
    pub offset: i64,
    /// The queue offset from which on units are known to lead to their records; those below are compared with them.
    pub known_from: i64,
}

/// The part of the log that records are read from.
pub struct Segment<'a, B: Bytes + ?Sized> {
    pub log: &'a B,
    /// The log offset of its first byte.
    pub base: i64,
    /// The log offset from which on records are there.
    pub low: i64,
    /// The log offset behind the last record that may be read.
    pub end: i64,
}

/// At most so many messages and bytes.
pub struct Most {
    pub messages: usize,
    pub bytes: usize,
}

/// The records that units lead to.
#[derive(Default)]
pub struct Found {
    /// Begin and end, within the segment, of each run of records that follow each other.
    pub runs: Vec<(usize, usize)>,
    pub messages: usize,
    pub bytes: usize,
    /// The number of units that were looked at.
    pub looked_at: usize,
    /// The log offset that the last unit with a wanted tag leads to.
    pub last: i64,
}

impl Found {
    fn add(&mut self, begin: usize, length: usize) {
        match self.runs.last_mut() {
            Some((_, end)) if *end == begin => *end += length,
            _ => self.runs.push((begin, begin + length)),
        }
        self.messages += 1;
        self.bytes += length;
    }
}

/// The records of the units with one of `codes` (all, if `None`), as long as all lie in one segment; otherwise `None`.
pub fn find<B: Bytes + ?Sized>(
    units: &[u8],
    codes: Option<&[i64]>,
    queue: &Queue,
    segment: &Segment<B>,
    most: &Most,
) -> Option<Found> {
    let end = segment
        .base
        .checked_add(i64::try_from(segment.log.size()).ok()?)?;
    let (low, end) = (segment.low.max(segment.base), segment.end.min(end));
    let mut found = Found {
        last: -1,
        ..Found::default()
    };
    for (number, unit) in (0..).zip(units.chunks_exact(queue_unit::BYTES)) {
        let begin = i64::from_be_bytes(unit[..queue_unit::SIZE].try_into().ok()?);
        let size = i32::from_be_bytes(unit[queue_unit::SIZE..queue_unit::TAGS].try_into().ok()?);
        if let Some(codes) = codes {
            if !codes.contains(&i64::from_be_bytes(
                unit[queue_unit::TAGS..].try_into().ok()?,
            )) {
                found.looked_at += 1;
                continue;
            }
        }
        found.last = begin;
        let length = usize::try_from(size).ok()?;
        if found.messages >= most.messages
            || (found.messages > 0 && found.bytes + length > most.bytes)
        {
            return Some(found);
        }
        let is_readable = low <= begin && begin.checked_add(i64::from(size))? <= end;
        if size == BLANK_SIZE || size == 0 || !is_readable {
            return None;
        }
        let at = usize::try_from(begin.checked_sub(segment.base)?).ok()?;
        let queue_offset = queue.offset.checked_add(number)?;
        if queue_offset < queue.known_from {
            points_to_record(segment.log, at, (begin, size), queue, queue_offset)?;
        }
        found.add(at, length);
        found.looked_at += 1;
    }
    Some(found)
}

/// `Some` if the unit with this log offset and size points to its record, at byte `at` of a log file. Everything except
/// the CRC is compared.
fn points_to_record(
    log: &(impl Bytes + ?Sized),
    at: usize,
    (offset, size): (i64, i32),
    queue: &Queue,
    queue_offset: i64,
) -> Option<()> {
    let parts = parts_at(log, at)?;
    let end = parts.properties.end;
    let is_record = usize::try_from(size).ok()? >= MIN_RECORD_BYTES
        && int(log, at + record::SIZE)? == size
        && int(log, at + record::QUEUE_ID)? == queue.queue_id
        && log.array(at + record::QUEUE_OFFSET)? == queue_offset.to_be_bytes()
        && log.array(at + record::PHYSICAL_OFFSET)? == offset.to_be_bytes()
        && int(log, at + record::SYS_FLAG)? & NO_QUEUE_OFFSET == 0
        && log.contains(parts.topic, queue.topic);
    let is_torn = !parts.properties.is_empty() && ends_in_zeros(log, end);
    (is_record && !is_torn).then_some(())
}

/// Whether the byte before `end` and all bytes after it are zero, so that what is there was not written completely.
fn ends_in_zeros(log: &(impl Bytes + ?Sized), end: usize) -> bool {
    let is_zero = |at| log.array(at) == Some([0]);
    is_zero(end - 1) && (end..log.size().min(end + ZEROS_BYTES)).all(is_zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn unit(begin: i64, size: i32, code: i64) -> Vec<u8> {
        let mut out = Vec::new();
        write(begin, size, code, &mut out);
        assert_eq!(out.len(), queue_unit::BYTES);
        out
    }

    const KNOWN: Queue = Queue {
        topic: b"T",
        queue_id: 1,
        offset: 9,
        known_from: 0,
    };

    fn most(messages: usize, bytes: usize) -> Most {
        Most { messages, bytes }
    }

    fn segment(log: &[u8], base: i64, low: i64, end: i64) -> Segment<'_, [u8]> {
        Segment {
            log,
            base,
            low,
            end,
        }
    }

    #[test]
    fn units_end_at_the_limits_and_nothing_is_found_outside_the_segment() {
        let units = [unit(100, 10, 7), unit(110, 20, 8), unit(130, 30, 7)].concat();
        let log = [0; 60];
        let whole = segment(&log, 100, 0, 160);
        let all = find(&units, None, &KNOWN, &whole, &most(32, 1000)).unwrap();
        assert_eq!(
            (all.runs, all.messages, all.looked_at, all.last),
            (vec![(0, 60)], 3, 3, 130)
        );
        let two = find(&units, None, &KNOWN, &whole, &most(2, 1000)).unwrap();
        assert_eq!((two.bytes, two.looked_at, two.last), (30, 2, 130));
        let few = find(&units, None, &KNOWN, &whole, &most(32, 5)).unwrap();
        assert_eq!((few.bytes, few.looked_at), (10, 1));
        let tagged = find(&units, Some(&[7]), &KNOWN, &whole, &most(32, 1000)).unwrap();
        assert_eq!(
            (tagged.runs, tagged.looked_at),
            (vec![(0, 10), (30, 60)], 3)
        );
        for outside in [
            segment(&log, 100, 0, 159),
            segment(&log, 100, 101, 160),
            segment(&log, 101, 0, 160),
            segment(&log[..59], 100, 0, 160),
            segment(&log, i64::MAX, 0, i64::MAX),
            segment(&log, i64::MIN, 0, 0),
        ] {
            assert!(find(&units, None, &KNOWN, &outside, &most(32, 1000)).is_none());
        }
        for odd in [
            unit(100, 0, 0),
            unit(100, -1, 0),
            unit(-5, 9, 0),
            unit(100, BLANK_SIZE, 0),
            unit(i64::MAX, 9, 0),
        ] {
            let everywhere = segment(&log, 0, 0, i64::MAX);
            assert!(find(&odd, None, &KNOWN, &everywhere, &most(32, 1000)).is_none());
        }
    }

    #[test]
    fn a_unit_that_is_not_known_leads_to_its_whole_record() {
        let record = Record {
            body: b"hello",
            queue_id: 1,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 3,
            born_host: &[7; 8],
            store_timestamp: 4,
            store_host: &[8; 8],
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"\x01T",
        };
        let mut log = vec![0; 10];
        let size = record.size(3) as i32;
        record.write(size, 9, 110, 3, &mut log);
        log.extend_from_slice(b"a\x01b");
        log.extend_from_slice(&[0; 9]);
        let units = unit(110, size, 0);
        let old = Queue {
            known_from: 10,
            ..KNOWN
        };
        let is_found = |queue: &Queue, log: &[u8]| {
            let segment = segment(log, 100, 100, 100 + 10 + i64::from(size));
            find(&units, None, queue, &segment, &most(1, 1)).is_some()
        };
        assert!(is_found(&old, &log));
        for other in [
            Queue { topic: b"U", ..old },
            Queue { topic: b"", ..old },
            Queue { queue_id: 2, ..old },
            Queue { offset: 8, ..old },
        ] {
            assert!(!is_found(&other, &log));
        }
        let end = log.len() - 9;
        // sizes, magic, identity, flag, lengths and topic
        for at in [13, 14, 22, 30, 38, 49, 94, 103, 104, 106] {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            assert!(!is_found(&old, &damaged), "{at}");
            assert!(is_found(&KNOWN, &damaged));
        }
        log[end - 1] = 0;
        assert!(!is_found(&old, &log), "torn");
        assert!(!is_found(&old, &log[..end + 3]), "torn at the file's end");
        log[end + 8] = 1;
        assert!(!is_found(&old, &log), "torn");
        log[end + 7] = 1;
        assert!(is_found(&old, &log), "more follows");
    }
}
