//! Units of a ConsumeQueue.

use super::constants::queue_unit;

/// The size in a unit that leads to no record.
const BLANK_SIZE: i32 = i32::MAX;

/// Append the unit of a record.
pub fn write(log_offset: i64, size: i32, tags_code: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&log_offset.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&tags_code.to_be_bytes());
}

/// The part of the log that records are read from.
pub struct Segment {
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
    /// With more bytes than this nothing is found: they are better read without a copy.
    pub copied_bytes: usize,
}

/// The records that units lead to.
pub struct Found {
    /// The first byte of each within the segment, and its size.
    pub places: Vec<(usize, usize)>,
    pub bytes: usize,
    /// The number of units that were looked at.
    pub looked_at: usize,
    /// The log offset that the last unit with a wanted tag leads to.
    pub last: i64,
}

/// The records of the units with one of `codes` (all, if `None`), as long as all lie in one segment; otherwise `None`.
pub fn find(units: &[u8], codes: Option<&[i64]>, segment: &Segment, most: &Most) -> Option<Found> {
    let mut found = Found {
        places: Vec::with_capacity(most.messages.min(64)),
        bytes: 0,
        looked_at: 0,
        last: -1,
    };
    for unit in units.chunks_exact(queue_unit::BYTES) {
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
        if found.places.len() >= most.messages
            || (!found.places.is_empty() && found.bytes + length > most.bytes)
        {
            return Some(found);
        }
        if size == BLANK_SIZE || size == 0 || begin < segment.low || begin < segment.base {
            return None;
        }
        if begin.checked_add(i64::from(size))? > segment.end
            || found.bytes + length > most.copied_bytes
        {
            return None;
        }
        found.places.push(((begin - segment.base) as usize, length));
        found.bytes += length;
        found.looked_at += 1;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(begin: i64, size: i32, code: i64) -> Vec<u8> {
        let mut out = Vec::new();
        write(begin, size, code, &mut out);
        assert_eq!(out.len(), queue_unit::BYTES);
        out
    }

    #[test]
    fn units_end_at_the_limits_and_nothing_is_found_outside_the_segment() {
        let units = [unit(100, 10, 7), unit(110, 20, 8), unit(130, 30, 7)].concat();
        let segment = Segment {
            base: 100,
            low: 0,
            end: 160,
        };
        let most = |messages, bytes| Most {
            messages,
            bytes,
            copied_bytes: 1000,
        };
        let all = find(&units, None, &segment, &most(32, 1000)).unwrap();
        assert_eq!(
            (all.places, all.looked_at, all.last),
            (vec![(0, 10), (10, 20), (30, 30)], 3, 130)
        );
        let two = find(&units, None, &segment, &most(2, 1000)).unwrap();
        assert_eq!((two.bytes, two.looked_at, two.last), (30, 2, 130));
        let few = find(&units, None, &segment, &most(32, 5)).unwrap();
        assert_eq!((few.bytes, few.looked_at), (10, 1));
        let tagged = find(&units, Some(&[7]), &segment, &most(32, 1000)).unwrap();
        assert_eq!(
            (tagged.places, tagged.looked_at),
            (vec![(0, 10), (30, 30)], 3)
        );
        assert!(find(
            &units,
            None,
            &Segment {
                end: 159,
                ..segment
            },
            &most(32, 1000)
        )
        .is_none());
        assert!(find(
            &units,
            None,
            &Segment {
                base: 100,
                low: 101,
                end: 160
            },
            &most(32, 1000)
        )
        .is_none());
        for odd in [
            unit(100, 0, 0),
            unit(100, -1, 0),
            unit(-5, 9, 0),
            unit(100, BLANK_SIZE, 0),
            unit(i64::MAX, 9, 0),
        ] {
            assert!(find(
                &odd,
                None,
                &Segment {
                    base: 0,
                    low: 0,
                    end: i64::MAX
                },
                &most(32, 1000)
            )
            .is_none());
        }
    }
}
