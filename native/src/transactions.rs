//! Transactions of the plain case: half messages as they are sent, and their ends.
//!
//! A half message is stored in the half queue, with its real topic and queue in its properties. Its end stores the
//! committed message, if it is committed, and the op message. Python has the table of open transactions: it says that
//! one is open, and is told when its end is put.

use crate::open_batch::{Ended, Message, Slot};
use crate::sends_state::{InnerQueue, PlainSends};
use cometmq_codec::constants::{TRANSACTION_COMMIT, TRANSACTION_ROLLBACK};
use cometmq_codec::frame::Frame;
use cometmq_codec::properties::HalfProperties;
use cometmq_codec::request::EndRequest;
use cometmq_codec::stored::Stored;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The bits of a sysFlag for transactions.
pub const TRANSACTION: i32 = TRANSACTION_ROLLBACK;

impl PlainSends {
    /// Put the end of a transaction; return the size of its frame, or 0 when it is left to Python, with nothing changed.
    pub fn put_end(
        &mut self,
        py: Python<'_>,
        found: &Frame<'_>,
        connection: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let Some(transactions) = self.transactions.as_ref() else {
            return Ok(0);
        };
        let Some(request) = EndRequest::read(found.is_binary, found.header) else {
            return Ok(0);
        };
        let fields = &request.fields;
        let is_commit = fields.commit_or_rollback == TRANSACTION_COMMIT;
        if self.needs_flush || !(is_commit || fields.commit_or_rollback == TRANSACTION_ROLLBACK) {
            return Ok(0);
        }
        let open: Option<(Bound<'_, PyBytes>, i64)> = transactions
            .find
            .call1(py, (fields.queue_offset, fields.log_offset))?
            .extract(py)?;
        let Some((data, now)) = open else {
            return Ok(0);
        };
        let Some(half) = Stored::read(data.as_bytes()) else {
            return Ok(0);
        };
        let Some(properties) = HalfProperties::read(half.properties) else {
            return Ok(0);
        };
        let (halves, ops) = (transactions.halves, transactions.ops);
        let is_that = self.queues[halves.queue]
            .as_ref()
            .is_some_and(|queue| queue.topic() == half.topic);
        if !is_that
            || half.queue_offset != fields.queue_offset
            || half.log_offset != fields.log_offset
            || properties.producer_group != fields.producer_group
            || half.properties.len() > self.max_properties_bytes
            || half.body.len() + half.properties.len() > self.max_stored_bytes
            || self.batch.records.len() > self.max_batch_bytes
        {
            return Ok(0);
        }
        let real = self.names.get(properties.topic).and_then(|&topic| {
            let known = self.topics[topic].as_ref()?;
            if known.lite.is_some() {
                return None; // it may get a place in a lite topic
            }
            let queue = *known.queues.get(&properties.queue_id)?;
            Some(InnerQueue { topic, queue })
        });
        let Some(real) = real else { return Ok(0) };
        if !self.batch.is_open && !self.open_batch(py)? {
            return Ok(0);
        }
        let Some(transactions) = self.transactions.as_ref() else {
            return Ok(0);
        };
        let committed = Message {
            body: half.body,
            queue_id: properties.queue_id,
            flag: half.flag,
            sys_flag: half.sys_flag & !TRANSACTION | TRANSACTION_COMMIT,
            born_timestamp: half.born_timestamp,
            born_host: half.born_host,
            reconsume_times: half.reconsume_times,
            prepared_transaction_offset: half.log_offset,
            properties_length: half.properties.len(),
            tags_code: properties.tags_code,
            is_sharded: false,
        };
        let op_body = half.queue_offset.to_string();
        let op = Message {
            body: op_body.as_bytes(),
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: now,
            born_host: &self.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            properties_length: transactions.op_properties.len(),
            tags_code: transactions.op_tags_code,
            is_sharded: false,
        };
        let (Some(real_queue), Some(op_queue)) = (
            self.queues[real.queue].as_ref(),
            self.queues[ops.queue].as_ref(),
        ) else {
            return Ok(0);
        };
        let mut size = op.size(op_queue, &self.batch, &self.store_host);
        if is_commit {
            size += committed.size(real_queue, &self.batch, &self.store_host);
        }
        if !self.batch.has_room(size) {
            return Ok(0);
        }
        let (real_offset, op_offset) = (real_queue.offset(py)?, op_queue.offset(py)?);
        transactions.begin.call1(py, (half.queue_offset,))?;
        // Nothing below this line fails.
        let indexed = self.is_indexed;
        if is_commit {
            if let (Some(topic), Some(queue)) = (
                self.topics[real.topic].as_mut(),
                self.queues[real.queue].as_mut(),
            ) {
                let slot = Slot {
                    topic_number: real.topic,
                    topic,
                    queue_number: real.queue,
                    queue,
                    queue_offset: real_offset,
                };
                self.batch.append(
                    slot,
                    &committed,
                    &self.store_host,
                    |out| out.extend_from_slice(half.properties.as_bytes()),
                    indexed.then_some(|seed, out: &mut _| properties.index_hashes(seed, out)),
                );
            }
        }
        if let (Some(topic), Some(queue)) = (
            self.topics[ops.topic].as_mut(),
            self.queues[ops.queue].as_mut(),
        ) {
            let slot = Slot {
                topic_number: ops.topic,
                topic,
                queue_number: ops.queue,
                queue,
                queue_offset: op_offset,
            };
            self.batch.append(
                slot,
                &op,
                &self.store_host,
                |out| out.extend_from_slice(&transactions.op_properties),
                None::<fn(i32, &mut Vec<i32>)>,
            );
        }
        self.batch.ends.push(Ended {
            connection: connection.clone().unbind(),
            opaque: request.opaque,
            is_binary: found.is_binary,
            is_oneway: request.is_oneway,
            half_offset: half.queue_offset,
            is_commit,
        });
        Ok(found.size)
    }
}
