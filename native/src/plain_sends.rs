//! PlainSends: the plain sends of one turn of a broker, from the bytes of its connections to records and answers.
//!
//! A batch begins with the first plain send after `settle`: `open` asks Python for the place in the log. It ends with
//! `settle`, which hands everything to Python: records, queue units, index entries, counts and answers. Python does so
//! before it puts a record of its own, and at the end of each turn. Between the two, Python does not look at the queues
//! of the batch, so that each queue's next offset is read once.

use crate::account::Account;
use cometmq_codec::answer::Answers;
use cometmq_codec::frame::frame;
use cometmq_codec::hash::java_hash;
use cometmq_codec::properties::Properties;
use cometmq_codec::record::Record;
use cometmq_codec::request::SendRequest;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::collections::HashMap;

/// Frames of one call, between which Python looks at the clock.
const FRAMES: usize = 32;
/// Bits of a sysFlag: a record of a transaction, and IPv6 addresses.
const TRANSACTION: i32 = 0xC;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const IPV6_HOST_BYTES: usize = 20;
/// What statistics count for a record beside its body, properties and topic (`MIN_RECORD_BYTES`).
const MIN_RECORD_BYTES: usize = 91;

/// The first bound of the histogram of message sizes (`SMALL_BYTES`).
const SMALL_BYTES: usize = 1024;

/// A topic that messages may be sent to.
struct Topic {
    target: Py<PyAny>,
    name_length: usize,
    sys_flag: i32,
    queues: HashMap<i32, usize>,
    messages: usize,
    size_bytes: usize,
    /// For metrics: sizes of FIFO messages, and of others above `SMALL_BYTES`.
    fifo: Vec<usize>,
    large: Vec<usize>,
}

/// A queue of such a topic.
struct Queue {
    queue: Py<PyAny>,
    /// The length and bytes of the topic, as in a record.
    middle: Vec<u8>,
    /// The hash of `topic#`.
    seed: i32,
    next_offset: i64,
    units: Vec<u8>,
}

/// The answers to consecutive sends of one connection.
struct Answered {
    connection: Py<PyAny>,
    frames: Vec<u8>,
    /// For each send its opaque and whether its header is binary, for refusals.
    opaques: Vec<u8>,
    body_bytes: usize,
    messages: usize,
}

#[derive(Default)]
struct Batch {
    is_open: bool,
    next: i64,
    limit: i64,
    timestamp: i64,
    last_size: usize,
    messages: usize,
    records: Vec<u8>,
    queues: Vec<usize>,
    topics: Vec<usize>,
    index_hashes: Vec<i32>,
    index_offsets: Vec<i64>,
    answers: Vec<Answered>,
}

/// The plain sends of a broker.
#[pyclass(module = "cometmq_core")]
pub struct PlainSends {
    /// None once the garbage collector has taken it.
    open: Option<Py<PyAny>>,
    answers: Answers,
    tail: Vec<u8>,
    store_host: Vec<u8>,
    max_frame_bytes: usize,
    max_header_bytes: usize,
    max_body_bytes: usize,
    max_properties_bytes: usize,
    max_stored_bytes: usize,
    max_batch_bytes: usize,
    is_indexed: bool,
    needs_flush: bool,
    names: HashMap<Box<str>, usize>,
    topics: Vec<Option<Topic>>,
    queues: Vec<Option<Queue>>,
    free_topics: Vec<usize>,
    free_queues: Vec<usize>,
    batch: Batch,
    taken: usize,
}

/// The most that one call may take.
struct Room<'a> {
    /// Only sends of this producer group, if there is one.
    group: Option<&'a str>,
    messages: usize,
    bytes: usize,
}

fn insert<T>(slots: &mut Vec<Option<T>>, free: &mut Vec<usize>, value: T) -> usize {
    match free.pop() {
        Some(at) => {
            slots[at] = Some(value);
            at
        }
        None => {
            slots.push(Some(value));
            slots.len() - 1
        }
    }
}

#[pymethods]
impl PlainSends {
    /// :param open: called at the beginning of a batch; returns the next log offset, the offset that no record may pass
    ///     and the store timestamp, or None when nothing can be stored.
    /// :param answers: the five parts of a JSON answer, the message id up to its offset, the head and the constant
    ///     fields of a binary answer.
    /// :param limits: bytes of a frame, a header, a body, properties, both together, and a batch.
    #[new]
    fn new(
        open: Py<PyAny>,
        answers: (Vec<Vec<u8>>, Vec<u8>, Vec<u8>, Vec<u8>),
        tail: Vec<u8>,
        store_host: Vec<u8>,
        limits: (usize, usize, usize, usize, usize, usize),
        is_indexed: bool,
        needs_flush: bool,
    ) -> PyResult<Self> {
        let (json, id_prefix, binary_head, binary_fields) = answers;
        let json: [Vec<u8>; 5] = json
            .try_into()
            .map_err(|_| PyValueError::new_err("a JSON answer has five parts"))?;
        if tail.last().is_none_or(|byte| *byte == 0) {
            return Err(PyValueError::new_err(
                "the tail of the properties ends in a byte that is not zero",
            ));
        }
        let (
            max_frame_bytes,
            max_header_bytes,
            max_body_bytes,
            max_properties_bytes,
            max_stored_bytes,
            max_batch_bytes,
        ) = limits;
        Ok(PlainSends {
            open: Some(open),
            answers: Answers::new(json, id_prefix, binary_head, binary_fields),
            tail,
            store_host,
            max_frame_bytes,
            max_header_bytes,
            max_body_bytes,
            max_properties_bytes: max_properties_bytes.min(i16::MAX as usize),
            max_stored_bytes,
            max_batch_bytes,
            is_indexed,
            needs_flush,
            names: HashMap::new(),
            topics: Vec::new(),
            queues: Vec::new(),
            free_topics: Vec::new(),
            free_queues: Vec::new(),
            batch: Batch::default(),
            taken: 0,
        })
    }

    /// For the garbage collector: a broker and its batch know each other.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.open)?;
        for topic in self.topics.iter().flatten() {
            visit.call(&topic.target)?;
        }
        for queue in self.queues.iter().flatten() {
            visit.call(&queue.queue)?;
        }
        for answered in &self.batch.answers {
            visit.call(&answered.connection)?;
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.open = None;
        self.names.clear();
        self.topics.clear();
        self.queues.clear();
        self.batch = Batch::default();
    }

    /// Take messages for a queue of a topic from now on.
    fn add(
        &mut self,
        topic: &str,
        target: Py<PyAny>,
        sys_flag: i32,
        queue_id: i32,
        queue: Py<PyAny>,
    ) -> PyResult<()> {
        let length = u8::try_from(topic.len())
            .map_err(|_| PyValueError::new_err("a topic of more than 255 bytes"))?;
        let mut middle = vec![length];
        middle.extend_from_slice(topic.as_bytes());
        let at = match self.names.get(topic) {
            Some(at) => *at,
            None => {
                let name_length = topic.chars().count();
                let queues = HashMap::new();
                let found = Topic {
                    target,
                    name_length,
                    sys_flag,
                    queues,
                    messages: 0,
                    size_bytes: 0,
                    fifo: Vec::new(),
                    large: Vec::new(),
                };
                let at = insert(&mut self.topics, &mut self.free_topics, found);
                self.names.insert(topic.into(), at);
                at
            }
        };
        let seed = java_hash(java_hash(0, topic), "#");
        let slot = Queue {
            queue,
            middle,
            seed,
            next_offset: 0,
            units: Vec::new(),
        };
        let number = insert(&mut self.queues, &mut self.free_queues, slot);
        if let Some(old) = self.topics[at]
            .as_mut()
            .and_then(|topic| topic.queues.insert(queue_id, number))
        {
            self.queues[old] = None;
            self.free_queues.push(old);
        }
        Ok(())
    }

    /// Leave the messages of a topic to Python. No batch may be open.
    fn forget(&mut self, topic: &str) -> PyResult<()> {
        self.check_settled()?;
        if let Some(at) = self.names.remove(topic) {
            if let Some(found) = self.topics[at].take() {
                for number in found.queues.into_values() {
                    self.queues[number] = None;
                    self.free_queues.push(number);
                }
            }
            self.free_topics.push(at);
        }
        Ok(())
    }

    /// Leave the messages of all topics to Python. No batch may be open.
    fn clear(&mut self) -> PyResult<()> {
        self.check_settled()?;
        self.names.clear();
        self.topics.clear();
        self.queues.clear();
        self.free_topics.clear();
        self.free_queues.clear();
        Ok(())
    }

    /// Put the plain sends at the beginning of `data[at:]` into the batch, 32 at most; return where they end.
    ///
    /// With an account only those that it has signed, to topics that it may publish to. With a room, which is a producer
    /// group or None, a number of messages and one of bytes, only those of the group, that number at most, and none
    /// after one that has reached the bytes.
    #[pyo3(signature = (connection, peer, data, at, account=None, room=None))]
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        py: Python<'_>,
        connection: &Bound<'_, PyAny>,
        peer: &[u8],
        data: &Bound<'_, PyBytes>,
        at: usize,
        account: Option<PyRefMut<'_, Account>>,
        room: Option<(Option<String>, usize, usize)>,
    ) -> PyResult<usize> {
        let mut account = account;
        let (group, messages, bytes) = room.unwrap_or((None, FRAMES, usize::MAX));
        let room = Room {
            group: group.as_deref(),
            messages,
            bytes,
        };
        let data = data.as_bytes();
        let begin = at;
        let mut at = at;
        self.taken = 0;
        while self.taken < room.messages.min(FRAMES) && at - begin < room.bytes {
            let Some(rest) = data.get(at..) else { break };
            match self.put(
                py,
                rest,
                connection,
                peer,
                account.as_deref_mut(),
                room.group,
            )? {
                0 => break,
                size => at += size,
            }
            self.taken += 1;
        }
        Ok(at)
    }

    /// Messages that the last call of `take` took.
    #[getter]
    fn taken(&self) -> usize {
        self.taken
    }

    /// Bytes of the records of the batch.
    #[getter]
    fn batch_bytes(&self) -> usize {
        self.batch.records.len()
    }

    /// End the batch and return all of it, or None when there is nothing:
    ///
    /// ``(records, next log offset, size of the last record, messages, [(queue, messages, units)], [(target, messages,
    /// bytes, sizes of large messages, sizes of FIFO messages)], index hashes, index offsets, [(connection, answers, opaques, messages, bytes of bodies)])``
    fn settle<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let batch = &mut self.batch;
        batch.is_open = false;
        if batch.messages == 0 {
            return Ok(None);
        }
        let queues = PyList::empty(py);
        for number in batch.queues.drain(..) {
            let Some(queue) = self.queues[number].as_mut() else {
                continue;
            };
            let units = PyBytes::new(py, &queue.units);
            queues.append((
                queue.queue.clone_ref(py),
                queue.units.len() / UNIT_BYTES,
                units,
            ))?;
            queue.units.clear();
        }
        let topics = PyList::empty(py);
        for number in batch.topics.drain(..) {
            let Some(topic) = self.topics[number].as_mut() else {
                continue;
            };
            topics.append((
                topic.target.clone_ref(py),
                topic.messages,
                topic.size_bytes,
                std::mem::take(&mut topic.large),
                std::mem::take(&mut topic.fifo),
            ))?;
            topic.messages = 0;
            topic.size_bytes = 0;
        }
        let answers = PyList::empty(py);
        for answered in batch.answers.drain(..) {
            answers.append((
                answered.connection,
                PyBytes::new(py, &answered.frames),
                PyBytes::new(py, &answered.opaques),
                answered.messages,
                answered.body_bytes,
            ))?;
        }
        let hashes: Vec<u8> = batch
            .index_hashes
            .drain(..)
            .flat_map(i32::to_ne_bytes)
            .collect();
        let offsets: Vec<u8> = batch
            .index_offsets
            .drain(..)
            .flat_map(i64::to_ne_bytes)
            .collect();
        let settled = (
            PyBytes::new(py, &batch.records),
            batch.next,
            batch.last_size,
            batch.messages,
            queues,
            topics,
            PyBytes::new(py, &hashes),
            PyBytes::new(py, &offsets),
            answers,
        );
        batch.records.clear();
        batch.records.shrink_to(KEPT_BYTES);
        batch.messages = 0;
        Ok(Some(settled.into_pyobject(py)?))
    }
}

const UNIT_BYTES: usize = 20;
/// A buffer of that size stays for the next batch; a larger one is given back.
const KEPT_BYTES: usize = 1 << 20;

impl PlainSends {
    fn check_settled(&self) -> PyResult<()> {
        if self.batch.messages > 0 {
            return Err(PyValueError::new_err("a batch is open"));
        }
        Ok(())
    }

    /// Put one message; return the size of its frame, or 0 when it is left to Python, with nothing changed.
    fn put(
        &mut self,
        py: Python<'_>,
        data: &[u8],
        connection: &Bound<'_, PyAny>,
        peer: &[u8],
        mut account: Option<&mut Account>,
        group: Option<&str>,
    ) -> PyResult<usize> {
        let Some(found) = frame(data, self.max_frame_bytes, self.max_header_bytes) else {
            return Ok(0);
        };
        let mut pairs = Vec::new();
        let wanted = account.is_some().then_some(&mut pairs);
        let Some(request) = SendRequest::read(found.is_binary, found.header, wanted) else {
            return Ok(0);
        };
        let fields = &request.fields;
        if group.is_some_and(|group| group != fields.producer_group) {
            return Ok(0);
        }
        let Some(&topic_number) = self.names.get(fields.topic.as_ref()) else {
            return Ok(0);
        };
        let Some(topic) = self.topics[topic_number].as_ref() else {
            return Ok(0);
        };
        let Some(&queue_number) = topic.queues.get(&fields.queue_id) else {
            return Ok(0);
        };
        let Some(properties) = Properties::read(&fields.properties) else {
            return Ok(0);
        };
        let properties_length = properties.stored_length(&self.tail);
        if found.body.len() > self.max_body_bytes
            || properties_length > self.max_properties_bytes
            || found.body.len() + properties_length > self.max_stored_bytes
            || fields.sys_flag & TRANSACTION != 0
            || (self.needs_flush && !properties.waits)
            || self.batch.records.len() > self.max_batch_bytes
        {
            return Ok(0);
        }
        if let Some(account) = account.as_mut() {
            if !account.may_send(py, &fields.topic, &mut pairs, found.body)? {
                return Ok(0);
            }
        }
        if !self.batch.is_open && !self.open_batch(py)? {
            return Ok(0);
        }
        let batch = &mut self.batch;
        let (Some(topic), Some(queue)) = (
            self.topics[topic_number].as_mut(),
            self.queues[queue_number].as_mut(),
        ) else {
            return Ok(0);
        };
        let mut sys_flag = (fields.sys_flag | topic.sys_flag) & !(BORN_HOST_V6 | STORE_HOST_V6);
        for (host, bit) in [
            (peer, BORN_HOST_V6),
            (self.store_host.as_slice(), STORE_HOST_V6),
        ] {
            if host.len() == IPV6_HOST_BYTES {
                sys_flag |= bit;
            }
        }
        let record = Record {
            body: found.body,
            queue_id: fields.queue_id,
            flag: fields.flag,
            sys_flag,
            born_timestamp: fields.born_timestamp,
            born_host: peer,
            store_timestamp: batch.timestamp,
            store_host: &self.store_host,
            reconsume_times: fields.reconsume_times,
            topic: &queue.middle,
        };
        let size = record.size(properties_length);
        let end = batch.next + size as i64;
        if end > batch.limit || size > i32::MAX as usize {
            return Ok(0);
        }
        // The last question: a send that Python handles after it would count as a repetition.
        if let Some(account) = account {
            if !account.is_fresh(py, &pairs)? {
                return Ok(0);
            }
        }
        if queue.units.is_empty() {
            queue.next_offset = queue
                .queue
                .bind(py)
                .getattr(pyo3::intern!(py, "next_offset"))?
                .extract()?;
            batch.queues.push(queue_number);
        }
        // Nothing below this line fails.
        record.write(
            size as i32,
            queue.next_offset,
            batch.next,
            properties_length as i16,
            &mut batch.records,
        );
        properties.store(&self.tail, &mut batch.records);
        queue.units.extend_from_slice(&batch.next.to_be_bytes());
        queue.units.extend_from_slice(&(size as i32).to_be_bytes());
        queue
            .units
            .extend_from_slice(&properties.tags_code.to_be_bytes());
        if self.is_indexed {
            properties.index_hashes(queue.seed, &mut batch.index_hashes);
            batch
                .index_offsets
                .resize(batch.index_hashes.len(), batch.next);
        }
        if topic.messages == 0 {
            batch.topics.push(topic_number);
        }
        topic.messages += 1;
        let counted = found.body.len() + properties_length + topic.name_length + MIN_RECORD_BYTES;
        topic.size_bytes += counted;
        if properties.is_sharded {
            topic.fifo.push(counted);
        } else if counted > SMALL_BYTES {
            topic.large.push(counted);
        }
        if !request.is_oneway {
            if batch
                .answers
                .last()
                .is_none_or(|last| !last.connection.is(connection))
            {
                batch.answers.push(Answered {
                    connection: connection.clone().unbind(),
                    frames: Vec::new(),
                    opaques: Vec::new(),
                    body_bytes: 0,
                    messages: 0,
                });
            }
            if let Some(last) = batch.answers.last_mut() {
                last.messages += 1;
                last.body_bytes += found.body.len();
                last.opaques
                    .extend_from_slice(&request.opaque.to_ne_bytes());
                last.opaques.push(u8::from(found.is_binary));
                self.answers.write(
                    found.is_binary,
                    request.opaque,
                    batch.next,
                    fields.queue_id,
                    queue.next_offset,
                    &mut last.frames,
                );
            }
        }
        queue.next_offset += 1;
        batch.next = end;
        batch.last_size = size;
        batch.messages += 1;
        Ok(found.size)
    }

    /// Ask Python for the place of the next record; false when nothing can be stored.
    fn open_batch(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(open) = self.open.as_ref() else {
            return Ok(false);
        };
        let place: Option<(i64, i64, i64)> = open.call0(py)?.extract(py)?;
        if let Some((next, limit, timestamp)) = place {
            self.batch.next = next;
            self.batch.limit = limit;
            self.batch.timestamp = timestamp;
            self.batch.is_open = true;
        }
        Ok(place.is_some())
    }
}
