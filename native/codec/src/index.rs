//! Entries of an IndexFile, and its table of slots: `int32` with the newest entry of each chain.

use super::constants::index_entry;
use std::cell::Cell;

const SLOT_BYTES: usize = 4;

/// Keys in log order, of equal number: native int32 hashes, and int64 log offsets and store timestamps (ms).
pub struct Keys<'a> {
    pub hashes: &'a [u8],
    pub offsets: &'a [u8],
    pub timestamps: &'a [u8],
}

/// The file that entries are made for.
pub struct Place<'a> {
    /// The bytes of its slots.
    pub table: &'a [Cell<u8>],
    /// The number of its next entry.
    pub count: i32,
    /// Its first store timestamp.
    pub begin_timestamp: i64,
}

/// Entries that are to be written, and then the slots that lead to them.
pub struct Block {
    pub entries: Vec<u8>,
    /// Slot and entry of the end of each chain.
    pub heads: Vec<(u32, i32)>,
    /// Slots that led to no entry before.
    pub opened: usize,
}

/// The entry that a slot leads to; 0 for none, and where it leads to one that is not there.
fn head(place: &Place<'_>, slot: u32) -> Option<i32> {
    let at = slot as usize * SLOT_BYTES;
    let bytes = place.table.get(at..at + SLOT_BYTES)?;
    let entry = i32::from_be_bytes(std::array::from_fn(|byte| bytes[byte].get()));
    Some(if (0..place.count).contains(&entry) {
        entry
    } else {
        0
    })
}

/// Make the entries of `keys`; `None` when their numbers differ, or the table or the numbers have no room for them.
pub fn block(keys: &Keys<'_>, place: &Place<'_>) -> Option<Block> {
    let size = keys.hashes.len() / 4;
    let slots = i64::try_from(place.table.len() / SLOT_BYTES).ok()?;
    if keys.hashes.len() % 4 != 0
        || keys.offsets.len() != size * 8
        || keys.timestamps.len() != size * 8
        || !(1..=i64::from(u32::MAX)).contains(&slots)
        || i32::try_from(size).ok()?.checked_add(place.count)? < place.count
        || place.count < 1
    {
        return None;
    }
    let mut entries = Vec::with_capacity(size * index_entry::BYTES);
    let mut order = Vec::with_capacity(size);
    let rows = keys
        .hashes
        .chunks_exact(4)
        .zip(keys.offsets.chunks_exact(8))
        .zip(keys.timestamps.chunks_exact(8));
    for (number, ((hash, offset), timestamp)) in rows.enumerate() {
        let hash = i32::from_ne_bytes(hash.try_into().ok()?);
        let offset = i64::from_ne_bytes(offset.try_into().ok()?);
        let timestamp = i64::from_ne_bytes(timestamp.try_into().ok()?);
        let seconds = timestamp
            .wrapping_sub(place.begin_timestamp)
            .div_euclid(1000)
            .clamp(0, i64::from(i32::MAX)) as i32;
        entries.extend_from_slice(&hash.to_be_bytes());
        entries.extend_from_slice(&offset.to_be_bytes());
        entries.extend_from_slice(&seconds.to_be_bytes());
        entries.extend_from_slice(&[0; 4]);
        // Keys of one slot come together, in their order.
        order.push((i64::from(hash).rem_euclid(slots) as u64) << 32 | number as u64);
    }
    order.sort_unstable();
    let mut heads: Vec<(u32, i32)> = Vec::with_capacity(size);
    let mut opened = 0;
    for key in order {
        let (slot, number) = ((key >> 32) as u32, (key & 0xFFFF_FFFF) as usize);
        let entry = place.count + number as i32;
        let previous = match heads.last_mut() {
            Some((last, newest)) if *last == slot => std::mem::replace(newest, entry),
            _ => {
                heads.push((slot, entry));
                let before = head(place, slot)?;
                opened += usize::from(before == 0);
                before
            }
        };
        let at = number * index_entry::BYTES + index_entry::PREVIOUS;
        entries
            .get_mut(at..at + 4)?
            .copy_from_slice(&previous.to_be_bytes());
    }
    Some(Block {
        entries,
        heads,
        opened,
    })
}

/// Let the slots of a table lead to the ends of their chains.
pub fn link(heads: &[(u32, i32)], table: &[Cell<u8>]) {
    for (slot, entry) in heads {
        let at = *slot as usize * SLOT_BYTES;
        if let Some(cells) = table.get(at..at + SLOT_BYTES) {
            for (cell, byte) in cells.iter().zip(entry.to_be_bytes()) {
                cell.set(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(
        hashes: &[i32],
        offsets: &[i64],
        timestamps: &[i64],
        place: &Place<'_>,
    ) -> Option<Block> {
        let hashes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_ne_bytes()).collect();
        let [offsets, timestamps] = [offsets, timestamps].map(|numbers| -> Vec<u8> {
            numbers.iter().flat_map(|each| each.to_ne_bytes()).collect()
        });
        block(
            &Keys {
                hashes: &hashes,
                offsets: &offsets,
                timestamps: &timestamps,
            },
            place,
        )
    }

    fn previous(block: &Block) -> Vec<i32> {
        block
            .entries
            .chunks_exact(index_entry::BYTES)
            .map(|entry| i32::from_be_bytes(entry[16..].try_into().unwrap()))
            .collect()
    }

    #[test]
    fn chains_go_on_from_the_slots_and_slots_lead_to_their_ends() {
        let table = vec![Cell::new(0u8); 3 * 4];
        let place = |count| Place {
            table: &table,
            count,
            begin_timestamp: 10_000,
        };
        let first = made(&[4, 7, 5], &[100, 200, 300], &[10_000; 3], &place(1)).unwrap();
        assert_eq!(previous(&first), [0, 1, 0]);
        assert_eq!((&first.heads[..], first.opened), (&[(1, 2), (2, 3)][..], 2));
        assert!(
            table.iter().all(|byte| byte.get() == 0),
            "slots come after entries"
        );
        link(&first.heads, &table);
        let second = made(&[3, 1], &[400, 500], &[11_999, 9_000], &place(4)).unwrap();
        assert_eq!(previous(&second), [0, 2]);
        assert_eq!(
            second.entries[..16],
            [&[0, 0, 0, 3][..], &400i64.to_be_bytes(), &[0, 0, 0, 1]].concat()
        );
        assert_eq!(
            second.entries[32..36],
            [0; 4],
            "never before the first timestamp"
        );
        // a slot that leads behind the entries that are there leads nowhere
        assert_eq!(
            previous(&made(&[1], &[600], &[10_000], &place(2)).unwrap()),
            [0]
        );
        link(&[(0, -5)], &table);
        assert_eq!(
            previous(&made(&[0], &[600], &[10_000], &place(9)).unwrap()),
            [0]
        );
    }

    #[test]
    fn what_does_not_fit_together_is_not_made() {
        let table = vec![Cell::new(0u8); 8];
        let place = |count| Place {
            table: &table,
            count,
            begin_timestamp: 0,
        };
        assert!(made(&[1], &[1], &[1], &place(1)).is_some());
        assert!(made(&[1], &[1], &[], &place(1)).is_none());
        assert!(made(&[1, 2], &[1], &[1], &place(1)).is_none());
        assert!(made(&[1], &[1], &[1], &place(0)).is_none());
        assert!(made(&[1], &[1], &[1], &place(i32::MAX)).is_none());
        let none = Place {
            table: &[],
            count: 1,
            begin_timestamp: 0,
        };
        assert!(made(&[1], &[1], &[1], &none).is_none());
        link(&[(7, 1)], &table);
        assert!(table.iter().all(|byte| byte.get() == 0));
    }

    #[test]
    fn odd_numbers_stay_in_their_fields() {
        let table = vec![Cell::new(0u8); 8];
        let place = Place {
            table: &table,
            count: 1,
            begin_timestamp: i64::MIN,
        };
        let block = made(&[i32::MIN, -1], &[i64::MIN, -1], &[i64::MAX, -1], &place).unwrap();
        assert_eq!(block.heads, [(0, 1), (1, 2)]);
        assert_eq!(
            block.entries[12..16],
            [0; 4],
            "a difference that wraps is negative"
        );
        assert_eq!(block.entries[32..36], i32::MAX.to_be_bytes());
    }
}
