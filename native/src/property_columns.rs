//! Properties of many records as the buffers of Arrow arrays.

use cometmq_codec::property_columns::{maps, values, Texts};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Offsets as native int32, and the bytes of the texts.
type Strings<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// The value of one property of each record, and bits that mark the records that have it; None when a text is not UTF-8.
///
/// :param data: the texts, one behind the other; ``offsets`` has the end of each, with the begin of the first before.
#[pyfunction]
pub fn property_values<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<i32>,
    name: &str,
) -> PyResult<Option<(Strings<'py>, Bound<'py, PyBytes>)>> {
    let (data, offsets) = (data.to_vec(py)?, offsets.to_vec(py)?);
    let found = values(&data, &offsets, name);
    Ok(found.map(|(texts, has)| (strings(py, &texts), PyBytes::new(py, &has))))
}

/// The properties of each record: offsets of the maps, names and values; None when a text is not plain.
#[pyfunction]
pub fn property_maps<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<i32>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Strings<'py>, Strings<'py>)>> {
    let (data, offsets) = (data.to_vec(py)?, offsets.to_vec(py)?);
    Ok(maps(&data, &offsets).map(|found| {
        (
            numbers(py, &found.offsets),
            strings(py, &found.names),
            strings(py, &found.values),
        )
    }))
}

fn strings<'py>(py: Python<'py>, texts: &Texts) -> Strings<'py> {
    (numbers(py, &texts.offsets), PyBytes::new(py, &texts.bytes))
}

fn numbers<'py>(py: Python<'py>, numbers: &[i32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect();
    PyBytes::new(py, &bytes)
}
