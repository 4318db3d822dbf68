//! Blocks of an IndexFile: entries in their chains, and then the slots that lead to them.

use cometmq_codec::index::{block, link, Keys, Place};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::Cell;

/// The slots that lead to the entries of a block, once those are written.
#[pyclass(module = "cometmq_core", frozen)]
pub struct Heads(Vec<(u32, i32)>);

#[pymethods]
impl Heads {
    /// Write them into the table; it is the one that the block was made for.
    fn write(&self, py: Python<'_>, table: PyBuffer<u8>) -> PyResult<()> {
        link(&self.0, cells(&table, py)?);
        Ok(())
    }
}

fn cells<'a>(table: &'a PyBuffer<u8>, py: Python<'a>) -> PyResult<&'a [Cell<u8>]> {
    table
        .as_mut_slice(py)
        .ok_or_else(|| PyValueError::new_err("a table that can be written"))
}

/// Make the entries of keys; return them, the slots that lead to them, and how many slots led to none before.
///
/// :param keys: native int32 hashes, and int64 log offsets and store timestamps (ms), in log order.
/// :param table: the bytes of the slots.
/// :param count: the number of the next entry.
/// :param begin_timestamp: the first store timestamp of the file.
#[pyfunction]
pub fn index_block<'py>(
    py: Python<'py>,
    keys: (
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
    ),
    table: PyBuffer<u8>,
    count: i32,
    begin_timestamp: i64,
) -> PyResult<(Bound<'py, PyBytes>, Heads, usize)> {
    let (hashes, offsets, timestamps) = keys;
    let keys = Keys {
        hashes: hashes.as_bytes(),
        offsets: offsets.as_bytes(),
        timestamps: timestamps.as_bytes(),
    };
    let made = block(
        &keys,
        &Place {
            table: cells(&table, py)?,
            count,
            begin_timestamp,
        },
    )
    .ok_or_else(|| PyValueError::new_err("entries that do not fit into the file"))?;
    Ok((
        PyBytes::new(py, &made.entries),
        Heads(made.heads),
        made.opened,
    ))
}
