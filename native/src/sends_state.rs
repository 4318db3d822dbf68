//! The state of [`PlainSends`]: the topics and queues that it takes messages for, and the open batch.
//!
//! Its methods are where they belong: sends in `plain_send`, ends of transactions in `transactions`, and those that
//! Python calls in `plain_sends`.

use crate::open_batch::{Batch, Queue, Topic};
use cometmq_codec::answer::Answers;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;

/// The plain sends of a broker.
#[pyclass(module = "cometmq_core")]
pub struct PlainSends {
    /// None once the garbage collector has taken it.
    pub(crate) open: Option<Py<PyAny>>,
    pub(crate) answers: Answers,
    pub(crate) tail: Vec<u8>,
    pub(crate) store_host: Vec<u8>,
    pub(crate) max_frame_bytes: usize,
    pub(crate) max_header_bytes: usize,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_properties_bytes: usize,
    pub(crate) max_stored_bytes: usize,
    pub(crate) max_batch_bytes: usize,
    /// The most messages of a SEND_BATCH_MESSAGE.
    pub(crate) max_messages: usize,
    pub(crate) is_indexed: bool,
    pub(crate) needs_flush: bool,
    pub(crate) names: HashMap<Box<str>, usize>,
    pub(crate) topics: Vec<Option<Topic>>,
    pub(crate) queues: Vec<Option<Queue>>,
    pub(crate) free_topics: Vec<usize>,
    pub(crate) free_queues: Vec<usize>,
    pub(crate) batch: Batch,
    pub(crate) transactions: Option<Transactions>,
    /// Called before the first new lite topic of a batch; gives how many may be added.
    pub(crate) lite_room: Option<Py<PyAny>>,
    pub(crate) taken: usize,
}

/// A queue of the broker itself, by the numbers of its topic and its own.
#[derive(Clone, Copy)]
pub struct InnerQueue {
    pub topic: usize,
    pub queue: usize,
}

/// What transactions need.
pub struct Transactions {
    pub halves: InnerQueue,
    pub ops: InnerQueue,
    /// The most bytes of the properties of a half message.
    pub max_half_bytes: usize,
    pub op_properties: Vec<u8>,
    pub op_tags_code: i64,
    /// Called with the queue offset and log offset of a half message; gives its record and the time, in ms, when it is
    /// open.
    pub find: Py<PyAny>,
    /// Called with the queue offset of a half message whose end is put.
    pub begin: Py<PyAny>,
    /// Called before the first half message of a batch; gives how many may be stored.
    pub room: Py<PyAny>,
}

impl Transactions {
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.find)?;
        visit.call(&self.begin)?;
        visit.call(&self.room)
    }
}

/// Name of a topic of the broker itself, its target and its queue.
pub type Inner = (String, Py<PyAny>, Py<PyAny>);

/// Put a value into a free slot, or behind the last one; return its number.
pub fn insert<T>(slots: &mut Vec<Option<T>>, free: &mut Vec<usize>, value: T) -> usize {
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

impl PlainSends {
    /// Fail while a batch is open.
    pub fn check_settled(&self) -> PyResult<()> {
        if self.batch.messages > 0 {
            return Err(PyValueError::new_err("a batch is open"));
        }
        Ok(())
    }

    /// Take messages for a queue of the broker itself.
    pub fn add_inner(&mut self, (name, target, queue): Inner) -> PyResult<InnerQueue> {
        let queue = Queue::new(queue, &name)?;
        Ok(InnerQueue {
            topic: insert(
                &mut self.topics,
                &mut self.free_topics,
                Topic::new(target, &name, 0),
            ),
            queue: insert(&mut self.queues, &mut self.free_queues, queue),
        })
    }

    /// Ask Python for the place of the next record; false when nothing can be stored.
    pub fn open_batch(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(open) = self.open.as_ref() else {
            return Ok(false);
        };
        let place: Option<(i64, i64, i64)> = open.call0(py)?.extract(py)?;
        if let Some((next, limit, timestamp)) = place {
            self.batch.next = next;
            self.batch.limit = limit;
            self.batch.timestamp = timestamp;
            self.batch.half_room = None;
            self.batch.lite_room = None;
            self.batch.is_open = true;
        }
        Ok(place.is_some())
    }
}
