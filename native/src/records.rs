//! Stored records: those of a pull, found by their units and copied out of a log file at once; and where their parts are.

use cometmq_codec::layout::{self, Bytes};
use cometmq_codec::units::{find, Found, Most, Queue, Segment};
use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;
use std::ops::Range;

/// Records as `(their bytes if they were copied, otherwise begin and end of each run in the file, messages, bytes, units
/// looked at, log offset of the last unit)`.
type Records<'py> = (
    Option<Bound<'py, PyBytes>>,
    Vec<(usize, usize)>,
    usize,
    usize,
    usize,
    i64,
);

/// Find the records of units in a log file, and copy them if they are not large; None when they do not all lie in it, or a
/// unit does not lead to its record.
///
/// :param units: bytes of queue units; ``codes``: the wanted tags codes, None for all.
/// :param queue: topic, queue id, the queue offset of the first unit, and the offset from which on units are known to lead
///     to their records.
/// :param segment: the bytes of the file, the log offset of the first, the offset from which on records are there, and
///     the offset behind the last that may be read.
/// :param most: messages, bytes, and bytes that are copied.
#[pyfunction]
pub fn records<'py>(
    py: Python<'py>,
    units: PyBuffer<u8>,
    codes: Option<Vec<i64>>,
    queue: (PyBackedStr, i32, i64, i64),
    segment: (PyBuffer<u8>, i64, i64, i64),
    most: (usize, usize, usize),
) -> PyResult<Option<Records<'py>>> {
    let (log, base, low, end) = segment;
    let Some(log) = log.as_slice(py) else {
        return Ok(None);
    };
    let (topic, queue_id, offset, known_from) = queue;
    let (messages, bytes, copied_bytes) = most;
    let found = find(
        &units.to_vec(py)?,
        codes.as_deref(),
        &Queue {
            topic: topic.as_bytes(),
            queue_id,
            offset,
            known_from,
        },
        &Segment {
            log: &Cells(log),
            base,
            low,
            end,
        },
        &Most { messages, bytes },
    );
    let Some(found) = found else { return Ok(None) };
    let mut runs = Vec::new();
    let mut bytes = None;
    if (1..=copied_bytes).contains(&found.bytes) {
        bytes = Some(copy(py, log, &found)?);
    } else {
        runs = found.runs;
    }
    Ok(Some((
        bytes,
        runs,
        found.messages,
        found.bytes,
        found.looked_at,
        found.last,
    )))
}

fn copy<'py>(
    py: Python<'py>,
    log: &[ReadOnlyCell<u8>],
    found: &Found,
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, found.bytes, |out| {
        let mut at = 0;
        for (begin, end) in &found.runs {
            let cells = &log[*begin..*end];
            for (byte, cell) in out[at..at + cells.len()].iter_mut().zip(cells) {
                *byte = cell.get();
            }
            at += cells.len();
        }
        Ok(())
    })
}

/// A buffer of Python, of which only a few bytes are read.
pub struct Cells<'a>(pub &'a [ReadOnlyCell<u8>]);

impl Bytes for Cells<'_> {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let cells = self.0.get(at..at.checked_add(N)?)?;
        Some(std::array::from_fn(|number| cells[number].get()))
    }

    fn append_to(&self, out: &mut Vec<u8>, range: Range<usize>) -> Option<()> {
        out.extend(self.0.get(range)?.iter().map(ReadOnlyCell::get));
        Some(())
    }
}

/// The position of each record of a buffer, as native int64; None when the parts of one do not add up to its size, or the
/// sizes do not lead exactly to the buffer's end.
#[pyfunction]
pub fn record_starts<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(cells) = data.as_slice(py) else {
        return Ok(None);
    };
    let found = layout::whole_starts(&Cells(cells));
    found.map(|starts| bytes_of(py, &starts)).transpose()
}

/// Begin and length of body, topic and properties of each record, as six rows of native int64; None when the parts of
/// one do not add up.
#[pyfunction]
pub fn record_layout<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    starts: PyBuffer<i64>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(cells) = data.as_slice(py) else {
        return Ok(None);
    };
    let found = layout::layout(&Cells(cells), &starts.to_vec(py)?);
    found.map(|rows| bytes_of(py, &rows)).transpose()
}

/// Numbers in native order.
pub fn bytes_of<'py, T: Number>(py: Python<'py>, numbers: &[T]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(numbers), |out| {
        for (bytes, number) in out.chunks_exact_mut(size_of::<T>()).zip(numbers) {
            number.write(bytes);
        }
        Ok(())
    })
}

/// A number with a native order of bytes.
pub trait Number {
    fn write(&self, out: &mut [u8]);
}

impl Number for i32 {
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }
}

impl Number for i64 {
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_ne_bytes());
    }
}
