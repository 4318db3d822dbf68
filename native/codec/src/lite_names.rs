//! The names of a parent topic's lite topics, with a number for each, as `name_table.py` has them.
//!
//! The numbers of removed names are used again, for names of about the same length. The hash table has shards, so that
//! no addition takes long.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

const SHARDS: usize = 256;
const EMPTY: i32 = -1;
const REMOVED: i32 = -2;
const FIRST_SLOTS: usize = 8;
/// A name occupies a multiple of so many bytes, and so many of these at most.
const UNIT: usize = 8;
const UNITS: usize = 8;
/// The most bytes of a name.
pub const MOST_BYTES: usize = UNIT * UNITS;

struct Shard {
    slots: Vec<i32>,
    /// Number of slots that are not empty.
    used: usize,
}

impl Shard {
    /// An empty shard that has room for some names before it grows.
    fn with_room(names: usize) -> Self {
        let size = (names * 3 / 2 + 1).next_power_of_two().max(FIRST_SLOTS);
        Shard {
            slots: vec![EMPTY; size],
            used: 0,
        }
    }

    /// The slots from that of a hash on.
    fn way(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mask = self.slots.len() - 1;
        let first = (hash >> 8) as usize;
        (0..=mask).map(move |step| first.wrapping_add(step) & mask)
    }
}

/// Names of at most [`MOST_BYTES`] bytes, by number.
pub struct LiteNames {
    shards: Vec<Shard>,
    bytes: Vec<u8>,
    /// Start of each name, in units.
    starts: Vec<u32>,
    /// Length of each name in bytes; 0 if the number is free.
    lengths: Vec<u8>,
    /// Free numbers by the units of their place.
    free: [Vec<i32>; UNITS + 1],
    hashes: RandomState,
    pub count: usize,
}

impl Default for LiteNames {
    fn default() -> Self {
        LiteNames::with_room(0)
    }
}

impl LiteNames {
    fn with_room(names: usize) -> Self {
        let mean = names / SHARDS;
        LiteNames {
            shards: (0..SHARDS)
                .map(|_| Shard::with_room(mean + mean / 8))
                .collect(),
            bytes: Vec::new(),
            starts: Vec::new(),
            lengths: Vec::new(),
            free: Default::default(),
            hashes: RandomState::new(),
            count: 0,
        }
    }

    /// The number after all that were ever used.
    pub fn size(&self) -> usize {
        self.lengths.len()
    }

    /// A name, which is empty if the number is free or was never used.
    pub fn name(&self, number: i32) -> &[u8] {
        let Some((start, length)) = usize::try_from(number)
            .ok()
            .and_then(|at| Some((*self.starts.get(at)?, *self.lengths.get(at)?)))
        else {
            return &[];
        };
        let begin = start as usize * UNIT;
        self.bytes
            .get(begin..begin + usize::from(length))
            .unwrap_or(&[])
    }

    /// The number of a name.
    pub fn find(&self, name: &[u8]) -> Option<i32> {
        if name.is_empty() {
            return None;
        }
        let hash = self.hashes.hash_one(name);
        let shard = &self.shards[hash as usize % SHARDS];
        for at in shard.way(hash) {
            match shard.slots[at] {
                EMPTY => return None,
                number if number >= 0 && self.name(number) == name => return Some(number),
                _ => (),
            }
        }
        None
    }

    /// Add a name that is missing; return its number, or `None` if it is empty or too long.
    pub fn add(&mut self, name: &[u8]) -> Option<i32> {
        if name.is_empty() || name.len() > MOST_BYTES {
            return None;
        }
        let units = name.len().div_ceil(UNIT);
        let number = match self.free[units].pop() {
            Some(number) => {
                let begin = self.starts[number as usize] as usize * UNIT;
                self.bytes[begin..begin + name.len()].copy_from_slice(name);
                self.lengths[number as usize] = name.len() as u8;
                number
            }
            None => {
                let number = i32::try_from(self.lengths.len()).ok()?;
                let start = u32::try_from(self.bytes.len() / UNIT).ok()?;
                self.starts.push(start);
                self.bytes.extend_from_slice(name);
                self.bytes.resize((start as usize + units) * UNIT, 0);
                self.lengths.push(name.len() as u8);
                number
            }
        };
        self.enter(number);
        self.count += 1;
        Some(number)
    }

    fn enter(&mut self, number: i32) {
        let hash = self.hashes.hash_one(self.name(number));
        let at = hash as usize % SHARDS;
        if self.shards[at].used * 3 >= self.shards[at].slots.len() * 2 {
            self.grow(at);
        }
        let shard = &mut self.shards[at];
        let found = shard.way(hash).find(|at| shard.slots[*at] < 0);
        if let Some(at) = found {
            shard.used += usize::from(shard.slots[at] == EMPTY);
            shard.slots[at] = number;
        }
    }

    fn grow(&mut self, at: usize) {
        let slots = std::mem::take(&mut self.shards[at].slots);
        let numbers: Vec<i32> = slots.into_iter().filter(|number| *number >= 0).collect();
        let mut size = FIRST_SLOTS;
        while numbers.len() * 3 >= size {
            size *= 2;
        }
        let mut shard = Shard {
            slots: vec![EMPTY; size],
            used: numbers.len(),
        };
        for number in numbers {
            let hash = self.hashes.hash_one(self.name(number));
            let found = shard.way(hash).find(|at| shard.slots[*at] == EMPTY);
            if let Some(at) = found {
                shard.slots[at] = number;
            }
        }
        self.shards[at] = shard;
    }

    /// Remove a name; its number is used again.
    pub fn remove(&mut self, number: i32) {
        let name = self.name(number);
        if name.is_empty() {
            return;
        }
        let units = name.len().div_ceil(UNIT);
        let hash = self.hashes.hash_one(name);
        let shard = &mut self.shards[hash as usize % SHARDS];
        let found = shard.way(hash).find(|at| shard.slots[*at] == number);
        if let Some(at) = found {
            shard.slots[at] = REMOVED;
        }
        self.lengths[number as usize] = 0;
        self.free[units].push(number);
        self.count -= 1;
    }

    /// The padded bytes, the lengths and the starts of the names with numbers from `first` to `end`.
    pub fn dump(&self, first: usize, end: usize) -> (&[u8], &[u8], &[u32]) {
        let end = end.min(self.size());
        let first = first.min(end);
        let byte = |number: usize| {
            let start = self.starts.get(number).map(|start| *start as usize * UNIT);
            start.unwrap_or(self.bytes.len())
        };
        (
            &self.bytes[byte(first)..byte(end)],
            &self.lengths[first..end],
            &self.starts[first..end],
        )
    }

    /// The names of a snapshot; `None` if the parts do not belong together.
    pub fn load(names: &[u8], lengths: &[u8], starts: &[u32]) -> Option<Self> {
        if starts.len() != lengths.len() || i32::try_from(lengths.len()).is_err() {
            return None;
        }
        let mut made = LiteNames {
            bytes: names.to_vec(),
            starts: starts.to_vec(),
            lengths: lengths.to_vec(),
            ..LiteNames::with_room(lengths.len())
        };
        for (number, (start, length)) in starts.iter().zip(lengths).enumerate() {
            let following = match starts.get(number + 1) {
                Some(next) => *next as usize,
                None => names.len() / UNIT,
            };
            let units = following.checked_sub(*start as usize)?;
            if usize::from(*length) > units * UNIT || usize::from(*length) > MOST_BYTES {
                return None;
            }
            if *length > 0 {
                made.enter(number as i32);
                made.count += 1;
            } else {
                made.free[units.min(UNITS)].push(number as i32);
            }
        }
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_removed_and_loaded() {
        let mut names = LiteNames::default();
        for number in 0..10_000 {
            assert_eq!(
                names.add(format!("session-{number}").as_bytes()),
                Some(number)
            );
        }
        assert_eq!(names.find(b"session-77"), Some(77));
        names.remove(77);
        assert_eq!((names.find(b"session-77"), names.count), (None, 9_999));
        assert_eq!(names.name(77), b"");
        let (bytes, lengths, starts) = names.dump(0, names.size());
        assert!(LiteNames::load(bytes, lengths, &starts[1..]).is_none());
        let again = LiteNames::load(bytes, lengths, starts).unwrap();
        assert_eq!(
            (again.find(b"session-9999"), again.find(b"session-77")),
            (Some(9_999), None)
        );
        assert_eq!(names.add(b"session-xy"), Some(77));
        assert_eq!(names.add(b""), None);
        assert_eq!(names.add(&[b'x'; 65]), None);
        assert!(LiteNames::load(b"short", &[64], &[0]).is_none());
    }
}
