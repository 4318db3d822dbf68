//! Plain AckMessage calls of gRPC: a block of them for Python, which acknowledges all or none, and the answers to them.

use crate::call_constants::Constants;
use cometmq_codec::grpc_ack::{answer_length, read, write_answer, Pop};
use cometmq_codec::http2;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Calls in a block, and messages after which a block ends: between blocks, Python looks at the clock.
const CALLS: usize = 64;
const MESSAGES: usize = 64;

/// Messages that were popped together from one queue: topic, kind of topic, queue id, pop time, offsets.
type Popped = (String, u8, i64, i64, Vec<i64>);
/// The group, the messages, their receipt handles if they are asked for, and the frames of all answers.
pub(crate) type AckBlock<'py> = (
    String,
    Vec<Popped>,
    Option<Bound<'py, PyList>>,
    Bound<'py, PyBytes>,
);

/// The acknowledgements of a block, all of one group.
pub(crate) struct Acks<'py> {
    group: String,
    topics: Vec<String>,
    /// The messages of each pop of a topic.
    pops: Vec<(usize, Pop, Vec<i64>)>,
    handles: Option<Bound<'py, PyList>>,
    answers: Vec<u8>,
    calls: usize,
    messages: usize,
}

impl<'py> Acks<'py> {
    pub(crate) fn new(py: Python<'py>, keeps_handles: bool) -> Self {
        Acks {
            group: String::new(),
            topics: Vec::new(),
            pops: Vec::new(),
            handles: keeps_handles.then(|| PyList::empty(py)),
            answers: Vec::new(),
            calls: 0,
            messages: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls == 0
    }

    pub(crate) fn has_room(&self) -> bool {
        self.calls < CALLS && self.messages < MESSAGES
    }

    /// Put one call; false when it is left to Python, or for the next block.
    pub(crate) fn put(
        &mut self,
        calls: &Constants,
        stream: u32,
        message: &[u8],
        now_ms: i64,
    ) -> PyResult<bool> {
        let rules = &calls.ack_rules;
        let mut acks = Vec::new();
        let Some(names) = read(message, rules, now_ms, &mut acks) else {
            return Ok(false);
        };
        let is_other = self.calls > 0 && self.group != names.group;
        if is_other || answer_length(&calls.status, &acks) > rules.max_answer_bytes {
            return Ok(false);
        }
        if let Some(handles) = &self.handles {
            for ack in &acks {
                handles.append(ack.text)?;
            }
        }
        if self.calls == 0 {
            self.group.push_str(names.group);
        }
        let known = self.topics.iter().position(|topic| topic == names.topic);
        let topic = known.unwrap_or_else(|| {
            self.topics.push(names.topic.to_owned());
            self.topics.len() - 1
        });
        for ack in &acks {
            let pop = (topic, ack.pop);
            match self
                .pops
                .iter_mut()
                .rev()
                .find(|(topic, known, _)| (*topic, *known) == pop)
            {
                Some((.., offsets)) => offsets.push(ack.offset),
                None => self.pops.push((topic, ack.pop, vec![ack.offset])),
            }
        }
        http2::write_answer(
            stream,
            &calls.headers,
            &calls.trailers,
            &mut self.answers,
            |out| write_answer(&calls.status, &acks, out),
        );
        self.calls += 1;
        self.messages += acks.len();
        Ok(true)
    }

    /// The block for Python, if there is one.
    pub(crate) fn block(self, py: Python<'py>) -> Option<AckBlock<'py>> {
        if self.calls == 0 {
            return None;
        }
        let topics = &self.topics;
        let popped = self.pops.into_iter().map(|(topic, pop, offsets)| {
            let topic = topics[topic].clone();
            (topic, pop.kind, pop.queue_id, pop.pop_time, offsets)
        });
        let popped = popped.collect();
        let answers = PyBytes::new(py, &self.answers);
        Some((self.group, popped, self.handles, answers))
    }
}
