//! Writes the answers of one turn to their sockets, without a call of Python for each connection.
//!
//! A connection has the attribute `direct_fd`: the descriptor of its socket, or -1 while something else is queued for
//! it or it is closing. Whatever the kernel does not take is left to Python, which queues it.

use nix::sys::socket::{send, MsgFlags};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// Write the answers of many connections; return `[(row, bytes written)]` of those that Python must finish.
///
/// :param answers: ``[(connection, answers, …)]``
#[pyfunction]
pub fn write_answers(py: Python<'_>, answers: &Bound<'_, PyList>) -> PyResult<Vec<(usize, usize)>> {
    let name = intern!(py, "direct_fd");
    let mut left = Vec::new();
    for (row, answered) in answers.iter().enumerate() {
        let answered = answered.cast::<PyTuple>()?;
        let connection = answered.get_borrowed_item(0)?;
        let descriptor: i32 = connection.getattr(name)?.extract()?;
        let bytes = answered.get_borrowed_item(1)?;
        let bytes = bytes.cast::<PyBytes>()?.as_bytes();
        let written = if descriptor < 0 {
            0
        } else {
            // A failure is Python's to notice: it writes the same bytes and gets the same error.
            send(descriptor, bytes, MsgFlags::MSG_DONTWAIT).unwrap_or(0)
        };
        if written < bytes.len() {
            if descriptor >= 0 {
                connection.setattr(name, -1)?; // what a later row has for this connection must follow the rest
            }
            left.push((row, written));
        }
    }
    Ok(left)
}
