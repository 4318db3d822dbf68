//! Plain calls of gRPC: SendMessage from the bytes of an HTTP/2 connection to the batch, AckMessage to a block for Python.

use crate::call_constants::Constants;
use crate::headers::HpackDecoder;
use crate::open_batch::{CallsOfTopic, Message, Slot};
use crate::plain_acks::{AckBlock, Acks};
use crate::sends_state::PlainSends;
use cometmq_codec::grpc_ack;
use cometmq_codec::grpc_send::{read, write_answer, GrpcMessage, Rules};
use cometmq_codec::http2::{self, cut_block, Request};
use cometmq_codec::properties::Properties;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList};
use std::collections::HashSet;

/// Calls that one call of `take_calls` may take, between which Python looks at the clock.
const CALLS: usize = 16;
/// Messages after which the next call is left for the next time.
const MESSAGES: usize = 64;

/// The calls of an endpoint, which go into the batch of its broker.
#[pyclass(module = "cometmq_core")]
pub struct PlainCalls {
    /// None once the garbage collector has taken it.
    sends: Option<Py<PlainSends>>,
    constants: Constants,
    request: Vec<u8>,
    texts: String,
}

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Ack,
}

/// Where the taken calls end, the last stream, the bytes of their data frames, their number, whether a call is cut off
/// behind them, and the acknowledgements.
type Taken<'py> = (usize, u32, usize, usize, bool, Option<AckBlock<'py>>);

/// The client that calls.
struct Client<'a> {
    receiver: &'a Bound<'a, PyAny>,
    born_host: &'a [u8],
    id: &'a [u8],
    ip: &'a str,
    now_ms: i64,
    takes_acks: bool,
}

#[pymethods]
impl PlainCalls {
    /// :param paths: of SendMessage and AckMessage.
    /// :param answers: header blocks before and behind an answer, and the encoded Status OK.
    /// :param reserved: properties that users cannot set.
    /// :param limits: messages of a request, bytes of a body, properties and their bytes, bytes of a request.
    /// :param acks: the broker's name, messages of an AckMessage, bytes of the message in its answer.
    #[new]
    fn new(
        sends: Py<PlainSends>,
        paths: (Vec<u8>, Vec<u8>),
        answers: (Vec<u8>, Vec<u8>, Vec<u8>),
        reserved: Vec<String>,
        limits: (usize, usize, usize, usize, usize),
        acks: (String, usize, usize),
    ) -> Self {
        let (send_path, ack_path) = paths;
        let (broker, max_entries, max_answer_bytes) = acks;
        let (headers, trailers, status) = answers;
        let (max_messages, max_body_bytes, max_properties, max_properties_bytes, max_request_bytes) =
            limits;
        let reserved: HashSet<Box<str>> = reserved.into_iter().map(String::into).collect();
        PlainCalls {
            sends: Some(sends),
            constants: Constants {
                send_path,
                ack_path,
                headers,
                trailers,
                status,
                rules: Rules {
                    reserved,
                    max_messages,
                    max_body_bytes,
                    max_properties,
                    max_properties_bytes,
                },
                ack_rules: grpc_ack::Rules {
                    broker,
                    max_entries,
                    max_answer_bytes,
                },
                max_request_bytes,
            },
            request: Vec::new(),
            texts: String::new(),
        }
    }

    /// For the garbage collector.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sends)
    }

    fn __clear__(&mut self) {
        self.sends = None;
    }

    /// Take calls for a topic that the core knows, until it forgets the topic; return whether it knows it.
    ///
    /// :param counter: a list with the number of the next message, by which its queue is chosen.
    /// :param queues: the number of queues.
    fn accept_topic(
        &self,
        py: Python<'_>,
        topic: &str,
        counter: Py<PyList>,
        queues: u64,
    ) -> PyResult<bool> {
        let Some(sends) = self.sends.as_ref() else {
            return Ok(false);
        };
        let sends = &mut *sends.try_borrow_mut(py)?;
        let at = sends.names.get(topic);
        let Some(found) = at.and_then(|at| sends.topics[*at].as_mut()) else {
            return Ok(false);
        };
        found.calls = (queues > 0).then_some(CallsOfTopic { counter, queues });
        Ok(true)
    }

    /// Take the plain calls at the beginning of `data[at:]`, some at most: sends go into the batch; acknowledgements are
    /// returned, and Python commits or undoes their headers.
    ///
    /// :param receiver: gets the answers to sends, with the numbers of the streams as opaques.
    /// :param born_host: of the messages of its calls.
    /// :param client: its id, which each call must name, and its address.
    /// :param decoder: of the connection.
    /// :param last_stream: the last stream of the connection.
    /// :param acks: whether acknowledgements are taken, and whether their handles are returned.
    /// :return: where the calls end, the last stream, the bytes of their data frames, their number, whether a call is
    ///     cut off behind them, and the acknowledgements.
    #[allow(clippy::too_many_arguments)]
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        receiver: &Bound<'py, PyAny>,
        born_host: &[u8],
        client: (PyBackedBytes, PyBackedStr),
        decoder: &Bound<'py, HpackDecoder>,
        data: &Bound<'py, PyBytes>,
        at: usize,
        last_stream: u32,
        now_ms: i64,
        acks: (bool, bool),
    ) -> PyResult<Taken<'py>> {
        let client = Client {
            receiver,
            born_host,
            id: &client.0,
            ip: &client.1,
            now_ms,
            takes_acks: acks.0,
        };
        let (mut at, mut last, mut data_bytes, mut taken) = (at, last_stream, 0, 0);
        let mut is_cut = false;
        let Some(sends) = self.sends.as_ref().map(|sends| sends.clone_ref(py)) else {
            return Ok((at, last, data_bytes, taken, is_cut, None));
        };
        let sends = &mut *sends.try_borrow_mut(py)?;
        let decoder = &mut *decoder.try_borrow_mut()?;
        let begin = sends.batch.messages;
        let data = data.as_bytes();
        let mut acks = Acks::new(py, acks.1);
        while acks.has_room()
            && (taken < CALLS || !acks.is_empty())
            && sends.batch.messages < begin + MESSAGES
        {
            let max_bytes = self.constants.max_request_bytes;
            let Some(request) = Request::read(data, at, last, &mut self.request, max_bytes) else {
                is_cut = self.is_cut(decoder, data, at, last, &client);
                break;
            };
            let Some(message) = request.message(&self.request) else {
                break;
            };
            let mark = decoder.table.mark();
            let is_put = match self.constants.kind(decoder, request.block, &client) {
                Some(Kind::Send) if acks.is_empty() => sends.put_call(
                    py,
                    &self.constants,
                    &client,
                    request.stream,
                    message,
                    &mut self.texts,
                ),
                // acknowledgements begin a block of their own, since Python may leave all of it to itself
                Some(Kind::Ack) if !acks.is_empty() || taken == 0 => {
                    acks.put(&self.constants, request.stream, message, now_ms)
                }
                _ => Ok(false),
            };
            if !matches!(is_put, Ok(true)) {
                decoder.table.undo_to(&mark);
                is_put?;
                break;
            }
            if acks.is_empty() {
                decoder.table.commit();
            }
            (at, last) = (request.end, request.stream);
            data_bytes += request.data_bytes;
            taken += 1;
        }
        self.request.clear();
        self.request.shrink_to(KEPT_BYTES);
        self.texts.clear();
        self.texts.shrink_to(KEPT_BYTES);
        let block = acks.block(py);
        Ok((at, last, data_bytes, taken, is_cut, block))
    }
}

impl PlainCalls {
    /// True when `data[at:]` is the beginning of a call that may be plain.
    fn is_cut(
        &self,
        decoder: &mut HpackDecoder,
        data: &[u8],
        at: usize,
        last_stream: u32,
        client: &Client<'_>,
    ) -> bool {
        let Some(block) = cut_block(data, at, last_stream) else {
            return false;
        };
        let mark = decoder.table.mark();
        let kind = self.constants.kind(decoder, block, client);
        decoder.table.undo_to(&mark);
        kind.is_some()
    }
}

impl Constants {
    /// What the headers of a call ask for, if they are plain and of this client. They are read, and not yet committed.
    fn kind(&self, decoder: &mut HpackDecoder, block: &[u8], client: &Client<'_>) -> Option<Kind> {
        let (mut is_post, mut kind, mut is_grpc, mut is_client) = (false, None, false, false);
        let read = decoder
            .table
            .read(block, decoder.max_bytes, |name, value, _| match name {
                b":method" => is_post = value == b"POST",
                b":path" if value == self.send_path => kind = Some(Kind::Send),
                b":path" if value == self.ack_path && client.takes_acks => kind = Some(Kind::Ack),
                b":path" => kind = None,
                b"content-type" => is_grpc = value.starts_with(b"application/grpc"),
                b"x-mq-client-id" => is_client = value == client.id,
                _ => (),
            });
        let is_whole = read.is_ok_and(|size| size <= decoder.max_bytes);
        kind.filter(|_| is_whole && is_post && is_grpc && is_client)
    }
}

/// Buffers of that size stay for the next call.
const KEPT_BYTES: usize = 1 << 16;

impl PlainSends {
    /// Put one call; false when it is left to Python, with nothing changed.
    fn put_call(
        &mut self,
        py: Python<'_>,
        calls: &Constants,
        client: &Client<'_>,
        stream: u32,
        message: &[u8],
        texts: &mut String,
    ) -> PyResult<bool> {
        let mut messages = Vec::new();
        texts.clear();
        let Some(topic) = read(message, &calls.rules, client.ip, texts, &mut messages) else {
            return Ok(false);
        };
        let Some(topic_number) = self.names.get(topic).copied() else {
            return Ok(false);
        };
        let Some(target) = self.topics[topic_number].as_ref() else {
            return Ok(false);
        };
        let Some(of_topic) = target.calls.as_ref() else {
            return Ok(false);
        };
        if target.lite.is_some() {
            return Ok(false);
        }
        let counter = of_topic.counter.clone_ref(py).into_bound(py);
        let number: u64 = counter.get_item(0)?.extract()?;
        let queue_id = (number % of_topic.queues) as i32;
        let Some(queue_number) = target.queues.get(&queue_id).copied() else {
            return Ok(false);
        };
        let sys_flag = target.sys_flag;
        let Some(properties) = self.plan_messages(texts, &messages) else {
            return Ok(false);
        };
        if self.batch.records.len() > self.max_batch_bytes
            || (!self.batch.is_open && !self.open_batch(py)?)
        {
            return Ok(false);
        }
        let (Some(topic), Some(queue)) = (
            self.topics[topic_number].as_mut(),
            self.queues[queue_number].as_mut(),
        ) else {
            return Ok(false);
        };
        let is_batch = messages.len() > 1;
        let records: Vec<Message<'_>> = messages
            .iter()
            .zip(&properties)
            .map(|(message, properties)| Message {
                body: message.body,
                queue_id,
                flag: 0,
                sys_flag,
                born_timestamp: if is_batch {
                    client.now_ms
                } else {
                    message.born_timestamp
                },
                born_host: client.born_host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                properties_length: properties.stored_length(&self.tail),
                tags_code: properties.tags_code,
                is_sharded: false,
            })
            .collect();
        let size = records
            .iter()
            .map(|record| record.size(queue, &self.batch, &self.store_host))
            .sum();
        if !self.batch.has_room(size) {
            return Ok(false);
        }
        let first = queue.offset(py)?;
        counter.set_item(0, number + 1)?;
        // Nothing below this line fails.
        for (at, (record, properties)) in records.iter().zip(&properties).enumerate() {
            let slot = Slot {
                topic_number,
                topic,
                queue_number,
                queue,
                queue_offset: first + at as i64,
            };
            self.batch.append(
                slot,
                record,
                &self.store_host,
                |out| properties.store(&self.tail, out),
                self.is_indexed
                    .then_some(|seed, out: &mut _| properties.index_hashes(seed, out)),
            );
        }
        self.batch.answer(
            client.receiver,
            stream as i32,
            false,
            message.len(),
            |out| {
                http2::write_answer(stream, &calls.headers, &calls.trailers, out, |out| {
                    write_answer(&calls.status, messages[0].id, first, out);
                });
            },
        );
        Ok(true)
    }

    /// The properties of messages; `None` when one of them is not plain or too large.
    fn plan_messages<'a>(
        &self,
        texts: &'a str,
        messages: &[GrpcMessage<'_>],
    ) -> Option<Vec<Properties<'a>>> {
        let mut found = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for message in messages {
            let (begin, end) = message.properties;
            let properties = Properties::read(&texts[begin..end])?;
            let length = properties.stored_length(&self.tail);
            bytes += message.body.len() + length + BATCH_HEAD_BYTES;
            if message.body.len() > self.max_body_bytes
                || length > self.max_properties_bytes
                || message.body.len() + length > self.max_stored_bytes
                || properties.is_half
                || properties.is_sharded
                || (self.needs_flush && !properties.waits)
            {
                return None;
            }
            found.push(properties);
        }
        (messages.len() == 1 || bytes <= self.max_body_bytes).then_some(found)
    }
}

/// More than the head of a message in a batch.
const BATCH_HEAD_BYTES: usize = 32;
