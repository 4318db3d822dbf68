//! Batches of messages (SEND_BATCH_MESSAGE): the records of one, without an object for each message.

use cometmq_codec::batch::{encode, Common, Most, Place};
use cometmq_codec::hash::java_hash;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// `(records, messages, size of the last one, bytes of bodies and properties, units, log offsets as big-endian int64,
/// index hashes as native int32, their log offsets as native int64)`.
type Batch<'py> = (
    Bound<'py, PyBytes>,
    usize,
    usize,
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Make the records of a batch; None when it is not plain, or there is no room for it: then Python stores or refuses it.
///
/// :param tails: what is added to the properties of each message, and to those of the first instead.
/// :param place: next log offset, the offset that no record may pass, store timestamp, next queue offset.
/// :param queue: its id, length and bytes of the topic, and the begin of its index keys or None without an index.
/// :param head: the fields of each record: sysFlag, born timestamp, born host, store host, reconsume times.
/// :param most: messages, bytes of properties, bytes of a body with properties.
#[pyfunction]
pub fn batch_records<'py>(
    py: Python<'py>,
    body: &[u8],
    tails: (Vec<u8>, Vec<u8>),
    place: (i64, i64, i64, i64),
    queue: (i32, Vec<u8>, Option<String>),
    head: (i32, i64, Vec<u8>, Vec<u8>, i32),
    most: (usize, usize, usize),
) -> Option<Batch<'py>> {
    let (next, limit, store_timestamp, queue_offset) = place;
    let (queue_id, topic, prefix) = queue;
    let (sys_flag, born_timestamp, born_host, store_host, reconsume_times) = head;
    let (messages, properties_bytes, stored_bytes) = most;
    let common = Common {
        queue_id,
        sys_flag,
        born_timestamp,
        born_host: &born_host,
        store_timestamp,
        store_host: &store_host,
        reconsume_times,
        topic: &topic,
        tail: &tails.0,
        first_tail: &tails.1,
        index_seed: prefix.map(|text| java_hash(0, &text)),
    };
    let place = Place {
        next,
        limit,
        queue_offset,
    };
    let most = Most {
        messages,
        properties_bytes,
        stored_bytes,
    };
    let made = encode(body, &common, &place, &most)?;
    let offsets: Vec<u8> = made
        .offsets
        .iter()
        .flat_map(|at| at.to_be_bytes())
        .collect();
    let hashes: Vec<u8> = made
        .index_hashes
        .iter()
        .flat_map(|hash| hash.to_ne_bytes())
        .collect();
    let hashed: Vec<u8> = made
        .index_offsets
        .iter()
        .flat_map(|at| at.to_ne_bytes())
        .collect();
    Some((
        PyBytes::new(py, &made.records),
        made.offsets.len(),
        made.last_size,
        made.content_bytes,
        PyBytes::new(py, &made.units),
        PyBytes::new(py, &offsets),
        PyBytes::new(py, &hashes),
        PyBytes::new(py, &hashed),
    ))
}
