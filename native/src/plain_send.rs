//! One plain send: read, planned, and put into the batch.
//!
//! A plan has everything that the send alone decides. It changes nothing, so that a send can be planned before the one
//! before it is put.

use crate::account::Account;
use crate::open_batch::{Message, Slot};
use crate::sends_state::{InnerQueue, PlainSends};
use crate::transactions::TRANSACTION;
use cometmq_codec::frame::{frame, Frame};
use cometmq_codec::properties::Properties;
use cometmq_codec::request::SendRequest;
use pyo3::prelude::*;

/// The connection that sends, and its address.
pub struct Sender<'a> {
    pub connection: &'a Bound<'a, PyAny>,
    pub peer: &'a [u8],
}

/// What is stored of a send, and where.
pub struct Plan<'a> {
    found: &'a Frame<'a>,
    request: &'a SendRequest<'a>,
    properties: Properties<'a>,
    properties_length: usize,
    /// The tail of the properties of a half message.
    half_tail: Option<Vec<u8>>,
    sys_flag: i32,
    place: InnerQueue,
    queue_id: i32,
}

impl<'a> Plan<'a> {
    /// Bytes of its frame.
    pub fn size(&self) -> usize {
        self.found.size
    }

    /// What its account has signed: the request and its body.
    pub fn signed(&self) -> (&'a SendRequest<'a>, &'a [u8]) {
        (self.request, self.found.body)
    }
}

impl PlainSends {
    /// The frame at `data[at:]`, if it is whole.
    pub fn frame<'a>(&self, data: &'a [u8], at: usize) -> Option<Frame<'a>> {
        frame(data.get(at..)?, self.max_frame_bytes, self.max_header_bytes)
    }

    /// Plan a send; `None` when it is left to Python.
    pub fn plan<'a>(
        &self,
        found: &'a Frame<'a>,
        request: &'a SendRequest<'a>,
        group: Option<&str>,
    ) -> Option<Plan<'a>> {
        let fields = &request.fields;
        if group.is_some_and(|group| group != fields.producer_group()) {
            return None;
        }
        let topic_number = *self.names.get(fields.topic())?;
        let topic = self.topics[topic_number].as_ref()?;
        let queue_number = *topic.queues.get(&fields.queue_id)?;
        let properties = Properties::read(fields.properties())?;
        let half = match (properties.is_half, self.transactions.as_ref()) {
            (false, _) => None,
            (true, None) => return None,
            (true, Some(known)) => Some((
                known,
                properties.half_tail(&self.tail, fields.topic(), fields.queue_id),
            )),
        };
        let tail = half.as_ref().map_or(&self.tail, |(_, tail)| tail);
        let properties_length = properties.stored_length(tail);
        let most = half
            .as_ref()
            .map_or(self.max_properties_bytes, |(known, _)| known.max_half_bytes);
        if found.body.len() > self.max_body_bytes
            || properties_length > most
            || found.body.len() + properties_length > self.max_stored_bytes
            || (half.is_none() && fields.sys_flag & TRANSACTION != 0)
            || (self.needs_flush && !properties.waits)
        {
            return None;
        }
        let mut sys_flag = fields.sys_flag | topic.sys_flag;
        let (mut place, mut queue_id) = (
            InnerQueue {
                topic: topic_number,
                queue: queue_number,
            },
            fields.queue_id,
        );
        if let Some((known, _)) = &half {
            sys_flag &= !TRANSACTION;
            (place, queue_id) = (known.halves, 0);
        }
        Some(Plan {
            found,
            request,
            properties,
            properties_length,
            half_tail: half.map(|(_, tail)| tail),
            sys_flag,
            place,
            queue_id,
        })
    }

    /// Put a send without an account; false when it is left to Python, with nothing changed.
    pub fn put_send(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        found: &Frame<'_>,
        group: Option<&str>,
    ) -> PyResult<bool> {
        let Some(request) = SendRequest::read(found.is_binary, found.header) else {
            return Ok(false);
        };
        match self.plan(found, &request, group) {
            Some(plan) => self.put(py, sender, &plan, None),
            None => Ok(false),
        }
    }

    /// Put a planned send into the batch; false when it is left to Python, with nothing changed.
    ///
    /// :param account: who has signed it, if accounts are checked.
    pub fn put(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        plan: &Plan<'_>,
        mut account: Option<&mut Account>,
    ) -> PyResult<bool> {
        let Plan {
            found,
            request,
            properties,
            place,
            ..
        } = plan;
        let fields = &request.fields;
        if self.batch.records.len() > self.max_batch_bytes {
            return Ok(false);
        }
        if let Some(account) = account.as_mut() {
            if !account.may_send(py, fields.topic())? {
                return Ok(false);
            }
        }
        if !self.batch.is_open && !self.open_batch(py)? {
            return Ok(false);
        }
        let batch = &mut self.batch;
        let (Some(topic), Some(queue)) = (
            self.topics[place.topic].as_mut(),
            self.queues[place.queue].as_mut(),
        ) else {
            return Ok(false);
        };
        let message = Message {
            body: found.body,
            queue_id: plan.queue_id,
            flag: fields.flag,
            sys_flag: plan.sys_flag,
            born_timestamp: fields.born_timestamp,
            born_host: sender.peer,
            reconsume_times: fields.reconsume_times,
            prepared_transaction_offset: 0,
            properties_length: plan.properties_length,
            tags_code: properties.tags_code,
            is_sharded: properties.is_sharded && !properties.is_half,
        };
        if !batch.has_room(message.size(queue, batch, &self.store_host)) {
            return Ok(false);
        }
        if let (true, Some(known)) = (properties.is_half, self.transactions.as_ref()) {
            let room = match batch.half_room {
                Some(room) => room,
                None => known.room.call0(py)?.extract(py)?,
            };
            batch.half_room = Some(room);
            if room == 0 {
                return Ok(false);
            }
        }
        // The last question: a send that Python handles after it would count as a repetition.
        if let Some(account) = account {
            if !account.is_fresh(py, request)? {
                return Ok(false);
            }
        }
        let queue_offset = queue.offset(py)?;
        // Nothing below this line fails.
        let log_offset = batch.next;
        if properties.is_half {
            batch.half_room = batch.half_room.map(|room| room.saturating_sub(1));
        }
        let slot = Slot {
            topic_number: place.topic,
            topic,
            queue_number: place.queue,
            queue,
            queue_offset,
        };
        batch.append(
            slot,
            &message,
            &self.store_host,
            |out| properties.store(plan.half_tail.as_ref().unwrap_or(&self.tail), out),
            self.is_indexed
                .then_some(|seed, out: &mut _| properties.index_hashes(seed, out)),
        );
        if !request.is_oneway {
            let answers = &mut self.answers;
            batch.answer(
                sender.connection,
                request.opaque,
                found.is_binary,
                found.body.len(),
                |out| {
                    answers.write(
                        found.is_binary,
                        request.opaque,
                        log_offset,
                        fields.queue_id,
                        queue_offset,
                        out,
                    );
                },
            );
        }
        Ok(true)
    }
}
