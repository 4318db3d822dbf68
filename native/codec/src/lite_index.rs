//! Where the messages of a parent topic's lite topics are in the log, as `index.py` has it.

use super::lite_names::LiteNames;

pub const NO_ENTRY: i64 = -1;
const NO_NAME: i32 = -1;
const DROPPED_AT_ONCE: usize = 100_000;
/// Number of messages up to which the entries of a lite topic are visited one by one.
const WALKED: i32 = 1_000;
/// Number of messages up to which the way from one entry to another is walked.
const FAR: i64 = 10_000;

/// Name, first entry, last entry, offset of the first message and number of messages of a removed lite topic.
pub type Removed = (Vec<u8>, i64, i64, i64, i32);

#[derive(Default)]
pub struct LiteIndex {
    pub names: LiteNames,
    /// Number of the first entry that is kept.
    pub base: i64,
    logs: Vec<i64>,
    steps: Vec<i32>,
    owners: Vec<i32>,
    firsts: Vec<i64>,
    lasts: Vec<i64>,
    begins: Vec<i64>,
    counts: Vec<i32>,
    /// For each entry whose turn is not stored yet, the last entry of its lite topic before.
    unstored: Vec<i64>,
    pub unsaved: i64,
}

impl LiteIndex {
    fn at(&self, entry: i64) -> Option<usize> {
        let at = usize::try_from(entry.checked_sub(self.base)?).ok()?;
        (at < self.logs.len()).then_some(at)
    }

    fn lite(&self, number: i32) -> Option<usize> {
        let at = usize::try_from(number).ok()?;
        (at < self.counts.len()).then_some(at)
    }

    /// Add a lite topic without messages; `begin` is the offset of its next message.
    pub fn add(&mut self, name: &[u8], begin: i64) -> Option<i32> {
        let number = self.names.add(name)?;
        self.unsaved += 1;
        match self.lite(number) {
            Some(at) => self.begins[at] = begin,
            None => {
                self.firsts.push(NO_ENTRY);
                self.lasts.push(NO_ENTRY);
                self.begins.push(begin);
                self.counts.push(0);
            }
        }
        Some(number)
    }

    /// Remove a lite topic; its entries remain until retention removes them, but belong to nobody.
    pub fn remove(&mut self, number: i32) -> Option<Removed> {
        let at = self.lite(number)?;
        let name = self.names.name(number).to_vec();
        let removed = (
            name,
            self.firsts[at],
            self.lasts[at],
            self.begins[at],
            self.counts[at],
        );
        self.restart(number, 0);
        self.names.remove(number);
        Some(removed)
    }

    /// Put back a removed lite topic; return its number.
    pub fn put_back(&mut self, removed: &Removed) -> Option<i32> {
        let (name, first, last, begin, count) = removed;
        let number = match self.names.find(name) {
            Some(number) => number,
            None => self.add(name, begin + i64::from(*count))?,
        };
        let at = self.lite(number)?;
        if self.counts[at] > 0 || *first < self.base {
            return Some(number);
        }
        (self.firsts[at], self.lasts[at]) = (*first, *last);
        (self.begins[at], self.counts[at]) = (*begin, *count);
        let mut entry = *first;
        while let Some(at) = self.at(entry) {
            self.owners[at] = number;
            entry = self.following(entry);
        }
        Some(number)
    }

    /// The offset of the first message and the offset after the last one.
    pub fn extent(&self, number: i32) -> (i64, i64) {
        self.lite(number).map_or((0, 0), |at| {
            (
                self.begins[at],
                self.begins[at] + i64::from(self.counts[at]),
            )
        })
    }

    /// Forget the messages of a lite topic; its next one has the offset `begin`.
    pub fn restart(&mut self, number: i32, begin: i64) {
        let Some(lite) = self.lite(number) else {
            return;
        };
        if self.counts[lite] > WALKED {
            for owner in self.owners.iter_mut().filter(|owner| **owner == number) {
                *owner = NO_NAME;
            }
        } else {
            let mut entry = self.firsts[lite];
            while let Some(at) = self.at(entry) {
                self.owners[at] = NO_NAME;
                entry = self.following(entry);
            }
        }
        (self.firsts[lite], self.lasts[lite]) = (NO_ENTRY, NO_ENTRY);
        (self.begins[lite], self.counts[lite]) = (begin, 0);
        self.unsaved += 1;
    }

    pub fn end(&self) -> i64 {
        self.base + self.logs.len() as i64
    }

    /// Add a message to a lite topic, for [`LiteIndex::take_back`] until [`LiteIndex::stored`].
    pub fn append(&mut self, number: i32, log_offset: i64) {
        let Some(lite) = self.lite(number) else {
            return;
        };
        let entry = self.end();
        self.logs.push(log_offset);
        self.steps.push(0);
        self.owners.push(number);
        let before = self.lasts[lite];
        match self.at(before) {
            Some(at) => self.steps[at] = (entry - before) as i32,
            None => self.firsts[lite] = entry,
        }
        self.lasts[lite] = entry;
        self.counts[lite] += 1;
        self.unstored.push(before);
        self.unsaved += 1;
    }

    /// Remove the last entry, which is not stored.
    pub fn take_back(&mut self) {
        let (Some(before), Some(number)) = (self.unstored.pop(), self.owners.pop()) else {
            return;
        };
        self.logs.pop();
        self.steps.pop();
        let Some(lite) = self.lite(number) else {
            return;
        };
        self.lasts[lite] = before;
        self.counts[lite] -= 1;
        match self.at(before) {
            Some(at) => self.steps[at] = 0,
            None => self.firsts[lite] = NO_ENTRY,
        }
    }

    /// Note that all entries are stored.
    pub fn stored(&mut self) {
        self.unstored.clear();
    }

    /// Number of entries that are not stored yet.
    pub fn unstored(&self) -> usize {
        self.unstored.len()
    }

    pub fn log_offset(&self, entry: i64) -> Option<i64> {
        self.at(entry).map(|at| self.logs[at])
    }

    pub fn owner(&self, entry: i64) -> i32 {
        self.at(entry).map_or(NO_NAME, |at| self.owners[at])
    }

    /// The lite topics of entries.
    pub fn owners(&self, first: i64, end: i64) -> &[i32] {
        let size = self.owners.len() as i64;
        let end = (end - self.base).clamp(0, size);
        let first = (first - self.base).clamp(0, end);
        &self.owners[first as usize..end as usize]
    }

    /// The next entry of the same lite topic.
    pub fn following(&self, entry: i64) -> i64 {
        match self.at(entry).map_or(0, |at| self.steps[at]) {
            0 => NO_ENTRY,
            step => entry + i64::from(step),
        }
    }

    pub fn first(&self, number: i32) -> i64 {
        self.lite(number).map_or(NO_ENTRY, |at| self.firsts[at])
    }

    pub fn last(&self, number: i32) -> i64 {
        self.lite(number).map_or(NO_ENTRY, |at| self.lasts[at])
    }

    /// The entry of the message at an offset; `near` is an entry of the lite topic, that at `near_offset`.
    pub fn entry(&self, number: i32, offset: i64, near: i64, near_offset: i64) -> i64 {
        let (begin, end) = self.extent(number);
        if !(begin..end).contains(&offset) {
            return NO_ENTRY;
        }
        if offset == end - 1 {
            return self.last(number);
        }
        let (mut entry, mut at) = (self.first(number), begin);
        if (begin..=offset).contains(&near_offset) && self.owner(near) == number {
            (entry, at) = (near, near_offset);
        }
        if offset - at > FAR {
            let owners = self.owners(entry, self.end());
            let found = owners
                .iter()
                .enumerate()
                .filter(|(_, owner)| **owner == number)
                .nth((offset - at) as usize);
            return found.map_or(NO_ENTRY, |(step, _)| entry + step as i64);
        }
        for _ in at..offset {
            entry = self.following(entry);
        }
        entry
    }

    /// The offset of the first message of a lite topic at an entry or after it.
    pub fn offset_at(&self, number: i32, entry: i64) -> i64 {
        let before = self.owners(self.base, entry);
        self.extent(number).0 + before.iter().filter(|owner| **owner == number).count() as i64
    }

    /// Remove entries before a log offset; return whether there may be more.
    pub fn drop_before(&mut self, log_offset: i64) -> bool {
        let count = self.logs.partition_point(|log| *log < log_offset);
        let count = count.min(DROPPED_AT_ONCE);
        for at in 0..count {
            let Some(lite) = self.lite(self.owners[at]) else {
                continue;
            };
            self.firsts[lite] = self.following(self.base + at as i64);
            self.begins[lite] += 1;
            self.counts[lite] -= 1;
            if self.firsts[lite] == NO_ENTRY {
                self.lasts[lite] = NO_ENTRY;
            }
        }
        self.logs.drain(..count);
        self.steps.drain(..count);
        self.owners.drain(..count);
        self.base += count as i64;
        self.unsaved += count as i64;
        count == DROPPED_AT_ONCE
    }

    /// The lite topics whose last entry is before `end`, or that have no message.
    pub fn idle(&self, end: i64) -> Vec<i32> {
        (0..self.counts.len() as i32)
            .filter(|number| self.last(*number) < end && !self.names.name(*number).is_empty())
            .collect()
    }

    /// The log offsets and the lite topics of entries.
    pub fn entries(&self, first: i64, end: i64) -> (&[i64], &[i32]) {
        let owners = self.owners(first, end);
        let begin = (first - self.base).clamp(0, self.logs.len() as i64) as usize;
        (&self.logs[begin..begin + owners.len()], owners)
    }

    /// The offsets of the first messages of lite topics.
    pub fn begins(&self, first: usize, end: usize) -> &[i64] {
        let end = end.min(self.begins.len());
        &self.begins[first.min(end)..end]
    }

    /// The index of a snapshot; `None` if the parts do not belong together.
    pub fn load(
        names: LiteNames,
        begins: Vec<i64>,
        logs: Vec<i64>,
        owners: Vec<i32>,
    ) -> Option<Self> {
        let size = names.size();
        if begins.len() != size || logs.len() != owners.len() {
            return None;
        }
        let mut made = LiteIndex {
            names,
            firsts: vec![NO_ENTRY; size],
            lasts: vec![NO_ENTRY; size],
            counts: vec![0; size],
            steps: vec![0; logs.len()],
            begins,
            logs,
            owners,
            ..LiteIndex::default()
        };
        for entry in 0..made.owners.len() {
            let owner = made.owners[entry];
            if owner == NO_NAME {
                continue;
            }
            let lite = made.lite(owner)?;
            match usize::try_from(made.lasts[lite]) {
                Ok(before) => made.steps[before] = (entry - before) as i32,
                Err(_) => made.firsts[lite] = entry as i64,
            }
            made.lasts[lite] = entry as i64;
            made.counts[lite] += 1;
        }
        Some(made)
    }
}
