//! Columns of stored records as the buffers of Arrow arrays.

use crate::property_columns::{entries, nullable, strings, Entries, Nullable, Strings};
use crate::records::{bytes_of, Cells};
use cometmq_codec::record_columns::{columns, Wanted};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The columns of records: the topic, if all have the same; the numbers and the ids; the ends of the bodies; and what was
/// wanted of the properties: maps, texts and the values of each name.
type Columns<'py> = (
    Option<Bound<'py, PyBytes>>,
    (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>),
    Bound<'py, PyBytes>,
    (Entries<'py>, Strings<'py>, Vec<Nullable<'py>>),
);

/// The columns of the records at ``starts``; None when Python must decode them.
///
/// :param bodies: a buffer that the bodies are copied into, one behind the other; None when they are not wanted.
/// :param wanted: whether maps and texts of the properties are wanted, and names of properties.
#[pyfunction]
pub fn record_columns<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    starts: PyBuffer<i64>,
    bodies: Option<PyBuffer<u8>>,
    wanted: (bool, bool, Vec<String>),
) -> PyResult<Option<Columns<'py>>> {
    let room = bodies.as_ref().map(|bodies| bodies.as_mut_slice(py));
    let (Some(cells), false) = (data.as_slice(py), matches!(room, Some(None))) else {
        return Ok(None);
    };
    let mut room = room.flatten();
    let (maps, texts, names) = wanted;
    let wanted = Wanted {
        maps,
        texts,
        names: &names,
    };
    let found = columns(&Cells(cells), &starts.to_vec(py)?, &wanted, |place| {
        let Some(all) = room else { return Some(()) };
        let from = cells.get(place)?;
        let (to, left) = all.split_at_checked(from.len())?;
        for (to, from) in to.iter().zip(from) {
            to.set(from.get());
        }
        room = Some(left);
        Some(())
    });
    let Some(found) = found else { return Ok(None) };
    let longs = found.longs.iter().map(|column| bytes_of(py, column));
    let ints = found.ints.iter().map(|column| bytes_of(py, column));
    let values = found.values.iter().map(|values| nullable(py, values));
    Ok(Some((
        found.topic.map(|topic| PyBytes::new(py, &topic)),
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
    )))
}
