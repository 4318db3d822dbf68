//! The batch of a turn: records one behind the other, and what follows from them.

use crate::lite_index::LiteIndex;
use cometmq_codec::constants::{BORNHOST_V6, IPV6_HOST_BYTES, MIN_RECORD_BYTES, STOREHOST_V6};
use cometmq_codec::hash::java_hash;
use cometmq_codec::record::Record;
use cometmq_codec::units;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::HashMap;

/// The first bound of the histogram of message sizes (`SMALL_BYTES`).
const SMALL_BYTES: usize = 1024;

/// Bytes of an entry of `opaques`.
pub const OPAQUE_BYTES: usize = 5;

/// A topic that messages may be stored in.
pub struct Topic {
    pub target: Py<PyAny>,
    pub sys_flag: i32,
    pub queues: HashMap<i32, usize>,
    /// What calls of gRPC need, if they are taken for this topic.
    pub calls: Option<CallsOfTopic>,
    /// Its lite topics, if it may have any.
    pub lite: Option<LiteParent>,
    pub messages: usize,
    pub size_bytes: usize,
    /// For metrics: sizes of FIFO messages, and of others above `SMALL_BYTES`.
    pub fifo: Vec<usize>,
    pub large: Vec<usize>,
    name_length: usize,
}

impl Topic {
    pub fn new(target: Py<PyAny>, name: &str, sys_flag: i32) -> Self {
        Topic {
            target,
            sys_flag,
            queues: HashMap::new(),
            calls: None,
            lite: None,
            messages: 0,
            size_bytes: 0,
            fifo: Vec::new(),
            large: Vec::new(),
            name_length: name.chars().count(),
        }
    }
}

/// A parent topic and its lite topics.
pub struct LiteParent {
    pub name: Box<str>,
    pub index: Py<LiteIndex>,
}

/// What gRPC needs of a topic.
pub struct CallsOfTopic {
    /// A list with the number of the next message, counted by Python, too.
    pub counter: Py<PyList>,
    /// Queues that messages are sent to.
    pub queues: u64,
}

impl CallsOfTopic {
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.counter)
    }
}

/// A queue of such a topic.
pub struct Queue {
    pub queue: Py<PyAny>,
    pub units: Vec<u8>,
    /// The length and bytes of the topic, as in a record.
    middle: Vec<u8>,
    /// The hash of `topic#`.
    seed: i32,
    next_offset: i64,
}

impl Queue {
    pub fn new(queue: Py<PyAny>, topic: &str) -> PyResult<Self> {
        let length = u8::try_from(topic.len())
            .map_err(|_| PyValueError::new_err("a topic of more than 255 bytes"))?;
        let mut middle = vec![length];
        middle.extend_from_slice(topic.as_bytes());
        Ok(Queue {
            queue,
            units: Vec::new(),
            middle,
            seed: java_hash(java_hash(0, topic), "#"),
            next_offset: 0,
        })
    }

    /// The offset of its next message: Python's at the first one of a batch.
    pub fn offset(&self, py: Python<'_>) -> PyResult<i64> {
        if !self.units.is_empty() {
            return Ok(self.next_offset);
        }
        let name = pyo3::intern!(py, "next_offset");
        self.queue.bind(py).getattr(name)?.extract()
    }

    /// The topic, as in a record.
    pub fn topic(&self) -> &[u8] {
        &self.middle[1..]
    }
}

/// The answers to consecutive sends of one connection.
pub struct Answered {
    pub connection: Py<PyAny>,
    /// The end of its frames in those of the batch, which begin where those of the connection before end.
    pub frames_end: usize,
    pub body_bytes: usize,
    pub messages: usize,
}

/// The end of a transaction.
pub struct Ended {
    pub connection: Py<PyAny>,
    pub opaque: i32,
    pub is_binary: bool,
    pub is_oneway: bool,
    pub half_offset: i64,
    pub is_commit: bool,
}

#[derive(Default)]
pub struct Batch {
    pub is_open: bool,
    pub next: i64,
    pub limit: i64,
    pub timestamp: i64,
    /// Half messages that the batch may still take; `None` before the first one.
    pub half_room: Option<usize>,
    /// Lite topics that the batch may still add; `None` before the first new one.
    pub lite_room: Option<usize>,
    /// Indexes of lite topics, and how many messages of them follow one another.
    pub lites: Vec<(Py<LiteIndex>, usize)>,
    pub last_size: usize,
    pub messages: usize,
    pub records: Vec<u8>,
    pub queues: Vec<usize>,
    pub topics: Vec<usize>,
    pub index_hashes: Vec<i32>,
    pub index_offsets: Vec<i64>,
    pub answers: Vec<Answered>,
    /// Frames of all answers.
    pub frames: Vec<u8>,
    /// For each answer its opaque and whether its header is binary, for refusals.
    pub opaques: Vec<u8>,
    /// Number of answers to batches of messages, which are counted under another code.
    pub answered_batches: usize,
    pub ends: Vec<Ended>,
    /// The log offsets of the messages of a send.
    pub offsets: Vec<i64>,
}

/// A message that is put into the batch.
pub struct Message<'a> {
    pub body: &'a [u8],
    pub queue_id: i32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub properties_length: usize,
    pub tags_code: i64,
    /// A FIFO message.
    pub is_sharded: bool,
}

impl Message<'_> {
    fn record<'a>(&'a self, queue: &'a Queue, batch: &Batch, store_host: &'a [u8]) -> Record<'a> {
        let mut sys_flag = self.sys_flag & !(BORNHOST_V6 | STOREHOST_V6);
        for (host, bit) in [(self.born_host, BORNHOST_V6), (store_host, STOREHOST_V6)] {
            if host.len() == IPV6_HOST_BYTES {
                sys_flag |= bit;
            }
        }
        Record {
            body: self.body,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag,
            born_timestamp: self.born_timestamp,
            born_host: self.born_host,
            store_timestamp: batch.timestamp,
            store_host,
            reconsume_times: self.reconsume_times,
            prepared_transaction_offset: self.prepared_transaction_offset,
            topic: &queue.middle,
        }
    }

    /// Bytes of its record.
    pub fn size(&self, queue: &Queue, batch: &Batch, store_host: &[u8]) -> usize {
        self.record(queue, batch, store_host)
            .size(self.properties_length)
    }
}

/// Where a message goes: a queue with its topic, their numbers, and the queue offset.
pub struct Slot<'a> {
    pub topic_number: usize,
    pub topic: &'a mut Topic,
    pub queue_number: usize,
    pub queue: &'a mut Queue,
    pub queue_offset: i64,
}

impl Batch {
    /// True when the log file has room for records of that many bytes.
    pub fn has_room(&self, size: usize) -> bool {
        size <= i32::MAX as usize && self.next + size as i64 <= self.limit
    }

    /// Put a message, for which there is room. This does not fail.
    ///
    /// `properties` appends them to the records; `hashes` appends those for the index, given the hash of `topic#`.
    pub fn append(
        &mut self,
        slot: Slot<'_>,
        message: &Message<'_>,
        store_host: &[u8],
        properties: impl FnOnce(&mut Vec<u8>),
        hashes: Option<impl FnOnce(i32, &mut Vec<i32>)>,
    ) {
        let (topic, queue) = (slot.topic, slot.queue);
        let record = message.record(queue, self, store_host);
        let size = record.size(message.properties_length);
        record.write(
            size as i32,
            slot.queue_offset,
            self.next,
            message.properties_length as i16,
            &mut self.records,
        );
        properties(&mut self.records);
        if queue.units.is_empty() {
            self.queues.push(slot.queue_number);
        }
        units::write(self.next, size as i32, message.tags_code, &mut queue.units);
        queue.next_offset = slot.queue_offset + 1;
        if let Some(hashes) = hashes {
            hashes(queue.seed, &mut self.index_hashes);
            self.index_offsets
                .resize(self.index_hashes.len(), self.next);
        }
        if topic.messages == 0 {
            self.topics.push(slot.topic_number);
        }
        topic.messages += 1;
        let counted =
            message.body.len() + message.properties_length + topic.name_length + MIN_RECORD_BYTES;
        topic.size_bytes += counted;
        if message.is_sharded {
            topic.fifo.push(counted);
        } else if counted > SMALL_BYTES {
            topic.large.push(counted);
        }
        self.next += size as i64;
        self.last_size = size;
        self.messages += 1;
    }

    /// Note that the last message is one of a lite topic.
    pub fn add_lite(&mut self, py: Python<'_>, index: &Py<LiteIndex>) {
        match self.lites.last_mut() {
            Some((last, count)) if last.is(index) => *count += 1,
            _ => self.lites.push((index.clone_ref(py), 1)),
        }
    }

    /// Append the answer to a send of a connection; `write` appends its frame.
    pub fn answer(
        &mut self,
        connection: &Bound<'_, PyAny>,
        opaque: i32,
        is_binary: bool,
        body_bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        write(&mut self.frames);
        self.opaques.extend_from_slice(&opaque.to_ne_bytes());
        self.opaques.push(u8::from(is_binary));
        let frames_end = self.frames.len();
        match self.answers.last_mut() {
            Some(last) if last.connection.is(connection) => {
                last.frames_end = frames_end;
                last.body_bytes += body_bytes;
                last.messages += 1;
            }
            _ => self.answers.push(Answered {
                connection: connection.clone().unbind(),
                frames_end,
                body_bytes,
                messages: 1,
            }),
        }
    }
}
