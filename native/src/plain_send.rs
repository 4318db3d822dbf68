//! One plain send, or one plain batch of messages: read, planned, and put into the batch of the turn.
//!
//! A plan has everything that the send alone decides. It changes nothing, so that a send can be planned before the one
//! before it is put.

use crate::account::Account;
use crate::lite_index::LiteIndex;
use crate::open_batch::{Message, Slot};
use crate::sends_state::{InnerQueue, PlainSends};
use crate::transactions::TRANSACTION;
use cometmq_codec::answer::Stored;
use cometmq_codec::batch::{pieces, Most, Piece};
use cometmq_codec::constants::COMPRESSED;
use cometmq_codec::fields::SEND_BATCH_MESSAGE;
use cometmq_codec::frame::{frame, Frame};
use cometmq_codec::properties::{Properties, SEPARATOR};
use cometmq_codec::request::SendRequest;
use pyo3::prelude::*;
use std::slice;

/// The property with which a producer numbers the messages of its batches: Python checks the numbers.
const PRODUCER_SEQUENCE: &str = "PRODUCER_SEQUENCE";

/// The connection that sends, and its address.
pub struct Sender<'a> {
    pub connection: &'a Bound<'a, PyAny>,
    pub peer: &'a [u8],
}

/// Which sends a call may take.
pub struct Room<'a> {
    /// Only sends of this producer group, if there is one.
    pub group: Option<&'a str>,
    /// False where quotas or samples of the audit log count requests: batches are left to Python.
    pub takes_batches: bool,
    /// Ends of transactions may be taken: neither accounts nor quotas are checked.
    pub takes_ends: bool,
    pub messages: usize,
    pub bytes: usize,
}

/// The messages of a send.
enum Content<'a> {
    One(Piece<'a>),
    Batch(Vec<Piece<'a>>),
}

/// What is stored of a send, and where.
pub struct Plan<'a> {
    found: &'a Frame<'a>,
    request: &'a SendRequest<'a>,
    content: Content<'a>,
    /// What is stored behind the properties of each message, unless it is that of all messages.
    tail: Option<Vec<u8>>,
    sys_flag: i32,
    place: InnerQueue,
    queue_id: i32,
    /// True for a message of a lite topic.
    is_lite: bool,
}

/// The place of a message in its lite topic.
struct LitePlace {
    index: Py<LiteIndex>,
    /// The number of the lite topic; None for a new one.
    number: Option<i32>,
    /// What is stored behind the properties of the message.
    tail: Vec<u8>,
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

    /// Its messages, of which there is at least one.
    pub fn pieces(&self) -> &[Piece<'a>] {
        match &self.content {
            Content::One(piece) => slice::from_ref(piece),
            Content::Batch(pieces) => pieces,
        }
    }

    fn is_batch(&self) -> bool {
        matches!(self.content, Content::Batch(_))
    }

    /// True for a half message.
    fn is_half(&self) -> bool {
        matches!(&self.content, Content::One(piece) if piece.properties.is_half)
    }

    fn message(
        &self,
        piece: &Piece<'a>,
        properties_length: usize,
        born_host: &'a [u8],
    ) -> Message<'a> {
        let fields = &self.request.fields;
        Message {
            body: piece.body,
            queue_id: self.queue_id,
            flag: piece.flag,
            sys_flag: self.sys_flag,
            born_timestamp: fields.born_timestamp,
            born_host,
            reconsume_times: fields.reconsume_times,
            prepared_transaction_offset: 0,
            properties_length,
            tags_code: piece.properties.tags_code,
            is_sharded: piece.properties.is_sharded
                && !(self.is_batch() || self.is_half() || self.is_lite),
        }
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
        room: &Room<'_>,
    ) -> Option<Plan<'a>> {
        let fields = &request.fields;
        if room
            .group
            .is_some_and(|group| group != fields.producer_group())
        {
            return None;
        }
        let topic_number = *self.names.get(fields.topic())?;
        let topic = self.topics[topic_number].as_ref()?;
        let queue_number = *topic.queues.get(&fields.queue_id)?;
        let properties = Properties::read(fields.properties())?;
        if found.body.len() > self.max_body_bytes || (self.needs_flush && !properties.waits) {
            return None;
        }
        let mut plan = Plan {
            found,
            request,
            content: Content::Batch(Vec::new()),
            tail: None,
            sys_flag: fields.sys_flag | topic.sys_flag,
            place: InnerQueue {
                topic: topic_number,
                queue: queue_number,
            },
            queue_id: fields.queue_id,
            is_lite: topic.lite.is_some() && properties.is_lite(),
        };
        if request.code == SEND_BATCH_MESSAGE {
            if !room.takes_batches || topic.lite.is_some() {
                return None;
            }
            self.plan_batch(&mut plan, &properties)?;
        } else {
            self.plan_message(&mut plan, properties)?;
        }
        Some(plan)
    }

    fn plan_message<'a>(&self, plan: &mut Plan<'a>, properties: Properties<'a>) -> Option<()> {
        let fields = &plan.request.fields;
        let mut most = self.max_properties_bytes;
        if properties.is_half {
            let known = self.transactions.as_ref()?;
            most = known.max_half_bytes;
            plan.tail = Some(properties.half_tail(&self.tail, fields.topic(), fields.queue_id));
            plan.sys_flag &= !TRANSACTION;
            (plan.place, plan.queue_id) = (known.halves, 0);
        } else if fields.sys_flag & TRANSACTION != 0 {
            return None;
        }
        let properties_length = properties.stored_length(plan.tail.as_ref().unwrap_or(&self.tail));
        let body = plan.found.body;
        if plan.is_lite {
            let length =
                properties.own_length() + properties.lite_tail_most(&self.tail, fields.topic());
            if properties.is_half
                || properties.is_odd_lite(fields.properties())
                || length > most
                || body.len() + length > self.max_stored_bytes
            {
                return None;
            }
        }
        if properties_length > most || body.len() + properties_length > self.max_stored_bytes {
            return None;
        }
        plan.content = Content::One(Piece {
            flag: fields.flag,
            body,
            properties,
            properties_length,
        });
        Some(())
    }

    /// Plan the messages of a batch, behind whose properties its own are stored.
    fn plan_batch(&self, plan: &mut Plan<'_>, properties: &Properties<'_>) -> Option<()> {
        let fields = &plan.request.fields;
        let common = fields.properties();
        let common = common.strip_suffix(SEPARATOR).unwrap_or(common);
        if fields.sys_flag & (TRANSACTION | COMPRESSED) != 0
            || properties.is_half
            || properties.is_lite()
            || common.contains(PRODUCER_SEQUENCE)
        {
            return None;
        }
        if !common.is_empty() {
            let tail = [common.as_bytes(), &[SEPARATOR as u8], &self.tail].concat();
            plan.tail = Some(tail);
        }
        let tail = plan.tail.as_ref().unwrap_or(&self.tail);
        let most = Most {
            messages: self.max_messages,
            properties_bytes: self.max_properties_bytes,
            stored_bytes: self.max_stored_bytes,
        };
        plan.content = Content::Batch(pieces(plan.found.body, tail, tail, &most)?);
        Some(())
    }

    /// Put a send without an account; return its number of messages, 0 when it is left to Python, with nothing changed.
    pub fn put_send(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        found: &Frame<'_>,
        room: &Room<'_>,
    ) -> PyResult<usize> {
        let Some(request) = SendRequest::read(found.is_binary, found.header) else {
            return Ok(0);
        };
        match self.plan(found, &request, room) {
            Some(plan) => self.put(py, sender, &plan, None),
            None => Ok(0),
        }
    }

    /// Put a planned send into the batch of the turn; return its number of messages, 0 when it is left to Python, with
    /// nothing changed.
    ///
    /// :param account: who has signed it, if accounts are checked.
    pub fn put(
        &mut self,
        py: Python<'_>,
        sender: &Sender<'_>,
        plan: &Plan<'_>,
        mut account: Option<&mut Account>,
    ) -> PyResult<usize> {
        let (found, request, place) = (plan.found, plan.request, plan.place);
        let fields = &request.fields;
        if self.batch.records.len() > self.max_batch_bytes {
            return Ok(0);
        }
        if let Some(account) = account.as_mut() {
            if !account.may_send(py, fields.topic())? {
                return Ok(0);
            }
        }
        if !self.batch.is_open && !self.open_batch(py)? {
            return Ok(0);
        }
        let pieces = plan.pieces();
        let lite = match pieces.first() {
            Some(piece) if plan.is_lite => match self.lite_place(py, place, &piece.properties)? {
                Some(found) => Some(found),
                None => return Ok(0),
            },
            _ => None,
        };
        let batch = &mut self.batch;
        let (Some(topic), Some(queue)) = (
            self.topics[place.topic].as_mut(),
            self.queues[place.queue].as_mut(),
        ) else {
            return Ok(0);
        };
        let length = |piece: &Piece<'_>| match &lite {
            Some(lite) => piece.properties.stored_length(&lite.tail),
            None => piece.properties_length,
        };
        let size = pieces
            .iter()
            .map(|piece| {
                plan.message(piece, length(piece), sender.peer)
                    .size(queue, batch, &self.store_host)
            })
            .sum();
        if !batch.has_room(size) {
            return Ok(0);
        }
        if let (true, Some(known)) = (plan.is_half(), self.transactions.as_ref()) {
            let room = match batch.half_room {
                Some(room) => room,
                None => known.room.call0(py)?.extract(py)?,
            };
            batch.half_room = Some(room);
            if room == 0 {
                return Ok(0);
            }
        }
        // The last question: a send that Python handles after it would count as a repetition.
        if let Some(account) = account {
            if !account.is_fresh(py, request)? {
                return Ok(0);
            }
        }
        let first = queue.offset(py)?;
        // Nothing below this line fails.
        if plan.is_half() {
            batch.half_room = batch.half_room.map(|room| room.saturating_sub(1));
        }
        let mut tail = plan.tail.as_ref().unwrap_or(&self.tail);
        if let (Some(lite), Some(piece)) = (&lite, pieces.first()) {
            tail = &lite.tail;
            let mut held = lite.index.bind(py).borrow_mut();
            let index = &mut held.index;
            let number = match lite.number {
                Some(number) => Some(number),
                None => {
                    batch.lite_room = batch.lite_room.map(|room| room.saturating_sub(1));
                    index.add(piece.properties.lite_topic.as_bytes(), 0)
                }
            };
            if let Some(number) = number {
                index.append(number, batch.next);
                batch.add_lite(py, &lite.index);
            }
        }
        batch.offsets.clear();
        for (number, piece) in pieces.iter().enumerate() {
            batch.offsets.push(batch.next);
            let slot = Slot {
                topic_number: place.topic,
                topic,
                queue_number: place.queue,
                queue,
                queue_offset: first + number as i64,
            };
            batch.append(
                slot,
                &plan.message(piece, length(piece), sender.peer),
                &self.store_host,
                |out| piece.properties.store(tail, out),
                self.is_indexed
                    .then_some(|seed, out: &mut _| piece.properties.index_hashes(seed, out)),
            );
        }
        if !request.is_oneway {
            batch.answered_batches += usize::from(plan.is_batch());
            let offsets = std::mem::take(&mut batch.offsets);
            let stored = Stored {
                is_batch: plan.is_batch(),
                log_offsets: &offsets,
                queue_id: fields.queue_id,
                queue_offset: first,
            };
            let answers = &mut self.answers;
            batch.answer(
                sender.connection,
                request.opaque,
                found.is_binary,
                found.body.len(),
                |out| answers.write(found.is_binary, request.opaque, &stored, out),
            );
            batch.offsets = offsets;
        }
        Ok(pieces.len())
    }

    /// Find the place of a message in its lite topic; `None` when there may be no more lite topics.
    fn lite_place(
        &mut self,
        py: Python<'_>,
        place: InnerQueue,
        properties: &Properties<'_>,
    ) -> PyResult<Option<LitePlace>> {
        let Some(parent) = self.topics[place.topic]
            .as_ref()
            .and_then(|topic| topic.lite.as_ref())
        else {
            return Ok(None);
        };
        let (number, offset) = {
            let held = parent.index.bind(py).try_borrow()?;
            let index = &held.index;
            let number = index.names.find(properties.lite_topic.as_bytes());
            (number, number.map_or(0, |number| index.extent(number).1))
        };
        if number.is_none() {
            let room = match (self.batch.lite_room, &self.lite_room) {
                (Some(room), _) => room,
                (None, Some(ask)) => ask.call0(py)?.extract(py)?,
                (None, None) => 0,
            };
            self.batch.lite_room = Some(room);
            if room == 0 {
                return Ok(None);
            }
        }
        Ok(Some(LitePlace {
            index: parent.index.clone_ref(py),
            number,
            tail: properties.lite_tail(&self.tail, &parent.name, offset),
        }))
    }
}
