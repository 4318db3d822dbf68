//! Columns of stored records as the buffers of Arrow arrays.

use crate::property_columns::{entries, nullable, strings, Entries, Nullable, Strings};
use crate::records::{bytes_of, Cells};
use cometmq_codec::record_columns::{Columns, Wanted};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::Cell;
use std::ops::Range;

/// The columns of records: the topic, if all have the same; the numbers and the ids; the ends of the bodies; and what was
/// wanted of the properties: maps, texts and the values of each name.
type Found<'py> = (
    Option<Bound<'py, PyBytes>>,
    (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>),
    Bound<'py, PyBytes>,
    (Entries<'py>, Strings<'py>, Vec<Nullable<'py>>),
);

/// Gathers the columns of records, whose bytes are needed only while they are taken.
///
/// :param wanted: whether maps and texts of the properties are wanted; names of properties; and whether only records are
///     taken that need no second look: not compressed, and with the topic of the first.
#[pyclass(module = "cometmq_core")]
pub struct RecordColumns(Columns);

#[pymethods]
impl RecordColumns {
    #[new]
    fn new(wanted: (bool, bool, Vec<String>, bool)) -> Self {
        let (maps, texts, names, plain) = wanted;
        RecordColumns(Columns::new(Wanted {
            maps,
            texts,
            names,
            plain,
        }))
    }

    /// Take records that stand one behind the other, and return their number of bytes. Python must decode the first
    /// that is not taken, unless the bodies have no room for it.
    ///
    /// :param bodies: a buffer that the bodies are copied into, behind those of earlier records; None when they are not
    ///     wanted.
    fn take(&mut self, py: Python<'_>, data: PyBuffer<u8>, bodies: Option<PyBuffer<u8>>) -> usize {
        let mut at = 0;
        self.each(py, &data, bodies.as_ref(), |take| {
            while at < data.item_count() {
                at = take(at)?;
            }
            Some(())
        });
        at
    }

    /// Take the records at ``starts``; false when Python must decode them, and then no more records may be taken.
    fn take_at(
        &mut self,
        py: Python<'_>,
        data: PyBuffer<u8>,
        starts: PyBuffer<i64>,
        bodies: Option<PyBuffer<u8>>,
    ) -> PyResult<bool> {
        let starts = starts.to_vec(py)?;
        let taken = self.each(py, &data, bodies.as_ref(), |take| {
            for start in starts {
                take(usize::try_from(start).ok()?)?;
            }
            Some(())
        });
        Ok(taken.is_some())
    }

    /// Return the columns of the records that were taken, and begin with the next.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Found<'py>> {
        let found = &self.0;
        let longs = found.longs.iter().map(|column| bytes_of(py, column));
        let ints = found.ints.iter().map(|column| bytes_of(py, column));
        let values = found.values.iter().map(|values| nullable(py, values));
        let columns = (
            found.topic().map(|topic| PyBytes::new(py, topic)),
            (
                longs.chain(ints).collect::<PyResult<_>>()?,
                PyBytes::new(py, &found.ids),
            ),
            bytes_of(py, &found.body_ends)?,
            (
                entries(py, &found.maps)?,
                strings(py, &found.texts)?,
                values.collect::<PyResult<_>>()?,
            ),
        );
        self.0.clear();
        Ok(columns)
    }
}

impl RecordColumns {
    /// Let `all` take records by their places.
    fn each(
        &mut self,
        py: Python<'_>,
        data: &PyBuffer<u8>,
        bodies: Option<&PyBuffer<u8>>,
        all: impl FnOnce(&mut dyn FnMut(usize) -> Option<usize>) -> Option<()>,
    ) -> Option<()> {
        let cells = data.as_slice(py)?;
        let mut room = match bodies {
            Some(bodies) => Some(bodies.as_mut_slice(py)?.get(self.0.body_bytes()..)?),
            None => None,
        };
        let mut copy = |place: Range<usize>| {
            let Some(all) = room else { return Some(()) };
            let from = cells.get(place)?;
            let (to, left) = all.split_at_checked(from.len())?;
            to.iter()
                .zip(from)
                .for_each(|(to, from): (&Cell<u8>, _)| to.set(from.get()));
            room = Some(left);
            Some(())
        };
        let columns = &mut self.0;
        all(&mut |at| columns.take(&Cells(cells), at, &mut copy))
    }
}
