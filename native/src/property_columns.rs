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
    let Some((texts, has)) = values(&data, &offsets, name) else {
        return Ok(None);
    };
    Ok(Some((strings(py, &texts)?, PyBytes::new(py, &has))))
}

/// The properties of each record: offsets of the maps, names and values; None when a text is not plain.
#[pyfunction]
pub fn property_maps<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<i32>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Strings<'py>, Strings<'py>)>> {
    let (data, offsets) = (data.to_vec(py)?, offsets.to_vec(py)?);
    let Some(found) = maps(&data, &offsets) else {
        return Ok(None);
    };
    Ok(Some((
        numbers(py, &found.offsets)?,
        strings(py, &found.names)?,
        strings(py, &found.values)?,
    )))
}

fn strings<'py>(py: Python<'py>, texts: &Texts) -> PyResult<Strings<'py>> {
    let offsets = numbers(py, &texts.offsets)?;
    Ok((offsets, PyBytes::new(py, &texts.bytes)))
}

fn numbers<'py>(py: Python<'py>, numbers: &[i32]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(numbers), |out| {
        for (bytes, number) in out.chunks_exact_mut(size_of::<i32>()).zip(numbers) {
            bytes.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    })
}
