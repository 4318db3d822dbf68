//! Records of a log that is read again: those that follow on the one before them in their queues, one behind the other.

use super::constants::{queue_unit, MIN_RECORD_BYTES};
use super::hash::java_hash;
use super::properties::StoredProperties;
use super::stored::Stored;
use super::units::{self, NO_QUEUE_OFFSET};
use std::collections::HashMap;

/// A store timestamp is between 0 and this one.
const LATEST_MS: i64 = 1 << 48;
/// Units from here on have no place in a file.
const MAX_QUEUE_OFFSET: i64 = i64::MAX / queue_unit::BYTES as i64;

/// The log offsets from which on records get units and index entries.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub units_from: i64,
    pub keys_from: i64,
    pub checks_body: bool,
}

/// A queue that is followed.
pub struct Queue {
    pub topic: Box<str>,
    pub queue_id: i32,
    /// The queue offset of its next record, and of the first one of the run.
    next: i64,
    pub first: i64,
    pub units: Vec<u8>,
}

/// Records that were read, and what follows from them beside the units of queues.
#[derive(Default)]
pub struct Run {
    pub bytes: usize,
    pub last_size: usize,
    /// The last store timestamp that can be one; 0 for none.
    pub timestamp: i64,
    pub hashes: Vec<i32>,
    pub offsets: Vec<i64>,
    pub timestamps: Vec<i64>,
    /// Records with keys.
    pub indexed: usize,
    /// The record behind them is not plain; otherwise the bytes end with them, or within the next one.
    pub is_stopped: bool,
}

struct Topic {
    seed: i32,
    queues: HashMap<i32, usize>,
}

/// The topics that are known, and the queues that are followed.
pub struct Scan {
    wanted: Wanted,
    topics: HashMap<Box<[u8]>, Topic>,
    queues: Vec<Queue>,
    free: Vec<usize>,
    /// Those with units of the last run.
    touched: Vec<usize>,
}

impl Scan {
    pub fn new(wanted: Wanted) -> Self {
        Scan {
            wanted,
            topics: HashMap::new(),
            queues: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Know a topic; follow its queue from the offset `next` on, or no longer.
    pub fn follow(&mut self, topic: &str, queue_id: i32, next: Option<i64>) {
        let known = self
            .topics
            .entry(topic.as_bytes().into())
            .or_insert_with(|| Topic {
                seed: java_hash(java_hash(0, topic), "#"),
                queues: HashMap::new(),
            });
        let Some(next) = next else {
            self.free.extend(known.queues.remove(&queue_id));
            return;
        };
        if let Some(number) = known.queues.get(&queue_id) {
            self.queues[*number].next = next;
            return;
        }
        let queue = Queue {
            topic: topic.into(),
            queue_id,
            next,
            first: next,
            units: Vec::new(),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.queues[number] = queue;
                number
            }
            None => {
                self.queues.push(queue);
                self.queues.len() - 1
            }
        };
        known.queues.insert(queue_id, number);
    }

    /// Follow no queue.
    pub fn forget(&mut self) {
        self.topics.clear();
        self.queues.clear();
        self.free.clear();
        self.touched.clear();
    }

    /// Read the plain records at the beginning of `data`, which stands at log offset `base`.
    pub fn run(&mut self, data: &[u8], base: i64) -> Run {
        for number in self.touched.drain(..) {
            self.queues[number].units.clear();
        }
        let mut run = Run::default();
        while let Some(size) = self.take(&data[run.bytes..], base + run.bytes as i64, &mut run) {
            run.bytes += size;
            run.last_size = size;
        }
        let rest = &data[run.bytes..];
        run.is_stopped = match rest.get(..4) {
            None => false,
            Some(size) => usize::try_from(i32::from_be_bytes([size[0], size[1], size[2], size[3]]))
                .map_or(true, |size| size < MIN_RECORD_BYTES || size <= rest.len()),
        };
        run
    }

    /// The queues with units of the last run.
    pub fn touched(&self) -> impl Iterator<Item = &Queue> {
        self.touched.iter().map(|number| &self.queues[*number])
    }

    /// Take the record at the beginning of `data`; return its size, or `None` with nothing changed.
    fn take(&mut self, data: &[u8], offset: i64, run: &mut Run) -> Option<usize> {
        let size = usize::try_from(i32::from_be_bytes(data.get(..4)?.try_into().ok()?)).ok()?;
        if size < MIN_RECORD_BYTES {
            return None;
        }
        let bytes = data.get(..size)?;
        let wanted = self.wanted;
        let record = Stored::read_with(bytes, wanted.checks_body)?;
        if record.log_offset != offset
            || record.queue_id < 0
            || !(0..MAX_QUEUE_OFFSET).contains(&record.queue_offset)
            || record.sys_flag & NO_QUEUE_OFFSET != 0
            || (wanted.checks_body && record.properties.ends_with('\0'))
        {
            return None;
        }
        let topic = self.topics.get(record.topic)?;
        let queue = if offset >= wanted.units_from {
            let number = *topic.queues.get(&record.queue_id)?;
            if self.queues[number].next != record.queue_offset {
                return None;
            }
            Some(number)
        } else {
            None
        };
        let properties = StoredProperties::read(record.properties);
        if let Some(number) = queue {
            let queue = &mut self.queues[number];
            if queue.units.is_empty() {
                queue.first = record.queue_offset;
                self.touched.push(number);
            }
            units::write(offset, size as i32, properties.tags_code, &mut queue.units);
            queue.next += 1;
        }
        if offset >= wanted.keys_from {
            let before = run.hashes.len();
            properties.index_hashes(topic.seed, &mut run.hashes);
            run.offsets.resize(run.hashes.len(), offset);
            run.timestamps
                .resize(run.hashes.len(), record.store_timestamp);
            run.indexed += usize::from(run.hashes.len() > before);
        }
        if (1..LATEST_MS).contains(&record.store_timestamp) {
            run.timestamp = record.store_timestamp;
        }
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn record(log_offset: i64, queue_offset: i64, sys_flag: i32, properties: &str) -> Vec<u8> {
        let record = Record {
            body: b"hello",
            queue_id: 1,
            flag: 0,
            sys_flag,
            born_timestamp: 3,
            born_host: &[7; 8],
            store_timestamp: 4 + queue_offset,
            store_host: &[8; 8],
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"\x01T",
        };
        let mut data = Vec::new();
        let size = record.size(properties.len());
        record.write(
            size as i32,
            queue_offset,
            log_offset,
            properties.len() as i16,
            &mut data,
        );
        data.extend_from_slice(properties.as_bytes());
        data
    }

    const ALL: Wanted = Wanted {
        units_from: 0,
        keys_from: 0,
        checks_body: true,
    };

    fn log(rows: &[(i64, i32, &str)]) -> (Vec<u8>, Vec<usize>) {
        let (mut data, mut ends) = (Vec::new(), Vec::new());
        for (queue_offset, sys_flag, properties) in rows {
            let next = record(
                1000 + data.len() as i64,
                *queue_offset,
                *sys_flag,
                properties,
            );
            data.extend_from_slice(&next);
            ends.push(data.len());
        }
        (data, ends)
    }

    #[test]
    fn a_run_ends_where_a_record_does_not_follow() {
        let (data, ends) = log(&[
            (5, 0, "KEYS\u{1}a b\u{2}TAGS\u{1}t"),
            (6, 8, ""),
            (8, 0, ""),
        ]);
        let mut scan = Scan::new(ALL);
        assert_eq!(
            scan.run(&data, 1000).bytes,
            0,
            "the queue is not followed yet"
        );
        scan.follow("T", 1, Some(5));
        let run = scan.run(&data, 1000);
        assert_eq!((run.bytes, run.last_size), (ends[1], ends[1] - ends[0]));
        assert!(run.is_stopped);
        assert_eq!((run.timestamp, run.indexed), (10, 1));
        assert_eq!((run.offsets, run.timestamps), (vec![1000; 2], vec![9; 2]));
        let units: Vec<u8> = [
            &1000i64.to_be_bytes()[..],
            &(ends[0] as i32).to_be_bytes(),
            &i64::from(b't').to_be_bytes(),
            &(1000 + ends[0] as i64).to_be_bytes(),
            &((ends[1] - ends[0]) as i32).to_be_bytes(),
            &[0; 8],
        ]
        .concat();
        let queue = scan.touched().next().unwrap();
        assert_eq!((queue.first, &queue.units), (5, &units));
        scan.follow("T", 1, Some(8));
        let rest = scan.run(&data[ends[1]..], 1000 + ends[1] as i64);
        assert_eq!((rest.bytes, rest.is_stopped), (ends[2] - ends[1], false));
        assert_eq!(scan.touched().next().unwrap().first, 8);
        scan.follow("T", 1, None);
        assert_eq!(scan.run(&record(0, 9, 0, ""), 0).bytes, 0);
        scan.forget();
        assert_eq!(scan.run(&data, 1000).bytes, 0);
    }

    #[test]
    fn odd_and_damaged_records_are_left() {
        let good = record(0, 5, 0, "a\u{1}b");
        let run = |data: &[u8], base, wanted| {
            let mut scan = Scan::new(wanted);
            scan.follow("T", 1, Some(5));
            scan.run(data, base).bytes
        };
        assert_eq!(run(&good, 0, ALL), good.len());
        assert_eq!(run(&good, 1, ALL), 0, "another place");
        for odd in [
            record(0, 5, NO_QUEUE_OFFSET, ""),
            record(0, 4, 0, ""),
            record(0, 6, 0, ""),
            record(0, 5, 0, "a\u{1}\0"),
        ] {
            assert_eq!(run(&odd, 0, ALL), 0);
        }
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0xFF;
            let _ = run(&damaged, 0, ALL);
            assert_eq!(run(&good[..at], 0, ALL), 0);
        }
        let mut damaged = good.clone();
        damaged[88] ^= 1; // in the body
        assert_eq!(run(&damaged, 0, ALL), 0);
        let unchecked = Wanted {
            checks_body: false,
            ..ALL
        };
        assert_eq!(run(&damaged, 0, unchecked), good.len());
    }

    #[test]
    fn below_its_offset_nothing_is_made() {
        let (data, _) = log(&[(7, 0, "UNIQ_KEY\u{1}u"), (3, 0, "UNIQ_KEY\u{1}u")]);
        let mut scan = Scan::new(Wanted {
            units_from: i64::MAX,
            keys_from: 1001,
            checks_body: true,
        });
        scan.follow("T", 0, None);
        let run = scan.run(&data, 1000);
        assert_eq!((run.bytes, run.hashes.len()), (data.len(), 1));
        assert_eq!(scan.touched().count(), 0);
    }
}
