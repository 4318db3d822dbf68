//! PlainSends: the plain sends of one turn of a broker, from the bytes of its connections to records and answers.
//!
//! A batch begins with the first plain send after `settle`: `open` asks Python for the place in the log. It ends with
//! `settle`, which hands everything to Python: records, queue units, index entries, counts and answers. Python does so
//! before it puts a record of its own, and at the end of each turn. Between the two, Python does not look at the queues
//! of the batch, so that each queue's next offset is read once.

use crate::account::Account;
use crate::lite_index::LiteIndex;
use crate::open_batch::{Batch, LiteParent, Queue, Topic, OPAQUE_BYTES};
use crate::plain_send::{Plan, Room, Sender};
use crate::sends_state::{insert, Inner, PlainSends, Transactions};
use cometmq_codec::answer::{Answers, JsonParts};
use cometmq_codec::constants::queue_unit;
use cometmq_codec::fields::END_TRANSACTION;
use cometmq_codec::request::{code, SendRequest};
use cometmq_codec::signature::TOGETHER;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::collections::HashMap;

/// Frames of one call, and messages after which it ends: between calls, Python looks at the clock.
const FRAMES: usize = 32;
const MESSAGES: usize = 1024;
/// Sends of an account are read together up to so many bytes: those behind one that is left to Python are read again.
const TOGETHER_BYTES: usize = 16 * 1024;

/// See `PlainSends::new`.
type AnswerParts = (JsonParts, JsonParts, Vec<u8>, Vec<u8>, Vec<u8>);

impl Room<'_> {
    /// True when one more may be taken after so many frames, with so many messages and bytes.
    fn has(&self, frames: usize, messages: usize, bytes: usize) -> bool {
        frames < FRAMES && messages < self.messages && bytes < self.bytes
    }
}

#[pymethods]
impl PlainSends {
    /// :param open: called at the beginning of a batch; returns the next log offset, the offset that no record may pass
    ///     and the store timestamp, or None when nothing can be stored.
    /// :param answers: the five parts of a JSON answer to a message, and to a batch, the message id up to its offset,
    ///     the head and the constant fields of a binary answer.
    /// :param limits: bytes of a frame, a header, a body, properties, both together, and a batch; messages of a
    ///     SEND_BATCH_MESSAGE.
    #[new]
    fn new(
        open: Py<PyAny>,
        answers: AnswerParts,
        tail: Vec<u8>,
        store_host: Vec<u8>,
        limits: (usize, usize, usize, usize, usize, usize, usize),
        is_indexed: bool,
        needs_flush: bool,
    ) -> PyResult<Self> {
        let (of_message, of_batch, id_prefix, binary_head, binary_fields) = answers;
        let json = [of_message, of_batch];
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
            max_messages,
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
            max_messages,
            is_indexed,
            needs_flush,
            names: HashMap::new(),
            topics: Vec::new(),
            queues: Vec::new(),
            free_topics: Vec::new(),
            free_queues: Vec::new(),
            batch: Batch::default(),
            transactions: None,
            lite_room: None,
            taken: 0,
        })
    }

    /// For the garbage collector: a broker and its batch know each other.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.open)?;
        visit.call(&self.lite_room)?;
        for topic in self.topics.iter().flatten() {
            visit.call(&topic.target)?;
            if let Some(calls) = &topic.calls {
                calls.traverse(&visit)?;
            }
        }
        for queue in self.queues.iter().flatten() {
            visit.call(&queue.queue)?;
        }
        for answered in &self.batch.answers {
            visit.call(&answered.connection)?;
        }
        for ended in &self.batch.ends {
            visit.call(&ended.connection)?;
        }
        self.transactions
            .as_ref()
            .map_or(Ok(()), |found| found.traverse(&visit))
    }

    fn __clear__(&mut self) {
        self.open = None;
        self.lite_room = None;
        self.names.clear();
        self.topics.clear();
        self.queues.clear();
        self.transactions = None;
        self.batch = Batch::default();
    }

    /// Take messages for a queue of a topic from now on. Another queue may take its place while no batch is open.
    fn add(
        &mut self,
        topic: &str,
        target: Py<PyAny>,
        sys_flag: i32,
        queue_id: i32,
        queue: Py<PyAny>,
    ) -> PyResult<()> {
        let known = self
            .names
            .get(topic)
            .and_then(|at| self.topics[*at].as_ref());
        if known.is_some_and(|known| known.queues.contains_key(&queue_id)) {
            self.check_settled()?; // messages may wait for it
        }
        let slot = Queue::new(queue, topic)?;
        let at = match self.names.get(topic) {
            Some(at) => *at,
            None => {
                let found = Topic::new(target, topic, sys_flag);
                let at = insert(&mut self.topics, &mut self.free_topics, found);
                self.names.insert(topic.into(), at);
                at
            }
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

    /// Take half messages and ends of transactions from now on, until `clear`.
    ///
    /// :param halves: name of the topic of half messages, its target and its queue; ``ops`` the same for op messages.
    /// :param op: the properties of an op message and their tags code.
    /// :param max_half_bytes: the most bytes of the properties of a half message.
    /// :param find: called with queue offset and log offset of a half message; returns its record and the time of now,
    ///     or None when Python must end it.
    /// :param begin: called with the queue offset of a half message whose end is put.
    /// :param room: called before the first half message of a batch; returns how many may be stored.
    #[allow(clippy::too_many_arguments)]
    fn take_transactions(
        &mut self,
        halves: Inner,
        ops: Inner,
        op: (Vec<u8>, i64),
        max_half_bytes: usize,
        find: Py<PyAny>,
        begin: Py<PyAny>,
        room: Py<PyAny>,
    ) -> PyResult<()> {
        self.transactions = Some(Transactions {
            halves: self.add_inner(halves)?,
            ops: self.add_inner(ops)?,
            max_half_bytes: max_half_bytes.min(self.max_properties_bytes),
            op_properties: op.0,
            op_tags_code: op.1,
            find,
            begin,
            room,
        });
        Ok(())
    }

    /// Take messages of a topic's lite topics, too, from now on.
    ///
    /// :param room: called before the first new lite topic of a batch; returns how many may be added.
    fn add_lite(&mut self, topic: &str, index: Py<LiteIndex>, room: Py<PyAny>) {
        let found = self.names.get(topic).copied();
        if let Some(known) = found.and_then(|at| self.topics[at].as_mut()) {
            let name = topic.into();
            known.lite = Some(LiteParent { name, index });
            self.lite_room = Some(room);
        }
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
        self.transactions = None;
        self.names.clear();
        self.topics.clear();
        self.queues.clear();
        self.free_topics.clear();
        self.free_queues.clear();
        Ok(())
    }

    /// Put the plain sends at the beginning of `data[at:]` into the batch of the turn, 32 at most; return where they end.
    ///
    /// With an account only those that it has signed, to topics that it may publish to. With a room, which is a producer
    /// group or None, a number of messages and one of bytes, only those of the group, that number at most, and none
    /// after one that has reached the bytes; and no batches of messages.
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
        let takes_batches = room.is_none();
        let (group, messages, bytes) = room.unwrap_or((None, MESSAGES, usize::MAX));
        let room = Room {
            group: group.as_deref(),
            takes_batches,
            takes_ends: account.is_none() && takes_batches,
            messages: messages.min(MESSAGES),
            bytes,
        };
        let data = data.as_bytes();
        let sender = Sender { connection, peer };
        self.taken = 0;
        match account {
            Some(mut account) => self.take_signed(py, &sender, data, at, &mut account, &room),
            None => self.take_all(py, &sender, data, at, &room),
        }
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
    /// bytes, None or (sizes of large messages, sizes of FIFO messages))], index hashes, index offsets, [(connection, answers, opaques,
    /// requests, bytes of bodies)], [(connection, opaque, is binary, is oneway, queue offset of the half message, is
    /// committed)], answers to batches, [(index, messages of lite topics)])``
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
                queue.units.len() / queue_unit::BYTES,
                units,
            ))?;
            queue.units.clear();
        }
        let topics = PyList::empty(py);
        for number in batch.topics.drain(..) {
            let Some(topic) = self.topics[number].as_mut() else {
                continue;
            };
            let sizes = (!topic.large.is_empty() || !topic.fifo.is_empty()).then(|| {
                (
                    std::mem::take(&mut topic.large),
                    std::mem::take(&mut topic.fifo),
                )
            });
            topics.append((
                topic.target.clone_ref(py),
                topic.messages,
                topic.size_bytes,
                sizes,
            ))?;
            topic.messages = 0;
            topic.size_bytes = 0;
        }
        let answers = PyList::empty(py);
        let (mut all_frames, mut all_opaques) = (
            std::mem::take(&mut batch.frames),
            std::mem::take(&mut batch.opaques),
        );
        let (mut frames, mut opaques) = (all_frames.as_slice(), all_opaques.as_slice());
        let mut begin = 0;
        for answered in batch.answers.drain(..) {
            let (own_frames, other_frames) = frames.split_at(answered.frames_end - begin);
            let (own_opaques, other_opaques) = opaques.split_at(answered.messages * OPAQUE_BYTES);
            answers.append((
                answered.connection,
                PyBytes::new(py, own_frames),
                PyBytes::new(py, own_opaques),
                answered.messages,
                answered.body_bytes,
            ))?;
            (frames, opaques, begin) = (other_frames, other_opaques, answered.frames_end);
        }
        for (kept, used) in [
            (&mut batch.frames, &mut all_frames),
            (&mut batch.opaques, &mut all_opaques),
        ] {
            used.clear();
            used.shrink_to(KEPT_BYTES);
            std::mem::swap(kept, used);
        }
        let ends = PyList::empty(py);
        for ended in batch.ends.drain(..) {
            ends.append((
                ended.connection,
                ended.opaque,
                ended.is_binary,
                ended.is_oneway,
                ended.half_offset,
                ended.is_commit,
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
            ends,
            std::mem::take(&mut batch.answered_batches),
            std::mem::take(&mut batch.lites),
        );
        batch.records.clear();
        batch.records.shrink_to(KEPT_BYTES);
        batch.messages = 0;
        Ok(Some(settled.into_pyobject(py)?))
    }
}

/// A buffer of that size stays for the next batch; a larger one is given back.
const KEPT_BYTES: usize = 1 << 20;

impl PlainSends {
    /// Take sends and ends of transactions.
    fn take_all(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        data: &[u8],
        at: usize,
        room: &Room<'_>,
    ) -> PyResult<usize> {
        let begin = at;
        let (mut at, mut frames) = (at, 0);
        while room.has(frames, self.taken, at - begin) {
            let Some(found) = self.frame(data, at) else {
                break;
            };
            let messages = match code(found.is_binary, found.header) {
                None => 0,
                Some(END_TRANSACTION) => {
                    usize::from(room.takes_ends && self.put_end(py, &found, sender.connection)? > 0)
                }
                Some(_) => self.put_send(py, sender, &found, room)?,
            };
            if messages == 0 {
                break;
            }
            at += found.size;
            frames += 1;
            self.taken += messages;
        }
        Ok(at)
    }

    /// Take the sends of an account, some at a time: so their signatures are checked in less time.
    fn take_signed(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        data: &[u8],
        at: usize,
        account: &mut Account,
        room: &Room<'_>,
    ) -> PyResult<usize> {
        let begin = at;
        let (mut at, mut frames) = (at, 0);
        let mut read = Vec::with_capacity(TOGETHER);
        loop {
            read.clear();
            let mut next = at;
            while read.len() < TOGETHER
                && next - at < TOGETHER_BYTES
                && room.has(frames + read.len(), self.taken + read.len(), next - begin)
            {
                let Some(frame) = self.frame(data, next) else {
                    break;
                };
                let Some(request) = SendRequest::read(frame.is_binary, frame.header) else {
                    break;
                };
                next += frame.size;
                read.push((frame, request));
            }
            let more_may_follow = read.len() == TOGETHER || next - at >= TOGETHER_BYTES;
            let plans: Vec<_> = read
                .iter()
                .map_while(|(frame, request)| self.plan(frame, request, room))
                .collect();
            let are_mine = account.are_mine(plans.iter().map(Plan::signed));
            for (plan, is_mine) in plans.iter().zip(are_mine) {
                let messages = match is_mine {
                    true => self.put(py, sender, plan, Some(account))?,
                    false => 0,
                };
                if messages == 0 {
                    return Ok(at);
                }
                at += plan.size();
                frames += 1;
                self.taken += messages;
            }
            if !more_may_follow || plans.len() < read.len() {
                return Ok(at);
            }
        }
    }
}
